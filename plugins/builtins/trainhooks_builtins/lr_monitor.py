"""``lr_monitor``: the learning rate of every parameter group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainhooks import OptionError, UsageError, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import optim

    from trainhooks import Trainer


class LRMonitor:
    """Logs the learning rate of every parameter group of every optimizer.

    The names are ``lr/OPTIMIZER/GROUP``: the optimizer's name (``optimizer`` where there is one) and the group's ``"name"``, or
    its index. What is logged is the rate that the update was made with, not the one that a schedule sets after it. Of the updates
    between two flushes the last one is kept.

    Args:
        every_updates: Log at every n-th update.
        momentum: Also log ``momentum/OPTIMIZER/GROUP`` (``momentum``, or the first of ``betas``) and ``beta2/OPTIMIZER/GROUP``.
        weight_decay: Also log ``weight_decay/OPTIMIZER/GROUP``.
    """

    phase = "bookkeeping"  # before a schedule sets the next rate
    before = ("lr", "momentum", "weight_decay", "plateau")

    def __init__(self, every_updates: int = 1, momentum: bool = False, weight_decay: bool = False) -> None:
        if every_updates < 1:
            message = f"every_updates = {every_updates}: must be at least 1; -p no:lr_monitor for never"
            raise OptionError(message)
        self.every_updates, self.momentum, self.weight_decay = every_updates, momentum, weight_decay

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Refuse a training without an optimizer."""
        if not trainer.optimizers:
            message = "plugin 'lr_monitor' needs an optimizer, this training has none; take it out with -p no:lr_monitor"
            raise UsageError(message)

    @hookimpl
    def after_update(self, trainer: Trainer) -> None:
        """Log the rates that were in force; a rate that is a tensor stays on its device."""
        if self.every_updates > 1 and not trainer.every_n_updates(self.every_updates):
            return
        for place, group in named_groups(trainer.optimizers):
            for name, value in self._values(group):
                trainer.log(f"{name}/{place}", value, reduce="last")

    def _values(self, group: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        yield "lr", group["lr"]
        if self.momentum:
            if "betas" in group:
                yield from zip(("momentum", "beta2"), group["betas"], strict=False)
            elif "momentum" in group:
                yield "momentum", group["momentum"]
        if self.weight_decay and "weight_decay" in group:
            yield "weight_decay", group["weight_decay"]


def named_groups(optimizers: Mapping[str, optim.Optimizer]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``optimizer/group`` with each parameter group; a name that an earlier group of the optimizer has gets the index."""
    for optimizer, one in optimizers.items():
        seen: set[str] = set()
        for index, group in enumerate(one.param_groups):
            name = group.get("name")
            name = name if isinstance(name, str) and name else str(index)
            if name in seen:
                name = f"{name}.{index}"
            seen.add(name)
            yield f"{optimizer}/{name}", group
