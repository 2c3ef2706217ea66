"""``sampler``: tells samplers which epoch it is, so that each epoch has its own order."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from trainhooks import UsageError, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainhooks import Trainer

log = logging.getLogger("trainhooks")

SeedRule = Literal["epoch", "seed+epoch"]


class Sampler:
    """Calls ``set_epoch`` before each epoch on whatever the train loader draws its order from.

    That is the loader itself, its sampler, its batch sampler, its dataset, and what these hold under the same names
    (``sampler``, ``batch_sampler``, ``dataset``); each object once, those without ``set_epoch`` not. The order of an epoch then
    depends on its index alone, also in a run that is resumed inside it. torch's ``DistributedSampler`` shuffles by its own
    ``seed + epoch``, and without ``set_epoch`` in the same order in every epoch.

    Args:
        seed_rule: What ``set_epoch`` gets: ``epoch``, for samplers that add a seed of their own, or ``seed+epoch`` with the seed
            of the run, for those that do not.
    """

    def __init__(self, seed_rule: SeedRule = "epoch") -> None:
        self.seed_rule = seed_rule

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Say what the epochs will not reach."""
        if self.seed_rule == "seed+epoch" and trainer.settings.seed is None:
            message = "sampler.seed_rule = 'seed+epoch' needs the seed of the run: --set seed=0, or Trainer(seed=0)"
            raise UsageError(message)
        loader = trainer.loader("train")
        if not any(True for _ in holders_of_epoch(loader)):
            log.info("sampler: nothing in the train loader (%s) has set_epoch", type(loader).__name__)
        dataset = getattr(loader, "dataset", None)
        lasting = getattr(loader, "persistent_workers", False) and getattr(loader, "num_workers", 0)
        # datasets.IterableDataset keeps its epoch in a shared tensor for this very case.
        if (
            lasting
            and callable(getattr(dataset, "set_epoch", None))
            and not isinstance(getattr(dataset, "_epoch", None), Tensor)
        ):
            log.warning(
                "sampler: the workers have copies of %s and last over epochs, so set_epoch does not reach them; "
                "use persistent_workers=False, or keep the epoch in shared memory",
                type(dataset).__name__,
            )

    @hookimpl
    def before_epoch(self, trainer: Trainer, epoch: int) -> None:
        """Set the epoch before the loader is opened."""
        seed = (trainer.settings.seed or 0) if self.seed_rule == "seed+epoch" else 0
        for holder in holders_of_epoch(trainer.loader("train")):
            holder.set_epoch(seed + epoch)


def holders_of_epoch(loader: object) -> Iterator[Any]:
    """Yield everything with ``set_epoch`` in a loader, from the outside to the inside, each object once."""
    waiting, seen = [loader], {id(loader)}
    while waiting:
        one = waiting.pop(0)
        if callable(getattr(one, "set_epoch", None)):
            yield one
        for name in ("sampler", "batch_sampler", "dataset"):
            part = getattr(one, name, None)
            if part is not None and id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
