"""A plugin; what is marked keeps its type, for hooks are also called and tested as the functions that they are."""

from collections.abc import Generator, Mapping
from typing import Any

from torch import Tensor
from typing_extensions import assert_type

from trainhooks import SkipStep, Trainer, hookimpl
from trainhooks.types import Batch, Metrics, Output


class Plugin:
    """Has each kind of hook."""

    phase = "measurement"

    def __init__(self, every_steps: int = 1) -> None:
        self.every_steps = every_steps

    @hookimpl
    def before_step(self, trainer: Trainer, batch: Batch) -> None:
        """Drop a batch."""
        if batch is None:
            raise SkipStep("empty")
        trainer.log("seen", 1, reduce="sum")

    @hookimpl(tryfirst=True)
    def compute_loss(self, trainer: Trainer, batch: Batch) -> Tensor:
        """Replace a stage."""
        loss: Tensor = trainer.model(batch)
        return loss

    @hookimpl(wrapper=True)
    def train_step(self, trainer: Trainer) -> Generator[None, Output, Output]:
        """Wrap a stage."""
        output = yield
        trainer.log("seen/loss", output["loss"])
        return {**output, "extra": 1}

    @hookimpl
    def after_epoch(self, trainer: Trainer, metrics: Metrics) -> None:
        """Ask for what comes at its place."""
        trainer.request_eval()
        trainer.request_checkpoint()
        trainer.stop("enough", at="epoch")

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {"every_steps": self.every_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.every_steps = state["every_steps"]


def types_are_kept(trainer: Trainer, batch: Batch) -> None:
    """Call hooks as functions."""
    plugin = Plugin(every_steps=2)
    assert_type(plugin.compute_loss(trainer, batch), Tensor)
    assert_type(plugin.train_step(trainer), Generator[None, Output, Output])
