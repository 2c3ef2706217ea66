"""How long runs, epochs and warmups are in what a schedule counts; no plugin."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from trainhooks import OptionError, UsageError

if TYPE_CHECKING:
    from trainhooks import Trainer

#: What may be given in the place of a length in epochs.
_INSTEAD: Final = {
    "warmup_epochs": "warmup_updates",
    "total_epochs": "total_updates",
    "schedule": "schedule lengths in updates",
}

_LENGTHS: Final = {
    "update": "total_updates or total_epochs, not both",
    "step": "max_steps or max_epochs of the run",
    "epoch": "total_epochs",
}


def check_lengths(
    key: str, by: str, warmups: tuple[int, float, float], total_updates: int | None, total_epochs: int | None
) -> None:
    """Refuse lengths that contradict each other.

    Args:
        key: Name of the plugin, for messages.
        by: What the schedule counts.
        warmups: In updates, in epochs, and as a share of the run.
        total_updates: Length of the schedule, or ``None``.
        total_epochs: Likewise.

    Raises:
        OptionError: They do.
    """
    for name, total in (("total_updates", total_updates), ("total_epochs", total_epochs)):
        if total is not None and total < 1:
            message = f"{name} = {total}: must be at least 1; leave it out for the length of the run"
            raise OptionError(message)
    if not all(0 <= one < math.inf for one in warmups) or sum(map(bool, warmups)) > 1 or warmups[2] > 1:
        message = "give one of warmup_updates, warmup_epochs and warmup_ratio, 0 or more, the ratio at most 1"
        raise OptionError(message)
    if (total_updates is not None and (by != "update" or total_epochs is not None)) or (total_epochs and by == "step"):
        message = f"{key}: with by = {by!r} the length is given by {_LENGTHS[by]}"
        raise OptionError(message)


def run_length(trainer: Trainer, by: str) -> int | None:
    """Return how many updates, steps or epochs the run has, or ``None`` if that is not known in advance."""
    if by == "update":
        return trainer.total_updates
    if by == "step":
        known = [trainer._planned_steps, None if trainer.hooks.decides_update else trainer.max_updates]
        return min((one for one in known if one is not None), default=None)
    updates = trainer.total_updates
    if updates is None or not trainer.updates_until(1):
        return trainer.max_epochs
    high = 1
    while (trainer.updates_until(high) or 0) < updates:
        high *= 2
    return bisect_left(range(high), updates, key=lambda epochs: trainer.updates_until(epochs) or 0)


def updates_of(trainer: Trainer, epochs: float, key: str, option: str) -> int:
    """Return the updates of the first so many epochs.

    Args:
        trainer: The run.
        epochs: May be a fraction.
        key: Name of the plugin, for the message.
        option: What gave the epochs, for the message.

    Raises:
        UsageError: They are not known in advance.
    """
    updates = trainer.updates_until(epochs)
    if updates is None:
        message = f"{key}.{option} needs a train loader with a length, or steps_per_epoch; give {key}.{_INSTEAD[option]}"
        raise UsageError(message)
    return updates
