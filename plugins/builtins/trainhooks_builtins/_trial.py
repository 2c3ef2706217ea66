"""Training steps on trial, which leave no trace: for plugins that try something out before the training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import TYPE_CHECKING

import torch

from trainhooks import DataError, SkipStep
from trainhooks.data import keep_generators, no_batches, read_epoch, twin_of
from trainhooks.metrics import MetricBus
from trainhooks.order import DEFAULT_PHASE

from ._preserve import (
    keep_attributes,
    keep_model,
    keep_optimizer,
    keep_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainhooks import Trainer
    from trainhooks.types import Batch


class Trial:
    """Training steps that are not a part of the training; to be used inside ``preserved``.

    A step is what the loop makes of a batch: ``prepare_batch``, ``update_due`` and ``train_step`` with what is called inside,
    but for ``after_update``. The plugins of phase ``algorithm`` take part, since they have theirs in the loss and the
    gradients (mixed precision, accumulation, clipping); those of other phases, which follow the training, do not.

    Args:
        trainer: The run.
        loader: Read from its beginning, and again when it ends.
        what: What an error about the loader begins with.
    """

    def __init__(self, trainer: Trainer, loader: Iterable[Batch], what: str) -> None:
        self._place = trainer.step, trainer.update
        self._done: list[float] = []  # losses of all steps
        self._batches = _read(trainer, loader, what, self._done)

    def update(self, trainer: Trainer) -> float | None:
        """Make one update; return the mean loss of its steps, or ``None`` when a loader that cannot start anew has ended.

        The counters say each time that it is the next one of the run, so that no trial comes to the run's limits.
        """
        losses: list[float] = []
        hooks = trainer.hooks
        for raw in self._batches:
            trainer.step, trainer.update = self._place
            hooks.after_update = None  # each time: the calls are made anew when a plugin is taken out
            try:
                batch = hooks.prepare_batch(trainer=trainer, batch=raw)
                due = trainer._due = hooks.update_due(trainer=trainer, batch=batch) if hooks.decides_update else True
                trainer._updated = trainer._optimizer_stepped = False
                output = hooks.train_step(trainer=trainer, batch=batch, update_due=due)
            except SkipStep:
                continue
            trainer._due = None
            losses.append(float(torch.as_tensor(output.get("loss", math.nan)).detach()))
            self._done.append(losses[-1])
            if due:
                return sum(losses) / len(losses)
        return None


def _read(trainer: Trainer, loader: Iterable[Batch], what: str, done: list[float]) -> Iterator[Batch]:
    """Yield batches, epoch after epoch, for as long as somebody asks.

    Args:
        trainer: The run.
        loader: Read from its beginning, and again when it ends.
        what: What an error about the loader begins with.
        done: Grows with each step. No method of ``Trial``, which would be in a cycle with what it reads.

    Raises:
        DataError: An epoch has no batches, or all of them were dropped.
    """
    while True:
        before, trainer.batch_index = len(done), -1
        trainer._batches = read_epoch(loader, trainer.epoch_length)
        for batch in trainer._batches:
            trainer.batch_index += 1
            yield batch
        if len(done) == before:
            if isinstance(loader, Iterator) and done:
                return
            if trainer.batch_index < 0:
                raise no_batches(loader, what)
            message = f"{what}: all of the {trainer.batch_index + 1} batches were dropped"
            raise DataError(message)


@contextmanager
def preserved(trainer: Trainer) -> Iterator[None]:
    """Leave everything as it was found, bit for bit and whatever happens.

    That is model, optimizers, plugins and other objects with state, generators, counters, requests and metrics. What was found
    is kept in host memory, so that a trial has the device for itself. What is logged meanwhile is dropped, nothing is
    reported. A request to stop outlasts it.
    """
    with ExitStack() as undo:
        undo.enter_context(trainer.manager.only(lambda plugin: plugin.place.phase == DEFAULT_PHASE))
        undo.callback(keep_attributes(trainer))
        taking_part = {f"plugins/{name}" for name in trainer.manager.plugins}
        for name in trainer.stateful:
            if name in taking_part or (name != "model" and not name.startswith(("optimizers/", "plugins/"))):
                undo.callback(keep_state(trainer, name))
        if trainer.model is not None:
            undo.callback(keep_model(trainer.model))
        for optimizer in trainer.optimizers.values():
            undo.callback(keep_optimizer(optimizer))
        undo.callback(keep_generators(trainer.loaders["train"]))
        undo.enter_context(trainer.rng.preserved())
        trainer.bus, trainer.reporter = MetricBus(), None
        yield
        stop_reason = trainer.stop_reason
    if stop_reason is not None:  # asked for meanwhile, by a signal for example
        trainer.stop(stop_reason)


@contextmanager
def lent(trainer: Trainer) -> Iterator[Iterable[Batch]]:
    """Lend the train loader; batches that are read from one that cannot start anew are put back in front of it."""
    loader = trainer.loaders["train"]
    if isinstance(loader, Iterator):
        taken: list[Batch] = []
        try:
            yield _noting(loader, taken)
        finally:
            trainer.loaders["train"] = chain(taken, loader)
    else:
        yield twin_of(loader)


def _noting(loader: Iterator[Batch], taken: list[Batch]) -> Iterator[Batch]:
    for batch in loader:
        taken.append(batch)
        yield batch
