"""What ``run.json`` says of a run: how it is made, read, and what it means; reading it imports no torch."""

from __future__ import annotations

import json
import logging
import math
import platform
import re
import shlex
import socket
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .best import Best
from .run_info import hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .parts import RunParts

log = logging.getLogger("trainhooks")

RECORD: Final = "run.json"
_CHECKPOINT: Final = re.compile(r"\.?step-\d+(\.old)?")
_LARGEST: Final = 16 * 2**20


# --- Reading ---


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return what is recorded of the run in a folder, or ``None`` where the record is missing or damaged."""
    path = folder / RECORD
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        record = finite(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        log.warning("cannot read %s: %s; it is taken for missing", path, error.strerror)
        return None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def checkpoints_of(folder: Path) -> list[Path]:
    """Return what looks like a checkpoint in a run folder, whole or not, by step."""
    try:
        entries = [entry for entry in (folder / "checkpoints").iterdir() if _CHECKPOINT.fullmatch(entry.name)]
    except OSError:
        return []
    return sorted(entries, key=lambda entry: int(re.sub(r"\D", "", entry.name)))


def is_run(folder: Path) -> bool:
    """Return whether a run has written to a folder: there is its record, or at least a checkpoint."""
    return (folder / RECORD).is_file() or bool(checkpoints_of(folder))


def outcome_of(record: Mapping[str, Any], *, running: bool) -> str:
    """Return how a run ended, ``running``, or ``killed`` where it had no time to say; ``unknown`` where no lock tells.

    Args:
        record: Of the run.
        running: Whether its folder is locked.
    """
    status = record.get("status")
    if status != "running":
        return status if isinstance(status, str) else "unknown"
    if running:
        return "running"
    return "killed" if record.get("locked") is True else "unknown"


def left_nothing(folder: Path) -> bool:
    """Return whether a former run, which is over, left nothing to keep, so that another one may take its place unasked.

    That is one that made nothing, and one that failed, was interrupted or killed before its first checkpoint: there is
    nothing to resume, and who corrects a mistake and starts again would learn to pass ``--overwrite`` always. A run that
    saves no checkpoints at all may have its logs for a result, so they are kept.
    """
    record = read_record(folder)
    if record is None or checkpoints_of(folder):
        return False
    ended_early = outcome_of(record, running=False) in ("failed", "interrupted", "killed")
    return record.get("files") == [] or (ended_early and record.get("saves") is True)


# --- Making ---


def opening(run: RunParts) -> dict[str, Any]:
    """Return what is known of a run when it begins."""
    info = run.run_info()
    settings = {name: value for name, value in info.settings.items() if name != "plugins"}
    return {
        "name": info.name,
        "id": run.run_id,
        "parent": run.parent_id,
        "status": "running",
        "reason": "",
        "step": run.step,
        "update": run.update,
        "epoch": run.epoch,
        "metrics": {},
        "best": {},
        "started": now(),
        "ended": None,
        "resumed": [],
        "checkpoint": None,
        "saves": run.manager.has("save_checkpoint"),
        "device": str(run.device),
        "host": socket.gethostname(),
        "command": typed_command(),
        "versions": versions(),
        "settings": finite(settings),
        "plugins": finite(run.plugin_lock()),
    }


def progress(run: RunParts) -> dict[str, Any]:
    """Return how far a run is and what it has measured."""
    best = {
        plugin.best.metric: {"value": plugin.best.value, "mode": plugin.best.mode, "step": plugin.best.step}
        for plugin in run.as_trainer.plugins.values()
        if isinstance(getattr(plugin, "best", None), Best) and plugin.best.step is not None
    }
    counters = {"step": run.step, "update": run.update, "epoch": run.epoch, "dropped": run.dropped}
    return {**counters, "metrics": finite(dict(run.metrics)), "best": finite(best)}


def saved(run: RunParts, path: Path) -> dict[str, Any]:
    """Return what changes when a checkpoint is durable."""
    folder = run.work_dir
    name = path.relative_to(folder).as_posix() if folder is not None and path.is_relative_to(folder) else None
    return {**progress(run), "checkpoint": name or str(path), "made": name}


def resumed(run: RunParts) -> dict[str, Any]:
    """Return what changes when a checkpoint has been restored."""
    record = run.run_folder.record if run.run_folder is not None else {}
    former, before = record.get("resumed"), record.get("hyperparameters")
    times = former if isinstance(former, list) else []
    given = finite(hyperparameters(run))
    old = before if isinstance(before, dict) else given
    changed = {name: [old.get(name), given.get(name)] for name in {**old, **given} if old.get(name) != given.get(name)}
    this = {"time": now(), "step": run.step, **({"changed": changed} if changed else {})}
    return {**progress(run), "resumed": [*times, this]}


def described(run: RunParts) -> dict[str, Any]:
    """Return what is known of a run when it is set up and restored."""
    return {"id": run.run_id, "parent": run.parent_id, "hyperparameters": finite(hyperparameters(run))}


def closing(run: RunParts) -> dict[str, Any]:
    """Return how a run ended."""
    outcome = run.outcome
    ended = {"status": outcome.status, "reason": outcome.reason.partition("\n")[0]} if outcome is not None else {}
    return {**progress(run), **ended, "ended": now()}


def typed_command() -> str:
    """Return what was typed to start this process: of a script that is installed beside Python its name, for a shell finds it."""
    script = Path(sys.argv[0])
    if script.is_absolute() and script.parent == Path(sys.executable).parent:
        return shlex.join([script.name, *sys.argv[1:]])
    return shlex.join(sys.orig_argv)


def versions() -> dict[str, str]:
    """Return the versions that results depend on, of what is loaded."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("torch", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    from . import __version__

    return {"trainhooks": __version__, **found, **({"cuda": cuda} if cuda else {})}


def now() -> str:
    """Return the time as ISO 8601 in UTC, to the millisecond: two short runs may begin in one second."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def finite(value: Any) -> Any:
    """Return a value as strict JSON knows it: NaN and infinity are ``None``, what is no plain value is text."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or type(value) in (bool, int, str):
        return value
    return str(value)
