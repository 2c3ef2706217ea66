"""``checkpoint``: the state of the run on disk, whole or not at all."""

from __future__ import annotations

import errno
import logging
import time
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

from trainhooks import CheckpointError, DataError, OptionError, UsageError, hookimpl
from trainhooks.best import Mode  # noqa: TC001 - the hints are read to convert options
from trainhooks.cli.run_table import find_runs
from trainhooks.intervals import Interval
from trainhooks.left_behind import leave_behind
from trainhooks.run_record import checkpoints_of, is_run
from trainhooks.suggest import suggestion

from ._best_checkpoint import best_of
from ._checkpoint_files import (
    candidates,
    is_checkpoint,
    newest_first,
    place_of,
    read_checkpoint,
    read_manifest,
    read_manifests,
    remove_remains,
    step_of,
    take_snapshot,
    write_checkpoint,
)
from ._checkpoint_folders import in_words, read_folder, recover
from ._checkpoint_rotation import Ranking, Wish, note_unread, rotate, steps_there
from ._in_background import nothing, run_into
from ._monitored import missing_metric
from ._open_gradients import KeepsGradients
from ._run_checkpoints import find, newest_run, owner_of

if TYPE_CHECKING:
    from pathlib import Path

    from trainhooks import Trainer
    from trainhooks.types import Metrics, StateDict
    from trainhooks.workdir import RunFolder

    from ._checkpoint_files import Manifest
    from ._state_files import Snapshot

log = logging.getLogger("trainhooks")

_NO_EPOCHS = (
    "checkpoint: the train loader has no length and checkpoints come with the ends of its epochs: if it is endless, nothing is saved "
    "before the run ends; set checkpoint.every_minutes or every_steps then"
)


