"""How often a plugin does something: after every n-th epoch, step or update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import OptionError

if TYPE_CHECKING:
    from .state import RunState


class Interval:
    """When something is due; the three options that plugins share.

    Args:
        every_epochs: After every n-th epoch; 0 for never. 1 if no other interval is given.
        every_steps: After every n-th step; 0 for never.
        every_updates: After every n-th update; 0 for never.
    """

    def __init__(self, every_epochs: int | None, every_steps: int, every_updates: int) -> None:
        given = {"every_epochs": every_epochs, "every_steps": every_steps, "every_updates": every_updates}
        for name, value in given.items():
            if value is not None and value < 0:
                message = f"{name} = {value}: must be 0 (never) or more"
                raise OptionError(message)
        #: Whether it can be due within an epoch.
        self.within_epochs = bool(every_steps or every_updates)
        self.epochs = every_epochs if every_epochs is not None else int(not self.within_epochs)
        self.steps, self.updates = every_steps, every_updates

    @property
    def never(self) -> bool:
        """Whether it is never due."""
        return not (self.epochs or self.within_epochs)

    def due_after_step(self, state: RunState) -> bool:
        """Return whether it is due after the running step."""
        return state.every_n_steps(self.steps) or state.every_n_updates(self.updates)

    def due_after_update(self, state: RunState) -> bool:
        """Return whether it is due after the running update, for those who ask in ``after_update``.

        That is one of a step, or one that closes a window when the last step of an epoch is done.
        """
        return self.updates > 0 and (state.update + 1) % self.updates == 0

    def due_after_epoch(self, state: RunState) -> bool:
        """Return whether it is due after the running epoch."""
        return state.every_n_epochs(self.epochs)
