"""``sync_buffers``: the same running statistics on every rank before they are used or saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from trainhooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from trainhooks import Trainer
    from trainhooks.types import Metrics


class SyncBuffers:
    """Makes the floating-point buffers of the model equal on all ranks before each evaluation and each checkpoint.

    Batch normalization keeps running means and variances that each rank gathers from its own batches, so ranks would evaluate
    different models, and a checkpoint would hold those of one rank. Their mean over the ranks takes their place, in training as
    well. Without several ranks (``torch.distributed`` with a group of two or more) nothing happens.

    Args:
        method: ``mean`` over the ranks, or ``broadcast`` what rank 0 has.
        before_eval: Before each evaluation.
        before_save: Before each checkpoint, except one that rescues a failing run, which not all ranks may write.
    """

    phase = "bookkeeping"

    def __init__(
        self, method: Literal["mean", "broadcast"] = "mean", before_eval: bool = True, before_save: bool = True
    ) -> None:
        self.method = method
        if not before_eval:
            vars(self)["evaluate"] = None
        if not before_save:
            vars(self)["save_checkpoint"] = None

    @hookimpl(wrapper=True)
    def evaluate(self, trainer: Trainer) -> Generator[None, Metrics, Metrics]:
        """Synchronize, then evaluate."""
        self.synchronize(trainer)
        return (yield)

    @hookimpl(wrapper=True)
    def save_checkpoint(self, trainer: Trainer, kind: str) -> Generator[None, Path, Path]:
        """Synchronize, then save."""
        if kind != "rescue":
            self.synchronize(trainer)
        return (yield)

    def synchronize(self, trainer: Trainer) -> None:
        """Make the buffers equal now; every rank must call it."""
        distributed = torch.distributed
        if trainer.model is None or not distributed.is_available() or not distributed.is_initialized():
            return
        ranks = distributed.get_world_size()
        if ranks > 1:
            for buffers in by_kind(trainer.model.buffers()):
                self._synchronize(buffers, ranks)

    def _synchronize(self, buffers: list[torch.Tensor], ranks: int) -> None:
        """Bring over all buffers of one kind in one call."""
        with torch.no_grad():
            joined = torch.cat([buffer.detach().reshape(-1) for buffer in buffers])
            if self.method == "broadcast":
                torch.distributed.broadcast(joined, src=0)
            else:
                joined = joined.double()  # so that the mean of equal values is that value
                torch.distributed.all_reduce(joined)
                joined /= ranks
            parts = torch.split(joined, [buffer.numel() for buffer in buffers])
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.copy_(part.view_as(buffer))


def by_kind(buffers: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the floating-point ones in groups of one type on one device, in the order of the model."""
    groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for buffer in buffers:
        if buffer.is_floating_point() and buffer.numel():
            groups.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    return list(groups.values())
