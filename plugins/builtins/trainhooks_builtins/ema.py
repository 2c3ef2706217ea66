"""``ema``: an exponential moving average of the weights, to evaluate with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

from trainhooks import OptionError, hookimpl

from ._average import Average
from ._averaging import EvaluatesWithAverage, model_of

if TYPE_CHECKING:
    from trainhooks import Trainer

log = logging.getLogger("trainhooks")


class EMA(EvaluatesWithAverage):
    """Keeps an exponential moving average of the weights, and evaluates and predicts with it.

    After each update ``average = decay * average + (1 - decay) * weights`` (Polyak and Juditsky 1992 for averaging, Kingma and
    Ba 2015, section 7.2, for this form). It begins with the weights before the update ``start_update``; until then the model's
    own weights are evaluated. With ``warmup`` the n-th averaging, from 0, uses ``min(decay, (1 + n) / (10 + n))``, as
    TensorFlow's ``ExponentialMovingAverage`` does with ``num_updates``.

    The model keeps its own weights: training, checkpoints and a resumed run use them, and the average is in the state of this
    plugin. It is one copy of the parameters on their device; nothing else is copied for an evaluation. An update that was
    skipped, and a step that made none, do not count.

    Args:
        decay: Share of the old average that is kept at each averaging, in [0, 1); 0.999 if no half-life is given.
        half_life_updates: Or the number of updates after which a weight counts half.
        every_updates: Average after every n-th update.
        start_update: Index of the first update that is averaged, from 0.
        warmup: Begin with a smaller decay.
        buffers: Whether the average has the model's buffers as they are (``copy``) or averages those with fractions
            (``average``); integers are as they are in both cases.
        evaluate: Evaluate and predict with the average.
        apply_at_end: Leave the average in the model when the training ends, after the last checkpoint.
    """

    phase = "algorithm"

    def __init__(
        self,
        decay: float | None = None,
        half_life_updates: float | None = None,
        every_updates: int = 1,
        start_update: int = 0,
        warmup: bool = False,
        buffers: Literal["copy", "average"] = "copy",
        evaluate: bool = True,
        apply_at_end: bool = False,
    ) -> None:
        if decay is not None and half_life_updates is not None:
            message = f"decay = {decay} and half_life_updates = {half_life_updates}: give one of them"
            raise OptionError(message)
        if decay is not None and not 0 <= decay < 1:
            message = f"decay = {decay}: must be at least 0 and below 1"
            raise OptionError(message)
        if half_life_updates is not None and not half_life_updates > 0:
            message = f"half_life_updates = {half_life_updates}: must be above 0"
            raise OptionError(message)
        if every_updates < 1:
            message = f"every_updates = {every_updates}: must be at least 1"
            raise OptionError(message)
        if start_update < 0:
            message = f"start_update = {start_update}: must be 0 or more"
            raise OptionError(message)
        if buffers not in ("copy", "average"):
            message = f"buffers = {buffers!r}: must be 'copy' or 'average'"
            raise OptionError(message)
        super().__init__(Average("ema", buffers=buffers == "average"), evaluate=evaluate, apply_at_end=apply_at_end)
        if half_life_updates is not None:
            decay = 0.5 ** (every_updates / half_life_updates)
        self.decay = decay if decay is not None else 0.999
        self.every_updates, self.start_update, self.warmup = every_updates, start_update, warmup
        #: How often it has averaged.
        self.averagings = 0

    def decay_of(self, averaging: int) -> float:
        """Return the decay of one averaging, counted from 0."""
        return min(self.decay, (1 + averaging) / (10 + averaging)) if self.warmup else self.decay

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Begin with the weights as they are, restored ones included, unless it is too early or an average was restored."""
        self._average.bind(model_of(trainer, "ema"))
        if not self._average.tensors and trainer.update >= self.start_update:
            self._average.begin()
        users = "evaluations and predictions use the average" if self._evaluates else "nothing is evaluated with the average"
        log.info("ema: %s (decay %g), checkpoints hold both", users, self.decay)

    @hookimpl
    def before_epoch(self, trainer: Trainer) -> None:
        """Refuse a model that has changed."""
        self._average.check(trainer.model)

    @hookimpl
    def after_update(self, trainer: Trainer) -> None:
        """Average."""
        if not self._average.tensors:
            if trainer.update + 1 >= self.start_update:
                self._average.begin()
        elif self.every_updates == 1 or trainer.every_n_updates(self.every_updates):
            self._average.update(1 - self.decay_of(self.averagings))
            self.averagings += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the average and how often it was made."""
        return {"average": dict(self._average.tensors), "averagings": self.averagings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them in place."""
        self._average.load(state["average"])
        self.averagings = state["averagings"]
