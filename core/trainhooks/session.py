"""One run, from set-up to teardown: what is guaranteed whatever happens in between."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .attribution import note_origin
from .checked_state import COMPARED, check_state
from .differences import lock_differences, setting_differences
from .errors import Terminated, UsageError, add_note
from .run_record import closing, opening, resumed
from .workers import end_workers, note_lost_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .manager import Plugin
    from .state import Outcome
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
                if self.training:
                    self._check()
                self._configure()
                if self.training and not trainer.limited:
                    message = (
                        "no limit: give max_epochs, max_steps or max_updates (--set max_epochs=10), else training never ends"
                    )
                    raise UsageError(message)
                trainer.build(training=self.training)
                if self.training and trainer.run_folder is not None and trainer.is_main:
                    facts = opening(trainer)
                    trainer.run_folder.open(resume=self.resume is not None, overwrite=trainer.overwrite, facts=facts)
                self._set_up()
                result = work()
                trainer.close_reporter()  # what a reporter's policy does not forgive fails the run
            except BaseException as error:
                self._fail(error)
                raise
            self._finish()
            trainer.leave_if_interrupted()  # when the training was done: all that comes after it has been finished
            return result
        finally:
            if self.training and trainer.run_folder is not None:
                end = trainer.run_folder.close if self.begun else trainer.run_folder.abandon
                end(**closing(trainer))
            trainer.session = trainer.interruption = None
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
        self._note_endless()
        try:
            if trainer.hooks.before_train is not None:
                trainer.hooks.before_train(trainer=trainer)
            trainer.hooks.train(trainer=trainer)
            trainer.flush()
            if not trainer.ended:
                trainer.leave_if_interrupted()
        except BaseException as error:
            self._end_early(error)
            raise
        reason = trainer.stop_reason or trainer._stop_after_epoch
        trainer.outcome = trainer.make_outcome(*(("stopped", reason) if reason is not None else ("completed", self._limit())))
        self._after_train(None)
        trainer.flush()
        trainer._eval_requests, trainer._checkpoint_request = {}, None  # too late for these; a second call owes them not
        trainer.outcome = trainer.make_outcome(trainer.outcome.status, trainer.outcome.reason)

    def restored(self, checkpoint: str | Path | None, work: Callable[[], T]) -> T:
        """Do ``work`` with a checkpoint's weights."""
        if checkpoint is None:
            return work()
        trainer = self.trainer
        place = trainer.save_counters()
        state = trainer.hooks.load_checkpoint(trainer=trainer, path=Path(checkpoint))
        try:
            trainer.load_state_dict(state, weights_only=True)
            return work()
        finally:
            trainer.load_counters(place)  # the weights stay, the place in the run is not that of the checkpoint

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
        if self.resume != "auto" and not Path(str(self.resume)).exists():
            message = f"no checkpoint at {self.resume}"
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
            if path.is_dir() and any(entry.name[0] != "." or entry.suffix == ".old" for entry in path.iterdir()):
                return path
        except OSError as error:
            message = f"cannot read the folder of checkpoints {path}: {error.strerror}"
            raise UsageError(message) from error
        log.info("nothing to resume in %s: starting anew", folder.path)
        return None

    def _configure(self) -> None:
        trainer = self.trainer
        if trainer._configured:
            return
        self.configuring = True
        trainer.manager.call_each("configure", list(trainer.manager.plugins.values()), {"trainer": trainer})
        self.configuring = False
        trainer._configured = True

    def _set_up(self) -> None:
        done: set[Plugin] = set()
        while waiting := [plugin for plugin in self.trainer.manager.plugins.values() if plugin not in done]:
            done.add(waiting[0])  # one at a time: a plugin may register others in its setup
            self.set_up_plugin(waiting[0])
        self.set_up = True
        self.trainer.open_reporter()

    def _note_endless(self) -> None:
        """Say what keeps the run from ending, if its loader never does: nobody can tell that from a long one."""
        trainer = self.trainer
        if trainer.max_steps is None and trainer.max_updates is None and trainer.epoch_length is None:
            log.info(
                "the train loader has no length: if it is endless, an epoch never ends; set steps_per_epoch, max_steps or "
                "max_updates then"
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
        if trainer.run_folder is not None and trainer.is_main:
            trainer.run_folder.update(**resumed(trainer))
        log.info("resumed from %s at step %d", path, trainer.step)
        for difference in settings:
            log.warning("resumed with other settings than the checkpoint was made with: %s", difference)
        for difference in differences:
            log.warning("resumed with other plugins than the checkpoint was made with: %s", difference)

    # --- Ending ---

    def _limit(self) -> str:
        trainer = self.trainer
        for name, count in (("max_steps", trainer.step), ("max_updates", trainer.update), ("max_epochs", trainer.epoch)):
            limit = getattr(trainer, name)
            if limit is not None and count >= limit:
                return f"{name}={limit} reached"
        return "train() ended"

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
        return self.trainer.make_outcome(status, f"{type(error).__name__}: {error}".rstrip(": "))  # type: ignore[arg-type]

    def _after_train(self, error: BaseException | None) -> None:
        errors: list[BaseException] = []
        plugins = list(self.trainer.manager.plugins.values())
        self.trainer.manager.call_each("after_train", plugins, {"trainer": self.trainer}, collect=errors)
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
        plugins = list(trainer.manager.plugins.values())
        trainer.manager.call_each("on_exception", plugins, {"trainer": trainer, "exception": error}, collect=errors)
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
        """Deliver what was logged, then tear down in reverse order, going on after errors."""
        trainer = self.trainer
        try:
            trainer.close_reporter()
        except BaseException as error:
            errors.append(error)
        started = self._started[::-1]
        self._started.clear()
        kwargs = {"trainer": trainer, "outcome": trainer.outcome}
        trainer.manager.call_each("teardown", started, kwargs, collect=errors)

    def _settle(self, errors: Sequence[BaseException], original: BaseException | None) -> None:
        """Attach errors of the clean-up to the original, or raise them together if there is none."""
        trainer = self.trainer
        for error in errors:
            if not self._is_interruption(error):
                note_origin(error, trainer.manager, trainer.step)
        if original is not None:
            for error in errors:
                text = "".join(traceback.format_exception(error)).rstrip()
                add_note(original, f"while cleaning up, another error was raised:\n{text}")
        elif len(errors) == 1:
            raise errors[0]
        elif errors:
            message = "several plugins failed while cleaning up"
            raise BaseExceptionGroup(message, list(errors))
