"""Which checkpoints of a run are to be kept: the best, the newest, pinned ones; no plugin, and no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from trainhooks import CheckpointError, UsageError
from trainhooks.best import direction
from trainhooks.cli.output import pasted
from trainhooks.suggest import suggestion

from ._checkpoint_manifest import LIMIT_BYTES, TREE, read_small
from ._run_checkpoints import Entry, Found, examined, newest_whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_WORDS: Final = {"min": "lowest", "max": "highest"}


@dataclass(frozen=True)
class BestSaved:
    """What a run recorded as the best.

    Args:
        plugin: Name of the instance of ``checkpoint``.
        metric: What it watches.
        value: The value.
        step: Steps done when it was measured.
        place: 1 for the best, 2 for the next, as many as ``checkpoint.keep_best`` says.
    """

    plugin: str
    metric: str
    value: float
    step: int
    place: int = 1

    @property
    def reason(self) -> str:
        """Why the checkpoint is kept."""
        if self.place == 1:
            return f"best {self.metric}"
        ending = "th" if self.place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(self.place % 10, "th")
        return f"{self.place}{ending} best {self.metric}"


def recorded_best(entries: Sequence[Entry]) -> list[BestSaved]:
    """Return what the run recorded as the best by ``checkpoint.best``, all of ``keep_best``, as of its newest whole checkpoint."""
    newest = newest_whole(entries)
    if newest is None:
        return []
    try:
        tree = json.loads(read_small(newest.path / TREE, LIMIT_BYTES))
    except (ValueError, RecursionError, CheckpointError):
        return []
    parts = tree.items() if isinstance(tree, dict) else ()
    found = []
    for key, part in parts:
        name = key.removeprefix("plugins/")
        best = part.get("best") if isinstance(part, dict) and name.partition("@")[0] == "checkpoint" else None
        if name != key and isinstance(best, dict) and isinstance(metric := best.get("metric"), str):
            found += [BestSaved(name, metric, value, step, place) for place, (step, value) in enumerate(_ranked(best), 1)]
    return found


def _ranked(best: dict[str, Any]) -> list[tuple[int, float]]:
    """Return steps and values, the best first, of what may be anything."""
    ranked = best.get("ranked", [[best.get("step"), best.get("value")]])  # those before version 0.2 have the first one only
    found = []
    for pair in ranked if isinstance(ranked, list) else ():
        match pair:
            case [int(step), float(value)]:
                found.append((step, value))
    return found


def reasons(entries: Sequence[Entry]) -> dict[Path, list[str]]:
    """Return why each checkpoint of a run is kept."""
    newest, best = newest_whole(entries), recorded_best(entries)
    return {
        entry.path: [
            *(["last"] if entry is newest else []),
            *(one.reason for one in best if one.step == entry.step and entry.fault is None),
            *(["pinned"] if entry.pinned else []),
        ]
        for entry in entries
    }


def best_of(found: Found, entries: Sequence[Entry], metric: str | None) -> tuple[Entry, str]:
    """Return the best checkpoint of a run, and why it is.

    Args:
        found: The run.
        entries: Its checkpoints.
        metric: Compare the values of this metric, ``min:NAME`` or ``max:NAME`` to say which is better; without it what the
            run recorded counts.

    Raises:
        UsageError: It is a single checkpoint, or there is no such metric.
        CheckpointError: The best one is broken or not there any more.
    """
    if found.folder is None:
        message = f"{pasted(found.asked)} is a single checkpoint, the best is one of a run: name the run folder"
        raise UsageError(message)
    if metric is not None:
        entry, name, mode, number = best_by(found, entries, metric)
        return entry, f"{name} {entry.value(name):.6g}, the {_WORDS[mode]} of {number} checkpoints"
    recorded = [one for one in recorded_best(entries) if one.place == 1]
    first = [one for one in recorded if one.plugin == "checkpoint"] or recorded
    if not first:
        message = (
            f"the run {pasted(found.path)} has not recorded a best checkpoint (its option checkpoint.best was not set, or "
            f"nothing was measured): --best-by METRIC compares {', '.join(measured_names(entries)) or 'a metric, but none was measured'}"
        )
        raise UsageError(message)
    if len(first) > 1:
        message = f"the run has several best checkpoints, of {', '.join(one.metric for one in first)}: say which with --best-by"
        raise UsageError(message)
    best = first[0]
    entry_of = {entry.step: entry for entry in entries}
    if best.step not in entry_of:
        message = f"the best {best.metric}, {best.value:g}, was at step {best.step}, whose checkpoint is not there any more"
        raise CheckpointError(message)
    entry = entry_of[best.step]
    if entry.fault is not None:
        message = f"the checkpoint with the best {best.metric}, {best.value:g}, is broken: {entry.fault}"
        raise CheckpointError(message)
    return entry, f"{best.metric} {best.value:.6g} at step {best.step}, as the run recorded it"


def best_by(found: Found, entries: Sequence[Entry], metric: str) -> tuple[Entry, str, str, int]:
    """Return the checkpoint with the best value of a metric, its name, the direction, and how many were compared.

    Of several with the same value it is the first: the later ones may have it from the same evaluation.

    Raises:
        UsageError: No checkpoint has a value of it.
    """
    prefix, _, rest = metric.partition(":")
    name, mode = (rest, direction(rest, prefix)) if prefix in _WORDS and rest else (metric, direction(metric))  # type: ignore[arg-type]
    values = [(value, entry) for entry in entries if not entry.foreign and (value := entry.value(name)) is not None]
    if not values:
        known = measured_names(entries)
        there = f"they have {', '.join(known)}" if known else "nothing was measured"
        message = f"no whole checkpoint of {pasted(found.path)} has a value of {name!r}{suggestion(name, known)}: {there}"
        raise UsageError(message)
    sign = 1 if mode == "min" else -1
    entry = min(values, key=lambda pair: (sign * pair[0], pair[1].step))[1]
    return entry, name, mode, len(values)


def measured_names(entries: Sequence[Entry]) -> list[str]:
    """Return the names of metrics that have a value, those of evaluations if there are any."""
    manifests = [entry.manifest for entry in entries if entry.manifest is not None]
    names = sorted({name for one in manifests for name, value in one.metrics.items() if value is not None})
    return [name for name in names if not name.startswith(("train/", "time/", "best/", "lr"))] or names


def kept_by_prune(found: Found, keep: int, keep_best: Sequence[str]) -> tuple[list[Entry], dict[Path, list[str]]]:
    """Return the checkpoints of a run, and those that pruning leaves there with the reason.

    The newest ``keep`` that are whole, the best, pinned ones, and those of another run. What is to be kept is read and compared with its
    digests first, so that nothing is removed in favour of a broken one.

    Args:
        found: The run.
        keep: How many of the newest.
        keep_best: Also the best by each of these metrics; what the run recorded as the best is kept anyway.
    """
    entries = found.entries()
    whole = 0
    kept: dict[Path, list[str]] = {}
    for index in sorted(range(len(entries)), key=lambda index: entries[index].age):
        entry = entries[index]
        if entry.foreign:
            kept[entry.path] = ["of another run"]
        elif entry.fault is None and whole < keep:
            checked = examined(entry.path, verify=True)
            entries[index] = entry = replace(checked, age=entry.age)
            if entry.fault is None:
                kept[entry.path] = ["last" if whole == 0 else f"of the newest {keep}"]
                whole += 1
    best = [(one.reason, entry.path) for one in recorded_best(entries) for entry in entries if entry.step == one.step]
    for metric in keep_best:
        entry, name, _, _ = best_by(found, entries, metric)
        best.append((f"best {name}", entry.path))
    for reason, path in dict.fromkeys(best):
        kept.setdefault(path, []).append(reason)
    for entry in entries:
        if entry.pinned:
            kept.setdefault(entry.path, []).append("pinned")
    return entries, {entry.path: kept[entry.path] for entry in entries if entry.path in kept}
