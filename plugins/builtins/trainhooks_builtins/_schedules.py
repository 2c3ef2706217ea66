"""Schedules as pure functions of progress; no plugin.

A schedule's ``value(progress, total, base)`` is the value at ``progress`` (from 0) of ``total``, for a parameter group whose own
value is ``base``. What it counts - updates, steps, epochs - is its caller's matter. As nothing is kept from one call to the next, a
resumed run goes on exactly and a changed length is followed.

The builders below take the parameters that a user gives. The formulas are those of MMCV 1.7 (``mmcv/runner/hooks/lr_updater.py``)
where it has the schedule, else those of the source that is named.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trainhooks import OptionError

Value = Callable[[int, int, float], float]


@dataclass(frozen=True)
class Schedule:
    """One schedule with its parameters.

    Args:
        value: Of progress, total and base.
        bounded: Whether it must know the total.
        relative: Whether the value is ``base`` times a factor, so that one factor serves all groups.
    """

    value: Value
    bounded: bool = True
    relative: bool = True


def require(name: str, value: object, *, holds: bool, must: str) -> None:
    """Refuse a parameter that does not hold."""
    if not holds:
        message = f"{name} = {value}: must be {must}"
        raise OptionError(message)


def _falling(end: float, end_value: float | None, shape: Callable[[int, int], float]) -> Schedule:
    """Return the schedule that goes from ``base`` (shape 1) to its end (shape 0)."""
    if end and end_value is not None:
        message = f"end = {end} and end_value = {end_value}: give one, a factor of the base or the value itself"
        raise OptionError(message)

    def value(progress: int, total: int, base: float) -> float:
        low = end * base if end_value is None else end_value
        return low + (base - low) * shape(progress, total)

    return Schedule(value, relative=end_value is None)


def _share(progress: int, total: int) -> float:
    return min(progress / total, 1.0) if total > 0 else 1.0


def half_cosine(share: float) -> float:
    """Return what is left at a share of the way along half a cosine, from 1 to 0."""
    return (1 + math.cos(math.pi * share)) / 2


def constant(factor: float = 1.0) -> Schedule:
    """Base times ``factor``."""
    return Schedule(lambda _progress, _total, base: base * factor, bounded=False)


def step(
    every: int | None = None, milestones: list[int] | None = None, gamma: float = 0.1, floor: float | None = None
) -> Schedule:
    """Base times ``gamma ** k``, not below ``floor``; ``k`` counts every n-th point, or the milestones reached."""
    if (every is None) == (milestones is None):
        message = f"every = {every}, milestones = {milestones}: give one of them"
        raise OptionError(message)
    if every is not None:
        require("every", every, holds=every > 0, must="at least 1")
    points = milestones or []
    require("milestones", points, holds=points == sorted(set(points)), must="in increasing order")

    def value(progress: int, total: int, base: float) -> float:
        passed = progress // every if every is not None else bisect_right(points, progress)
        return base * gamma**passed if floor is None else max(base * gamma**passed, floor)

    return Schedule(value, bounded=False, relative=floor is None)


def multi_step(milestones: list[int], gamma: float = 0.1, floor: float | None = None) -> Schedule:
    """Base times ``gamma`` to the number of milestones reached, not below ``floor``."""
    return step(milestones=milestones, gamma=gamma, floor=floor)


def exp(gamma: float) -> Schedule:
    """Base times ``gamma ** progress``."""
    require("gamma", gamma, holds=gamma >= 0, must="0 or more")
    return Schedule(lambda progress, _total, base: base * gamma**progress, bounded=False)


def inv(gamma: float, power: float = 1.0) -> Schedule:
    """Base times ``(1 + gamma * progress) ** -power``."""
    require("gamma", gamma, holds=gamma >= 0, must="0 or more")
    return Schedule(lambda progress, _total, base: base * (1 + gamma * progress) ** -power, bounded=False)


def inverse_sqrt(timescale: int = 10000) -> Schedule:
    """Base times ``sqrt(timescale / (progress + timescale))`` (transformers; with the length of the warmup, Vaswani et al. 2017)."""
    require("timescale", timescale, holds=timescale > 0, must="at least 1")
    return Schedule(lambda progress, _total, base: base / math.sqrt((progress + timescale) / timescale), bounded=False)


def poly(power: float = 1.0, end: float = 0.0, end_value: float | None = None) -> Schedule:
    """From base to the end by ``(1 - x) ** power``, ``x`` being the share that is done."""
    require("power", power, holds=power > 0, must="above 0")
    return _falling(end, end_value, lambda progress, total: (1 - _share(progress, total)) ** power)


def cosine(end: float = 0.0, end_value: float | None = None) -> Schedule:
    """From base to the end along half a cosine (Loshchilov and Hutter 2017, equation 5, without restarts)."""
    return _falling(end, end_value, lambda progress, total: half_cosine(_share(progress, total)))


def linear(start: float = 1.0, end: float = 0.0, end_value: float | None = None) -> Schedule:
    """From ``start`` times base to the end in a straight line."""
    if end and end_value is not None:
        message = f"end = {end} and end_value = {end_value}: give one, a factor of the base or the value itself"
        raise OptionError(message)

    def value(progress: int, total: int, base: float) -> float:
        first, last = start * base, end * base if end_value is None else end_value
        return last + (first - last) * (1 - _share(progress, total))

    return Schedule(value, relative=end_value is None)


def flat_cosine(flat: float = 0.75, end: float = 0.0, end_value: float | None = None) -> Schedule:
    """Base for the first ``flat`` of the length, then along half a cosine to the end."""
    require("flat", flat, holds=0 <= flat < 1, must="at least 0 and below 1")

    def shape(progress: int, total: int) -> float:
        start = round(total * flat)
        return 1.0 if progress < start else half_cosine(_share(progress - start, total - start))

    return _falling(end, end_value, shape)


def cosine_restart(
    periods: list[int], weights: list[float] | None = None, end: float = 0.0, end_value: float | None = None
) -> Schedule:
    """Half a cosine in each period, its height times that period's weight; after the last period the end."""
    weights = weights if weights is not None else [1.0] * len(periods)
    require("periods", periods, holds=bool(periods) and min(periods) > 0, must="one or more lengths of at least 1")
    require("weights", weights, holds=len(weights) == len(periods), must=f"as many as periods ({len(periods)})")
    starts = [sum(periods[:index]) for index in range(len(periods))]

    def shape(progress: int, total: int) -> float:
        index = bisect_right(starts, progress) - 1
        return weights[index] * half_cosine(_share(progress - starts[index], periods[index]))

    falling = _falling(end, end_value, shape)
    return Schedule(falling.value, bounded=False, relative=falling.relative)


