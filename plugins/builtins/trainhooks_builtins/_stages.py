"""Who does the work of a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainhooks import Trainer


def replaced(trainer: Trainer, stage: str) -> bool:
    """Return whether a plugin does a stage's work in its own way; one that only wraps it does not."""
    return sum(not one.wrapper for one in trainer.manager.implementations(stage)) > 1