class Checkpoint(KeepsGradients):
    """Saves the run every so often and at its end, and restores it.

    A checkpoint is a folder ``checkpoints/step-00000100`` in the run folder: ``tensors.safetensors``, ``state.json`` (everything
    else, as JSON) and ``manifest.json`` (digests of both, counters and metrics); reading it executes no code. It is written
    beside its place, synced, and renamed, so that it is there as a whole or not at all, after a power cut too. Older ones are
    removed afterwards. Without a ``work_dir`` nothing is written.

    Args:
        every_epochs: Save after every n-th epoch; 0 for never. 1 if no other interval is given.
        every_steps: Save after every n-th step; 0 for never.
        every_updates: Save after every n-th update; 0 for never.
        every_minutes: Save after the step that ends so long after the last save; 0 for never.
        keep: How many to keep: the newest, the best if ``best`` is given, and the next newest; 0 for all.
        best: Keep the one with the best value of this metric, for example ``val/accuracy``; it is saved at the evaluation
            that gave it.
        mode: Whether lower (``min``) or higher (``max``) is better; inferred from the name.
        keep_best: How many of the best to keep.
        pin_every_epochs: Save after every n-th epoch and never remove that one; 0 for never.
        pin_every_steps: Save after every n-th step and never remove that one; 0 for never.
        at_end: Save when the training ends; an interrupted one saves in any case.
        async_save: Write in the background, from a copy of the state on the CPU; the training waits for the copy only.
        on_failure: What a checkpoint that cannot be written does: ``stop`` the run, or ``continue`` with a warning.
    """

    phase = "persistence"

    def __init__(
        self,
        every_epochs: int | None = None,
        every_steps: int = 0,
        every_updates: int = 0,
        every_minutes: float = 0,
        keep: int = 2,
        best: str | None = None,
        mode: Mode = "auto",
        keep_best: int = 1,
        pin_every_epochs: int = 0,
        pin_every_steps: int = 0,
        at_end: bool = True,
        async_save: bool = False,
        on_failure: Literal["stop", "continue"] = "stop",
    ) -> None:
        if keep < 0:
            message = f"keep = {keep}: must be 0 (all) or more"
            raise OptionError(message)
        if keep_best < 1:
            message = f"keep_best = {keep_best}: must be 1 or more"
            raise OptionError(message)
        given = {"every_minutes": every_minutes, "pin_every_epochs": pin_every_epochs, "pin_every_steps": pin_every_steps}
        for name, value in given.items():
            if not 0 <= value < float("inf"):
                message = f"{name} = {value}: must be 0 (never) or more"
                raise OptionError(message)
        if on_failure not in ("stop", "continue"):
            message = f"on_failure = {on_failure!r}: must be 'stop' or 'continue'"
            raise OptionError(message)
        super().__init__()
        self.interval = Interval(0 if every_epochs is None and every_minutes else every_epochs, every_steps, every_updates)
        self.every_s = every_minutes * 60
        self.pin_every_epochs, self.pin_every_steps = pin_every_epochs, pin_every_steps
        self._epochs_only = self.interval.epochs > 0 and not (self.interval.within_epochs or self.every_s or pin_every_steps)
        off = [] if every_steps or self.every_s or pin_every_steps else ["after_step"]
        off += [] if every_updates else ["after_update"]
        vars(self).update(dict.fromkeys(off))  # nothing to do there: the hooks are not even called
        self.keep, self.at_end, self.async_save, self.on_failure = keep, at_end, async_save, on_failure
        self.best = Ranking(best, mode, keep_best) if best is not None else None
        self.requires = ("evaluation",) if best is not None else ()
        #: Step of the newest checkpoint that is durable.
        self.saved_step: int | None = None
        #: Where it is.
        self.path: Path | None = None
        #: How many could not be written, with ``on_failure="continue"``.
        self.failures = 0
        self._saving_step: int | None = None
        self._writer: Thread | None = None
        self._outdated = False
        self._stops = False  # whether the last checkpoint has the run end with its epoch
        self._best_due: int | None = None  # step of an evaluation that was among the best
        self._unmeasured: str | None = None  # why an evaluation gave no candidate for the best checkpoint
        self._saved_at = 0.0  # on the monotonic clock
        self._loaded_run_id = ""
        self._serial = 0  # of the last checkpoint, as far as it is known
        self._looked = False  # whether those that are there are counted in that
        self._broken: set[Path] = set()  # what was passed over when the run was resumed
        self._unread: set[Path] = set()  # of which it was said that rotation does not know whose they are

    # --- When ---

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Forget what an evaluation before this run left, and put in order what a killed process left."""
        trainer.settle_saves()  # of a training that was left in a hurry
        self.put_gradients(trainer)
        if self.best is not None and trainer.run_folder is not None and trainer.is_main:
            trainer.run_folder.update(checkpoint_best=self.best.metric)  # a script's instance has no options that are recorded
        self._outdated = self._looked = False
        if trainer.is_main and trainer.run_folder is not None and (folder := trainer.run_folder.path / "checkpoints").is_dir():
            recover(folder)
            self._note_newer(trainer)
        if (there := steps_there(trainer)) is not None:
            self.saved_step = self.saved_step if self.saved_step in there else None
            if self.best is not None:
                self.best.keep_only(there)
        if self.every_s:
            self._saved_at = time.monotonic()
        if self._epochs_only and trainer.run_folder is not None and trainer.epoch_length is None:
            log.warning(_NO_EPOCHS)

    def _note_newer(self, trainer: Trainer) -> None:
        """Say that there is a newer checkpoint than the one that was loaded: a run that is restarted before it saves takes that."""
        newest = newest_first(self._look(trainer), trainer.run_id)[:1]
        if self.path is not None and newest and newest[0].resolve() != self.path.resolve():
            log.warning(
                "the run goes on at step %d, though %s was saved last; --resume auto would take that one until this run has saved",
                *(trainer.step, newest[0]),
            )

    def _look(self, trainer: Trainer) -> dict[Path, Manifest]:
        """Return the manifests of what is in the run folder, and have the next checkpoint be newer; nobody else writes there."""
        folder = trainer.run_folder.path / "checkpoints" if trainer.run_folder is not None else None
        if folder is None or not folder.is_dir():
            return {}
        try:
            found, errors = read_manifests(path for path in read_folder(folder) if path not in self._broken)
        except OSError as error:
            log.warning("cannot read the folder of checkpoints %s: %s", folder, in_words(error))
            return {}
        note_unread(errors, self._unread)
        self._serial, self._looked = max([self._serial, *(manifest.serial for manifest in found.values())]), True
        return found

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """Ask for a checkpoint when one is due."""
        if trainer.every_n_steps(self.pin_every_steps):
            self._request(trainer, None, "pinned")
        elif trainer.every_n_steps(self.interval.steps) or (self.every_s and time.monotonic() - self._saved_at >= self.every_s):
            self._request(trainer, trainer.step + 1, "periodic")

    @hookimpl
    def after_update(self, trainer: Trainer) -> None:
        """Ask for a checkpoint when one is due, whatever has been saved before this update."""
        if self.interval.due_after_update(trainer):
            self._request(trainer, None, "periodic")

    @hookimpl
    def after_epoch(self, trainer: Trainer) -> None:
        """Ask for a checkpoint when one is due."""
        if trainer.every_n_epochs(self.pin_every_epochs):
            self._request(trainer, None, "pinned")
        elif self.interval.due_after_epoch(trainer):
            self._request(trainer, trainer.step, "periodic")

    @hookimpl
    def after_eval(self, trainer: Trainer, split: str, metrics: Metrics) -> None:
        """Ask for a checkpoint when the metric is better than ever."""
        if trainer.session is None or not trainer.session.training:
            return
        self._outdated = self._last_step == trainer.step  # what is on disk knows nothing of this evaluation
        best = self.best
        if best is None:
            return
        if best.metric in metrics:
            if best.update(metrics[best.metric], trainer.step):
                self._best_due = trainer.step
                self._request(trainer, None, "best")
            elif not best.measured:
                self._unmeasured = f"it was {metrics[best.metric]}"
        elif not best.measured and self._unmeasured is None:
            fault = missing_metric(trainer, "checkpoint.best", best.metric, split, metrics)
            if fault is not None:
                raise DataError(fault)

    @hookimpl
    def after_train(self, trainer: Trainer) -> None:
        """Save at the end, unless the last step and its evaluation are, nothing was trained, or the run failed."""
        outcome = trainer.outcome
        if trainer.work_dir is None or outcome is None or outcome.step == 0:
            return
        if outcome.status == "failed" or not trainer.between_steps or trainer.hurried:
            return
        trainer.settle_saves()
        wanted = self.at_end or outcome.status == "interrupted" or self._best_due == trainer.step
        ended = self._stops and outcome.status == "stopped" and self.saved_step == trainer.step  # trained on, it is to go on
        if ended or (wanted and (self.saved_step != trainer.step or self._outdated)):
            trainer.save_checkpoint(trainer.checkpoint_path(), "final")
            trainer.settle_saves()
        if self.failures:
            newest = self.path.name if self.path is not None else "none"
            log.warning("checkpoints that could not be written: %d; the newest one is %s", self.failures, newest)
        if self.best is not None and not self.best.measured:
            why = self._unmeasured or f"its split was never evaluated{suggestion(self.best.metric, trainer.metrics)}"
            log.warning("checkpoint.best = %r was never measured as a finite number: %s", self.best.metric, why)
        if (path := self.best_path(trainer)) is not None and self.best is not None:
            log.info("the checkpoint with the best %s, %g, is %s", self.best.metric, self.best.value, path)

    @hookimpl
    def teardown(self, trainer: Trainer) -> None:
        """Let nothing of this run be written after it, unless it is left in a hurry."""
        writer, self._writer = self._writer, None
        if writer is not None and trainer.hurried:
            leave_behind(writer)
        elif writer is not None:
            writer.join()

    def best_path(self, trainer: Trainer) -> Path | None:
        """Return where the checkpoint with the best value is, or ``None`` if there is none."""
        if trainer.work_dir is None or self.best is None or self.best.step is None:
            return None
        path = trainer.work_dir / "checkpoints" / f"step-{self.best.step:08d}"
        return path if path.is_dir() else None

    @property
    def _last_step(self) -> int | None:
        """Step of the newest checkpoint, also if it is still being written."""
        return self.saved_step if self._saving_step is None else self._saving_step

    def _request(self, trainer: Trainer, step: int | None, kind: str) -> None:
        if trainer.work_dir is not None and (step is None or step != self._last_step):
            trainer.request_checkpoint(kind)

    # --- How ---

    @hookimpl
    def save_checkpoint(self, trainer: Trainer, path: Path, kind: str) -> Path | Future[Path | None]:
        """Write a checkpoint as a whole, then remove older ones."""
        if not trainer.is_main:
            return path
        folder = trainer.run_folder
        if folder is not None and (path.parent != folder.path / "checkpoints" or step_of(path) != trainer.step):
            folder = None  # a copy elsewhere, or under another name, is the user's
        own = [plugin for plugin in trainer.plugins.values() if isinstance(plugin, Checkpoint)] if folder is not None else []
        for plugin in own:  # checkpoint@best too
            plugin._saving_step, plugin._saved_at = trainer.step, time.monotonic()
        try:
            in_background = self.async_save and trainer.session is not None and trainer.session.training
            state = trainer.state_dict()
            snapshot = take_snapshot(state, copy=in_background)
        except BaseException:
            for plugin in own:
                plugin._saving_step = None
            raise
        if not self._looked:
            self._look(trainer)
        self._serial += 1
        counters = {"step": trainer.step, "update": trainer.update, "epoch": trainer.epoch}
        facts = {
            **counters,
            "kind": kind,
            "metrics": _numbers(trainer.metrics),
            "pinned": kind == "pinned" or (kind in ("final", "rescue") and trainer._checkpoint_request == "pinned"),
            "run": trainer.run_id,
            "serial": self._serial,
        }
        save = _Save(path, snapshot, facts, folder, self._broken, self._unread, self.on_failure)
        for plugin in own:
            plugin._outdated = False
            plugin._stops = "stop_after_epoch" in state["run"]
            save.add(plugin)
        if not in_background:
            return save.run() or nothing()
        future: Future[Path | None] = Future()
        # A daemon, for which the interpreter does not wait when a second Ctrl-C ends the process; teardown does wait.
        self._writer = Thread(target=run_into, args=(future, save.run), name="trainhooks checkpoint", daemon=True)
        self._writer.start()
        return future

    @hookimpl
    def load_checkpoint(self, path: Path) -> StateDict | None:
        """Read a checkpoint, or the newest whole one of a run folder."""
        if is_checkpoint(path):
            return self._read(path)
        if not path.exists():
            message = f"no checkpoint at {path}"
            raise UsageError(message)
        if path.is_file() and is_checkpoint(path.parent):
            message = f"{path} is one file of a checkpoint: name the folder {path.parent}"
            raise UsageError(message)
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        if not folder.is_dir():
            return None
        found, errors = read_manifests(candidates(folder))
        if not found and not errors:  # so nothing is damaged
            message = f"{folder} holds no checkpoint: name one, or a run that has saved one"
            newest = newest_run(run for run in find_runs(path) if checkpoints_of(run)) if not is_run(path) else None
            if newest is not None:
                message = f"{path} is a folder of runs: name one, the newest is {newest}"
            raise UsageError(message)
        for broken, error in errors.items():
            self._skip(broken, error)
        for candidate in newest_first(found, owner_of(folder)):
            try:
                return self._read(candidate)
            except CheckpointError as error:
                self._skip(candidate, error)
        message = f"no whole checkpoint in {folder}: name another one, or train anew with --overwrite"
        raise CheckpointError(message)

    @hookimpl
    def on_load(self, trainer: Trainer, state: StateDict) -> None:
        """Tell whose checkpoint it was, if this instance of the plugin has read it."""
        self.take_gradients(state)
        if self._loaded_run_id:
            trainer.loaded_run_id = self._loaded_run_id

    def _skip(self, path: Path, error: CheckpointError) -> None:
        self._broken.add(path.absolute())
        log.warning("skipped a broken checkpoint: %s", error)

    def _read(self, path: Path) -> StateDict:
        state, manifest = read_checkpoint(path), read_manifest(place_of(path))
        self.path, self._loaded_run_id, self._serial = path, manifest.run, max(self._serial, manifest.serial)
        return state

    def find_best(self, run: Path, metric: str | None = None) -> tuple[Path, str]:
        """Return the best checkpoint of a run folder, and why it is.

        Args:
            run: The folder.
            metric: Compare what the checkpoints say of this metric (``min:NAME`` and ``max:NAME`` say which is better), not
                what the run recorded as the best.

        Raises:
            UsageError: The run has recorded none, or there is no such metric.
            CheckpointError: The best one is broken or not there any more.
        """
        found = find(run)
        entry, why = best_of(found, found.entries(), metric)
        return entry.path, why

    def state_dict(self) -> dict[str, Any]:
        """Return what was saved last, the running save included, and what was best."""
        step = self._last_step
        best = self.best.state_after(step if step is not None else -1) if self.best is not None else None
        return {"saved_step": step, "best": best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.saved_step = state["saved_step"]
        if self.best is not None and state["best"] is not None:
            self.best.load_state_dict(state["best"])


class _Save:
    """One checkpoint to be written, with all that this needs: the run may go on meanwhile.

    Args:
        path: Where to.
        snapshot: Of the state.
        facts: For the manifest.
        folder: The run's, if the checkpoint is one of it.
        broken: Which ones are damaged, so that they need not be kept.
        unread: Of which ones it was said that their manifests cannot be read.
        on_failure: Whether a failure is raised or reported.
    """

    def __init__(
        self,
        path: Path,
        snapshot: Snapshot,
        facts: dict[str, Any],
        folder: RunFolder | None,
        broken: set[Path],
        unread: set[Path],
        on_failure: str,
    ) -> None:
        self.path, self._snapshot, self._facts, self._folder = path, snapshot, facts, folder
        self._broken, self._unread, self._on_failure = broken, unread, on_failure
        self._plugins: list[tuple[Checkpoint, dict[int, float]]] = []
        self._wishes: list[Wish] = []

    def add(self, plugin: Checkpoint) -> None:
        """Have an instance of the plugin say what it wants to keep; it is told when the checkpoint is durable."""
        values = plugin.best.values_after(self._facts["step"]) if plugin.best is not None else {}
        self._plugins.append((plugin, values))
        self._wishes.append(Wish(plugin.keep, tuple(plugin.best.best_of(values)) if plugin.best is not None else ()))

    def run(self) -> Path | None:
        """Write it, then remove older ones; return where it is, or ``None`` if that failed and was reported."""
        try:
            if self._folder is not None:
                self._claim(self._folder)
            write_checkpoint(self.path, self._snapshot, self._facts)
        except (CheckpointError, UsageError) as error:
            if self._on_failure == "stop":
                raise
            log.warning("%s; the run goes on without it, the next checkpoint is tried as usual", error)
            for plugin, _ in self._plugins:
                plugin.failures += 1
            return None
        else:
            if self._folder is not None:
                self._succeed(self._folder)
            return self.path
        finally:
            for plugin, _ in self._plugins:
                plugin._saving_step = None

    def _claim(self, folder: RunFolder) -> None:
        """List it as the run's own; remains of one that a killed run left in its place without listing it are removed.

        Raises:
            CheckpointError: The folder cannot be written to, or another run's checkpoint is in its place.
            UsageError: Something else is in its place.
        """
        found, errors = read_manifests([self.path])
        for error in errors.values():
            if isinstance(error.__cause__, OSError) and error.__cause__.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise CheckpointError(str(error)) from error.__cause__  # whose it is cannot be told now
        if any(there.run not in ("", self._facts["run"]) for there in found.values()):
            message = (
                f"cannot write the checkpoint {self.path}: the one that is there is of another run, {found[self.path].run}; move it "
                "away, or name another work_dir"
            )
            raise CheckpointError(message)
        name = f"{self.path.parent.name}/{self.path.name}"
        try:
            try:
                folder.file(name)
            except UsageError:
                if not remove_remains(self.path, damaged=self.path in self._broken):
                    raise
                folder.file(name)
        except OSError as error:
            message = f"cannot write the checkpoint {self.path}: {error.strerror} (errno {error.errno})"
            raise CheckpointError(message) from error

    def _succeed(self, folder: RunFolder) -> None:
        removed, there = rotate(self.path, self._facts["run"], self._wishes, self._unread)
        for plugin, values in self._plugins:
            plugin.saved_step, plugin.path = self._facts["step"], self.path
            if plugin.best is not None:
                plugin.best.commit(values, there)
        for path in removed:
            folder.forget(f"{path.parent.name}/{path.name}")


def _numbers(metrics: Metrics) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, int | float) and not isinstance(value, bool)}
