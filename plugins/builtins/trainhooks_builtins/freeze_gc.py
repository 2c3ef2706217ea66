"""``freeze_gc``: Python's garbage collector does not interrupt steps."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING

from trainhooks import hookimpl
from trainhooks.intervals import Interval

if TYPE_CHECKING:
    from collections.abc import Generator

    from trainhooks import Trainer

log = logging.getLogger("trainhooks")


class FreezeGC:
    """Collects garbage between epochs, not whenever Python decides to in the middle of a step.

    Before training it collects once, and takes everything that is there then (modules, model, dataset) out of the collector's
    sight (``gc.freeze``), so that a collection looks through what came later only. During training the automatic collector is
    off. Afterwards both are as they were found.

    Args:
        disable: Turn the automatic collector off.
        freeze: Take what is there at the beginning out of its sight.
        every_epochs: Collect after every n-th epoch; 0 for never. 1 if no other interval is given.
        every_steps: Collect after every n-th step; 0 for never.
        every_updates: Collect after every n-th update; 0 for never.
    """

    phase = "reporting"

    def __init__(
        self,
        disable: bool = True,
        freeze: bool = True,
        every_epochs: int | None = None,
        every_steps: int = 0,
        every_updates: int = 0,
    ) -> None:
        self.disable, self.freeze = disable, freeze
        self.interval = Interval(every_epochs, every_steps, every_updates)
        if not self.interval.within_epochs:
            vars(self)["after_step"] = None

    @hookimpl(wrapper=True)
    def train(self, trainer: Trainer) -> Generator[None, bool, bool]:
        """Freeze and turn off around the training."""
        enabled = gc.isenabled()
        frozen = self.freeze and gc.get_freeze_count() == 0
        if self.freeze and not frozen:
            log.info("freeze_gc: something is frozen already and stays; nothing more is frozen, since that could not be undone")
        gc.collect()
        if frozen:
            gc.freeze()
        if self.disable:
            gc.disable()
        try:
            return (yield)
        finally:
            if frozen:
                gc.unfreeze()
            if enabled:
                gc.enable()

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """Collect when it is due."""
        if self.interval.due_after_step(trainer):
            gc.collect()

    @hookimpl
    def after_epoch(self, trainer: Trainer) -> None:
        """Collect when it is due."""
        if self.interval.due_after_epoch(trainer):
            gc.collect()
