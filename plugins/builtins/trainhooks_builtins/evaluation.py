"""``evaluation``: when to evaluate, and what was best."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from trainhooks import DataError, hookimpl
from trainhooks.best import Best, Mode
from trainhooks.data import length_of, no_batches
from trainhooks.intervals import Interval

if TYPE_CHECKING:
    from trainhooks import Trainer
    from trainhooks.types import Metrics

log = logging.getLogger("trainhooks")


class Evaluation:
    """Evaluates during training and once at its end, and keeps the best value of one metric.

    The last evaluation takes place exactly once: not again for a step
    that has been evaluated, and not after a failed run. The direction of the metric is inferred from its name.

    Args:
        every_epochs: Evaluate after every n-th epoch; 0 for never. 1 if no other interval is given.
        every_steps: Evaluate after every n-th step; 0 for never.
        every_updates: Evaluate after every n-th update; 0 for never.
        splits: Which loaders; ``val``, if there is one, by default.
        at_end: Evaluate when the training ends.
        monitor: The metric whose best value is kept, for example ``val/accuracy``; the first split's loss by default.
        mode: Whether lower (``min``) or higher (``max``) is better.
    """

    phase = "measurement"

    def __init__(
        self,
        every_epochs: int | None = None,
        every_steps: int = 0,
        every_updates: int = 0,
        splits: tuple[str, ...] | None = None,
        at_end: bool = True,
        monitor: str | None = None,
        mode: Mode = "auto",
    ) -> None:
        self.interval = Interval(every_epochs, every_steps, every_updates)
        if not self.interval.within_epochs:
            vars(self)["after_step"] = None  # nothing to do in each step: the hook is not even called
        self.splits, self.at_end = splits, at_end
        self._active: list[str] = []
        self.best = Best(monitor or f"{splits[0] if splits else 'val'}/loss", mode)
        self._monitored = monitor is not None
        self._done: dict[str, int] = {}

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Refuse an evaluation set that is known to be empty before anything is trained."""
        if self.splits is not None:
            loaders = {split: trainer.loader(split) for split in self.splits}
        else:
            loader = trainer.find_loader("val")
            loaders = {"val": loader} if loader is not None else {}
        for split, loader in loaders.items():
            if length_of(loader) == 0:
                raise no_batches(loader, f"evaluation of {split!r}")
        self._active = list(loaders)

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """Ask for an evaluation when one is due."""
        if self.interval.due_after_step(trainer):
            self._request(trainer, trainer.step + 1)

    @hookimpl
    def after_train_epoch(self, trainer: Trainer) -> None:
        """Ask for an evaluation when one is due."""
        if self.interval.due_after_epoch(trainer):
            self._request(trainer, trainer.step)

    @hookimpl
    def after_eval(self, trainer: Trainer, split: str, metrics: Metrics) -> None:
        """Keep the best value."""
        self._done[split] = trainer.step
        if self.best.metric in metrics:
            if self.best.update(metrics[self.best.metric], trainer.step):
                trainer.log(f"best/{self.best.metric}", metrics[self.best.metric], reduce="last")
        elif self._monitored and self.best.metric.startswith(f"{split}/") and self.best.step is not None:
            log.warning("evaluation.monitor: %r was not measured at step %d", self.best.metric, trainer.step)
        elif self._monitored and self.best.metric.startswith(f"{split}/"):
            message = f"evaluation.monitor = {self.best.metric!r} is not among the metrics {', '.join(metrics)}"
            raise DataError(message)

    @hookimpl
    def after_train(self, trainer: Trainer) -> None:
        """Evaluate once more at the end, unless the last step has been evaluated or nothing was trained."""
        outcome = trainer.outcome
        if outcome is None or outcome.status not in ("completed", "stopped") or not self.at_end or outcome.step == 0:
            return
        if not self.interval.never:
            for split in self._active:
                if self._done.get(split) != trainer.step:
                    trainer.evaluate(split)
        if self.best.step is not None:
            log.info("best %s (%s): %g at step %d", self.best.metric, self.best.mode, self.best.value, self.best.step)

    def _request(self, trainer: Trainer, step: int) -> None:
        for split in self._active:
            if self._done.get(split) != step:
                trainer.request_eval(split)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and which step was evaluated last."""
        return {"best": self.best.state_dict(), "done": dict(self._done)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.best.load_state_dict(state["best"])
        self._done = dict(state["done"])
