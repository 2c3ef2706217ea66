"""The one way in for metrics: values stay on the device until a flush brings all of them over with one copy each device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .data import batch_size
from .errors import StageResultError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .types import Batch, Metrics, Output

Reduce = Literal["mean", "last", "sum", "min", "max"]

#: Values kept for one name before they are folded into one, on the device.
FOLD = 64


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
        self.reduce: Reduce = reduce
        self.values: list[Any] = []
        self.weights: list[float] = []
        self._folded: Any = None  # for a mean: the weighted sum so far
        self._folded_weight = 0.0

    def add(self, value: Any, weight: float = 1) -> None:
        """Keep one value; a long series is folded, still on its device."""
        self.values.append(value)
        self.weights.append(weight)
        if len(self.values) >= FOLD:
            self.fold()

    def add_sum(self, total: Any, weight: float) -> None:
        """Keep the weighted sum of several values of a mean."""
        self._folded = total if self._folded is None else _join(self._folded, total, "mean")
        self._folded_weight += weight

    def extend(self, values: Sequence[float], weights: Sequence[float] | None = None) -> None:
        """Keep several numbers."""
        self.values += values
        self.weights += weights if weights is not None else [1] * len(values)
        if len(self.values) >= FOLD:
            self.fold()

    def result(self) -> tuple[Any, float]:
        """Return the reduced value, on its device, and the weight behind it."""
        self.fold()
        if self.reduce == "mean":
            return self._folded / self._folded_weight if self._folded_weight else math.nan, self._folded_weight
        return self._folded, self._folded_weight

    @property
    def empty(self) -> bool:
        """Whether nothing has been kept since the last flush."""
        return not self.values and self._folded is None

    def clear(self) -> None:
        """Forget what has been kept."""
        self.values, self.weights = [], []
        self._folded, self._folded_weight = None, 0.0

    def fold(self) -> None:
        """Reduce what has been kept to one value."""
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
    """Reduce the numbers, and the tensors of each device in one operation there, in double precision where it has that."""
    if not any(isinstance(value, Tensor) for value in values):
        return _numbers(values, weights, reduce)
    by_device: dict[torch.device | None, list[int]] = {}
    for index, value in enumerate(values):
        by_device.setdefault(value.device if isinstance(value, Tensor) else None, []).append(index)
    total: Any = None
    for device, indices in by_device.items():
        picked, their_weights = [values[index] for index in indices], [weights[index] for index in indices]
        part = _numbers(picked, their_weights, reduce) if device is None else _tensors(picked, their_weights, reduce)
        total = part if total is None else _join(total, part, reduce)
    return total


def _numbers(values: Sequence[float], weights: Sequence[float], reduce: Reduce) -> float:
    if reduce in ("mean", "sum"):
        weighted = [value * weight for value, weight in zip(values, weights, strict=True)] if reduce == "mean" else values
        return math.fsum(weighted) if all(map(math.isfinite, weighted)) else sum(weighted)  # fsum refuses inf - inf
    if any(math.isnan(value) for value in values):
        return math.nan
    return float(min(values) if reduce == "min" else max(values))


def _tensors(values: Sequence[Tensor], weights: Sequence[float], reduce: Reduce) -> Tensor:
    if len({value.dtype for value in values}) > 1:
        values = [value.double() if value.device.type != "mps" else value.float() for value in values]
    stacked = torch.stack([value.reshape(()) for value in values])
    if reduce == "mean":
        return _weighted_sum(stacked, weights)
    if stacked.device.type != "mps":
        stacked = stacked.double()
    return stacked.sum() if reduce == "sum" else stacked.min() if reduce == "min" else stacked.max()


def _weighted_sum(values: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the sum of ``values`` (one dimension) times ``weights``, in double precision where the device has that."""
    if values.device.type != "mps":
        values = values.double()
    if min(weights) == max(weights):
        return values.sum() * weights[0]
    if values.device.type == "cpu":
        return (values * torch.tensor(weights, dtype=values.dtype)).sum()
    total = torch.zeros((), dtype=values.dtype, device=values.device)  # weights that are copied over would synchronize
    for weight in set(weights):
        first = 0
        for index in range(len(weights) + 1):  # runs of equal weights: slices need no copy either
            if index == len(weights) or weights[index] != weight:
                if index > first:
                    total = total + values[first:index].sum() * weight
                first = index + 1
    return total


def _join(a: Any, b: Any, reduce: Reduce) -> Any:
    """Reduce two reduced values, either of which may be a tensor; NaN stays NaN, whichever side it is on."""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.device != b.device:
        a, b = (a, b.to(a.device)) if b.device.type == "cpu" else (a.to(b.device), b)
    if reduce in ("mean", "sum"):
        return a + b
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Tensor):
            pair = one, torch.as_tensor(other, dtype=one.dtype, device=one.device)
            return torch.minimum(*pair) if reduce == "min" else torch.maximum(*pair)
    return _numbers((float(a), float(b)), (1, 1), reduce)


def check_output(output: object) -> None:
    """Raise if ``train_step`` gave no mapping.

    Raises:
        StageResultError: With what it gave.
    """
    if not isinstance(output, Mapping):
        message = f"train_step must return a mapping of named values such as {{'loss': loss}}, not {type(output).__name__}"
        raise StageResultError(message)


