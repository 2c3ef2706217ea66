"""``evaluation``: when to evaluate, what is measured, and what was best."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trainhooks import DataError, OptionError, UsageError, hookimpl
from trainhooks.best import Best, Mode
from trainhooks.data import length_of, no_batches
from trainhooks.intervals import Interval
from trainhooks.suggest import suggestion

from ._choices import check_choice
from ._metrics import checked_metrics, predictions_and_target
from ._monitored import missing_metric

if TYPE_CHECKING:
    from collections.abc import Generator

    from trainhooks import Trainer
    from trainhooks.types import Batch, Metrics, Output

log = logging.getLogger("trainhooks")

#: What loaders are called elsewhere that are there to be evaluated while training.
_OTHER_NAMES: Final = ("valid", "validation", "dev", "eval")


class Evaluation:
    """Evaluates during training and once at its end, and keeps the best value of one metric.

    The last evaluation takes place exactly once: not again for a step that has been evaluated, and not after a failed run.
    The direction of the metric is inferred from its name. With a start, the first evaluation is due there and the others
    every n-th after it.

    Args:
        every_epochs: Evaluate after every n-th epoch; 0 for never. 1 if no other interval is given.
        every_steps: Evaluate after every n-th step; 0 for never.
        every_updates: Evaluate after every n-th update; 0 for never.
        splits: Which loaders; ``val``, if there is one, by default.
        at_end: Evaluate when the training ends.
        monitor: The metric whose best value is kept, for example ``val/accuracy``; the first split's loss by default.
        mode: Whether lower (``min``) or higher (``max``) is better.
        start_epoch: Epochs after which ``every_epochs`` is due for the first time; 0 for the interval itself.
        start_step: Steps after which ``every_steps`` is due for the first time.
        start_update: Updates after which ``every_updates`` is due for the first time.
        at_start: Evaluate before the first step of a run, too.
        metrics: Objects with ``update(predictions, target)``, ``compute()`` and ``reset()`` by name, which measure each split
            as a whole; only in Python.
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
        start_epoch: int = 0,
        start_step: int = 0,
        start_update: int = 0,
        at_start: bool = False,
        metrics: dict[str, Any] | None = None,
    ) -> None:
        check_choice("mode", mode, Mode)
        self.interval = Interval(every_epochs, every_steps, every_updates)
        self.start_epoch, self.start_step, self.start_update = start_epoch, start_step, start_update
        for unit, every in (("epoch", self.interval.epochs), ("step", every_steps), ("update", every_updates)):
            _check_start(unit, getattr(self, f"start_{unit}"), every)
        if isinstance(splits, str):
            message = f"splits = {splits!r}: must be a list such as [{splits!r}]"
            raise OptionError(message)
        if splits is not None and not splits:
            message = "splits = []: name one, or leave the option out for 'val'; -p no:evaluation evaluates nothing"
            raise OptionError(message)
        self.splits, self.at_end, self.at_start = splits, at_end, at_start
        self.metrics = checked_metrics(metrics)
        off = [] if every_steps else ["after_step"]
        off += [] if every_updates else ["after_update"]
        off += [] if self.metrics else ["setup", "before_eval", "eval_step"]
        vars(self).update(dict.fromkeys(off))  # nothing to do there: the hooks are not even called
        self._active: list[str] = []
        self.best = Best(monitor or f"{splits[0] if splits else 'val'}/loss", mode)
        self._monitored, self._mode = monitor is not None, mode
        self._done: dict[str, int] = {}  # the step at which each split was evaluated last, and the update
        self._updates: dict[str, int] = {}

    # --- When ---

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Refuse an evaluation set that is known to be empty before anything is trained; ask for the evaluation at the start."""
        if self.splits is not None:
            loaders = {split: trainer.loader(split) for split in self.splits}
        else:
            loader = trainer.find_loader("val")
            loaders = {"val": loader} if loader is not None else {}
            if loader is None and not self.interval.never:
                self._tell_other_name(trainer)
        for split, loader in loaders.items():
            if length_of(loader) == 0:
                raise no_batches(loader, f"evaluation of {split!r}")
        self._active = list(loaders)
        if self._monitored:
            direction = "higher" if self.best.mode == "max" else "lower"
            why = "inferred from the name" if self._mode == "auto" else f"mode = {self._mode!r}"
            log.info("evaluation: best %s, %s is better (%s)", self.best.metric, direction, why)
        if self.at_start and trainer.step == 0:
            self._request(trainer, 0)

    @staticmethod
    def _tell_other_name(trainer: Trainer) -> None:
        """Warn of a loader that other frameworks would evaluate, unless an instance of this plugin does."""
        named = {split for one in trainer.plugins.values() if isinstance(one, Evaluation) for split in one.splits or ()}
        found = next((split for split in trainer.loaders if split in _OTHER_NAMES and split not in named), None)
        if found is not None and trainer.is_main:
            log.warning(
                "evaluation: no loader is called 'val', the one that is evaluated by default; for %r set evaluation.splits = [%r]",
                *(found, found),
            )

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """Ask for an evaluation when one is due."""
        if _due(self.interval.steps, self.start_step, trainer.step + 1):
            self._request(trainer, trainer.step + 1)

    @hookimpl
    def after_update(self, trainer: Trainer) -> None:
        """Ask for an evaluation when one is due, whatever has been evaluated before this update."""
        if _due(self.interval.updates, self.start_update, trainer.update + 1):
            self._request(trainer, None)

    @hookimpl
    def after_train_epoch(self, trainer: Trainer) -> None:
        """Ask for an evaluation when one is due."""
        if trainer.every_n_epochs(1) and _due(self.interval.epochs, self.start_epoch, trainer.epoch + 1):
            self._request(trainer, trainer.step)

    @hookimpl
    def after_train(self, trainer: Trainer) -> None:
        """Evaluate once more at the end, unless the last step has been evaluated or nothing was trained."""
        outcome = trainer.outcome
        if outcome is None or outcome.status not in ("completed", "stopped") or outcome.step == 0:
            return
        if self.at_end and not self.interval.never:
            for split in self._active:
                if not self._is_done(trainer, split, trainer.step):
                    trainer.evaluate(split)
        best = self.best
        if best.step is not None:
            log.info("best %s (%s): %g at step %d", best.metric, best.mode, best.value, best.step)
        elif self._monitored and self._active:
            why = f"its split was never evaluated, or it was NaN{suggestion(best.metric, trainer.metrics)}"
            log.warning("evaluation.monitor = %r was never measured as a finite number: %s", best.metric, why)

    def _request(self, trainer: Trainer, step: int | None) -> None:
        for split in self._active:
            if step is None or not self._is_done(trainer, split, step):
                trainer.request_eval(split)

    def _is_done(self, trainer: Trainer, split: str, step: int) -> bool:
        """Return whether a step has been evaluated, and no update has been made since: the end of an epoch may make one."""
        return self._done.get(split) == step and self._updates.get(split, trainer.update) == trainer.update

    # --- What ---

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Move what the metrics keep to the device."""
        for metric in self.metrics.values():
            if callable(getattr(metric, "to", None)):
                metric.to(trainer.device)

    @hookimpl
    def before_eval(self) -> None:
        """Begin with nothing, whatever an evaluation that failed has left."""
        for metric in self.metrics.values():
            metric.reset()

    @hookimpl(wrapper=True, tryfirst=True)  # outermost: other wrappers may add what is to be measured
    def eval_step(self, batch: Batch) -> Generator[None, Output, Output]:
        """Update the metrics; the engine computes them at the end, and resets them."""
        output = yield
        if not isinstance(output, Mapping):
            return output
        predictions, target = predictions_and_target(output, batch)
        own = {}
        for name, metric in self.metrics.items():
            if name not in output:
                metric.update(predictions, target)
                own[name] = metric
            elif not callable(getattr(output[name], "compute", None)):  # else another instance of this plugin has it
                message = f"evaluation.metrics: eval_step returns a value {name!r} of its own; rename one of them"
                raise UsageError(message)
        return {**output, **own}

    @hookimpl
    def after_eval(self, trainer: Trainer, split: str, metrics: Metrics) -> None:
        """Keep the best value of a training."""
        self._done[split], self._updates[split] = trainer.step, trainer.update
        if trainer.session is None or not trainer.session.training:
            return
        if self.best.metric in metrics:
            if self.best.update(metrics[self.best.metric], trainer.step):
                trainer.log(f"best/{self.best.metric}", metrics[self.best.metric], reduce="last")
        elif self._monitored and (fault := missing_metric(trainer, "evaluation.monitor", self.best.metric, split, metrics)):
            if self.best.step is None:
                raise DataError(fault)
            log.warning("evaluation.monitor: %r was not measured at step %d", self.best.metric, trainer.step)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and which step was evaluated last; metrics begin anew with each evaluation."""
        return {"best": self.best.state_dict(), "done": dict(self._done), "updates": dict(self._updates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.best.load_state_dict(state["best"])
        self._done, self._updates = dict(state["done"]), dict(state.get("updates", {}))


def _check_start(unit: str, start: int, every: int) -> None:
    if start < 0:
        message = f"start_{unit} = {start}: must be 0 (the interval itself) or more"
        raise OptionError(message)
    if start and not every:
        message = f"start_{unit} = {start}: needs every_{unit}s, which is counted from there"
        raise OptionError(message)


def _due(every: int, start: int, count: int) -> bool:
    """Return whether ``count`` is the start, or a multiple of the interval after it."""
    return every > 0 and count >= start and (count - start) % every == 0
