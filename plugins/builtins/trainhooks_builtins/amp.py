"""``amp``: forward passes in half precision."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch

from trainhooks import OptionError, TrainingError, UsageError, hookimpl

from ._gradients import with_gradient
from ._loss_scale import LossScale

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

    from torch import Tensor

    from trainhooks import Trainer
    from trainhooks.series import Series
    from trainhooks.types import Output

log = logging.getLogger("trainhooks")

_MANY = 20  # skipped updates in a row that are reported where they do not end the run


class AMP:
    """Computes losses and predictions under ``torch.autocast``, and scales the loss where ``float16`` needs that.

    The weights stay as they are, in float32; operations that gain from it are computed in ``dtype``, the others are not (torch
    decides which). ``bfloat16`` has the range of float32 and needs nothing more. With ``float16`` small gradients would become
    zero, so the loss is multiplied by a scale and the gradients are divided by it before ``gradients_ready`` shows them to
    anybody (Micikevicius et al. 2018). If any of them is not finite the update is skipped, for all optimizers alike, and
    the scale becomes ``backoff_factor`` times as large; after ``growth_interval`` updates without that, ``growth_factor`` times.

    A skipped update is none: ``trainer.update`` stays, ``after_update`` is not called, schedules do not go on.

    Logs ``amp/scale`` and ``amp/skipped`` (updates skipped since the last flush) with ``float16``.

    Args:
        dtype: Type of the operations that are computed in half precision.
        init_scale: First scale, as are the next four for ``float16`` only.
        growth_factor: What the scale is multiplied by when it grows, above 1.
        backoff_factor: What it is multiplied by when an update is skipped, between 0 and 1.
        growth_interval: Updates without a skipped one until it grows.
        max_skipped: Stop with an error after so many skipped updates in a row; 0 for never, with a warning after 20.
        devices: Kinds of devices on which anything is done, for example ``cuda``; all by default.
    """

    phase = "algorithm"

    def __init__(
        self,
        dtype: Literal["bfloat16", "float16"] = "bfloat16",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        max_skipped: int = 20,
        devices: tuple[str, ...] = (),
    ) -> None:
        if dtype not in ("bfloat16", "float16"):
            message = f"dtype = {dtype!r}: must be 'bfloat16' or 'float16'"
            raise OptionError(message)
        for name, value, valid, what in (
            ("init_scale", init_scale, init_scale > 0, "above 0"),
            ("growth_factor", growth_factor, growth_factor > 1, "above 1"),
            ("backoff_factor", backoff_factor, 0 < backoff_factor < 1, "between 0 and 1"),
            ("growth_interval", growth_interval, growth_interval >= 1, "at least 1"),
            ("max_skipped", max_skipped, max_skipped >= 0, "0 (never) or more"),
        ):
            if not valid:
                message = f"{name} = {value}: must be {what}"
                raise OptionError(message)
        self.dtype, self.devices, self.max_skipped = dtype, tuple(devices), max_skipped
        self._options = {
            "init_scale": init_scale,
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
            "growth_interval": growth_interval,
        }
        self._device: str | None = None  # the kind of device while anything is to be done
        self._scale: LossScale | None = None
        self._loaded: dict[str, Any] = {}  # a state that came before the scale was there
        self._asked = False  # whether the gradients of the running update were unscaled here
        self._series: tuple[Series, Series] | None = None
        if dtype == "bfloat16":
            vars(self).update(dict.fromkeys(("scale_loss", "gradients_ready", "optimizer_step", "after_update")))

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Find out whether there is anything to do on this device, and make the scale."""
        device = trainer.device
        if self.devices and device.type not in self.devices:
            log.info("amp: does nothing on %s, only on %s", device.type, ", ".join(self.devices))
            return
        if not torch.amp.is_autocast_available(device.type):
            message = f"plugin 'amp': torch has no autocast for {device.type!r}; take it out with -p no:amp"
            raise UsageError(message)
        self._device = device.type
        log.info("amp: %s on %s", self.dtype, device.type)
        if self.dtype == "bfloat16":
            return
        named = trainer.model.named_parameters() if trainer.model is not None else ()
        halves = [name for name, one in named if one.dtype == torch.float16]
        if halves:
            message = f"plugin 'amp': {halves[0]!r} is in float16; leave the model in float32, or use dtype = 'bfloat16'"
            raise UsageError(message)
        if self._scale is None:
            self._scale = LossScale(device, self._options)
            if self._loaded:
                self._scale.load_state_dict(self._loaded)
        self._series = trainer.bus.series("amp/scale", "last"), trainer.bus.series("amp/skipped", "sum")
        trainer.bus.before_flush.append(self._log)

    @hookimpl
    def teardown(self, trainer: Trainer) -> None:
        """Log no more."""
        if self._log in trainer.bus.before_flush:
            trainer.bus.before_flush.remove(self._log)

    # --- Half precision ---

    @hookimpl(wrapper=True, tryfirst=True)
    def compute_loss(self) -> Generator[None, Any, Any]:
        """Compute the loss, and what others wrap around it, in half precision."""
        with self._autocast():
            return (yield)

    @hookimpl(wrapper=True, tryfirst=True)
    def eval_step(self) -> Generator[None, Output, Output]:
        """Evaluate in half precision."""
        with self._autocast():
            return (yield)

    @hookimpl(wrapper=True, tryfirst=True)
    def predict_step(self) -> Generator[None, Any, Any]:
        """Predict in half precision."""
        with self._autocast():
            return (yield)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device, getattr(torch, self.dtype)) if self._device is not None else nullcontext()

    # --- The scale ---

    @hookimpl(wrapper=True)
    def scale_loss(self, trainer: Trainer) -> Generator[None, Tensor, Tensor]:
        """Multiply the loss by the scale."""
        loss = yield
        scale = self._scale
        if scale is None:
            return loss
        if scale.is_stepping:
            message = (
                "plugin 'amp': the optimizer computes the loss again within its step (a closure), which has no place for a scale; "
                "use dtype = 'bfloat16'"
            )
            raise UsageError(message)
        if scale.is_pending:  # the last update was dropped
            scale.drop()
            self._check(scale, trainer.update)
        return scale.scale(loss)

    @hookimpl(wrapper=True, tryfirst=True)
    def gradients_ready(self, trainer: Trainer) -> Generator[None, None, None]:
        """Divide the gradients of all optimizers by the scale before anybody looks at them.

        Here rather than at the end of ``backward``, which a ``train_step`` with several losses calls more than once.
        """
        if self._scale is not None:
            if not self._scale.is_scaled:
                raise UsageError(_NOT_SCALED)
            self._asked = True
            self._scale.unscale(with_gradient(trainer.optimizers.values()))
        return (yield)

    @hookimpl(tryfirst=True)
    def optimizer_step(self, trainer: Trainer) -> bool:
        """Have the others step if all gradients are finite; tell whether the parameters were updated."""

        def others() -> bool:
            return bool(trainer.call_others("optimizer_step", self))

        if self._scale is None or not self._scale.is_pending:
            return others()
        updated = self._scale.finish(others)
        self._check(self._scale, trainer.update)
        return updated

    @hookimpl
    def after_update(self) -> None:
        """Refuse a ``train_step`` that updates in its own way: its small gradients became zero, and nothing was skipped."""
        if self._scale is not None and not self._asked:
            raise UsageError(_NOT_SCALED)
        self._asked = False

    def _check(self, scale: LossScale, update: int) -> None:
        if not self.max_skipped and scale.skipped_in_a_row == _MANY:
            log.warning("amp: %d updates in a row were skipped, since their gradients were not finite; max_skipped = 0", _MANY)
        elif self.max_skipped and scale.skipped_in_a_row >= self.max_skipped:
            last = f"the last finite update was number {update}" if update else "no update was finite"
            message = (
                f"plugin 'amp': {scale.skipped_in_a_row} updates in a row were skipped since their gradients were not finite; the "
                f"scale is {scale.value:g}, {last}; look for the loss that is not finite, or use dtype = 'bfloat16'"
            )
            raise TrainingError(message)

    def _log(self) -> None:
        """Add to what is flushed, when the host has to wait for the device anyway."""
        if self._scale is not None and self._series is not None and self._scale.made:
            scale, skipped = self._series
            scale.add(self._scale.value)
            skipped.add(float(self._scale.skipped))
            self._scale.made = self._scale.skipped = 0

    # --- State ---

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scale; nothing with ``bfloat16``."""
        return self._scale.state_dict() if self._scale is not None else dict(self._loaded)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it in place."""
        self._loaded = dict(state)
        if self._scale is not None and state:
            self._scale.load_state_dict(state)


_NOT_SCALED = (
    "plugin 'amp': the loss of this train_step was not scaled; pass it through trainer.hooks.scale_loss and call "
    "trainer.update_parameters(), or use dtype = 'bfloat16'"
)
