"""The scale of losses in float16: torch's scaler, for all optimizers of a run together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class LossScale:
    """Scales losses, unscales gradients, and makes or skips updates.

    Args:
        device: Where the scale is kept.
        options: Of ``torch.amp.GradScaler``.
    """

    def __init__(self, device: torch.device, options: dict[str, Any]) -> None:
        self._scaler = torch.amp.GradScaler(device.type, **options)
        self._scaler.scale(torch.ones((), device=device))  # it makes its tensors when it is first used
        self._pending: _Everything | None = None
        #: Whether a loss has been scaled since the last update.
        self.is_scaled = False
        #: Whether the optimizers are making their step.
        self.is_stepping = False
        #: Updates that were skipped one after the other, up to now.
        self.skipped_in_a_row = 0
        #: Updates since somebody reset it, and those of them that were skipped.
        self.made, self.skipped = 0, 0

    @property
    def value(self) -> float:
        """The scale, for which the host waits."""
        return self._scaler.get_scale()

    @property
    def is_pending(self) -> bool:
        """Whether gradients have been unscaled for an update that is not made yet."""
        return self._pending is not None

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        self.is_scaled = True
        return self._scaler.scale(loss)

    def unscale(self, parameters: list[Tensor]) -> None:
        """Divide the gradients by the scale, and note whether all of them are finite."""
        if parameters:
            self._pending = _Everything(parameters)
            self._scaler.unscale_(cast("Any", self._pending))

    def finish(self, step: Callable[[], bool]) -> bool:
        """Call ``step`` if all gradients are finite, which synchronizes once, and set the next scale.

        Returns:
            What ``step`` returned, ``False`` if it was not called.
        """
        assert self._pending is not None  # noqa: S101 - see is_pending
        everything, self._pending, self.is_scaled = self._pending, None, False
        everything.step = step
        self.is_stepping = True
        try:
            updated = self._scaler.step(cast("Any", everything))
        finally:
            self.is_stepping = False
            self._scaler.update()
        self.made += 1
        self.skipped += updated is None
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if updated is None else 0
        return bool(updated)

    def drop(self) -> None:
        """End an update that was dropped after its gradients had been unscaled: the scale follows what was found in them."""
        if self._pending is not None:
            self.finish(lambda: False)

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, for how long it has not changed, and the updates that nobody has reset the count of."""
        self.drop()
        state = self._scaler.state_dict()
        return {
            "scale": state["scale"],
            "growth_tracker": state["_growth_tracker"],
            "skipped_in_a_row": self.skipped_in_a_row,
            "is_scaled": self.is_scaled,
            "made": self.made,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them in place; how the scale grows is this run's own."""
        its_own = self._scaler.state_dict()
        self._scaler.load_state_dict({**its_own, "scale": state["scale"], "_growth_tracker": state["growth_tracker"]})
        self.skipped_in_a_row, self.is_scaled = state["skipped_in_a_row"], state["is_scaled"]
        self.made, self.skipped = state.get("made", 0), state.get("skipped", 0)  # not in checkpoints of before version 0.2


class _Everything:
    """What ``GradScaler`` takes for one optimizer: all parameters, each once, and the step of all optimizers.

    So an update is skipped as a whole if any gradient is not finite, for one synchronization whatever the number of optimizers,
    and the step is that of whoever implements the stage ``optimizer_step``.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self.param_groups = [{"params": parameters}]
        self.step: Callable[[], bool] = bool
