"""One run, from set-up to teardown: what is guaranteed whatever happens in between."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .assembly import note_unlisted
from .attribution import note_origin
from .checked_state import COMPARED, check_state
from .differences import lock_differences, setting_differences
from .errors import Terminated, UsageError, add_note, message_of, no_stray_requests
from .run_lock import LOCK
from .run_record import closing, described, opening, resumed
from .workers import end_workers, note_lost_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .manager import Plugin
    from .state import Outcome, Status
    from .trainer import Trainer

T = TypeVar("T")

log = logging.getLogger("trainhooks")

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


class Session:
    """A run in progress.

    ``setup`` and ``teardown`` are called plugin by plugin, so that exactly those that were set up are torn down. The
    exception that ends a run is the object that was raised; errors of the clean-up are attached to it as notes.

    Args:
        trainer: Whose run it is.
        training: Whether it trains; otherwise it evaluates or predicts, and writes nothing.
        resume: A checkpoint, or ``"auto"``.
    """

    def __init__(self, trainer: Trainer, *, training: bool, resume: str | Path | None = None) -> None:
        self.trainer = trainer
        self.training = training
        self.resume = resume
        self.configuring = False
        self.set_up = False
        #: Whether what is to be resumed has been restored, so that what the run folder says is about this run.
        self.begun = resume is None
        #: Whether the reporters have been opened, as far as there are any.
        self.reports = False
        #: The checkpoint that was restored, if any.
        self.restored_from: Path | None = None
        #: What was said once already.
        self.said: set[str] = set()
        self._started: list[Plugin] = []

    def run(self, work: Callable[[], T]) -> T:
        """Set up, do ``work``, tear down; exceptions propagate afterwards."""
        trainer = self.trainer
        trainer.session = self
        trainer.outcome = trainer.interruption = None
        trainer.between_steps = True
        try:
            try:
                with no_stray_requests():
                    self._begin()
                    result = work()
                    trainer.drain_reporter()  # what a reporter's policy does not forgive fails the run
            except BaseException as error:
                self._fail(error)
                raise
            with no_stray_requests():
                self._finish()
            trainer.leave_if_interrupted()  # when the training was done: all that comes after it has been finished
            return result
        finally:
            if self.training and trainer.run_folder is not None:
                end = trainer.run_folder.close if self.begun else trainer.run_folder.abandon
                end(**closing(trainer))
            trainer.session = trainer.interruption = None
            trainer._output = {}  # whose loss holds the graph of the last step
            trainer._batches = None  # whose workers end with it
            trainer.stateful.waiting = {}
            self._started.clear()
            del self.trainer  # a frame that a traceback holds must not hold the trainer through us

    def train(self) -> None:
        """Restore, then train between ``before_train`` and ``after_train``."""
        trainer = self.trainer
        trainer.leave_if_interrupted()
        path = self._resume_path()
        if path is not None:
            self._restore(path)
            trainer.leave_if_interrupted()
        self.begun = True
        began, trainer.dropped = trainer.step, 0
        self._open_reporters()
        self._note_endless()
        try:
            with no_stray_requests():
                if trainer.hooks.before_train is not None:
                    trainer.hooks.before_train(trainer=trainer)
                self._note_evaluation_mode()
                trainer.hooks.train(trainer=trainer)
            trainer.flush(collective=True)
            if not trainer.ended:
                trainer.leave_if_interrupted()
        except BaseException as error:
            self._end_early(error)
            raise
        reason = trainer.stop_reason or trainer._stop_after_epoch
        status: Status = "completed" if reason is None else "stopped"
        trainer.outcome = trainer.make_outcome(status, (reason or self._limit()) + self._nothing_trained(began))
        self._after_train(None)
        trainer.flush(collective=True)
        trainer._eval_requests, trainer._checkpoint_request = {}, None  # too late for these; a second call owes them not
        trainer.outcome = trainer.make_outcome(trainer.outcome.status, trainer.outcome.reason)

    def restored(self, checkpoint: str | Path | None, work: Callable[[], T]) -> T:
        """Do ``work`` with a checkpoint's weights."""
        if checkpoint is None:
            return work()
        trainer = self.trainer
        state = trainer.hooks.load_checkpoint(trainer=trainer, path=Path(checkpoint))
        place, put_back = trainer.save_counters(), trainer.stateful.kept_places()
        try:
            trainer.load_state_dict(state, weights_only=True)
            return work()
        finally:
            trainer.load_counters(place)  # the weights stay, the place in the run is not that of the checkpoint
            put_back()

    # --- Plugins that come and go ---

    def set_up_plugin(self, plugin: Plugin) -> None:
        """Give one plugin its ``setup``; it will get its ``teardown``."""
        self.trainer.manager.call_each("setup", [plugin], {"trainer": self.trainer})
        if not plugin.failed:
            self._started.append(plugin)

    def tear_down_plugin(self, plugin: Plugin, outcome: Outcome) -> None:
        """Give one plugin its ``teardown`` now, if it was set up."""
        if plugin in self._started:
            self._started.remove(plugin)
            self.trainer.manager.call_each("teardown", [plugin], {"trainer": self.trainer, "outcome": outcome})

    # --- Beginning ---

    def _begin(self) -> None:
        """Check what was asked for, make what is missing, and set everybody up."""
        trainer = self.trainer
        if self.training:
            self._check()
        self._configure()
        trainer._check_steps_per_epoch()
        if self.training and not trainer.limited:
            message = "no limit: give max_epochs, max_steps or max_updates (--set max_epochs=10), else training never ends"
            raise UsageError(message)
        trainer.build(training=self.training)
        if self.training and trainer.run_folder is not None and trainer.is_main:
            facts = opening(trainer)
            trainer.run_folder.open(resume=self.resume is not None, overwrite=trainer.overwrite, facts=facts)
            trainer.run_id, trainer.parent_id = (trainer.run_folder.record[key] for key in ("id", "parent"))
        self._set_up()
        if self.training:
            note_unlisted(trainer.manager.plugins.values(), trainer.config)
        trainer.keep_parts(optimizers=self.training)

    def _check(self) -> None:
        """Refuse what cannot work before anything is made."""
        trainer = self.trainer
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            message = (
                "train() was called by a script that a new worker process imports, as spawn and forkserver do: write "
                "`if __name__ == '__main__':` above what starts the run"
            )
            raise UsageError(message)
        if self.resume is not None:
            self._check_resume()
        if trainer.run_folder is not None and trainer.is_main:
            trainer.run_folder.check(resume=self.resume is not None, overwrite=trainer.overwrite)

    def _check_resume(self) -> None:
        trainer = self.trainer
        if not trainer.manager.has("load_checkpoint"):
            out = next((one.origin for one in trainer.config.choices if not one.wanted and one.name == "checkpoint"), "")
            because = f"; {out} takes the plugin 'checkpoint' out, drop one of the two" if out else ": enable 'checkpoint'"
            message = f"resume={str(self.resume)!r} needs a plugin that reads checkpoints{because}"
            raise UsageError(message)
        if self.resume != "auto" and not (str(self.resume) and Path(str(self.resume)).exists()):  # Path("") is this folder
            message = f"no checkpoint at {str(self.resume)!r}: name a checkpoint or a run folder, or write 'auto' for the newest one of work_dir"
            raise UsageError(message)
        if self.resume == "auto" and trainer.run_folder is None:
            message = "resume='auto' needs a work_dir to look for checkpoints in; pass work_dir= or the checkpoint's path"
            raise UsageError(message)

    def _resume_path(self) -> Path | None:
        """Return what to restore; for ``"auto"`` the folder of checkpoints, if there is anything in it."""
        if self.resume is None:
            return None
        if self.resume != "auto":
            return Path(self.resume)
        folder = self.trainer.run_folder
        assert folder is not None  # noqa: S101 - checked above
        path = folder.path / "checkpoints"
        try:
            if path.is_dir() and any(
                (entry.name[0] != "." or entry.suffix == ".old") and entry.name != LOCK for entry in path.iterdir()
            ):
                return path
        except OSError as error:
            message = f"cannot read the folder of checkpoints {path}: {error.strerror}"
            raise UsageError(message) from error
        lost = str(folder.record.get("checkpoint"))
        if lost.startswith(f"{path.name}/") and not self.trainer.overwrite:
            message = (
                f"the run in {folder.path} has saved {lost}, but there is no checkpoint in {path}: bring it back (is its disk "
                "mounted?), or train anew with --overwrite (Trainer(overwrite=True))"
            )
            raise UsageError(message)
        if folder.sought:
            log.info("no earlier run %s: starting a new one in %s", folder.sought, folder.path)
        else:
            log.info("nothing to resume in %s: starting anew", folder.path)
        return None

    def _configure(self) -> None:
        trainer = self.trainer
        if trainer._configured:
            return
        self.configuring = True
        new = (one for one in trainer.manager.everybody() if not one.configured)  # the others were, in a run that failed
        trainer.manager.call_each("configure", new, {"trainer": trainer})
        self.configuring = False
        trainer._configured = True

    def _set_up(self) -> None:
        done: set[Plugin] = set()
        while waiting := [plugin for plugin in self.trainer.manager.plugins.values() if plugin not in done]:
            done.add(waiting[0])  # one at a time: a plugin may register others in its setup
            self.set_up_plugin(waiting[0])
        self.set_up = True

    def _note_endless(self) -> None:
        """Say what keeps the run from ending, if its loader never does: nobody can tell that from a long one."""
        trainer = self.trainer
        if trainer.max_steps is None and trainer.max_updates is None and trainer.epoch_length is None:
            log.info(
                "the train loader has no length: if it is endless, an epoch never ends; set steps_per_epoch, max_steps or "
                "max_updates then"
            )

    def _note_evaluation_mode(self) -> None:
        """Say that the whole model was left in evaluation mode, as ``from_pretrained`` gives it; single frozen parts are meant."""
        trainer = self.trainer
        if trainer.model is not None and not trainer.model.training and not trainer.limit_reached:
            log.warning(
                "the model is in evaluation mode, so dropout is off and batch norm uses its stored statistics while it trains: "
                "unless that is meant, call model.train() before"
            )

    def _restore(self, path: Path) -> None:
        trainer = self.trainer
        state = trainer.hooks.load_checkpoint(trainer=trainer, path=path)
        check_state(state, COMPARED)
        differences = lock_differences(state.get("plugin_lock", []), trainer.plugin_lock())
        if differences and trainer.strict_plugins:
            message = "the plugins differ from those of the checkpoint:\n  " + "\n  ".join(differences)
            raise UsageError(message)
        settings = setting_differences(trainer, state)
        trainer.load_state_dict(state)
        self.restored_from = path
        self._take_id(trainer.loaded_run_id, path)
        if trainer.run_folder is not None and trainer.is_main:
            trainer.run_folder.update(**resumed(trainer))
        log.info("resumed from %s at step %d", path, trainer.step)
        for difference in settings:
            log.warning("resumed with other settings than the checkpoint was made with: %s", difference)
        if trainer.limit_reached:
            name, limit = self._reached() or ("max_epochs", trainer.epoch)
            more = f"{name}={max(2 * limit, 1)}"
            log.info("nothing is left to train: %s=%d is reached; give more to train on, such as --set %s", name, limit, more)
        for difference in differences:
            log.warning("resumed with other plugins than the checkpoint was made with: %s", difference)

    def _take_id(self, saved: str, path: Path) -> None:
        """Go on with the identity of the run that saved the checkpoint, or fork it: in a folder of its own a run is another."""
        trainer = self.trainer
        if not saved:
            return
        if trainer.work_dir is None or path.resolve().is_relative_to(trainer.work_dir.resolve()):
            trainer.run_id = saved
        elif saved != trainer.run_id:
            trainer.parent_id = saved
            trainer.forget_undelivered()

    def _open_reporters(self) -> None:
        trainer = self.trainer
        if trainer.run_folder is not None and trainer.is_main:
            trainer.run_folder.update(**described(trainer))
        self.reports = True
        trainer.open_reporter()

    # --- Ending ---

    def _limit(self) -> str:
        reached = self._reached()
        return f"{reached[0]}={reached[1]} reached" if reached is not None else "train() ended"

    def _reached(self) -> tuple[str, int] | None:
        """Return the name of the limit that has been reached, and its value."""
        trainer = self.trainer
        for name, count in (("max_steps", trainer.step), ("max_updates", trainer.update), ("max_epochs", trainer.epoch)):
            limit: int | None = getattr(trainer, name)
            if limit is not None and count >= limit:
                return name, limit
        return None

    def _nothing_trained(self, began: int) -> str:
        """Say so where hooks dropped every batch."""
        trainer = self.trainer
        if trainer.step > began or not trainer.dropped:
            return ""
        why = f", the last one with {trainer.dropped_reason!r}" if trainer.dropped_reason else ""
        log.warning("0 of %d batches were trained: hooks dropped them all%s", trainer.dropped, why)
        return f", 0 of {trainer.dropped} batches trained"

    def _end_early(self, error: BaseException) -> None:
        """Have everybody end a training that an exception ends, which may be the one of an interruption."""
        trainer = self.trainer
        note_lost_workers(error, trainer.loaders.values())
        trainer.outcome = self._outcome_of(error)
        trainer.between_steps = self._is_interruption(error) and not trainer.hurried
        if trainer.between_steps:
            self._say_interrupted()
            trainer.rewind_epoch()
        if trainer.hurried:
            end_workers(error, trainer.loaders.values(), at_once=True)
        self._after_train(error)
        if trainer.interruption is not None:
            end_workers(error, trainer.loaders.values(), at_once=trainer.hurried)
            trainer._batches = None

    def _is_interruption(self, error: BaseException) -> bool:
        return self.trainer.interruption is not None and error is self.trainer.interruption.error

    def _say_interrupted(self) -> None:
        trainer = self.trainer
        assert trainer.interruption is not None  # noqa: S101 - asked before
        log.warning("%s: the training ends at step %d", trainer.interruption.reason, trainer.step)
        if not trainer.interruption.exact:
            log.warning(
                "the loader did not give the next batch in time, and was not waited for: what it has drawn for it is lost, so a "
                "resumed run may differ from one that was never interrupted"
            )

    def _outcome_of(self, error: BaseException) -> Outcome:
        if self.trainer.interruption is not None and self._is_interruption(error):
            return self.trainer.make_outcome("interrupted", self.trainer.interruption.reason)
        status = "interrupted" if isinstance(error, KeyboardInterrupt | Terminated) else "failed"  # that of a nested run, too
        return self.trainer.make_outcome(status, f"{type(error).__name__}: {message_of(error)}".rstrip(": "))  # type: ignore[arg-type]

    def _after_train(self, error: BaseException | None) -> None:
        errors: list[BaseException] = []
        manager = self.trainer.manager
        manager.call_each("after_train", manager.everybody(), {"trainer": self.trainer}, collect=errors)
        if not self.trainer.hurried:
            try:
                self.trainer.settle_saves()
            except BaseException as second:
                errors.append(second)
        self._settle(errors, error)

    def _fail(self, error: BaseException) -> None:
        """Tell everybody, close everything, and attach what went wrong on the way."""
        trainer = self.trainer
        if not (
            self._is_interruption(error) or note_lost_workers(error, trainer.loaders.values())
        ):  # else it may have been raised in anybody's code
            note_origin(error, trainer.manager, trainer.step)
        if trainer.outcome is None or trainer.outcome.status not in ("failed", "interrupted"):
            trainer.outcome = self._outcome_of(error)
        errors: list[BaseException] = []
        kwargs = {"trainer": trainer, "exception": error}
        trainer.manager.call_each("on_exception", trainer.manager.everybody(), kwargs, collect=errors)
        self._close(errors)
        self._settle(errors, error)

    def _finish(self) -> None:
        errors: list[BaseException] = []
        if self.trainer.outcome is None:
            self.trainer.outcome = self.trainer.make_outcome("completed", "")
        self._close(errors)
        if errors:
            self.trainer.outcome = self._outcome_of(errors[0])
        self._settle(errors, None)

    def _close(self, errors: list[BaseException]) -> None:
        """Tear down in reverse order, going on after errors; then deliver what was logged and close the reporters."""
        trainer = self.trainer
        assert trainer.outcome is not None  # noqa: S101 - who calls this has set it
        kwargs = {"trainer": trainer, "outcome": trainer.outcome}
        trainer.manager.call_each("teardown", self._leaving(), kwargs, collect=errors)
        if errors and trainer.outcome.status not in ("failed", "interrupted"):
            trainer.outcome = self._outcome_of(errors[0])
        try:
            trainer.close_reporter(trainer.outcome)
        except BaseException as error:
            errors.append(error)

    def _leaving(self) -> Iterator[Plugin]:
        """Yield who was set up, the last one first; a teardown may set others up, or tear them down."""
        while self._started:
            yield self._started.pop()

    def _settle(self, errors: list[BaseException], original: BaseException | None) -> None:
        """Attach errors of the clean-up to the original, or raise them together if there is none."""
        found = [error for error in errors if error is not original]  # which a hook may have raised once more
        errors.clear()  # the frames that their tracebacks hold must not hold them, and through them the trainer
        try:
            self._note_origins(found)
            if original is not None:
                for text in [_as_text(one, apart_from=original) for one in found]:
                    add_note(original, f"while cleaning up, another error was raised:\n{text}")
            elif found and (len(found) == 1 or all(isinstance(one, KeyboardInterrupt | Terminated) for one in found)):
                raise found[0]  # Ctrl-C, and again, is one interruption
            elif found:
                message = "several plugins failed while cleaning up"
                raise BaseExceptionGroup(message, list(found))
        finally:
            found.clear()

    def _note_origins(self, errors: list[BaseException]) -> None:
        for error in errors:
            if not self._is_interruption(error):
                note_origin(error, self.trainer.manager, self.trainer.step)


def _as_text(error: BaseException, *, apart_from: BaseException) -> str:
    """Return the traceback of an error without that of another one, in whose handling it was raised."""
    text = traceback.TracebackException.from_exception(error)
    links = [(error, text)]
    for one, its_text in links:
        for name in ("__cause__", "__context__"):
            inner, inner_text = getattr(one, name), getattr(its_text, name)
            if inner is apart_from:
                setattr(its_text, name, None)
            elif inner is not None and inner_text is not None:
                links.append((inner, inner_text))
    return "".join(text.format()).rstrip()
