"""``find_batch_size``: the largest batch whose training steps fit into memory."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from trainhooks import OptionError, TrainingError, UsageError, hookimpl

from ._choices import check_choice
from ._trial import Trial, preserved

if TYPE_CHECKING:
    from trainhooks import Trainer

log = logging.getLogger("trainhooks")

Mode = Literal["power", "binsearch"]

#: Parts of the messages of a RuntimeError that means that memory is short.
_SHORT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUDNN_STATUS_NOT_SUPPORTED")


class FindBatchSize:
    """Tries batch sizes before the training and takes the largest whose training steps fit into memory.

    The size is doubled from ``start`` until a few updates run out of memory. ``power`` takes the last one that fitted,
    ``binsearch`` halves the range between the two until it knows the largest to the sample. Afterwards everything is as it was
    found, but for the loader. A resumed run takes the size that was found and tries nothing.

    Args:
        mode: ``power`` (few trials, a power of two times ``start``) or ``binsearch`` (exact).
        start: The first size.
        max_size: The largest size to try; the number of samples by default.
        updates: Updates of each trial. The first also makes the optimizer's state, the second shows what is needed with it.
        margin: Share that is taken off what was found, for what a trial does not show, in [0, 1).
        apply: Train with what was found; otherwise the run stops after the search.
    """

    phase = "bookkeeping"  # before those who work out how long the training is

    def __init__(
        self,
        mode: Mode = "power",
        start: int = 2,
        max_size: int | None = None,
        updates: int = 2,
        margin: float = 0.05,
        apply: bool = True,
    ) -> None:
        check_choice("mode", mode, Mode)
        for name, value in (("start", start), ("max_size", max_size), ("updates", updates)):
            if value is not None and value < 1:
                message = f"{name} = {value}: must be at least 1"
                raise OptionError(message)
        if not 0 <= margin < 1:
            message = f"margin = {margin}: must be 0 or more and below 1"
            raise OptionError(message)
        self.mode, self.start, self.max_size = mode, start, max_size
        self.updates, self.margin, self.apply = updates, margin, apply
        #: The sizes that were tried, in order, and whether each fitted.
        self.tried: list[tuple[int, bool]] = []
        #: What was found, less the margin.
        self.size: int | None = None

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Search, unless the size is known."""
        loader = _rebuildable(trainer.loaders["train"])
        if self.size is not None and trainer.step:
            self._apply(trainer, loader, self.size)
            return
        if self.apply and trainer.step:
            log.info("find_batch_size: no search, since the run goes on from step %d", trainer.step)
            return
        samples = loader.sampler if isinstance(loader.sampler, Sized) else loader.dataset
        limit = min(len(samples), self.max_size or len(samples))  # type: ignore[arg-type]
        if limit < 1:
            message = "find_batch_size: the train loader has no samples"
            raise UsageError(message)
        found = self._search(trainer, loader, limit)
        if trainer.stop_reason is not None:
            return
        self.size = max(int(found * (1 - self.margin) + 1e-9), 1)
        log.info(
            "find_batch_size: %d fits (%d trials, at most %d); less the margin: %d", found, len(self.tried), limit, self.size
        )
        if self.apply:
            self._apply(trainer, loader, self.size)
        else:
            trainer.stop(f"find_batch_size found {self.size}; find_batch_size.apply = true trains with it")

    def _search(self, trainer: Trainer, loader: DataLoader[Any], limit: int) -> int:
        """Return the largest size that fits, as far as the mode looks for it."""
        self.tried = []
        good, bad = 0, limit + 1
        size = min(self.start, limit)
        while size > good and trainer.stop_reason is None:
            if self._fits(trainer, loader, size):
                good = size
            else:
                bad = size
            if bad > limit:  # nothing has failed yet
                size = min(2 * good, limit)
            elif self.mode == "binsearch" or good == 0:
                size = (good + bad) // 2
            else:
                break
        if good == 0 and trainer.stop_reason is None:
            message = "find_batch_size: not even a batch of one sample fits; use a smaller model or shorter samples"
            raise TrainingError(message)
        return good

    def _fits(self, trainer: Trainer, loader: DataLoader[Any], size: int) -> bool:
        fits = True
        with preserved(trainer):
            trainer.loaders["train"] = resized(loader, size, drop_last=True)
            trainer._epoch_length = None
            trial = Trial(trainer, trainer.loaders["train"], "find_batch_size")
            try:
                for _ in range(self.updates):
                    trial.update(trainer)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                fits = False
            del trial
        if trainer.device.type != "cpu":
            gc.collect()  # what a failed step left may be in cycles
            torch.get_device_module(trainer.device).empty_cache()
        self.tried.append((size, fits))
        log.info("find_batch_size: %d %s", size, "fits" if fits else "does not fit")
        return fits

    def _apply(self, trainer: Trainer, loader: DataLoader[Any], size: int) -> None:
        trainer.loaders["train"] = resized(loader, size, drop_last=loader.drop_last)
        trainer._epoch_length = None  # known by the old loader

    def decided_settings(self, state: Any) -> tuple[str, ...]:
        """Return the setting that is not what the loader was given, if a size was found before."""
        return ("batch_size",) if isinstance(state, dict) and state.get("size") is not None else ()

    def state_dict(self) -> dict[str, Any]:
        """Return what was found."""
        return {"size": self.size if self.apply else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what was found before."""
        self.size = state["size"]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory was short, on the device or on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _SHORT_OF_MEMORY)


def resized(loader: DataLoader[Any], size: int, *, drop_last: bool) -> DataLoader[Any]:
    """Return a loader like ``loader`` with another batch size, over the same sampler."""
    more: Any = {"in_order": loader.in_order} if hasattr(loader, "in_order") else {}
    return DataLoader(
        loader.dataset,
        batch_size=size,
        sampler=loader.sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        pin_memory_device=loader.pin_memory_device,
        **more,
    )


def _rebuildable(loader: object) -> DataLoader[Any]:
    """Return the loader if it can be built anew with another batch size.

    Raises:
        UsageError: It cannot; the message says why.
    """
    why = ""
    if type(loader) is not DataLoader:
        why = f"it is a {type(loader).__name__}"
    elif isinstance(loader.dataset, IterableDataset) or not isinstance(loader.dataset, Sized):
        why = f"its dataset, a {type(loader.dataset).__name__}, has no length"
    elif loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        why = "it makes its batches in its own way"
    else:
        return loader
    message = (
        f"find_batch_size builds the train loader anew, which it can only do with a torch DataLoader over a dataset with a length "
        f"and a batch_size, and {why}: give such a loader for the search, then set the size by hand"
    )
    raise UsageError(message)
