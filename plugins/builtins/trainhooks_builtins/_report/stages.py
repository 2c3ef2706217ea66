"""Where the time of a run went: by stage from ``time/*``, by plugin from what ``hook_time`` has measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainhooks.run_history import MetricSeries, RunHistory

#: Stages whose metric is the mean over the steps since the last record; of others it is the sum.
_PER_STEP: Final = ("step", "data")


def stage_seconds(run: RunHistory) -> dict[str, float]:
    """Return the seconds of each stage of a run, as the plugin ``timer`` has logged them.

    ``time/step`` and ``time/data`` are means over the steps since the last record, so they count once for each of those; values
    of ``time/evaluate``, ``time/checkpoint`` and others are sums since then.
    """
    found = {}
    for name, series in run.series.items():
        stage = name.removeprefix("time/")
        if stage != name and series.values:
            seconds = _of_steps(series, _first_step(run)) if stage in _PER_STEP else sum(filter(math.isfinite, series.values))
            if 0 < seconds < math.inf:
                found[stage] = seconds
    return found


def _first_step(run: RunHistory) -> int:
    """Return how many steps were done where the run began: those of another run, whose checkpoint it began with."""
    return min(run.resumed_steps[0], *run.table.steps[:1]) if run.record.get("parent") and run.resumed_steps else 0


def _of_steps(series: MetricSeries, before: int) -> float:
    total = 0.0
    for step, value in zip(series.steps, series.values, strict=True):
        if math.isfinite(value):
            total += value * (step - before)
        before = step
    return total


def plugin_seconds(run: RunHistory) -> list[tuple[str, float, int, list[tuple[str, float, int]]]]:
    """Return the host seconds and calls of each plugin and of its hooks, the longest first."""
    found = []
    for plugin, hooks in (run.hook_time or {}).items():
        parts = sorted(((hook, seconds, calls) for hook, (calls, seconds) in hooks.items()), key=lambda one: -one[1])
        found.append((plugin, sum(one[1] for one in parts), sum(one[2] for one in parts), parts))
    return sorted(found, key=lambda one: -one[1])
