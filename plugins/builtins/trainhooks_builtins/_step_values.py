"""Values of single steps that are looked at later: kept on their device, brought over with one copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from trainhooks import UsageError
from trainhooks.series import to_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainhooks import Trainer


class Place(NamedTuple):
    """Where in the run a value belongs, as 0-based indices.

    Args:
        step: Index of the step.
        update: Index of the update that the step works towards.
        epoch: Index of the epoch.
        batch_index: Index of the batch in the epoch.
    """

    step: int
    update: int
    epoch: int
    batch_index: int


class StepValues:
    """Keeps one number or scalar tensor for each call of ``add`` until ``take``."""

    def __init__(self) -> None:
        self._places: list[tuple[Place, str]] = []
        self._values: list[Any] = []

    def add(self, place: Place, name: str, value: Any) -> None:
        """Keep a value without a synchronization."""
        self._places.append((place, name))
        self._values.append(kept(value))

    def take(self) -> list[tuple[Place, str, float]]:
        """Return everything as numbers, in its order, and forget it; one copy for all tensors of a device and type."""
        places, values = self._places, self._values
        self._places, self._values = [], []
        numbers = to_host({str(index): value for index, value in enumerate(values)})
        return [(*place, number) for place, number in zip(places, numbers.values(), strict=True)]

    def put_back(self, taken: list[tuple[Place, str, float]]) -> None:
        """Keep again what ``take`` returned."""
        self._places = [(place, name) for place, name, _ in taken]
        self._values = [value for *_, value in taken]


def kept(value: Any) -> Any:
    """Return a number, which a tensor of the CPU gives without a synchronization, or a copy on the device."""
    if isinstance(value, Tensor):
        return value.reshape(()).tolist() if value.is_cpu and type(value) is Tensor else value.detach().clone()
    return float(value)


def place_of(trainer: Trainer, update: int) -> Place:
    """Return the place of the running step."""
    return Place(trainer.step, update, trainer.epoch, trainer.batch_index)


def picked(output: Mapping[str, Any], name: str, option: str) -> Any:
    """Return one scalar of what ``train_step`` returned.

    Raises:
        UsageError: It is not there, or no scalar; the message names the option.
    """
    value = output.get(name)
    if value is None or (isinstance(value, Tensor) and value.numel() != 1):
        message = f"{option} = {name!r} is no scalar of what train_step returned, which has {', '.join(output) or 'nothing'}"
        raise UsageError(message)
    return value
