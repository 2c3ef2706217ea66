"""Which checkpoints a path stands for, and which of them are whole; no plugin, and no torch."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from trainhooks import CheckpointError, UsageError
from trainhooks.cli.output import pasted
from trainhooks.cli.run_table import find_runs, time_of
from trainhooks.run_record import is_run, read_record

from ._checkpoint_files import (
    candidates,
    check_checkpoint,
    is_pinned,
    newest_first,
    place_of,
    step_of,
    verify_checkpoint,
)
from ._checkpoint_manifest import NAME, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_FOLDER: Final = "checkpoints"


@dataclass(frozen=True)
class Entry:
    """What is known of a checkpoint without torch.

    Args:
        path: Where it is.
        manifest: ``None`` if it is broken.
        fault: Why it is broken, ``None`` if it is whole.
        pinned: Whether it is kept whatever happens to the others.
        age: How many of its run are newer.
        foreign: Whether another run than the one whose folder it is in wrote it.
    """

    path: Path
    manifest: Manifest | None
    fault: str | None
    pinned: bool
    age: int = 0
    foreign: bool = False

    @property
    def step(self) -> int:
        """Steps that were done."""
        return self.manifest.step if self.manifest is not None else step_of(self.path)

    def value(self, metric: str) -> float | None:
        """Return the value of a metric as it was last measured when this was saved."""
        return self.manifest.metrics.get(metric) if self.manifest is not None else None


@dataclass(frozen=True)
class Found:
    """What a path stands for.

    Args:
        asked: The path.
        path: The checkpoint or run folder that is meant; another one than was asked for if that is a folder of runs.
        folder: The folder with the checkpoints of the run; ``None`` for a single checkpoint.
    """

    asked: Path
    path: Path
    folder: Path | None

    def entries(self, *, verify: bool = False) -> list[Entry]:
        """Return its checkpoints by step, broken ones too; links are none of the run's.

        Args:
            verify: Whether to read every file and compare the digests, not the sizes only.
        """
        if self.folder is None:
            return [examined(self.path, verify=verify)]
        try:
            paths = candidates(self.folder) if self.folder.exists() else []
        except OSError as error:
            message = f"cannot read {pasted(self.folder)}: {error.strerror}"
            raise UsageError(message) from None
        entries = [examined(place_of(path), verify=verify) for path in reversed(paths) if not path.is_symlink()]
        run = owner_of(self.folder)
        order = newest_first({one.path: one.manifest for one in entries if one.manifest is not None}, run)
        ages = {path: age for age, path in enumerate(order)}
        foreign = {one.path for one in entries if run and one.manifest is not None and one.manifest.run not in ("", run)}
        return [replace(one, age=ages.get(one.path, len(ages)), foreign=one.path in foreign) for one in entries]


def owner_of(folder: Path) -> str:
    """Return the ``id`` of the run that has a folder for its checkpoints, by the record beside it, or nothing."""
    return str((read_record(folder.absolute().parent) or {}).get("id") or "")


def find(path: Path) -> Found:
    """Return what a path stands for: a checkpoint, a run folder, or a folder of runs, of which the newest is meant.

    Raises:
        UsageError: None of these.
    """
    if not os.path.lexists(path) and place_of(path) == path:
        message = f"there is no checkpoint or run folder {pasted(path)}"
        raise UsageError(message)
    place = place_of(path)
    if not place.is_dir():
        message = f"{pasted(path)} is a file: name the folder of a checkpoint or of a run"
        raise UsageError(message)
    link = place / _FOLDER
    if link.is_symlink() and not link.is_dir():
        message = (
            f"{pasted(link)} is a link to {pasted(link.readlink())}, where no folder is: mount or make it, or remove the link"
        )
        raise UsageError(message)
    if os.path.lexists(place / NAME):
        return Found(path, place, None)
    if (place / _FOLDER).is_dir() or is_run(place):
        return Found(path, place, place / _FOLDER)
    if step_of(place) >= 0:  # one whose manifest is gone
        return Found(path, place, None)
    try:
        if candidates(place):
            return Found(path, place, place)
    except OSError as error:
        message = f"cannot read {pasted(path)}: {error.strerror}"
        raise UsageError(message) from None
    newest = newest_run(find_runs(place))
    if newest is None:
        message = f"{pasted(path)} holds no checkpoint and no run: name a checkpoint, a run folder, or a folder of runs"
        raise UsageError(message)
    return Found(path, newest, newest / _FOLDER)


def newest_run(runs: Iterable[Path]) -> Path | None:
    """Return the run that began last, if there is any."""
    return max(runs, key=_age, default=None)


def _age(run: Path) -> tuple[float, str]:
    began = time_of((read_record(run) or {}).get("started"))
    return began.timestamp() if began is not None else 0.0, run.name


def examined(path: Path, *, verify: bool) -> Entry:
    """Return what is known of a checkpoint, with its digests compared or only its sizes."""
    try:
        manifest = verify_checkpoint(path) if verify else check_checkpoint(path)
    except CheckpointError as error:
        return Entry(path, None, str(error), is_pinned(path))
    return Entry(path, manifest, None, is_pinned(path))


def newest_whole(entries: Iterable[Entry]) -> Entry | None:
    """Return the newest checkpoint that is not broken."""
    return min((entry for entry in entries if entry.fault is None), key=lambda entry: entry.age, default=None)


def only_one(found: Found) -> Entry:
    """Return the checkpoint that is meant: of a run the newest whole one.

    Raises:
        UsageError: There is none.
        CheckpointError: It is broken.
    """
    entries = found.entries()
    if found.folder is None and entries[0].fault is not None:
        raise CheckpointError(entries[0].fault)
    if not entries:
        message = f"no checkpoints in {pasted(found.path)}"
        raise UsageError(message)
    newest = newest_whole(entries)
    if newest is None:
        message = f"no whole checkpoint in {pasted(found.path)}: `trainhooks checkpoints list` says what is wrong with them"
        raise CheckpointError(message)
    return newest


def as_plain(entry: Entry, why: list[str]) -> dict[str, Any]:
    """Return what is known of a checkpoint, for JSON."""
    manifest = entry.manifest
    return {
        "step": entry.step,
        "update": manifest.update if manifest else None,
        "epoch": manifest.epoch if manifest else None,
        "kind": manifest.kind if manifest else None,
        "kept": why,
        "metrics": {name: value for name, value in manifest.metrics.items() if _finite(value)} if manifest else {},
        "size_bytes": manifest.size_bytes if manifest else None,
        "saved": manifest.time if manifest else None,
        "whole": entry.fault is None,
        "fault": entry.fault,
        "pinned": entry.pinned,
        "path": str(entry.path),
    }


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
