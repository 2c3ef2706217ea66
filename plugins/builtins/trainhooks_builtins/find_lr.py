"""``find_lr``: a learning rate range test before the training."""

from __future__ import annotations

import csv
import json
import logging
import math
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from trainhooks import OptionError, TrainingError, UsageError, hookimpl

from ._choices import check_choice
from ._lr_curve import suggestions
from ._trial import Trial, lent, preserved

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from trainhooks import Trainer

log = logging.getLogger("trainhooks")

Mode = Literal["exponential", "linear"]
Suggest = Literal["valley", "steepest", "minimum"]


class FindLR:
    """Tries learning rates before the training, from small to large, and suggests one.

    The range test of Smith (2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3): one update with each
    rate, which grows from update to update, until the loss diverges. The losses are smoothed as
    ``s[i] = a[i] / (1 - smoothing**(i + 1))`` with ``a[i] = smoothing * a[i - 1] + (1 - smoothing) * loss[i]`` and
    ``a[-1] = 0``. Afterwards everything is as it was found, so that the training is the one that it would have been without the
    test, but for the rate. The test is left out in a run that goes on from a checkpoint, unless ``apply`` is false.

    Args:
        min_lr: The first rate, of the first parameter group; the rates of others keep their ratio to it.
        max_lr: The last rate.
        updates: How many updates, each with a rate of its own.
        mode: Whether the rate is multiplied by the same factor (``exponential``) or raised by the same amount (``linear``).
        smoothing: Share of the past in the smoothed loss, in [0, 1).
        diverged: The test ends when the smoothed loss exceeds its lowest value by ``diverged - 1`` times its size.
        suggest: What is suggested: with ``valley`` the rate in the middle of the longest series of losses each of which is
            below the one before in it, others between them or not (after fastai's method of that name); with ``steepest`` that
            where the smoothed loss falls fastest over ``log(rate)``, up to its lowest value; with ``minimum`` a tenth of the
            rate where it is lowest.
        skip: Share of the updates at the beginning that the suggestion leaves out.
        apply: Train with the suggested rate; otherwise the run stops after the test.
    """

    phase = "algorithm"

    def __init__(
        self,
        min_lr: float = 1e-7,
        max_lr: float = 10.0,
        updates: int = 100,
        mode: Mode = "exponential",
        smoothing: float = 0.9,
        diverged: float = 4.0,
        suggest: Suggest = "valley",
        skip: float = 0.1,
        apply: bool = False,
    ) -> None:
        check_choice("mode", mode, Mode)
        check_choice("suggest", suggest, Suggest)
        if not 0 < min_lr < max_lr < math.inf:
            message = f"min_lr = {min_lr}, max_lr = {max_lr}: must be above 0 and rising"
            raise OptionError(message)
        if updates < 3:  # noqa: PLR2004 - fewer points have no slope
            message = f"updates = {updates}: must be at least 3"
            raise OptionError(message)
        for name, value in (("smoothing", smoothing), ("skip", skip)):
            if not 0 <= value < 1:
                message = f"{name} = {value}: must be 0 or more and below 1"
                raise OptionError(message)
        if not diverged > 1:
            message = f"diverged = {diverged}: must be above 1; a large number lets the test run to its end"
            raise OptionError(message)
        self.min_lr, self.max_lr, self.updates, self.mode = min_lr, max_lr, updates, mode
        self.smoothing, self.diverged, self.suggest, self.skip = smoothing, diverged, suggest, skip
        self.apply = apply
        #: The rates that were tried, the loss with each, and the same smoothed.
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        #: What each way to suggest a rate gives, as far as it gives any.
        self.suggestions: dict[str, float | None] = {}

    @property
    def suggestion(self) -> float | None:
        """The rate that is suggested, or ``None`` if the loss did not fall."""
        return self.suggestions.get(self.suggest)

    @hookimpl(wrapper=True)
    def train(self, trainer: Trainer) -> Generator[None, bool, bool]:
        """Test before the training; then train with the suggested rate, or not at all."""
        if self.apply and trainer.update:
            log.info("find_lr: no test, since the run goes on from update %d", trainer.update)
            return (yield)
        if trainer.stop_reason is not None:
            return (yield)
        groups = self._groups(trainer)
        found = [_base_of(group) for group in groups]
        if found[0] <= 0:
            message = f"find_lr scales all rates by that of the first parameter group, which is {found[0]}: give it one above 0"
            raise UsageError(message)
        with lent(trainer) as loader, preserved(trainer):
            for rate, loss in self._test(trainer, Trial(trainer, loader, "find_lr"), groups, found):
                self._add(rate, loss)
        first = int(self.skip * len(self.rates))
        self.suggestions = suggestions(self.rates[first:], self.smoothed[first:])
        self._write(trainer)
        if trainer.stop_reason is None:
            self._conclude(trainer, groups, found[0])
        return (yield)

    def _test(
        self, trainer: Trainer, trial: Trial, groups: Sequence[dict[str, Any]], found: Sequence[float]
    ) -> Iterator[tuple[float, float]]:
        """Yield rate and loss of each update, until the loss diverges or the batches end."""
        self.rates, self.losses, self.smoothed = [], [], []
        for index in range(self.updates):
            rate = self._rate(index)
            for group, base in zip(groups, found, strict=True):
                _set(group, "lr", rate * base / found[0])
            loss = trial.update(trainer)
            if loss is None or not math.isfinite(loss) or trainer.stop_reason is not None:
                return
            yield rate, loss
            best = min(self.smoothed)
            if self.smoothed[-1] > best + (self.diverged - 1) * abs(best):
                return

    def _rate(self, index: int) -> float:
        part = index / (self.updates - 1)
        if self.mode == "linear":
            return self.min_lr + part * (self.max_lr - self.min_lr)
        factor: float = (self.max_lr / self.min_lr) ** part
        return self.min_lr * factor

    def _add(self, rate: float, loss: float) -> None:
        count = len(self.smoothed)
        before = self.smoothed[-1] * (1 - self.smoothing**count) if count else 0.0
        average = self.smoothing * before + (1 - self.smoothing) * loss
        self.rates.append(rate)
        self.losses.append(loss)
        self.smoothed.append(average / (1 - self.smoothing ** (count + 1)))

    def _groups(self, trainer: Trainer) -> list[dict[str, Any]]:
        """Return the parameter groups whose rate is looked for.

        Raises:
            UsageError: There is no optimizer, or there are several, or the rate would not be used.
        """
        if len(trainer.optimizers) != 1:
            message = f"find_lr needs one optimizer whose rate it can set, this training has {len(trainer.optimizers)}"
            raise UsageError(message)
        for name, plugin in trainer.plugins.items():
            given = [option for option in ("base", "torch_scheduler") if getattr(plugin, option, None) is not None]
            if self.apply and name.partition("@")[0] == "lr" and given:
                message = (
                    f"find_lr.apply sets the rate that {name} starts from, but {name}.{given[0]} sets another: leave one out"
                )
                raise UsageError(message)
        return next(iter(trainer.optimizers.values())).param_groups

    def _conclude(self, trainer: Trainer, groups: Sequence[dict[str, Any]], found: float) -> None:
        tried = f"{len(self.rates)} rates up to {self.rates[-1]:.3g}" if self.rates else "no rate"
        if self.suggestion is None:
            message = f"find_lr: the loss did not fall with {tried}: nothing to suggest; look at min_lr, max_lr and the model"
            if self.apply:
                raise TrainingError(message)
            log.warning("%s", message)
            trainer.stop("find_lr has nothing to suggest")
            return
        log.info("find_lr: %s tried, suggested (%s): %.3g", tried, self.suggest, self.suggestion)
        if not self.apply:
            trainer.stop(f"find_lr suggests {self.suggestion:.3g}; find_lr.apply = true trains with it")
            return
        for group in groups:  # what a schedule makes of it stays in proportion
            for key in ("lr", "initial_lr"):
                if key in group:
                    _set(group, key, float(group[key]) * self.suggestion / found)

    def _write(self, trainer: Trainer) -> None:
        """Write the curve and the suggestions into the run folder."""
        if trainer.work_dir is None or not trainer.is_main:
            return
        with trainer.run_file("find_lr.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("lr", "loss", "smoothed"))
            writer.writerows(zip(self.rates, self.losses, self.smoothed, strict=True))
        text = json.dumps({"suggest": self.suggest, **self.suggestions}, indent=1)
        trainer.run_file("find_lr.json").write_text(text + "\n", encoding="utf-8")


def _base_of(group: dict[str, Any]) -> float:
    """Return the rate that a parameter group has, or had before any schedule."""
    return float(group.get("initial_lr", group["lr"]))


def _set(group: dict[str, Any], key: str, rate: float) -> None:
    """Set a rate, in place where it is a tensor, which a captured or compiled optimizer holds on to."""
    if isinstance(group[key], Tensor):
        group[key].fill_(rate)
    else:
        group[key] = rate
