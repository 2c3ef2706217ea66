"""What the page knows: the runs, their curves as little-endian columns in base64, and their tables."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from bisect import bisect_right
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from trainhooks.cli.run_table import UNFINISHED, time_of

from .comparison import configuration_rows, plugin_rows
from .stages import plugin_seconds, stage_seconds
from .thinning import knots, points_for_each, thinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainhooks.run_history import MetricSeries, RunHistory

_FIRST_GROUPS: Final = ("train", "val", "test", "best")
_LAST_GROUPS: Final = ("lr", "time", "memory")
_LARGEST_FLOAT32: Final = 3.4e38
_MOST_HOOKS: Final = 8


def payload(runs: Sequence[RunHistory], names: Sequence[str], wanted: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the page draws, as plain JSON.

    Args:
        runs: What is compared.
        names: Of the runs, in the same order.
        wanted: Patterns of the metrics that are drawn; all without any.
    """
    metrics = metric_names(runs, wanted)
    curves = sum(name in run.series for run in runs for name in metrics)
    most = points_for_each(curves)
    return {
        "runs": [_run(run, name) for run, name in zip(runs, names, strict=True)],
        "metrics": [
            {
                "name": name,
                "group": group_of(name),
                "curves": [{"run": i, **_curve(run.series[name], most)} for i, run in enumerate(runs) if name in run.series],
            }
            for name in metrics
        ],
        "stages": [stage_seconds(run) for run in runs],
        "plugin_time": [_plugin_time(run) for run in runs],
        "plugins": plugin_rows(runs),
        "configuration": configuration_rows(runs),
    }


def metric_names(runs: Sequence[RunHistory], wanted: Sequence[str] = ()) -> list[str]:
    """Return the names of the metrics that are drawn, group by group."""
    names = dict.fromkeys(name for run in runs for name in run.series)
    chosen = [name for name in names if not wanted or any(name == one or fnmatchcase(name, one) for one in wanted)]
    return sorted(chosen, key=lambda name: _rank(group_of(name)))


def group_of(name: str) -> str:
    """Return the group that a metric is shown in: what stands before its first slash."""
    prefix, slash, _ = name.partition("/")
    return prefix if slash or name in _LAST_GROUPS else "other"


def _rank(group: str) -> tuple[int, str]:
    if group in _FIRST_GROUPS:
        return _FIRST_GROUPS.index(group), ""
    if group in _LAST_GROUPS:
        return len(_FIRST_GROUPS) + 1 + _LAST_GROUPS.index(group), ""
    return len(_FIRST_GROUPS), group


def _run(run: RunHistory, name: str) -> dict[str, Any]:
    record, table = run.record, run.table
    counters = {key: _number(record.get(key)) for key in ("step", "update", "epoch", "seconds")}
    known = counters["step"]
    if len(table) and (known is None or (run.outcome in UNFINISHED and table.steps[-1] > known)):
        counters |= {"step": table.steps[-1], "update": table.updates[-1], "epoch": table.epochs[-1]}
    resumes = run.resumed_steps
    per_epoch = run.steps_per_epoch()
    marks = [index for step in resumes if (at := bisect_right(table.steps, step)) for index in (at - 1, at)]
    if per_epoch is None:
        marks += [i for i in range(1, len(table)) if table.epochs[i] != table.epochs[i - 1]]
    chosen = knots(len(table), marks)
    began = table.times[0] if len(table) else 0.0
    started = time_of(record.get("started"))
    if started is not None and 0 <= began - started.timestamp() < 7 * 86400:  # else a clock was set
        began = started.timestamp()
    seconds = _seconds(table.times, began)
    return {
        "name": name,
        "outcome": run.outcome if record else "unknown",
        "reason": _str(record.get("reason")) if record else "run.json is missing or damaged",
        **counters,
        **{key: _str(record.get(key)) for key in ("id", "parent", "started", "host", "device", "command")},
        "versions": {str(key): _str(value) for key, value in run.mapping("versions").items()},
        "best": _best(run),
        "resumes": resumes,
        "records": len(table),
        "damaged": run.damaged,
        "source": run.source,
        "per_epoch": per_epoch,
        "clock": {
            "step": _f64(table.steps[i] for i in chosen),
            "update": _f64(table.updates[i] for i in chosen),
            "epoch": _f64(table.epochs[i] for i in chosen),
            "time": _f64(seconds[i] for i in chosen),
        },
    }


def _seconds(times: Sequence[float], began: float) -> list[float]:
    """Return the seconds since the run began, which never fall: where the clock was set back they stand still for one record."""
    seconds: list[float] = []
    before = began
    for time in times:
        seconds.append((seconds[-1] if seconds else 0.0) + max(time - before, 0.0))
        before = time
    return seconds


def _curve(series: MetricSeries, most: int) -> dict[str, Any]:
    kept = thinned(series, most)
    finite = [value for value in series.values if math.isfinite(value)]
    curve: dict[str, Any] = {
        "points": len(series),
        "not_finite": len(series) - len(finite),
        "last": _finite(series.values[-1]) if series.values else None,
        "min": min(finite, default=None),
        "max": max(finite, default=None),
        "x": _f64(kept.steps) if max(kept.steps, default=0) >= 2**32 else _packed("I", kept.steps),
        "y": _packed("f", (_single(value) for value in kept.values)),
    }
    if kept.means:
        curve["mx"] = _packed("I", kept.mean_steps) if kept.mean_steps[-1] < 2**32 else _f64(kept.mean_steps)
        curve["my"] = _packed("f", (_single(value) for value in kept.means))
    return curve


def _plugin_time(run: RunHistory) -> list[Any] | None:
    if run.hook_time is None:
        return None
    return [[plugin, seconds, calls, hooks[:_MOST_HOOKS]] for plugin, seconds, calls, hooks in plugin_seconds(run)]


def _best(run: RunHistory) -> list[list[Any]]:
    found = run.mapping("best")
    entries = [(str(name), one) for name, one in found.items() if isinstance(one, dict)]
    return [
        [name, value, _number(one.get("step"))] for name, one in entries if (value := _number(one.get("value"))) is not None
    ]


def _number(value: Any) -> float | int | None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53
    return value if ok else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _str(value: Any) -> str:
    return "" if value is None else str(value)[:2000]


def _single(value: float) -> float:
    """Return what fits into single precision; NaN stays."""
    return max(-_LARGEST_FLOAT32, min(_LARGEST_FLOAT32, value)) if value == value else value  # noqa: PLR0124


def _f64(values: Any) -> str:
    return _packed("d", values)


def _packed(kind: str, values: Any) -> str:
    """Return a column as its type (I, f or d) and base64 of little-endian numbers."""
    column = array(kind, values)
    if sys.byteorder == "big":
        column.byteswap()
    return kind + base64.b64encode(column.tobytes()).decode("ascii")
