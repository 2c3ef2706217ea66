"""Statistics of batch normalization, measured with other weights than they were gathered with; no plugin."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from trainhooks import SkipStep
from trainhooks.data import generators_of, twin_of
from trainhooks.metrics import MetricBus

from ._stand_in import standing_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from trainhooks import Trainer

    from ._stand_in import Layer

log = logging.getLogger("trainhooks")


def layers_to_measure(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers with statistics by name, but for those that are kept in evaluation mode while the model trains."""
    norms = {name: one for name, one in model.named_modules() if isinstance(one, _BatchNorm) and one.running_mean is not None}
    return {name: one for name, one in norms.items() if one.training or not model.training}


def measured(
    trainer: Trainer, norms: dict[str, _BatchNorm], weights: Layer, loader: Iterable[Any], most: int
) -> dict[str, Tensor]:
    """Return the statistics by buffer name, after a pass over batches of ``loader`` in training mode.

    Weights, buffers, modes and random generators are left as they were found, and nothing is logged. All batches count alike, as in
    ``torch.optim.swa_utils.update_bn``. A batch goes the way of a training batch: ``prepare_batch``, ``compute_loss``.

    Args:
        trainer: The run.
        norms: Layers by name.
        weights: What stands in for the model's own.
        loader: The train loader.
        most: How many batches at most.
    """
    model, hooks = trainer.model, trainer.hooks
    copies = {name: (buffer, buffer.detach().clone()) for name, buffer in model.named_buffers()}
    number = 0
    with (
        standing_in(model, weights + list(copies.values())),
        torch.no_grad(),
        trainer.rng.preserved(),
        _kept(loader),
        _unlogged(trainer),
        _fresh_statistics(model, list(norms.values())),
    ):
        for raw in islice(twin_of(loader), most):
            try:
                batch = hooks.prepare_batch(trainer=trainer, batch=raw)
                hooks.compute_loss(trainer=trainer, batch=batch)
            except SkipStep:
                continue
            number += 1
    log.debug("measured the statistics of %d batch normalization layers with %d batches", len(norms), number)
    ids = {id(buffer) for norm in norms.values() for buffer in norm.buffers(recurse=False)}
    return {name: copy for name, (buffer, copy) in copies.items() if id(buffer) in ids} if number else {}


def unreadable(loader: Iterable[Any] | None) -> str:
    """Return why a train loader cannot be read from its beginning without harm, or nothing."""
    if loader is None:
        return "there is no train loader"
    return "the train loader can be read once only" if isinstance(loader, Iterator) else ""


@contextmanager
def _kept(loader: Iterable[Any]) -> Iterator[None]:
    """Leave the generators of a loader as they were found."""
    found = [(one, one.get_state()) for one in generators_of(loader)]
    try:
        yield
    finally:
        for one, state in found:
            one.set_state(state)


@contextmanager
def _unlogged(trainer: Trainer) -> Iterator[None]:
    """Let what hooks log go nowhere: it would be taken for that of the training."""
    bus, trainer.bus = trainer.bus, MetricBus()
    try:
        yield
    finally:
        trainer.bus = bus


@contextmanager
def _fresh_statistics(model: nn.Module, norms: list[_BatchNorm]) -> Iterator[None]:
    """Have layers average over all batches alike, from nothing; modes and momenta are left as they were found."""
    found = [(norm, norm.momentum) for norm in norms]
    modes = [(module, module.training) for module in model.modules()]
    try:
        if not model.training:
            model.train()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        yield
    finally:
        for norm, momentum in found:
            norm.momentum = momentum
        for module, training in modes:
            module.training = training
