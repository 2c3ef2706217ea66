"""Schedules that rise and fall: cyclic and one-cycle; no plugin."""

from __future__ import annotations

from typing import Literal

from ._schedules import Schedule, half_cosine, require

Anneal = Literal["cos", "linear"]


def _between(start: float, end: float, share: float, anneal: Anneal) -> float:
    """Return what lies at a share of the way from ``start`` to ``end``."""
    if anneal == "cos":
        return end + (start - end) * half_cosine(share)
    return start * (1 - share) + end * share  # exact at both ends


def cyclic(
    target_ratio: tuple[float, float] = (10.0, 1e-4),
    cyclic_times: int = 1,
    step_ratio_up: float = 0.4,
    anneal: Anneal = "cos",
    gamma: float = 1.0,
) -> Schedule:
    """Up from base to ``target_ratio[0]`` times base, then to ``target_ratio[1]`` times; ``gamma`` shrinks each further cycle."""
    require("cyclic_times", cyclic_times, holds=cyclic_times > 0, must="at least 1")
    require("step_ratio_up", step_ratio_up, holds=0 <= step_ratio_up < 1, must="at least 0 and below 1")

    def value(progress: int, total: int, base: float) -> float:
        length = max(total // cyclic_times, 1)
        cycle, place = divmod(min(progress, total - 1), length)
        up = int(step_ratio_up * length)
        scale = gamma**cycle
        top = 1 - scale + target_ratio[0] * scale
        if place < up:
            return base * _between(1.0, top, place / up, anneal)
        return base * _between(top, target_ratio[1], (place - up) / (length - up), anneal)

    return Schedule(value)


def _phases(total: int, pct_start: float, levels: list[float]) -> list[tuple[float, float, float]]:
    """Return (end, first value, last value) of each phase; four levels are three phases, the first two of equal length."""
    ends = [pct_start * total - 1, *([2 * pct_start * total - 2] if len(levels) > 3 else []), total - 1.0]  # noqa: PLR2004
    return list(zip(ends, levels, levels[1:], strict=False))


def _through(phases: list[tuple[float, float, float]], progress: int, anneal: Anneal) -> float:
    start = 0.0
    for end, first, last in phases:
        if progress <= end:
            return _between(first, last, (progress - start) / (end - start) if end > start else 1.0, anneal)
        start = end
    return phases[-1][2]


def one_cycle(
    pct_start: float = 0.3,
    anneal: Anneal = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> Schedule:
    """Up from base / ``div_factor`` to base, then down to that start / ``final_div_factor`` (Smith and Topin 2018; torch)."""
    require("pct_start", pct_start, holds=0 <= pct_start <= 1, must="between 0 and 1")
    require("div_factor", div_factor, holds=div_factor > 0, must="above 0")
    require("final_div_factor", final_div_factor, holds=final_div_factor > 0, must="above 0")
    low = 1 / div_factor
    levels = [low, 1.0, *([low] if three_phase else []), low / final_div_factor]
    return Schedule(lambda progress, total, base: base * _through(_phases(total, pct_start, levels), progress, anneal))


def one_cycle_momentum(
    low: float = 0.85, high: float = 0.95, pct_start: float = 0.3, anneal: Anneal = "cos", three_phase: bool = False
) -> Schedule:
    """Down from ``high`` to ``low`` while the rate of ``one_cycle`` rises, then up again; the group's own value plays no part."""
    require("pct_start", pct_start, holds=0 <= pct_start <= 1, must="between 0 and 1")
    levels = [high, low, high, *([high] if three_phase else [])]
    return Schedule(
        lambda progress, total, _base: _through(_phases(total, pct_start, levels), progress, anneal), relative=False
    )
