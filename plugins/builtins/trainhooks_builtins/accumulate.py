"""``accumulate``: one update from the gradients of several micro-batches."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from trainhooks import OptionError, SkipStep, UsageError, hookimpl

from ._gradients import OF_WINDOW, divide, gradients_of, restore, saved, with_gradient

if TYPE_CHECKING:
    from collections.abc import Generator

    from trainhooks import Trainer
    from trainhooks.types import Output, StateDict

log = logging.getLogger("trainhooks")


class Accumulate:
    """Makes one update of several steps, with the mean of their gradients: a batch as large as all of them together.

    The steps of an update are its window. Windows begin with each epoch and end with it: what is left there, or at the last
    step of the run, is an update of its own, with the mean over the steps that it has.

    Gradients are summed and divided once, by the number of steps or the sum of their weights, when an update is due and before
    ``gradients_ready`` shows them to anybody: only then is it known how many there were, whatever the loader says or a plugin
    drops. With ``weight="reported"`` each loss is multiplied by its weight first.

    Args:
        steps: Steps of one update, or a mapping of epochs (from 0) to the steps that are in force from that epoch on.
        partial: What becomes of a window that the epoch or the run ends: ``flush`` makes it an update, ``drop`` forgets it.
        weight: ``mean`` weights all steps the same. ``reported`` weights each by ``"weight"`` in what ``compute_loss`` returns,
            a number or a tensor, for example how many tokens its loss is the mean of; the update is the mean over all tokens.
    """

    phase = "algorithm"

    def __init__(
        self,
        steps: int | dict[int, int] = 1,
        partial: Literal["flush", "drop"] = "flush",
        weight: Literal["mean", "reported"] = "mean",
    ) -> None:
        schedule = dict(steps) if isinstance(steps, Mapping) else {0: steps}
        if not schedule or not all(_whole(epoch, 0) and _whole(count, 1) for epoch, count in schedule.items()):
            message = f"steps = {steps!r}: must be a whole number, 1 or more, or a mapping of epochs (from 0) to such numbers"
            raise OptionError(message)
        if partial not in ("flush", "drop"):
            message = f"partial = {partial!r}: must be 'flush' or 'drop'"
            raise OptionError(message)
        if weight not in ("mean", "reported"):
            message = f"weight = {weight!r}: must be 'mean' or 'reported'"
            raise OptionError(message)
        self._schedule = sorted(schedule.items())
        self.partial, self.weight = partial, weight
        #: Steps that have been trained in the running window.
        self.position = 0
        self._total: Any = 0  # the sum of their weights
        self._share: Any = 0  # the weight of the running step; None while it is not known
        self._reported: Any = None  # what compute_loss said
        self._touched = False  # whether the running step has begun to add its gradients
        self._saved: dict[str, Tensor] | None = None  # the gradients of a checkpoint, until they are put in place
        self._loaded = False  # whether the running window is that of a checkpoint
        self._members: list[Tensor] = []  # what the optimizers hold
        idle: list[str] = []
        self._accumulates = set(schedule.values()) != {1}
        if not self._accumulates:
            idle = ["update_due", "count_updates", "train_step", "backward", "gradients_ready", "after_train_epoch"]
        if not self._accumulates or weight == "mean":
            idle += ["compute_loss", "scale_loss"]
        vars(self).update(dict.fromkeys(idle))  # nothing to do there: the hooks are not even called

    def steps_in(self, epoch: int) -> int:
        """Return how many steps make an update in an epoch."""
        return next((count for first, count in reversed(self._schedule) if first <= epoch), 1)

    def _in_words(self) -> str:
        return ", ".join(f"{count}{f' from epoch {first} on' if first else ''}" for first, count in self._schedule)

    # --- When ---

    @hookimpl
    def update_due(self, trainer: Trainer) -> bool:
        """Update when the window is full, or its last step is the last of the epoch or of the run."""
        if self.position + 1 >= self.steps_in(trainer.epoch):
            return True
        return self.partial == "flush" and (trainer.end_of_epoch or trainer.is_last_step)

    @hookimpl
    def count_updates(self, epoch: int, steps: int) -> int:
        """Say how many updates the steps of an epoch make: a window that is not full is one, or none."""
        full, rest = divmod(steps, self.steps_in(epoch))
        return full + (rest > 0 and self.partial == "flush")

    @hookimpl(wrapper=True)
    def train_step(self, trainer: Trainer, update_due: bool) -> Generator[None, Output, Output]:
        """Count the steps that were trained; a step that is dropped when it has touched the gradients ends the window."""
        spent = trainer.gradients_spent
        self._take_members(trainer)
        self._touched, self._reported = False, None
        self._share = 1 if self.weight == "mean" else None
        try:
            output = yield
            if self._share is None:
                raise UsageError(_NO_WEIGHT)
        except BaseException:
            if self._touched or (trainer.gradients_spent and not spent):
                self._forget(trainer)
            raise
        else:
            self.position = 0 if update_due else self.position + 1
            self._total = 0 if update_due else self._total + self._share
            return output
        finally:
            self._share = 0

    @hookimpl(tryfirst=True)
    def after_train_epoch(self, trainer: Trainer) -> None:
        """Close a window that is open, since the last batch was dropped, the loader stopped short, or windows are not flushed.

        After an epoch that was cut short by a limit or a stop it stays open: a run that goes on must find it as it was.
        """
        if not self.position or not trainer.every_n_epochs(1):
            return
        if self.partial == "flush" and not trainer.gradients_spent:
            try:
                trainer.update_parameters()
            except SkipStep as skip:
                log.info("accumulate: the update at the end of epoch %d was dropped: %s", trainer.epoch, skip.reason)
        self._forget(trainer)

    # --- What ---

    @hookimpl(wrapper=True)
    def compute_loss(self) -> Generator[None, Any, Any]:
        """Take note of the weight; see to it that a weight is not summed as if it were one of the losses."""
        result = yield
        weight = result.get("weight") if isinstance(result, Mapping) else getattr(result, "weight", None)
        if weight is None:
            raise UsageError(_NO_WEIGHT)
        self._reported = weight.detach() if isinstance(weight, Tensor) else weight
        if isinstance(result, Mapping) and "loss" not in result:
            result = {**result, "loss": sum(value for name, value in result.items() if name != "weight")}
        return result

    @hookimpl(wrapper=True)
    def scale_loss(self) -> Generator[None, Tensor, Tensor]:
        """Multiply the loss by its weight."""
        loss = yield
        self._share = self._reported
        return loss if self._share is None else loss * self._share

    @hookimpl(wrapper=True)
    def backward(self) -> Generator[None, bool, bool]:
        """Take note that gradients are added, of which some may be there even if it fails."""
        self._touched = True
        return (yield)

    @hookimpl(wrapper=True, tryfirst=True)
    def gradients_ready(self, trainer: Trainer) -> Generator[None, None, None]:
        """Turn the sum of the window into its mean before anybody looks at it.

        Here rather than at the end of ``backward``, which a ``train_step`` with several losses calls more than once.
        """
        if self._share is None:
            raise UsageError(_NO_WEIGHT)
        total = self._total + self._share
        if isinstance(total, Tensor):
            total = total.where(total != 0, 1)  # nothing was weighed: there is nothing to divide
        if isinstance(total, Tensor) or total not in (0, 1):
            divide(gradients_of(with_gradient(trainer.optimizers.values())), total)
        return (yield)

    def _take_members(self, trainer: Trainer) -> None:
        """Have a parameter that has joined an optimizer within the window begin now: what it gathered before was for no update."""
        groups = [group["params"] for optimizer in trainer.optimizers.values() for group in optimizer.param_groups]
        if sum(map(len, groups)) == len(self._members):
            return
        known, self._members = set(map(id, self._members)), [one for group in groups for one in group]
        if known and not trainer.gradients_spent:
            for one in self._members:
                if id(one) not in known:
                    one.grad = None

    def _forget(self, trainer: Trainer) -> None:
        """Drop the running window; the next step clears its gradients."""
        self.position, self._total = 0, 0
        trainer.gradients_spent = True

    # --- State ---

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Put the gradients of a checkpoint that was written within a window in their places."""
        if self.partial == "drop" and trainer.epoch_length is not None:
            self._check_length(trainer, trainer.epoch_length)
        if self._accumulates:
            total = trainer.total_updates
            planned = f", {total} updates in all" if total is not None else ""
            log.info("accumulate: an update takes %s steps%s", self._in_words(), planned)
        self._members = []
        loaded, kept = self._loaded, self._saved
        self._loaded, self._saved = False, None
        if not loaded:
            return
        why = "every step is an update now" if not self._accumulates else ""
        if not why and (kept is None or not restore(trainer.optimizers, trainer.model, kept)):
            why = "the checkpoint does not have them"
        if why:
            log.warning("accumulate: the gradients of the window of %d steps are lost: %s", self.position, why)
            self._forget(trainer)
            return
        trainer.gradients_spent = False

    def _check_length(self, trainer: Trainer, length: int) -> None:
        """Say so if no window can be full; refuse what would wait for updates for ever."""
        first, last = self._schedule[-1]
        if length < last and trainer.max_updates is not None and trainer.max_epochs is None and trainer.max_steps is None:
            updates = trainer.update + sum(length // self.steps_in(epoch) for epoch in range(trainer.epoch, first))
            if updates < trainer.max_updates:
                message = (
                    f"accumulate.partial = 'drop': an update takes {last} steps and an epoch has {length}, so max_updates = "
                    f"{trainer.max_updates} is never reached; use partial = 'flush' or fewer steps, or give max_epochs"
                )
                raise UsageError(message)
        least = min(self.steps_in(0), *(count for _, count in self._schedule))
        if length < least:
            log.warning(
                "accumulate: an epoch has %d steps and an update takes %d, so with partial = 'drop' there is no update",
                *(length, least),
            )

    @hookimpl
    def on_save(self, trainer: Trainer, state: StateDict) -> None:
        """Add the gradients of a window that is open."""
        if self.position:
            self._take_members(trainer)
            state[OF_WINDOW] = saved(trainer.optimizers, trainer.model)

    @hookimpl
    def on_load(self, state: StateDict) -> None:
        """Keep them until the training begins."""
        self._saved = state.get(OF_WINDOW)

    def state_dict(self) -> dict[str, Any]:
        """Return the place within the window and the weight of its steps."""
        return {"position": self.position, "total": self._total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.position, self._total = state["position"], state["total"]
        self._loaded = self.position > 0


_NO_WEIGHT = (
    "accumulate.weight = 'reported': compute_loss reports no weight; return {'loss': mean over the tokens, 'weight': how many}, "
    "or use weight = 'mean'; a wrapper that adds it needs after = ('accumulate',)"
)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
