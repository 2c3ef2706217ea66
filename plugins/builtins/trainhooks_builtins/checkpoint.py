"""``checkpoint``: the state of the run on disk, whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import pickle
import re
import shutil
from typing import TYPE_CHECKING, Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from trainhooks import CheckpointError, DataError, OptionError, UsageError, hookimpl
from trainhooks.best import Best, Mode
from trainhooks.intervals import Interval
from trainhooks.suggest import suggestion

if TYPE_CHECKING:
    from pathlib import Path

    from trainhooks import Trainer
    from trainhooks.types import Metrics, StateDict

log = logging.getLogger("trainhooks")

FORMAT = 1
_NAME = re.compile(r"step-(\d+)")
_STATE, _MANIFEST = "state.pt", "manifest.json"
_TEMPORARY, _ASIDE = ".tmp", ".old"


class Checkpoint:
    """Saves the run every so often and at its end, and restores it.

    A checkpoint is a folder ``checkpoints/step-00000100`` in the run folder: ``state.pt`` (tensors and plain values, read
    with ``weights_only=True``, so that loading executes no code) and ``manifest.json`` (its SHA-256 digest, counters and
    metrics). It is written beside its place, synced, and renamed, so that it is there as a whole or not at all. Older ones
    are removed afterwards. Without a ``work_dir`` nothing is written.

    Args:
        every_epochs: Save after every n-th epoch; 0 for never. 1 if no other interval is given.
        every_steps: Save after every n-th step; 0 for never.
        every_updates: Save after every n-th update; 0 for never.
        keep: How many to keep: the newest, the best if ``best`` is given, and the next newest; 0 for all.
        best: Keep the one with the best value of this metric, for example ``val/accuracy``; it is saved at the evaluation
            that gave it.
        mode: Whether lower (``min``) or higher (``max``) is better; inferred from the name.
        at_end: Save when the training ends.
    """

    phase = "persistence"

    def __init__(
        self,
        every_epochs: int | None = None,
        every_steps: int = 0,
        every_updates: int = 0,
        keep: int = 2,
        best: str | None = None,
        mode: Mode = "auto",
        at_end: bool = True,
    ) -> None:
        if keep < 0:
            message = f"keep = {keep}: must be 0 (all) or more"
            raise OptionError(message)
        self.interval = Interval(every_epochs, every_steps, every_updates)
        if not self.interval.within_epochs:
            vars(self)["after_step"] = None  # nothing to do in each step: the hook is not even called
        self.keep, self.at_end = keep, at_end
        self.best = Best(best, mode) if best is not None else None
        self.requires = ("evaluation",) if best is not None else ()
        #: Step of the newest checkpoint.
        self.saved_step: int | None = None
        #: Where the newest checkpoint is.
        self.path: Path | None = None
        self._outdated = False
        self._unmeasured: str | None = None  # why an evaluation gave no candidate for the best checkpoint

    # --- When ---

    @hookimpl
    def before_train(self) -> None:
        """Forget what an evaluation before this run left."""
        self._outdated = False

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """Ask for a checkpoint when one is due."""
        if self.interval.due_after_step(trainer):
            self._request(trainer, trainer.step + 1, "periodic")

    @hookimpl
    def after_epoch(self, trainer: Trainer) -> None:
        """Ask for a checkpoint when one is due."""
        if self.interval.due_after_epoch(trainer):
            self._request(trainer, trainer.step, "periodic")

    @hookimpl
    def after_eval(self, trainer: Trainer, split: str, metrics: Metrics) -> None:
        """Ask for a checkpoint when the metric is better than ever."""
        if trainer.session is None or not trainer.session.training:
            return
        self._outdated = self.saved_step == trainer.step  # what is on disk knows nothing of this evaluation
        best = self.best
        if best is None:
            return
        if best.metric in metrics:
            if best.update(metrics[best.metric], trainer.step):
                self._request(trainer, None, "best")
            elif best.step is None:
                self._unmeasured = f"it was {metrics[best.metric]}"
        elif best.metric.startswith(f"{split}/") and best.step is None and self._unmeasured is None:
            names = ", ".join(metrics) or "which there are none"
            message = f"checkpoint.best = {best.metric!r} is not among the metrics{suggestion(best.metric, metrics)}: {names}"
            raise DataError(message)

    @hookimpl
    def after_train(self, trainer: Trainer) -> None:
        """Save at the end, unless the last step and its evaluation are, nothing was trained, or the run failed."""
        outcome = trainer.outcome
        if trainer.work_dir is None or outcome is None or outcome.status not in ("completed", "stopped"):
            return
        if self.best is not None and self.best.step is None and outcome.step > 0:
            why = self._unmeasured or "its split was never evaluated"
            log.warning("checkpoint.best = %r was never measured as a finite number: %s", self.best.metric, why)
        is_best = self.best is not None and self.best.step == trainer.step
        is_new = self.saved_step != trainer.step or self._outdated
        if (self.at_end or is_best) and outcome.step > 0 and is_new:
            trainer.save_checkpoint(trainer.checkpoint_path(), "final")
        if (path := self.best_path(trainer)) is not None and self.best is not None:
            log.info("the checkpoint with the best %s, %g, is %s", self.best.metric, self.best.value, path)

    def best_path(self, trainer: Trainer) -> Path | None:
        """Return where the checkpoint with the best value is, or ``None`` if there is none."""
        if trainer.work_dir is None or self.best is None or self.best.step is None:
            return None
        path = trainer.work_dir / "checkpoints" / f"step-{self.best.step:08d}"
        return path if path.is_dir() else None

    def _request(self, trainer: Trainer, step: int | None, kind: str) -> None:
        if trainer.work_dir is not None and (step is None or step != self.saved_step):
            trainer.request_checkpoint(kind)

    # --- How ---

    @hookimpl
    def save_checkpoint(self, trainer: Trainer, path: Path, kind: str) -> Path:
        """Write a checkpoint as a whole, then remove older ones."""
        if not trainer.is_main:
            return path
        everyone = [plugin for plugin in trainer.plugins.values() if isinstance(plugin, Checkpoint)]  # checkpoint@best too
        before = [plugin.saved_step for plugin in everyone]
        for plugin in everyone:
            plugin.saved_step = trainer.step
        try:
            state = trainer.state_dict()
            counters = {"step": trainer.step, "update": trainer.update, "epoch": trainer.epoch, "kind": kind}
            metrics = {name: value for name, value in trainer.metrics.items() if isinstance(value, int | float)}
            write_checkpoint(path, state, {**counters, "metrics": metrics})
        except BaseException:
            for plugin, step in zip(everyone, before, strict=True):
                plugin.saved_step = step
            raise
        for plugin in everyone:
            plugin.path, plugin._outdated = path, False
        _rotate(trainer, path, everyone)
        return path

    @hookimpl
    def load_checkpoint(self, path: Path) -> StateDict | None:
        """Read a checkpoint, or the newest whole one of a run folder."""
        if not path.exists():
            message = f"no checkpoint at {path}"
            raise UsageError(message)
        if (path / _MANIFEST).is_file():
            return read_checkpoint(path)
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        if not folder.is_dir():
            return None
        for candidate in sorted([*list_checkpoints(folder), *_set_aside(folder)], key=_step_of, reverse=True):
            try:
                return read_checkpoint(candidate)
            except CheckpointError as error:
                log.warning("skipped a broken checkpoint: %s", error)
        message = f"no whole checkpoint in {folder}"
        raise CheckpointError(message)

    def wanted(self, steps: list[int]) -> set[int]:
        """Return which of the steps to keep: the newest, the best, and as many of the next newest as ``keep`` leaves room for."""
        if self.keep == 0:
            return set(steps)
        newest_first = sorted(steps, reverse=True)
        always = dict.fromkeys(newest_first[:1] + [step for step in steps if self.best is not None and step == self.best.step])
        return set(list(dict.fromkeys([*always, *newest_first]))[: max(self.keep, len(always))])

    def state_dict(self) -> dict[str, Any]:
        """Return what was saved last and what was best."""
        return {"saved_step": self.saved_step, "best": self.best.state_dict() if self.best is not None else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.saved_step = state["saved_step"]
        if self.best is not None and state["best"] is not None:
            self.best.load_state_dict(state["best"])


def _rotate(trainer: Trainer, newest: Path, everyone: list[Checkpoint]) -> None:
    """Remove what no instance wants to keep."""
    if trainer.run_folder is None or newest.parent != trainer.run_folder.path / "checkpoints":
        return
    own = {_step_of(path): path for path in list_checkpoints(newest.parent) if _step_of(path) <= trainer.step}
    wanted = set().union(*(plugin.wanted(list(own)) for plugin in everyone))
    for step in own.keys() - wanted:
        try:
            _remove(own[step])
            trainer.run_folder.forget(f"checkpoints/{own[step].name}")
        except OSError as error:
            log.warning("cannot remove the old checkpoint %s: %s; tried again at the next one", own[step], error)


def write_checkpoint(path: Path, state: StateDict, facts: dict[str, Any]) -> None:
    """Write ``state`` so that ``path`` is there as a whole or not at all, also after a crash.

    Raises:
        CheckpointError: With the path and the cause; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}{_TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _recover(path.parent)
        _remove(temporary)
        temporary.mkdir()
        _write_state(state, temporary / _STATE)
        digest = {"sha256": _digest(temporary / _STATE), "size_bytes": (temporary / _STATE).stat().st_size}
        manifest = {"format": FORMAT, **facts, "files": {_STATE: digest}}
        (temporary / _MANIFEST).write_text(json.dumps(_finite(manifest), indent=1, allow_nan=False), encoding="utf-8")
        for name in (_STATE, _MANIFEST):
            _sync(temporary / name)
        _sync(temporary)
        _replace(temporary, path)
        _sync(path.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError | RuntimeError):  # torch.save turns an OSError into a RuntimeError
            message = f"cannot write the checkpoint {path}: {error}"
            raise CheckpointError(message) from error
        raise


def _write_state(state: StateDict, path: Path) -> None:
    """Write tensors and plain values, and nothing that could not be read without executing code.

    Raises:
        CheckpointError: Something else is in it; the message says under which name.
    """
    try:
        torch.save(state, path)
        foreign = get_unsafe_globals_in_checkpoint(path)
        if not foreign:
            return
        why = ", ".join(foreign)
    except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
        why = str(error)
    guilty = [name for name, part in state.items() if not _is_safe(part)]
    message = (
        f"the state of {', '.join(map(repr, guilty)) or 'this run'} cannot be in a checkpoint ({why}): state_dict() must return "
        "tensors and plain values (numbers, strings, lists, tuples, dicts)"
    )
    raise CheckpointError(message)


def _is_safe(part: Any) -> bool:
    try:
        torch.save(part, buffer := io.BytesIO())
        buffer.seek(0)
        return not get_unsafe_globals_in_checkpoint(buffer)
    except (TypeError, AttributeError, ValueError, pickle.PicklingError):
        return False


def _finite(value: Any) -> Any:
    """Return plain values as JSON knows them: NaN and infinity are ``null``."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_checkpoint(path: Path) -> StateDict:
    """Read and verify a checkpoint; executes no code.

    Raises:
        CheckpointError: A file is missing, damaged, or of a format that this release does not know.
    """
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            message = f"{path / _MANIFEST}: format {manifest['format']!r} is not known; this release reads format {FORMAT}"
            raise CheckpointError(message)
        expected = manifest["files"][_STATE]["sha256"]
        if _digest(path / _STATE) != expected:
            message = f"{path / _STATE} is damaged: its SHA-256 digest differs from the one in {_MANIFEST}"
            raise CheckpointError(message)
        state: StateDict = torch.load(path / _STATE, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:
        message = f"cannot read the checkpoint {path}: {type(error).__name__}: {error}"
        raise CheckpointError(message) from error
    return state


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, by step."""
    found = [entry for entry in folder.iterdir() if _NAME.fullmatch(entry.name) and (entry / _MANIFEST).is_file()]
    return sorted(found, key=_step_of)


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(_final_name(path))
    return int(match[1]) if match else -1


def _replace(temporary: Path, path: Path) -> None:
    """Put a folder in its place; one that is there steps aside first, since a folder cannot be replaced in one go."""
    aside = path.with_name(f".{path.name}{_ASIDE}")
    _remove(aside)
    if path.exists():
        path.rename(aside)
    try:
        temporary.rename(path)
    except BaseException:
        if aside.exists():
            aside.rename(path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _set_aside(folder: Path) -> list[Path]:
    """Return what had stepped aside when a run was killed before the new one took its place."""
    hidden = [entry for entry in folder.iterdir() if entry.name.endswith(_ASIDE) and _NAME.fullmatch(_final_name(entry))]
    return [entry for entry in hidden if not (folder / _final_name(entry)).exists() and (entry / _MANIFEST).is_file()]


def _final_name(path: Path) -> str:
    """Return the name that a checkpoint has, or is to have, in its place."""
    return path.name.removeprefix(".").removesuffix(_ASIDE).removesuffix(_TEMPORARY)


def _recover(folder: Path) -> None:
    """Clean up after a run that was killed while it wrote: put back what had stepped aside, remove what is half written."""
    for aside in _set_aside(folder):
        aside.rename(folder / _final_name(aside))
    for entry in list(folder.iterdir()):
        if entry.name.startswith(".") and entry.name.endswith((_ASIDE, _TEMPORARY)) and _NAME.fullmatch(_final_name(entry)):
            shutil.rmtree(entry, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.exists() or path.is_symlink():
        path.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
