"""What a learning rate range test says: ways to read a rate from a curve of losses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def suggestions(rates: Sequence[float], losses: Sequence[float]) -> dict[str, float | None]:
    """Return what each way to suggest a rate gives, or ``None`` where the losses give no reason.

    Args:
        rates: Rising.
        losses: Smoothed.
    """
    nothing = dict.fromkeys(("steepest", "valley", "minimum"))
    if len(rates) < 2 or min(losses) >= losses[0]:  # noqa: PLR2004 - two points for a slope
        return {**nothing}
    lowest = losses.index(min(losses))
    slopes = _slopes([math.log(rate) for rate in rates], losses)[: lowest + 1]  # what falls later has risen before
    down = _longest_fall(losses)
    return {
        "steepest": rates[slopes.index(min(slopes))],
        "valley": rates[down[len(down) // 2]],
        "minimum": rates[lowest] / 10,
    }


def _slopes(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Return the slope at each point: between its neighbours, at the ends between it and the one beside it."""
    last = len(x) - 1
    pairs = [(max(i - 1, 0), min(i + 1, last)) for i in range(len(x))]
    return [(y[right] - y[left]) / (x[right] - x[left]) for left, right in pairs]


def _longest_fall(losses: Sequence[float]) -> list[int]:
    """Return the indices of the longest strictly falling subsequence, the earliest of those of one length."""
    lengths, before = [1] * len(losses), [-1] * len(losses)
    for i in range(len(losses)):
        for j in range(i):
            if losses[j] > losses[i] and lengths[j] + 1 > lengths[i]:
                lengths[i], before[i] = lengths[j] + 1, j
    index = lengths.index(max(lengths))
    indices = []
    while index >= 0:
        indices.append(index)
        index = before[index]
    return indices[::-1]