def wsd(
    decay: float = 0.1,
    decay_length: int | None = None,
    shape: Literal["1-sqrt", "linear", "cosine"] = "1-sqrt",
    end: float = 0.0,
    end_value: float | None = None,
) -> Schedule:
    """Stable at base, then down to the end in the last ``decay`` of the length, or in ``decay_length`` (Hu et al. 2024)."""
    require("decay", decay, holds=0 <= decay <= 1, must="between 0 and 1")
    if decay_length is not None:
        require("decay_length", decay_length, holds=decay_length >= 0, must="0 or more")
    falls: dict[str, Callable[[float], float]] = {
        "1-sqrt": lambda share: 1 - math.sqrt(share),
        "linear": lambda share: 1 - share,
        "cosine": half_cosine,
    }
    fall = falls[shape]

    def height(progress: int, total: int) -> float:
        length = min(decay_length, total) if decay_length is not None else round(decay * total)
        start = total - length
        return 1.0 if progress < start else fall(_share(progress - start, length))

    return _falling(end, end_value, height)


def warmup(kind: str, start: float, update: int, length: int) -> float:
    """Return the factor of one update of a warmup: from ``start`` to 1, which is reached when the warmup is over.

    Args:
        kind: ``"linear"``: ``start + (1 - start) * x``; ``"constant"``: ``start``; ``"exp"``: ``start ** (1 - x)``.
        start: Factor at the first update.
        update: Index of the update, from 0; ``x`` is ``update / length``.
        length: Updates of the warmup.
    """
    if update >= length:
        return 1.0
    if kind == "constant":
        return start
    if kind == "exp":
        return float(start ** (1 - update / length))
    return start + (1 - start) * update / length
