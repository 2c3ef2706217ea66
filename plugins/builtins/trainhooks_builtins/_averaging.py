"""What ``ema`` and ``swa`` share: their hooks around evaluations and checkpoints; no plugin."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainhooks import UsageError, hookimpl
from trainhooks.stateful import StatefulRegistry

from ._stand_in import own_weights, put_back, standing_in, stands_in

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from torch import Tensor, nn

    from trainhooks import Outcome, Trainer
    from trainhooks.types import Metrics, StateDict

    from ._average import Average
    from ._stand_in import Layer


class EvaluatesWithAverage:
    """The hooks of a plugin that keeps an average: evaluations see it, checkpoints and resumed runs never take it for the weights.

    Args:
        average: What it keeps.
        evaluate: Whether evaluations and predictions use it.
        apply_at_end: Whether it becomes the model's weights when the training ends.
    """

    holds_weights = True  # what an evaluation of a checkpoint has restored stays, as the model's weights do

    def __init__(self, average: Average, *, evaluate: bool, apply_at_end: bool) -> None:
        self._average, self._apply_at_end, self._evaluates = average, apply_at_end, evaluate
        if not evaluate:
            vars(self).update(evaluate=None, predict=None)  # not even called
        if not apply_at_end:
            vars(self)["teardown"] = None

    @property
    def average(self) -> dict[str, Tensor]:
        """The average by parameter name, empty while there is none: ``model.load_state_dict(average, strict=False)`` takes it."""
        return self._average.by_own_names

    @contextmanager
    def averaged(self, trainer: Trainer) -> Iterator[None]:
        """Have the model hold the average inside a ``with`` block; nothing changes while there is none, or in a second one inside."""
        layer = self._layer(trainer)
        if layer is None:
            yield
            return
        outer, self._standing = self._standing, layer
        try:
            with standing_in(trainer.model, layer):
                yield
        finally:
            self._standing = outer

    def _layer(self, trainer: Trainer) -> Layer | None:
        """Return what is to stand in for the weights, if there is an average and it does not yet."""
        if (
            trainer.model is None
            or not self._average.tensors
            or (self._standing is not None and stands_in(trainer.model, self._standing))
        ):
            return None
        if self._average.bound:
            self._average.check(trainer.model)
        else:
            self._average.bind(trainer.model)  # an evaluation from a checkpoint
        return self._average.layer()

    _standing: Layer | None = None

    @hookimpl(wrapper=True)
    def evaluate(self, trainer: Trainer) -> Generator[None, Metrics, Metrics]:
        """Evaluate with the average."""
        with self.averaged(trainer):
            return (yield)

    @hookimpl(wrapper=True)
    def predict(self, trainer: Trainer) -> Generator[None, Any, Any]:
        """Predict with the average."""
        with self.averaged(trainer):
            return (yield)

    @hookimpl(wrapper=True)
    def save_checkpoint(self, trainer: Trainer) -> Generator[None, Path, Path]:
        """Save the model's own weights, also in the middle of an evaluation."""
        if trainer.model is None:
            return (yield)
        with own_weights(trainer.model):
            return (yield)

    @hookimpl
    def on_save(self, trainer: Trainer, state: StateDict) -> None:
        """Give the model's own weights to whoever asks for the state in the middle of an evaluation."""
        if "model" in state and stands_in(trainer.model):
            with own_weights(trainer.model):
                state["model"] = StatefulRegistry(model=trainer.stateful["model"]).state_dict()["model"]

    @hookimpl
    def on_load(self, trainer: Trainer) -> None:
        """Let a state that is restored in the middle of an evaluation go to the model's own weights, not into the average."""
        if trainer.model is not None:
            put_back(trainer.model)

    @hookimpl
    def teardown(self, trainer: Trainer, outcome: Outcome) -> None:
        """Leave the average in the model, after the last checkpoint."""
        ended = trainer.session is not None and trainer.session.training and outcome is trainer.outcome
        if ended and outcome.status in ("completed", "stopped") and self._average.tensors:
            self._apply(trainer)

    def _apply(self, trainer: Trainer) -> None:
        self._average.copy_to_model()


def model_of(trainer: Trainer, owner: str) -> nn.Module:
    """Return the model.

    Raises:
        UsageError: There is none.
    """
    if trainer.model is None:
        message = f"plugin {owner!r} needs a model, this training has none; take it out with -p no:{owner}"
        raise UsageError(message)
    return trainer.model
