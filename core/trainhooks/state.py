"""What hooks may read and ask for: counters, limits, requests, outcome. Who drives the stages is another matter (``loop``)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from .errors import UsageError
from .interruption import Interruption

if TYPE_CHECKING:
    from .types import Metrics

NEVER: Final = sys.maxsize

Status = Literal["completed", "stopped", "interrupted", "failed"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        status: ``"completed"`` by reaching a limit, ``"stopped"`` on request, ``"interrupted"`` by a signal (Ctrl-C is one) or
            ``"failed"``.
        reason: What stopped it, or the exception in words.
        step: Steps done.
        update: Updates done.
        epoch: Epochs done.
        metrics: Latest flushed values.
    """

    status: Status
    reason: str
    step: int
    update: int
    epoch: int
    metrics: Metrics = field(default_factory=dict)


class TakenUp(NamedTuple):
    """Where this process took the run up, and what had been planned until there: what hooks dropped or skipped counts too.

    What is planned from there on is added to that, so that a run which is resumed with other settings ends where it will, and
    one with the same settings plans what it planned at first.
    """

    epoch: int
    batch_index: int
    steps: int
    updates: int


class RunState:
    """Counters, limits and requests of one run.

    Counters are 0-based indices of what is running and become counts when it is done: in the first step's hooks
    ``step == 0``, after training 100 steps ``step == 100``.

    Args:
        max_epochs: Epochs after which training ends.
        max_steps: Steps after which training ends.
        max_updates: Updates after which training ends. The first limit reached counts.
        steps_per_epoch: Batches in an epoch, for loaders that are endless or too long.
    """

    def __init__(
        self,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        max_updates: int | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        self.step = 0
        self.update = 0
        self.epoch = 0
        #: Index of the batch in this epoch; batches that were dropped count.
        self.batch_index = 0
        #: Batches that hooks dropped since this training began, and why the last of them was.
        self.dropped, self.dropped_reason = 0, ""
        #: Which loader is being read: ``"train"`` or the split of an evaluation or prediction.
        self.split = "train"
        #: Latest flushed values.
        self.metrics: Metrics = {}
        #: How the last run ended, from ``after_train`` on.
        self.outcome: Outcome | None = None
        #: Why the run is to stop after this step, or ``None``.
        self.stop_reason: str | None = None
        #: Records handed to reporters.
        self.records = 0
        self.rank, self.world_size = 0, 1
        self.max_epochs, self.max_steps, self.max_updates = max_epochs, max_steps, max_updates
        self.steps_per_epoch = steps_per_epoch
        self._check_steps_per_epoch()
        #: The request to end the run now and have it resumed later, or ``None``.
        self.interruption: Interruption | None = None
        #: Whether a checkpoint of what there is now would be resumed exactly; not so when a step has failed.
        self.between_steps = True
        self._serves_evaluation = False  # whether an evaluation is running at its place, between two steps
        self._stop_after_epoch: str | None = None
        self._stop_restored: str | None = None  # the same of a checkpoint, until its epoch goes on
        self._eval_requests: dict[str, None] = {}
        self._owed: set[str] = set()  # those of a checkpoint, which nobody has asked for again
        self._checkpoint_request: str | None = None
        self._due: bool | None = None  # what update_due decided for the running step
        self._updated = False  # whether the running step has made an update, and counted it
        self._optimizer_stepped = False  # whether the running step went through the optimizer_step stage
        self._in_update = False  # whether after_update is running, or has failed
        self._batch_used = False  # whether the step that failed has changed weights or gradients
        self._epoch_is_cut = False
        self._attention_at = 0  # the step from which on the loop looks at limits, requests and flushes
        self._taken_up = TakenUp(0, 0, 0, 0)
        self._length_at_start: int | None = None  # batches in an epoch when the running training began

    # --- Limits ---

    @property
    def max_epochs(self) -> int | None:
        """Epochs after which training ends."""
        return _limit(self._epoch_limit)

    @max_epochs.setter
    def max_epochs(self, value: int | None) -> None:
        self._epoch_limit = _checked_limit("max_epochs", value)

    @property
    def max_steps(self) -> int | None:
        """Steps after which training ends."""
        return _limit(self._step_limit)

    @max_steps.setter
    def max_steps(self, value: int | None) -> None:
        self._step_limit = _checked_limit("max_steps", value)
        self._attention_at = 0

    @property
    def max_updates(self) -> int | None:
        """Updates after which training ends."""
        return _limit(self._update_limit)

    @max_updates.setter
    def max_updates(self, value: int | None) -> None:
        self._update_limit = _checked_limit("max_updates", value)
        self._attention_at = 0

    def _check_steps_per_epoch(self) -> None:
        """Refuse a length of epochs that is none; a hook or a script may have set it.

        Raises:
            UsageError: With the value.
        """
        value = self.steps_per_epoch
        if value is None:
            return
        if not isinstance(value, Integral) or isinstance(value, bool):
            message = f"steps_per_epoch = {value!r}: must be a whole number, or None for the length of the loader"
            raise UsageError(message)
        if value < 1:
            message = f"steps_per_epoch = {value}: must be at least 1"
            raise UsageError(message)

    def count_failed_step(self) -> None:
        """Count what a step had done before it failed, so that a training that goes on from here does not do it twice."""
        self.update += self._in_update
        self.step += self._batch_used
        self.batch_index += self._batch_used
        self._in_update = self._batch_used = False
        self._due = None

    @property
    def limited(self) -> bool:
        """Whether any limit is set."""
        return min(self._epoch_limit, self._step_limit, self._update_limit) < NEVER

    @property
    def limit_reached(self) -> bool:
        """Whether there is nothing left to train."""
        return self.epoch >= self._epoch_limit or self.step >= self._step_limit or self.update >= self._update_limit

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run as far as they are known: from ``max_steps``, or those done and those left by ``max_epochs``."""
        by_epochs = NEVER
        length, epochs = self.epoch_length, self.max_epochs
        if length is not None and epochs is not None:
            by_epochs = self.step
            if self.epoch < epochs:
                by_epochs += max(length - self._batches_over, 0) + (epochs - self.epoch - 1) * length
        return _limit(min(self._step_limit, by_epochs))

    @property
    def _batches_over(self) -> int:
        """Batches of this epoch that are over, of the size that the loader gives now."""
        return self.batch_index

    @property
    def epoch_length(self) -> int | None:
        """Batches in an epoch: ``steps_per_epoch``, else the length of the train loader, else unknown."""
        return self.steps_per_epoch

    # --- Where we are ---

    @property
    def end_of_epoch(self) -> bool:
        """Whether the running batch is the last of its epoch."""
        length = self.epoch_length
        return length is not None and self.batch_index + 1 >= length

    @property
    def is_last_epoch(self) -> bool:
        """Whether the running epoch is the last, as far as ``max_epochs`` and ``max_steps`` tell."""
        if self.epoch + 1 >= self._epoch_limit:
            return True
        length = self.epoch_length
        return length is not None and self.step + length - self.batch_index >= self._step_limit

    @property
    def is_last_step(self) -> bool:
        """Whether a limit is reached when the running step is done."""
        updates = self.update + (self._updates_each_step if self._due is None else self._due and not self._updated)
        return (
            self.step + 1 >= self._step_limit
            or updates >= self._update_limit
            or (self.epoch + 1 >= self._epoch_limit and self.end_of_epoch)
        )

    @property
    def _updates_each_step(self) -> bool:
        """Whether a step whose ``update_due`` has not been asked yet is certain to make an update."""
        return False

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    def every_n_steps(self, n: int) -> bool:
        """Return whether the running step is the n-th, 2n-th, ...; never for ``n`` below 1."""
        return n > 0 and (self.step + 1) % n == 0

    def every_n_updates(self, n: int) -> bool:
        """Return whether the running step makes the n-th, 2n-th, ... update; false after one that was skipped.

        Before ``update_due`` has decided, whether it works towards that update.
        """
        if n < 1 or self._due is False:
            return False
        if self._due and self._updated:
            return self.update % n == 0
        skipped = self._due and self._optimizer_stepped and not self._in_update
        return not skipped and (self.update + 1) % n == 0

    def every_n_epochs(self, n: int) -> bool:
        """Return whether the running epoch is the n-th, 2n-th, ...; false at the end of one that was cut short."""
        return n > 0 and (self.epoch + 1) % n == 0 and not self._epoch_is_cut

    # --- Requests ---

    def stop(self, reason: str, at: Literal["step", "epoch"] = "step") -> None:
        """End the run after the current step, or after the current epoch; before the step when asked in ``before_step``."""
        if at not in ("step", "epoch"):
            message = f"stop(at={at!r}): must be 'step' or 'epoch'"
            raise UsageError(message)
        if not (isinstance(reason, str) and reason):  # which is shown as the reason of the outcome
            message = f"stop({reason!r}): say why in words, such as stop('the loss is low enough')"
            raise UsageError(message)
        if at == "step":
            self.stop_reason = self.stop_reason or reason
            self._attention_at = 0
        else:
            self._stop_after_epoch = self._stop_after_epoch or reason

    def interrupt(self, error: BaseException, reason: str) -> None:
        """End the run as soon as it can be resumed exactly from there, save a checkpoint, then raise ``error`` from ``train()``.

        That is after the running step; at once where the loop waits for workers of a loader. An evaluation ends with the running
        batch and is made up for when the run is resumed. Before the first step nothing is trained, after the last one
        everything is finished first. The first interruption counts. May be called by a signal handler: it saves and says nothing.

        Args:
            error: For example ``Terminated(signal.SIGTERM)``; ``on_exception`` gets it too.
            reason: In words, for the outcome, whose status is ``"interrupted"``.
        """
        if self.interruption is None:
            self.interruption = Interruption(error, reason)
        self._attention_at = 0
        self._leave_wait(patient=True)

    def lose_patience(self) -> None:
        """End a wait for the next batch that the interruption has to wait for; what a resumed run trains next may differ then."""
        if self.interruption is not None:
            self._leave_wait(patient=False)

    def leave_if_interrupted(self) -> None:
        """Raise the error of the interruption, if there is one."""
        if self.interruption is not None:
            raise self.interruption.error

    def leave_evaluation(self) -> None:
        """Raise the error of the interruption, unless a hook that must be finished has asked for this evaluation."""
        if self._may_leave_evaluation:
            self.leave_if_interrupted()

    @property
    def hurried(self) -> bool:
        """Whether the run is to end at once, so that nothing is saved or waited for."""
        return self.interruption is not None and self.interruption.hurried

    @property
    def _may_leave_evaluation(self) -> bool:
        return self._serves_evaluation or self.outcome is not None

    def _leave_wait(self, *, patient: bool) -> None:
        """Raise the error of the interruption if the calling thread waits for a batch."""

    def request_eval(self, split: str = "val") -> None:
        """Evaluate ``split`` at its place in this step: after the step's events, before a checkpoint."""
        self._eval_requests[split] = None
        self._owed.discard(split)
        self._attention_at = 0

    def request_checkpoint(self, kind: str = "periodic") -> None:
        """Save a checkpoint at its place in this step: after the step's events and evaluation; ``"pinned"`` is never removed."""
        if self._checkpoint_request is None or kind == "pinned":
            self._checkpoint_request = kind
        self._attention_at = 0

    # --- State ---

    @property
    def saves(self) -> bool:
        """Whether the run can write checkpoints."""
        return False

    def save_counters(self) -> dict[str, object]:
        """Return the counters, the evaluations that are still owed, what was planned, and which requests outlive an interruption.

        What was planned is there where it is not what was done. The requests are the kind of the checkpoint that follows an owed
        evaluation, and a stop at the end of an epoch that is open.
        """
        stop = self._stop_restored if self._stop_after_epoch is None else self._stop_after_epoch
        is_open = self.stop_reason is None or (self.batch_index > 0 and stop != self.stop_reason)
        asked = {
            "checkpoint_request": self._checkpoint_request if self._eval_requests else None,
            "stop_after_epoch": stop if is_open else None,
        }
        planned = self._planned_until_here()
        return {
            "step": self.step,
            "update": self.update,
            "epoch": self.epoch,
            "batch_index": self.batch_index,
            "records": self.records,
            "owed": list(self._eval_requests),
            **{name: value for name, value in asked.items() if value is not None},
            **({"planned": list(planned)} if planned != (self.step, self.update) else {}),
        }

    def load_counters(self, state: dict[str, object]) -> None:
        """Restore what ``save_counters`` returned."""
        for name in ("step", "update", "epoch", "batch_index", "records"):
            setattr(self, name, state[name])
        owed, planned = state["owed"], state.get("planned", [self.step, self.update])
        assert isinstance(owed, list)  # noqa: S101 - written above
        assert isinstance(planned, list)  # noqa: S101 - likewise
        self._taken_up = TakenUp(self.epoch, self.batch_index, *planned)
        self._eval_requests, self._owed = dict.fromkeys(owed), set(owed)
        kind, stop = state.get("checkpoint_request"), state.get("stop_after_epoch")
        self._checkpoint_request = (kind if isinstance(kind, str) else "periodic") if owed and self.saves else None
        self._stop_restored = stop if isinstance(stop, str) else None

    def _planned_until_here(self) -> tuple[int, int]:
        """Return the steps and updates that were planned until here."""
        return self.step, self.update


def _limit(value: int) -> int | None:
    return None if value == NEVER else value


def _checked_limit(name: str, value: int | None) -> int:
    if value is None:
        return NEVER
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        message = f"{name} = {value!r}: must be a whole number, 0 or more, or None for no limit"
        raise UsageError(message)
    return min(int(value), NEVER - 1)
