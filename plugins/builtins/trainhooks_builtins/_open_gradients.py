"""Gradients that the next step adds to, in checkpoints; no plugin."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from trainhooks import CheckpointError, hookimpl

from ._gradients import OF_WINDOW, restore, saved
from ._stages import replaced

if TYPE_CHECKING:
    from trainhooks import Trainer
    from trainhooks.types import StateDict

log = logging.getLogger("trainhooks")

_KEY: Final = "checkpoint/gradients"


class KeepsGradients:
    """The hook of a plugin that saves: a checkpoint has the gradients that no update has used, whoever accumulates them.

    With the engine's own steps it is known whether there are any. A ``train_step`` of somebody's own may keep them from one step
    to the next, so what it leaves is saved. The plugin ``accumulate`` sees to its own.
    """

    def __init__(self) -> None:
        self._gradients: Any = None

    @hookimpl
    def on_save(self, trainer: Trainer, state: StateDict) -> None:
        """Add the gradients, if they may be needed."""
        if OF_WINDOW in state or (trainer.gradients_spent and not _steps_in_its_own_way(trainer)):
            return
        gradients = saved(trainer.optimizers, trainer.model)
        if gradients:
            state[_KEY] = {"spent": trainer.gradients_spent, "gradients": gradients}

    def take_gradients(self, state: StateDict) -> None:
        """Keep those of a checkpoint until the training begins."""
        self._gradients = state.get(_KEY)

    def put_gradients(self, trainer: Trainer) -> None:
        """Put them in their places, if this run goes on from that checkpoint.

        Raises:
            CheckpointError: They are not gradients of these parameters.
        """
        kept, self._gradients = self._gradients, None
        if kept is None or trainer.session is None or trainer.session.restored_from is None:
            return
        gradients = kept.get("gradients") if isinstance(kept, dict) else None
        if not isinstance(gradients, dict) or not all(isinstance(one, Tensor) for one in gradients.values()):
            message = f"the checkpoint's state of {_KEY!r} does not fit: it is no dict of tensors"
            raise CheckpointError(message)
        spent = bool(kept.get("spent"))
        if not trainer.hooks.decides_update and not _steps_in_its_own_way(trainer):
            why = "" if spent else "every step is an update now"
        else:
            why = "" if restore(trainer.optimizers, trainer.model, gradients) else "they are not those of the parameters"
            trainer.gradients_spent = spent or bool(why)
        if why:
            log.warning("the gradients that had been accumulated when the checkpoint was saved are lost: %s", why)


def _steps_in_its_own_way(trainer: Trainer) -> bool:
    return any(replaced(trainer, stage) for stage in ("train_step", "train_epoch", "train"))
