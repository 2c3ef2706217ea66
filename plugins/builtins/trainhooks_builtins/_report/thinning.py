"""Fewer points that look the same: the extremes and the mean of each stretch of a curve."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainhooks.run_history import MetricSeries

#: Means of a curve, which is about two for each dot of a chart that is half as wide as a screen.
MEANS: Final = 1000
#: Points of all curves of a page together, which bounds its size, and the fewest that a curve has.
MOST_POINTS: Final = 400_000
FEWEST_POINTS: Final = 100


@dataclass(frozen=True)
class Thinned:
    """What is drawn of a curve.

    Args:
        steps: Of the points that are kept.
        values: Their values; NaN is a gap.
        mean_steps: Of the means, one for each stretch; empty where every point is kept.
        means: Of each stretch; NaN where it has no finite value.
    """

    steps: array[int]
    values: array[float]
    mean_steps: array[int]
    means: array[float]


def points_for_each(curves: int) -> int:
    """Return how many points each of so many curves may have."""
    return max(MOST_POINTS // max(curves, 1), FEWEST_POINTS)


def thinned(series: MetricSeries, most: int) -> Thinned:
    """Return at most ``most`` points of a curve: the first and the last, and of each stretch its extremes and a gap, if any.

    Args:
        series: The curve.
        most: Points, means included.
    """
    steps, values = series.steps, array("d", (value if math.isfinite(value) else math.nan for value in series.values))
    if len(values) <= most:
        return Thinned(steps, values, array("q"), array("d"))
    gaps = any(map(math.isnan, values))
    means = min(MEANS, most // 4)
    kept = [0]
    for begin, end in _stretches(len(values), max((most - means - 2) // (3 if gaps else 2), 1)):
        part = values[begin:end]
        finite = _finite(part) if gaps else part
        chosen = {part.index(min(finite)), part.index(max(finite))} if finite else set()
        if len(finite) < len(part):
            chosen.add(next(i for i, value in enumerate(part) if math.isnan(value)))
        kept += sorted(begin + one for one in chosen)
    kept = list(dict.fromkeys([*kept, len(values) - 1]))
    averages = [(steps[(begin + end - 1) // 2], _finite(values[begin:end])) for begin, end in _stretches(len(values), means)]
    return Thinned(
        array("q", (steps[i] for i in kept)),
        array("d", (values[i] for i in kept)),
        array("q", (step for step, _ in averages)),
        array("d", (sum(value / len(part) for value in part) if part else math.nan for _, part in averages)),
    )


def _stretches(length: int, count: int) -> list[tuple[int, int]]:
    bounds = [length * i // count for i in range(count + 1)]
    return [(begin, end) for begin, end in pairwise(bounds) if begin < end]


def _finite(values: array[float]) -> array[float]:
    return array("d", filter(math.isfinite, values))


def knots(length: int, wanted: Sequence[int], most: int = 1000) -> list[int]:
    """Return indices of a table that is read between them by straight lines: evenly spread, the ends and those wanted."""
    even = {round(i * (length - 1) / (most - 1)) for i in range(most)} if length > most else set(range(length))
    return sorted(even | {i for i in wanted if 0 <= i < length})
