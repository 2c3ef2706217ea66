"""``plateau``: a lower learning rate when a metric stops improving."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Literal

from trainhooks import DataError, OptionError, UsageError, hookimpl
from trainhooks.best import Mode, direction
from trainhooks.suggest import suggestion

from ._monitored import missing_metric

if TYPE_CHECKING:
    from trainhooks import Trainer
    from trainhooks.types import Metrics

log = logging.getLogger("trainhooks")


class Plateau:
    """Multiplies the learning rates by ``factor`` when a metric has not improved for more than ``patience`` evaluations.

    The rule is that of torch's ``ReduceLROnPlateau``, but for negative metrics with ``rel``, where a value that is a little worse
    is better for torch: an evaluation is better if it beats the best one by ``min_delta``; the first one after ``patience`` that is not reduces the rate, and the following ``cooldown`` are not counted. NaN and infinity
    are no improvement and count. It counts evaluations of the monitored split, however often they take place.

    Each parameter group keeps the product of the factors as ``lr_scale``, which ``lr`` multiplies into its rate; without a
    schedule the rate itself is set.

    Args:
        monitor: The metric, for example ``val/accuracy``.
        mode: Whether lower (``min``) or higher (``max``) is better; inferred from the name.
        factor: What the rates are multiplied by, above 0 and below 1.
        patience: Evaluations without improvement that are tolerated.
        min_delta: By how much the best value must be beaten.
        delta_mode: ``rel`` for a share of the best value, ``abs`` for the difference.
        cooldown: Evaluations after a reduction in which nothing is counted.
        min_lr: No rate is reduced below it; with a schedule, the group's base rate times its scale is not.
        eps: A rate that would change by no more than this is left alone.
    """

    phase = "decision"

    def __init__(
        self,
        monitor: str = "val/loss",
        mode: Mode = "auto",
        factor: float = 0.1,
        patience: int = 10,
        min_delta: float = 1e-4,
        delta_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if not 0 < factor < 1:
            message = f"factor = {factor}: must be above 0 and below 1"
            raise OptionError(message)
        if delta_mode not in ("rel", "abs") or mode not in ("auto", "min", "max"):
            message = f"delta_mode = {delta_mode!r}, mode = {mode!r}: must be rel or abs, and auto, min or max"
            raise OptionError(message)
        limits = {"patience": patience, "min_delta": min_delta, "cooldown": cooldown, "min_lr": min_lr, "eps": eps}
        for name, value in limits.items():
            if not value >= 0:
                message = f"{name} = {value}: must be 0 or more"
                raise OptionError(message)
        self.monitor, self.mode = monitor, direction(monitor, mode)
        self.factor, self.patience, self.cooldown = factor, patience, cooldown
        self.min_delta, self.delta_mode, self.min_lr, self.eps = min_delta, delta_mode, min_lr, eps
        #: Best value so far, evaluations since then, and those of the cooldown that are left.
        self.best: float | None = None
        self.bad = self.cooling = 0
        self._measured = False

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Refuse a training without an optimizer."""
        if not trainer.optimizers:
            message = "plugin 'plateau' needs an optimizer whose rate it can set, this training has none; take it out with -p no:plateau"
            raise UsageError(message)

    @hookimpl
    def after_eval(self, trainer: Trainer, split: str, metrics: Metrics) -> None:
        """Compare, count, and reduce the rates when it is time, if this evaluation is one of a training."""
        if trainer.session is None or not trainer.session.training:
            return
        if self.monitor in metrics:
            self._measured = True
            if self._counted(metrics[self.monitor]):
                self._reduce(trainer)
        elif (fault := missing_metric(trainer, "plateau.monitor", self.monitor, split, metrics)) is not None:
            raise DataError(fault)

    @hookimpl
    def after_train(self, trainer: Trainer) -> None:
        """Say so if there was nothing to follow."""
        if not self._measured:
            hint = suggestion(self.monitor, trainer.metrics)
            log.warning("plateau: %r was not measured in this run, so no rate was changed%s", self.monitor, hint)

    def improves(self, value: float) -> bool:
        """Return whether a value is better than the best one by ``min_delta``."""
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        delta = -self.min_delta if self.mode == "min" else self.min_delta
        if self.delta_mode == "rel" and self.best < 0:
            delta = -delta
        wanted = self.best * (1 + delta) if self.delta_mode == "rel" else self.best + delta
        return value < wanted if self.mode == "min" else value > wanted

    def _counted(self, value: float) -> bool:
        """Take a value; return whether it is one too many."""
        if self.improves(value):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cooling:
            self.cooling -= 1
            self.bad = 0
        return self.bad > self.patience

    def _reduce(self, trainer: Trainer) -> None:
        rates = []
        for optimizer in trainer.optimizers.values():
            for group in optimizer.param_groups:
                self._reduce_group(group)
                rates.append(f"{float(group['lr']):g}")
        log.info(
            "plateau: %s has not improved for %d evaluations at step %d: rates times %g, now %s",
            *(self.monitor, self.bad, trainer.step, self.factor, ", ".join(rates)),
        )
        self.bad, self.cooling = 0, self.cooldown

    def _reduce_group(self, group: dict[str, Any]) -> None:
        scale = group.get("lr_scale", 1.0)
        group.setdefault("initial_lr", float(group["lr"]) / scale)  # what it was given, as schedules keep it
        floor = min(self.min_lr / group["initial_lr"], 1.0) if group.get("initial_lr") else 0.0
        group["lr_scale"] = min(max(scale * self.factor, floor), scale)
        old = float(group["lr"])
        new = max(old * self.factor, self.min_lr)
        if old - new > self.eps:
            if hasattr(group["lr"], "fill_"):
                group["lr"].fill_(new)
            else:
                group["lr"] = new

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the counts; what was reduced is in the optimizer's groups."""
        watched = [self.monitor, self.mode]
        return {"watched": watched, "best": self.best, "bad": self.bad, "cooling": self.cooling}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from them, unless they belong to another metric or direction."""
        watched = state.get("watched", [self.monitor, self.mode])  # not in checkpoints of before version 0.2
        if list(watched) != [self.monitor, self.mode]:
            log.warning("plateau: starting anew, the checkpoint watched %s (%s)", *watched)
            return
        self.best, self.bad, self.cooling = state["best"], state["bad"], state["cooling"]
