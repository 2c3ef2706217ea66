"""``lr``: the learning rate as a pure function of progress."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Literal

from trainhooks import OptionError, UsageError, hookimpl

if TYPE_CHECKING:
    from trainhooks import Trainer

log = logging.getLogger("trainhooks")

Schedule = Literal["cosine", "linear", "constant"]


class LR:
    """Sets the learning rate before each update: warmup, then a schedule over the rest of the run.

    The rate of update ``u`` (from 0) of ``T`` with ``W`` of warmup is ``base`` times a factor: in the warmup
    ``start + (1 - start) * u / W``; then, with ``x = (u - W) / (T - W)``, for ``cosine``
    ``end + (1 - end) * (1 + cos(pi * x)) / 2`` (Loshchilov and Hutter 2017, equation 5, without restarts), for ``linear``
    ``end + (1 - end) * (1 - x)``, for ``constant`` 1. It depends on ``u`` and ``T`` alone, so that a resumed run goes on
    exactly, and one that is made longer follows the new length. Beyond ``T`` the last factor stays.

    The base rate is the optimizer's own, each parameter group's for itself, unless ``base`` is given.

    Args:
        schedule: What follows the warmup.
        base: Rate at the end of the warmup, for every parameter group.
        warmup_updates: Updates of the warmup.
        warmup_epochs: Or epochs, which may be fractions; the loader's length must be known.
        warmup_start: Factor at the first update, in [0, 1].
        end: Factor at the end of the schedule, in [0, 1].
        total_updates: Length of the schedule; that of the run by default.
    """

    phase = "algorithm"

    def __init__(
        self,
        schedule: Schedule = "cosine",
        base: float | None = None,
        warmup_updates: int = 0,
        warmup_epochs: float = 0.0,
        warmup_start: float = 0.0,
        end: float = 0.0,
        total_updates: int | None = None,
    ) -> None:
        for name, value, top in (("warmup_start", warmup_start, 1), ("end", end, 1)):
            if not 0 <= value <= top:
                message = f"{name} = {value}: must be between 0 and {top}"
                raise OptionError(message)
        if base is not None and not (base >= 0 and math.isfinite(base)):
            message = f"base = {base}: must be 0 or more"
            raise OptionError(message)
        if total_updates is not None and total_updates < 1:
            message = f"total_updates = {total_updates}: must be at least 1; leave it out for the length of the run"
            raise OptionError(message)
        if warmup_updates < 0 or warmup_epochs < 0 or (warmup_updates and warmup_epochs):
            message = "give warmup_updates or warmup_epochs, not both, and not below 0"
            raise OptionError(message)
        self.schedule, self.base, self.end = schedule, base, end
        self.warmup_updates, self.warmup_epochs, self.warmup_start = warmup_updates, warmup_epochs, warmup_start
        self.total_updates = total_updates
        self._warmup = self._total = 0

    def factor(self, update: int, total: int, warmup: int) -> float:
        """Return the factor of one update.

        Args:
            update: Index of the update, from 0.
            total: Updates of the whole schedule, warmup included.
            warmup: Updates of the warmup.
        """
        if update < warmup:
            return self.warmup_start + (1 - self.warmup_start) * update / warmup
        if self.schedule == "constant":
            return 1.0
        x = min((update - warmup) / max(total - warmup, 1), 1.0)
        falling = (1 + math.cos(math.pi * x)) / 2 if self.schedule == "cosine" else 1 - x
        return self.end + (1 - self.end) * falling

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Work out the length and set the first rate."""
        if not trainer.optimizers:
            message = "plugin 'lr' needs an optimizer whose rate it can set, this training has none; take it out with -p no:lr"
            raise UsageError(message)
        self._total = self._length(trainer)
        self._warmup = self.warmup_updates
        if self.warmup_epochs:
            length = trainer.epoch_length
            if length is None:
                message = "lr.warmup_epochs needs a train loader with a length, or steps_per_epoch; give lr.warmup_updates"
                raise UsageError(message)
            self._warmup = round(self.warmup_epochs * length)
        if self._total and self._warmup >= self._total:
            log.warning(
                "lr: the warmup takes %d updates and the run has %d, so the schedule %r never starts",
                self._warmup,
                self._total,
                self.schedule,
            )
        self._apply(trainer, trainer.update)

    @hookimpl
    def after_update(self, trainer: Trainer) -> None:
        """Log the rate that was in force and set the next one."""
        if trainer.reporter is not None:
            trainer.log("lr", next(iter(trainer.optimizers.values())).param_groups[0]["lr"], reduce="last")
        self._apply(trainer, trainer.update + 1)

    def _length(self, trainer: Trainer) -> int:
        if self.total_updates is not None:
            return self.total_updates
        known = [value for value in (trainer.max_updates, trainer.total_steps) if value is not None]
        if not known and self.schedule != "constant":
            message = (
                f"lr.schedule = {self.schedule!r} must know where it ends: set max_steps or max_updates, or lr.total_updates, "
                "since the train loader has no length"
            )
            raise UsageError(message)
        return min(known, default=0)

    def _apply(self, trainer: Trainer, update: int) -> None:
        factor = self.factor(update, self._total, self._warmup)
        for optimizer in trainer.optimizers.values():
            for group in optimizer.param_groups:
                rate = factor * (self.base if self.base is not None else _base_of(group))
                if isinstance(group["lr"], float):
                    group["lr"] = rate
                else:
                    _set(group, rate)


def _base_of(group: dict[str, Any]) -> float:
    """Return the rate that a parameter group had before any schedule, under the name that torch's schedulers give it."""
    if "initial_lr" not in group:
        group["initial_lr"] = float(group["lr"])
    base: float = group["initial_lr"]
    return base


def _set(group: dict[str, Any], rate: float) -> None:
    """Set a rate that was given as an integer, or as a tensor, which a captured or compiled optimizer holds on to."""
    if hasattr(group["lr"], "fill_"):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
