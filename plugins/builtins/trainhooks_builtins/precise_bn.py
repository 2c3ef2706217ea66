"""``precise_bn``: the statistics of batch normalization, measured anew before each evaluation."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from trainhooks import OptionError, hookimpl

from ._batch_norm import layers_to_measure, measured, unreadable

if TYPE_CHECKING:
    from collections.abc import Generator

    from trainhooks import Trainer
    from trainhooks.types import Metrics

log = logging.getLogger("trainhooks")


class PreciseBN:
    """Measures the statistics of batch normalization with the weights of the moment, before each evaluation of a training.

    The running statistics of a layer are an exponential average over weights that have changed since. Here they are the plain
    average over ``batches`` training batches that all went through the same weights (Wu and Johnson 2021, "Rethinking 'Batch'
    in BatchNorm", section 3). They stay in the model, and so in the checkpoint that follows; training itself does not use
    them. Layers in evaluation mode keep theirs. What this draws from random generators is put back.

    Args:
        batches: How many batches of the train loader, at most.
    """

    phase = "measurement"
    before = ("ema", "swa")  # it wraps around them: the statistics are those of the model's own weights

    def __init__(self, batches: int = 200) -> None:
        if batches < 1:
            message = f"batches = {batches}: must be at least 1"
            raise OptionError(message)
        self.batches = batches
        self._measured_at = -1  # step at which it was last measured
        self._warned = False

    @hookimpl(wrapper=True)
    def evaluate(self, trainer: Trainer) -> Generator[None, Metrics, Metrics]:
        """Measure first, unless nothing has changed since: every step moves the statistics, also one that makes no update."""
        if trainer.session is not None and trainer.session.training and trainer.step != self._measured_at:
            self._measure(trainer)
        return (yield)

    def _measure(self, trainer: Trainer) -> None:
        norms = layers_to_measure(trainer.model)
        loader = trainer.find_loader("train") if norms else None
        if norms and (why := unreadable(loader)):
            if not self._warned:
                log.warning("precise_bn: the statistics of batch normalization are not measured, since %s", why)
            self._warned = True
        elif loader is not None:
            buffers = dict(trainer.model.named_buffers())
            with torch.no_grad():
                for name, statistic in measured(trainer, norms, [], loader, self.batches).items():
                    buffers[name].copy_(statistic)
        self._measured_at = trainer.step