class MetricBus:
    """Collects what is logged until it is flushed."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}
        self._epoch: dict[str, tuple[Reduce, float, float]] = {}
        self._losses: list[Any] = []
        self._sizes: list[int] = []
        #: Called when a flush begins, for those who keep what they measure in every step until then.
        self.before_flush: list[Callable[[], None]] = []

    def series(self, name: str, reduce: Reduce = "mean") -> Series:
        """Return the series of one name, which stays the same over flushes: for plugins that log in every step."""
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = Series(reduce)
        elif series.reduce != reduce:
            message = f"log({name!r}, reduce={reduce!r}): it was logged with reduce={series.reduce!r} before"
            raise UsageError(message)
        return series

    def add(self, name: str, value: Any, weight: float = 1, reduce: Reduce = "mean") -> None:
        """Keep one value; a tensor stays on its device, copied there, since its owner may go on to change it in place.

        Raises:
            UsageError: The value is not a scalar.
        """
        self.series(name, reduce).add(value if type(value) is float else _as_scalar(name, value), weight)

    def add_output(self, output: Output, batch: Batch = None) -> None:
        """Keep the scalars that a training step returned, as ``train/...``; the loss is looked at when it is folded."""
        if type(output) is not dict:
            check_output(output)
        loss = output.get("loss")
        if type(loss) is Tensor:
            # On the CPU a number, read without a dispatched call: to keep the tensors themselves costs the allocator more.
            loss = loss.tolist() if loss.is_cpu and loss.ndim == 0 else loss.detach()
        self._losses.append(loss)
        kind = type(batch)
        try:  # the usual batch without another call
            size = len(batch[0]) if (kind is list or kind is tuple) and type(batch[0]) is Tensor else batch_size(batch)
        except (IndexError, TypeError):  # it is empty, or a scalar
            size = batch_size(batch)
        self._sizes.append(size)
        if loss is None or len(output) > 1:
            for name, value in output.items():
                if name != "loss" and is_scalar(value):
                    self.series("train/" + name).add(_kept(value) if isinstance(value, Tensor) else float(value), size)
        if len(self._losses) >= FOLD:
            self._fold_losses()

    def _fold_losses(self) -> None:
        losses, sizes = self._losses, self._sizes
        self._losses, self._sizes = [], []
        if not losses:
            return
        if set(map(type, losses)) == {float}:
            self.series("train/loss").extend(losses, sizes)
            return
        try:
            stacked = torch.stack(losses)
        except (TypeError, RuntimeError):  # numbers, or tensors of several kinds: one by one
            stacked = None
        if stacked is not None and stacked.ndim == 1:
            self.series("train/loss").add_sum(_weighted_sum(stacked, sizes), sum(sizes))
            return
        for loss, size in zip(losses, sizes, strict=True):
            if isinstance(loss, Tensor) and loss.numel() == 1:
                self.series("train/loss").add(loss.detach(), size)
            elif isinstance(loss, Real):
                self.series("train/loss").add(float(loss), size)

    def flush(self) -> Metrics:
        """Bring everything over and forget it; the values also count for those of the epoch."""
        for add_kept in self.before_flush:
            add_kept()
        self._fold_losses()
        reduced = {name: series.result() for name, series in self._series.items() if not series.empty}
        values = to_host({name: value for name, (value, _) in reduced.items()})
        for name, value in values.items():
            reduce, weight = self._series[name].reduce, reduced[name][1]
            if reduce == "mean":
                value = value * weight if weight else 0.0  # noqa: PLW2901 - the sum that the mean came from
            if name in self._epoch and reduce != "last":
                _, before, its_weight = self._epoch[name]
                value, weight = _join(before, value, reduce), its_weight + weight  # noqa: PLW2901
            self._epoch[name] = (reduce, value, weight)
            self._series[name].clear()
        return values

    def end_epoch(self, *, complete: bool = True) -> Metrics:
        """Return what was flushed during the epoch, reduced as each was logged, and start anew.

        When it was flushed does not matter: the epoch's ``max`` is the highest value of the epoch.

        Args:
            complete: Whether the epoch is over; one that was cut short is kept for the run that goes on with it.
        """
        epoch = self._epoch
        if complete:
            self._epoch = {}
        return {
            name: value / weight if reduce == "mean" else value
            for name, (reduce, value, weight) in epoch.items()
            if weight or reduce != "mean"
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the running epoch; call ``flush`` before."""
        return {"epoch": {name: list(kept) for name, kept in self._epoch.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._epoch = {name: (kept[0], kept[1], kept[2]) for name, kept in state["epoch"].items()}
        for series in self._series.values():
            series.clear()
        self._losses, self._sizes = [], []


def is_scalar(value: Any) -> bool:
    """Return whether a value of an output is averaged: a number, NumPy's included, or a tensor without dimensions."""
    return value.ndim == 0 if isinstance(value, Tensor) else isinstance(value, Real)


def to_host(values: Mapping[str, Any]) -> Metrics:
    """Return plain floats: one copy for all tensors of a device and type."""
    groups: dict[Any, list[str]] = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            groups.setdefault((value.device, value.dtype), []).append(name)
    host = {name: float(value) for name, value in values.items() if not isinstance(value, Tensor)}
    for names in groups.values():
        host.update(zip(names, torch.stack([values[name].reshape(()) for name in names]).tolist(), strict=True))
    return {name: float(host[name]) for name in values}


def _kept(value: Tensor) -> Any:
    """Return a tensor with one element as it is now: of the CPU the number, of a device a copy there."""
    if value.is_cpu and type(value) is Tensor:
        return value.reshape(()).tolist()
    return value.detach().clone()


def _as_scalar(name: str, value: Any) -> Any:
    """Return a number, or a tensor with one element, detached and still on its device."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            message = f"log({name!r}): a tensor of shape {tuple(value.shape)}; log scalars, for example its mean()"
            raise UsageError(message)
        return _kept(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        message = f"log({name!r}): {value!r} is no number"
        raise UsageError(message) from None
