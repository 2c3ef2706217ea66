"""``early_stopping``: end the run when a metric no longer gets better."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from trainhooks import DataError, OptionError, UsageError, hookimpl
from trainhooks.best import Mode, direction
from trainhooks.compiled import stateful_model

from ._choices import check_choice
from ._monitored import may_evaluate, not_among
from ._stopping_rule import StoppingRule

if TYPE_CHECKING:
    from torch import nn

    from trainhooks import Trainer
    from trainhooks.types import Metrics

log = logging.getLogger("trainhooks")

OnNan = Literal["count", "stop"]
Place = Literal["host", "device"]


class EarlyStopping:
    """Stops the run when a metric has not improved for ``patience`` evaluations, or has crossed a threshold.

    An evaluation is good if its value is better than the best one so far by more than ``min_delta``: ``value < best - min_delta``
    for ``min``, ``value > best + min_delta`` for ``max`` (as in Keras and Lightning). NaN and infinity never are.

    A metric ``SPLIT/NAME`` is read when that split has been evaluated; one of ``train/``, or without a slash, at the end of each
    epoch from what training logged.

    Args:
        monitor: The metric.
        patience: Evaluations in a row without an improvement after which the run ends; at least 1.
        min_delta: What an improvement must exceed, 0 or more.
        mode: Whether lower (``min``) or higher (``max``) is better; inferred from the name, and said in the log.
        baseline: The patience is used up by values that are not better than this one too.
        start_evaluation: Index of the first evaluation that counts, from 0.
        start_step: Evaluations after fewer steps do not count.
        start_epoch: Index of the first epoch whose evaluations count, from 0.
        stopping_threshold: Stop at once when the value is better than this.
        divergence_threshold: Stop at once when the value is worse than this.
        nan: What NaN or infinity do: ``count`` as an evaluation without an improvement, or ``stop`` the run at once.
        restore_best: When the training has ended, put back the weights that the best evaluation measured.
        keep_on: Where these weights are kept: in the memory of the ``host`` or of the ``device``.
    """

    phase = "decision"
    after = ("checkpoint",)  # which saves the weights as they were trained, before the best ones are put back

    def __init__(
        self,
        monitor: str = "val/loss",
        patience: int = 3,
        min_delta: float = 0.0,
        mode: Mode = "auto",
        baseline: float | None = None,
        start_evaluation: int = 0,
        start_step: int = 0,
        start_epoch: int = 0,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        nan: OnNan = "count",
        restore_best: bool = False,
        keep_on: Place = "host",
    ) -> None:
        check_choice("mode", mode, Mode)
        check_choice("nan", nan, OnNan)
        check_choice("keep_on", keep_on, Place)
        starts = {"start_evaluation": start_evaluation, "start_step": start_step, "start_epoch": start_epoch}
        for name, value in starts.items():
            if value < 0:
                message = f"{name} = {value}: must be 0 or more"
                raise OptionError(message)
        self.monitor, self.starts = monitor, (start_evaluation, start_step, start_epoch)
        self._inferred = mode == "auto"
        #: The best value, its step, and the evaluations in a row without an improvement.
        self.rule = StoppingRule(
            direction(monitor, mode), patience, min_delta, baseline, stopping_threshold, divergence_threshold, nan
        )
        self.restore_best, self.keep_on = restore_best, keep_on
        self._split = monitor.partition("/")[0] if "/" in monitor else "train"
        vars(self)["after_eval" if self._split == "train" else "after_epoch"] = None
        self._measured = 0  # evaluations that gave the metric
        self._last_step: int | None = None
        self._weights: dict[str, Any] | None = None
        self._missing: str | None = None

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Say what is watched; end a resumed run at once whose patience is used up."""
        if not may_evaluate(trainer, self._split):
            message = (
                f"early_stopping.monitor = {self.monitor!r}: there is no split {self._split!r} (given: "
                f"{', '.join(trainer.loaders)}); give its loader, or monitor another metric, for example 'train/loss'"
            )
            raise UsageError(message)
        how = "inferred from the name; set mode if that is wrong" if self._inferred else "as given"
        log.info("early_stopping: watching %r, %s is better (%s)", self.monitor, _WORDS[self.rule.mode], how)
        if (reason := self._verdict()) is not None:
            trainer.stop(reason)

    @hookimpl
    def after_eval(self, trainer: Trainer, split: str, metrics: Metrics) -> None:
        """Look at the metric of an evaluation."""
        in_training = trainer.session is not None and trainer.session.training
        if split != self._split or not in_training:
            return
        if (fault := self._look(trainer, metrics)) is not None:
            raise DataError(fault)  # the engine saves what was trained, if it can

    @hookimpl
    def after_epoch(self, trainer: Trainer, metrics: Metrics) -> None:
        """Look at the metric of an epoch, unless that was cut short."""
        if metrics and trainer.every_n_epochs(1) and (fault := self._look(trainer, metrics)) is not None:
            self._missing = fault
            trainer.stop(fault)  # and raise when a checkpoint could be saved, in after_train

    @hookimpl
    def after_train(self, trainer: Trainer) -> None:
        """Put the best weights back, unless the run failed."""
        outcome = trainer.outcome
        if outcome is None or outcome.status not in ("completed", "stopped"):
            return
        fault, self._missing = self._missing, None
        if fault is not None:
            raise DataError(fault)
        rule = self.rule
        if rule.best_step is not None:
            log.info("early_stopping: best %s (%s): %g at step %d", self.monitor, rule.mode, rule.best, rule.best_step)
        if self.restore_best and self._weights is not None:
            stateful_model(trainer.model).load_state_dict(self._weights)
            log.info("early_stopping: restored the weights of step %s", self.rule.best_step)
        elif outcome.step > 0 and (why := self._nothing_best()) is not None:
            log.warning("early_stopping: %s%s", why, "; the last weights stay" if self.restore_best else "")

    def _nothing_best(self) -> str | None:
        if not self._measured:
            return f"{self.monitor!r} was never measured, so it could not stop the run"
        if not self.restore_best:
            return None
        if self.rule.best_step is None:
            return f"{self.monitor!r} had no finite value in an evaluation that counts, so none was best"
        return f"the weights of the best evaluation, at step {self.rule.best_step}, were not kept, since restore_best was off"

    def _look(self, trainer: Trainer, metrics: Metrics) -> str | None:
        """Take the value of an evaluation; return what is wrong if it was never there."""
        if trainer.step == self._last_step:
            return None  # the same weights again, for example after a resume that still owed an evaluation
        if self.monitor not in metrics:
            if not self._measured:
                return not_among("early_stopping.monitor", self.monitor, metrics)
            log.warning("early_stopping: %r was not measured at step %d; skipped", self.monitor, trainer.step)
            return None
        index = self._measured
        self._measured += 1
        self._last_step = trainer.step
        if all(now >= start for now, start in zip((index, trainer.step, trainer.epoch), self.starts, strict=True)):
            if self.rule.take(metrics[self.monitor], trainer.step) and self.restore_best:
                self._weights = _copied(trainer.model, host=self.keep_on == "host")
            if trainer.outcome is None and (reason := self._verdict()) is not None:
                trainer.stop(reason)
        return None

    def _verdict(self) -> str | None:
        reason = self.rule.verdict()
        return f"early_stopping: {self.monitor} {reason}" if reason is not None else None

    def state_dict(self) -> dict[str, Any]:
        """Return what was best, the counters and, with ``restore_best``, the weights."""
        return {
            "watched": [self.monitor, self.rule.mode],
            **self.rule.state_dict(),
            "measured": self._measured,
            "last_step": self._last_step,
            "weights": self._weights,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it, unless it belongs to another metric or direction."""
        if state["watched"] != [self.monitor, self.rule.mode]:
            log.warning("early_stopping: starting anew, the checkpoint watched %s (%s)", *state["watched"])
            return
        self.rule.load_state_dict(state)
        self._measured, self._last_step = state["measured"], state["last_step"]
        self._weights = state["weights"] if self.restore_best else None


_WORDS = {"min": "lower", "max": "higher"}


def _copied(model: nn.Module, *, host: bool) -> dict[str, Any]:
    """Return the weights and buffers as they are now."""
    copied: dict[str, Any] = {}
    for name, value in stateful_model(model).state_dict().items():
        if isinstance(value, Tensor):
            copied[name] = value.detach().to("cpu", copy=True) if host else value.detach().clone()
        else:
            copied[name] = copy.deepcopy(value)
    return copied
