"""``nan_guard``: end the run, or drop the batch, when the loss or a gradient is NaN or infinite."""

from __future__ import annotations

import json
import logging
import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch

from trainhooks import OptionError, SkipStep, TrainingError, UsageError, hookimpl

from ._choices import check_choice
from ._finite import bad_names, largest_gradient, statistics_of
from ._stages import replaced
from ._step_values import Place, StepValues, picked, place_of

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from torch import Tensor

    from trainhooks import Trainer
    from trainhooks.types import Output

log = logging.getLogger("trainhooks")

Action = Literal["raise", "stop", "skip"]

#: Events that are kept for the file.
KEPT = 20


class NanGuard:
    """Watches for a loss, and if asked for gradients, that are NaN or infinite.

    With ``action = "raise"`` each step leaves its value on the device. They are brought over together every ``every_steps``
    steps, before each checkpoint and at the end of each epoch, so that a bad step is noticed late but never saved. The run has
    failed then: no final checkpoint is made over the good ones.

    With ``stop`` and ``skip`` the value is looked at in each step before the weights are touched, which synchronizes the device
    once a step. The batch is dropped; the weights stay good, and so do the statistics of normalization layers, which are put back.
    ``stop`` then ends the run as one that was stopped.

    Details of the bad step are written to ``nan_guard.json`` in the run folder.

    Args:
        action: ``raise`` a TrainingError, ``stop`` the run, or ``skip`` the batch.
        every_steps: After how many steps to look, 50 by default; ``stop`` and ``skip`` look in each.
        gradients: Look at the gradients of each update too, before they are clipped.
        metric: With ``raise``, which value of what ``train_step`` returned.
        max_skipped: With ``skip``, how many batches in a row may be dropped before the run fails.
        detect_anomaly: Have autograd find the operation whose backward pass gave NaN; slow, for a run that is to be debugged.
    """

    phase = "decision"

    def __init__(
        self,
        action: Action = "raise",
        every_steps: int | None = None,
        gradients: bool = False,
        metric: str = "loss",
        max_skipped: int = 10,
        detect_anomaly: bool = False,
    ) -> None:
        check_choice("action", action, Action)
        late = action == "raise"
        for name, value in (("every_steps", every_steps), ("max_skipped", max_skipped)):
            if value is not None and value < 1:
                message = f"{name} = {value}: must be at least 1"
                raise OptionError(message)
        if not late and every_steps not in (None, 1):
            message = (
                f"every_steps = {every_steps}: with action = {action!r} every step is looked at before its update; leave it out"
            )
            raise OptionError(message)
        self.action, self.every_steps, self.gradients = action, every_steps or (50 if late else 1), gradients
        self.metric, self.max_skipped, self.detect_anomaly = metric, max_skipped, detect_anomaly
        unused = (
            ["before_step", "scale_loss"]
            if late
            else ["save_checkpoint", "after_train_epoch", *([] if detect_anomaly else ["train"])]
        )
        unused += [] if gradients else ["gradients_ready"]
        unused += [] if gradients and late else ["after_update"]
        vars(self).update(dict.fromkeys(unused))  # what is off is not even called
        #: Batches that were dropped, resumed runs included.
        self.skipped = 0
        self._in_a_row = 0
        self._events: list[dict[str, Any]] = []
        self._values = StepValues()
        self._norm: Tensor | None = None
        self._update = 0  # updates before the running step
        self._left_to_others = False  # whether bad gradients are
        self._seen = False  # whether scale_loss was called in this step
        self._statistics: list[tuple[Tensor, Tensor]] = []  # of normalization layers, with copies from before the step

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Begin with nothing; leave gradients to a plugin that decides about them in ``optimizer_step``."""
        self._values.take()
        self._norm, self._update, self._left_to_others = None, trainer.update, False
        if self.gradients and self.action != "raise" and replaced(trainer, "optimizer_step"):
            self._left_to_others = True
            log.info(
                "nan_guard: another plugin makes the updates and skips bad gradients by its own rule; only the loss is watched"
            )

    @hookimpl(wrapper=True)
    def train(self, trainer: Trainer) -> Generator[None, bool, bool]:
        """Have autograd detect anomalies, if asked; look at the last steps."""
        with torch.autograd.set_detect_anomaly(True) if self.detect_anomaly else nullcontext():
            trained = yield
        self._look(trainer)
        return trained

    @hookimpl
    def before_step(self, trainer: Trainer) -> None:
        """Keep what the forward pass is going to change."""
        self._statistics = statistics_of(trainer.model)

    @hookimpl(wrapper=True)
    def scale_loss(self, trainer: Trainer, loss: Tensor) -> Generator[None, Tensor, Tensor]:
        """Drop the batch before its backward pass."""
        self._seen = True
        statistics, self._statistics = self._statistics, []
        if not math.isfinite(value := float(loss.detach())):
            for buffer, found in statistics:
                buffer.copy_(found)
            self._refuse(trainer, "loss", value)
        return (yield)

    @hookimpl
    def gradients_ready(self, trainer: Trainer) -> None:
        """Measure the largest gradient; drop it before it is used, if that is the action."""
        if self._left_to_others:
            return
        norm = largest_gradient(trainer)
        if norm is None or self.action == "raise":
            self._norm = norm
        elif not math.isfinite(value := float(norm)):
            self._refuse(trainer, "largest gradient", value)

    @hookimpl
    def after_update(self, trainer: Trainer) -> None:
        """Keep the largest gradient of an update that was made; one that was skipped, as in fp16, did no harm."""
        if self._norm is not None:
            self._values.add(place_of(trainer, trainer.update), "largest gradient", self._norm)
            self._norm = None

    @hookimpl
    def after_step(self, trainer: Trainer, output: Output) -> None:
        """Keep the loss and look at what was kept, when that is due."""
        if self.action == "raise":
            self._values.add(place_of(trainer, self._update), self.metric, picked(output, self.metric, "nan_guard.metric"))
            self._update = trainer.update
            if trainer.every_n_steps(self.every_steps):
                self._look(trainer)
        elif self._seen:
            self._seen, self._in_a_row = False, 0
        else:
            message = (
                f"nan_guard.action = {self.action!r} looks at the loss in scale_loss, which the train_step of this run does not "
                "call; set nan_guard.action = 'raise'"
            )
            raise UsageError(message)

    @hookimpl
    def after_train_epoch(self, trainer: Trainer) -> None:
        """Look before the epoch is evaluated."""
        self._look(trainer)

    @hookimpl(wrapper=True)
    def save_checkpoint(self, trainer: Trainer) -> Generator[None, Path, Path]:
        """Look before anything is written."""
        self._look(trainer)
        return (yield)

    def _look(self, trainer: Trainer) -> None:
        """Bring over what was kept and fail on the first step that is bad."""
        bad = [(place, what, value) for place, what, value in self._values.take() if not math.isfinite(value)]
        if bad:
            place, what, value = min(bad, key=lambda one: (one[0].step, one[1] != self.metric))
            message = (
                f"nan_guard: the {what} is {value} at step {place.step} (epoch {place.epoch}, batch {place.batch_index}); the weights "
                f"are not to be trusted from there on{self._write(trainer, place, what, value)}; go on from a checkpoint before it, "
                "for example with a lower learning rate or nan_guard.action = 'skip'"
            )
            raise TrainingError(message)

    def _refuse(self, trainer: Trainer, what: str, value: float) -> NoReturn:
        """Drop the running batch, and stop or fail where that is due."""
        self._seen = False
        self.skipped += 1
        self._in_a_row += 1
        place = place_of(trainer, trainer.update)
        where = self._write(trainer, place, what, value)
        reason = f"nan_guard: the {what} is {value} at step {place.step} (epoch {place.epoch}, batch {place.batch_index})"
        if self.action == "stop":
            trainer.stop(reason)
        elif self._in_a_row > self.max_skipped:
            message = f"{reason}, and so it was for {self.max_skipped} batches before{where}"
            raise TrainingError(message)
        else:
            log.warning("%s; the batch was dropped", reason)
            trainer.log("nan_guard/skipped", self.skipped, reduce="last")
        raise SkipStep(reason)

    def _write(self, trainer: Trainer, place: Place, what: str, value: float) -> str:
        """Write what is known about a bad step; return where, for messages."""
        event = {"what": what, "value": str(value), **place._asdict(), "noticed_at_step": trainer.step, **bad_names(trainer)}
        metrics = {name: number if math.isfinite(number) else str(number) for name, number in trainer.metrics.items()}
        self._events = [*self._events, {**event, "metrics": metrics}][-KEPT:]
        if trainer.work_dir is None:
            return ""
        path = trainer.run_file("nan_guard.json")
        path.write_text(json.dumps({"skipped": self.skipped, "events": self._events}, indent=1), encoding="utf-8")
        return f"; see {path}"

    def state_dict(self) -> dict[str, Any]:
        """Return what was dropped; values that were not looked at are none, since a save looks at them first."""
        return {"skipped": self.skipped, "in_a_row": self._in_a_row, "events": list(self._events)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.skipped, self._in_a_row, self._events = state["skipped"], state["in_a_row"], list(state["events"])
