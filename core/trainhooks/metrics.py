"""The one way in for metrics: values stay on the device until a flush brings all of them over with one copy each device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch

from .errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .types import Metrics, Output

Reduce = Literal["mean", "last", "sum", "min", "max"]

#: Values kept for one name before they are folded into one, on the device.
_FOLD = 64


@dataclass(frozen=True)
class Record:
    """Values that were flushed together.

    Args:
        step: Steps done; never goes backwards.
        update: Updates done.
        epoch: Epochs done.
        time: Seconds since the epoch of the clock (``time.time``).
        values: Metric names to values.
    """

    step: int
    update: int
    epoch: int
    time: float
    values: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


class Series:
    """The values of one name since the last flush."""

    __slots__ = ("_folded", "_folded_weight", "reduce", "values", "weights")

    def __init__(self, reduce: Reduce) -> None:
        self.reduce = reduce
        self.values: list[Any] = []
        self.weights: list[float] = []
        self._folded: Any = None  # for a mean: the weighted sum so far
        self._folded_weight = 0.0

    def add(self, value: Any, weight: float = 1) -> None:
        """Keep one value; a long series is folded, still on its device."""
        self.values.append(value)
        self.weights.append(weight)
        if len(self.values) >= _FOLD:
            self._fold()

    def result(self) -> tuple[Any, float]:
        """Return the reduced value, on its device, and the weight behind it."""
        self._fold()
        if self.reduce == "mean":
            return self._folded / self._folded_weight if self._folded_weight else math.nan, self._folded_weight
        return self._folded, self._folded_weight

    def _fold(self) -> None:
        values, weights = self.values, self.weights
        if not values:
            return
        self.values, self.weights = [], []
        if self.reduce == "last":
            self._folded = values[-1]
        else:
            total = _combine(values, weights, self.reduce)
            self._folded = total if self._folded is None else _join(self._folded, total, self.reduce)
        self._folded_weight += sum(weights)


def _combine(values: list[Any], weights: list[float], reduce: Reduce) -> Any:
    """Reduce values of one kind in one operation, mixed ones one by one; in double precision where there is any."""
    if not all(isinstance(value, torch.Tensor) for value in values):
        numbers = [float(value) for value in values]
        if reduce == "mean":
            return math.fsum(number * weight for number, weight in zip(numbers, weights, strict=True))
        return math.fsum(numbers) if reduce == "sum" else min(numbers) if reduce == "min" else max(numbers)
    stacked = torch.stack([value.reshape(()) for value in values])
    if stacked.device.type != "mps":
        stacked = stacked.double()
    if reduce == "mean":
        if min(weights) == max(weights):
            return stacked.sum() * weights[0]
        return (stacked * torch.tensor(weights, dtype=stacked.dtype, device=stacked.device)).sum()
    return stacked.sum() if reduce == "sum" else stacked.min() if reduce == "min" else stacked.max()


def _join(a: Any, b: Any, reduce: Reduce) -> Any:
    if reduce in ("mean", "sum"):
        return a + b
    smaller = a < b
    if isinstance(smaller, torch.Tensor):
        return torch.where(smaller, *((a, b) if reduce == "min" else (b, a)))
    return a if smaller == (reduce == "min") else b


class MetricBus:
    """Collects what is logged until it is flushed."""

    def __init__(self) -> None:
        self._pending: dict[str, Series] = {}
        self._epoch: dict[str, list[float]] = {}
        self._losses: list[Any] = []
        self._sizes: list[int] = []

    @property
    def pending(self) -> bool:
        """Whether anything waits to be flushed."""
        return bool(self._pending or self._losses)

    def add(self, name: str, value: Any, weight: float = 1, reduce: Reduce = "mean") -> None:
        """Keep one value; a tensor is detached and stays on its device.

        Raises:
            UsageError: The value is not a scalar.
        """
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                message = f"log({name!r}): a tensor of shape {tuple(value.shape)}; log scalars, for example its mean()"
                raise UsageError(message)
            value = value.detach()
        elif isinstance(value, bool) or not isinstance(value, int | float):
            value = _as_number(name, value)
        series = self._pending.get(name)
        if series is None:
            series = self._pending[name] = Series(reduce)
        series.add(value, weight)

    def add_output(self, output: Output, size: int) -> None:
        """Keep the scalars that a training step returned, as ``train/...``; the loss is looked at when it is folded."""
        self._losses.append(output.get("loss"))
        self._sizes.append(size)
        if len(output) > 1:
            for name, value in output.items():
                if name != "loss" and (isinstance(value, float) or (isinstance(value, torch.Tensor) and value.ndim == 0)):
                    self.add("train/" + name, value, size)
        if len(self._losses) >= _FOLD:
            self._fold_losses()

    def _fold_losses(self) -> None:
        losses, sizes = self._losses, self._sizes
        self._losses, self._sizes = [], []
        for loss, size in zip(losses, sizes, strict=True):
            if isinstance(loss, float) or (isinstance(loss, torch.Tensor) and loss.numel() == 1):
                self.add("train/loss", loss, size)

    def flush(self) -> Metrics:
        """Bring everything over and forget it; the values also count for the epoch's means."""
        self._fold_losses()
        reduced = {name: series.result() for name, series in self._pending.items()}
        values = to_host({name: value for name, (value, _) in reduced.items()})
        for name, value in values.items():
            total = self._epoch.setdefault(name, [0.0, 0.0])
            weight = reduced[name][1]
            total[0] += value * weight
            total[1] += weight
        self._pending = {}
        return values

    def end_epoch(self) -> Metrics:
        """Return the means over the epoch of what was flushed during it, and start anew."""
        means = {name: total / weight for name, (total, weight) in self._epoch.items() if weight}
        self._epoch = {}
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the running epoch; call ``flush`` before."""
        return {"epoch": {name: list(total) for name, total in self._epoch.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._epoch = {name: list(total) for name, total in state["epoch"].items()}
        self._pending = {}


def to_host(values: Mapping[str, Any]) -> Metrics:
    """Return plain floats: one copy for all tensors of a device and type."""
    groups: dict[Any, list[str]] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            groups.setdefault((value.device, value.dtype), []).append(name)
    host = {name: float(value) for name, value in values.items() if not isinstance(value, torch.Tensor)}
    for names in groups.values():
        host.update(zip(names, torch.stack([values[name].reshape(()) for name in names]).tolist(), strict=True))
    return {name: float(host[name]) for name in values}


def _as_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        message = f"log({name!r}): {value!r} is no number"
        raise UsageError(message) from None
