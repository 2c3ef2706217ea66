"""What hooks may read and ask for: counters, limits, requests, outcome. Who drives the stages is another matter (``loop``)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

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
        if steps_per_epoch is not None and steps_per_epoch < 1:
            message = f"steps_per_epoch = {steps_per_epoch}: must be at least 1"
            raise UsageError(message)
        #: The request to end the run now and have it resumed later, or ``None``.
        self.interruption: Interruption | None = None
        #: Whether a checkpoint of what there is now would be resumed exactly; not so when a step has failed.
        self.between_steps = True
        self._serves_evaluation = False  # whether an evaluation is running at its place, between two steps
        self._stop_after_epoch: str | None = None
        self._eval_requests: dict[str, None] = {}
        self._checkpoint_request: str | None = None
        self._due: bool | None = None  # what update_due decided for the running step
        self._updated = False  # whether the running step has made an update, and counted it
        self._optimizer_stepped = False  # whether the running step went through the optimizer_step stage
        self._in_update = False  # whether after_update is running
        self._epoch_is_cut = False
        self._attention_at = 0  # the step from which on the loop looks at limits, requests and flushes

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
        """Steps of the whole run as far as they are known: from ``max_steps``, or ``max_epochs`` and the loader's length."""
        by_epochs = NEVER
        length = self.epoch_length
        if length is not None and self.max_epochs is not None:
            by_epochs = length * self.max_epochs
        return _limit(min(self._step_limit, by_epochs))

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
        updates = self.update + (1 if self._due and not self._updated else 0)
        return (
            self.step + 1 >= self._step_limit
            or updates >= self._update_limit
            or (self.epoch + 1 >= self._epoch_limit and self.end_of_epoch)
        )

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
        """Return the counters and the evaluations that are still owed."""
        return {
            "step": self.step,
            "update": self.update,
            "epoch": self.epoch,
            "batch_index": self.batch_index,
            "records": self.records,
            "owed": list(self._eval_requests),
        }

    def load_counters(self, state: dict[str, object]) -> None:
        """Restore what ``save_counters`` returned."""
        for name in ("step", "update", "epoch", "batch_index", "records"):
            setattr(self, name, state[name])
        owed = state["owed"]
        assert isinstance(owed, list)  # noqa: S101 - written above
        self._eval_requests = dict.fromkeys(owed)
        self._checkpoint_request = "periodic" if owed and self.saves else None


def _limit(value: int) -> int | None:
    return None if value == NEVER else value


def _checked_limit(name: str, value: int | None) -> int:
    if value is None:
        return NEVER
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        message = f"{name} = {value!r}: must be a whole number, 0 or more, or None for no limit"
        raise UsageError(message)
    return value
