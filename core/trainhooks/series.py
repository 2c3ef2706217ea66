"""The values of one name until they are flushed: kept on their device, folded there, and reduced."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

K = TypeVar("K")

Reduce = Literal["mean", "last", "sum", "min", "max", "median"]
#: Whose values count in a distributed run: the main rank's, the mean over the ranks, or each rank's under a name of its own.
Ranks = Literal["main", "mean", "all"]

#: Values kept for one name before they are folded into one, on the device.
FOLD = 64
#: The latest values of an interval, or of an epoch, that a median is made of; it cannot be folded.
_LATEST = 1000


class Series:
    """The values of one name since the last flush."""

    __slots__ = ("_folded", "_folded_weight", "ranks", "reduce", "values", "weights")

    def __init__(self, reduce: Reduce, ranks: Ranks = "main") -> None:
        self.reduce: Reduce = reduce
        self.ranks: Ranks = ranks
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

    def add_sum(self, total: Any, weight: Any) -> None:
        """Keep the weighted sum of several values of a mean."""
        self._folded = total if self._folded is None else join(self._folded, total, "mean")
        self._folded_weight = join(self._folded_weight, weight, "sum")

    def add_weighted(self, value: Any, weight: Tensor) -> None:
        """Keep one value of a mean whose weight is on a device, and stays there; with weight 0 it counts for nothing."""
        weight = weight.detach().reshape(())
        weight = weight.float() if weight.device.type == "mps" else weight.double()
        if isinstance(value, Tensor):
            value = value.detach().reshape(()).to(weight.device)
        self.add_sum((value * weight).where(weight != 0, 0.0), weight)

    def extend(self, values: Sequence[float], weights: Sequence[float] | None = None) -> None:
        """Keep several numbers."""
        self.values += values
        self.weights += weights if weights is not None else [1] * len(values)
        if len(self.values) >= FOLD:
            self.fold()

    def result(self) -> tuple[Any, Any]:
        """Return the reduced value, on its device, and the weight behind it."""
        if self.reduce == "median":
            return _median(self.values[-_LATEST:]), 1
        self.fold()
        if self.reduce == "mean":
            return self._folded / self._folded_weight if self._folded_weight else math.nan, self._folded_weight
        return self._folded, self._folded_weight

    @property
    def latest(self) -> list[float]:
        """What a median is made of, on the host; of other reductions nothing is kept."""
        return list(to_host(dict(enumerate(self.values[-_LATEST:]))).values()) if self.reduce == "median" else []

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
        if self.reduce == "median":
            if len(values) > 2 * _LATEST:  # trimmed seldom, since that copies
                self.values, self.weights = values[-_LATEST:], weights[-_LATEST:]
            return
        self.values, self.weights = [], []
        if self.reduce == "last":
            self._folded = values[-1]
        else:
            total = _combine(values, weights, self.reduce)
            self._folded = total if self._folded is None else join(self._folded, total, self.reduce)
        self._folded_weight = self._folded_weight + sum(weights)  # not in place: it may be a tensor that a copy has, too

    def copy(self) -> Series:
        """Return a series of its own with the same values."""
        copy = Series(self.reduce, self.ranks)
        copy.take_back(self)
        return copy

    def take_back(self, kept: Series) -> None:
        """Keep what a copy has, instead of anything else."""
        self.values, self.weights = list(kept.values), list(kept.weights)
        self._folded, self._folded_weight = kept._folded, kept._folded_weight

    def state_dict(self) -> dict[str, Any]:
        """Return what has been kept, as numbers."""
        folded = None if self._folded is None else float(self._folded)
        values = list(to_host(dict(enumerate(self.values))).values())
        kept = {"values": values, "weights": list(self.weights), "folded": folded, "folded_weight": float(self._folded_weight)}
        return {"reduce": self.reduce, "ranks": self.ranks, **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.values, self.weights = list(state["values"]), list(state["weights"])
        self._folded, self._folded_weight = state["folded"], state["folded_weight"]


class Totals:
    """Values that are on the host, each reduced as it was logged, over several flushes."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[Reduce, float, float]] = {}
        self._latest: dict[str, list[float]] = {}  # of medians

    def add(self, name: str, reduce: Reduce, value: float, weight: float, latest: Sequence[float] = ()) -> None:
        """Count what was reduced at a flush; one that was reduced otherwise before begins anew.

        Args:
            name: Of the values.
            reduce: How.
            value: What came of it.
            weight: How much is behind it.
            latest: Of a median the values that it was made of, if they are known.
        """
        if reduce == "mean":
            value = value * weight if weight else 0.0  # the sum that the mean came from
        if self.reduction(name) not in (None, reduce):
            self.forget(name)
        if reduce == "median" and latest:
            kept = self._latest[name] = [*self._latest.get(name, ()), *latest][-_LATEST:]
            value = _median(kept)
        elif name in self._values and reduce not in ("last", "median"):
            _, before, its_weight = self._values[name]
            value, weight = join(before, value, reduce), its_weight + weight
        self._values[name] = (reduce, value, weight)

    def reduction(self, name: str) -> Reduce | None:
        """Return how a name was reduced, or ``None`` if there is nothing of it."""
        return self._values[name][0] if name in self._values else None

    def forget(self, name: str) -> None:
        """Forget what was counted of a name."""
        self._values.pop(name, None)
        self._latest.pop(name, None)

    def result(self) -> dict[str, float]:
        """Return what it comes to."""
        return {
            name: value / weight if reduce == "mean" else value
            for name, (reduce, value, weight) in self._values.items()
            if weight or reduce != "mean"
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what was counted, as plain values."""
        return {name: list(kept) for name, kept in self._values.items()}

    def latest(self) -> dict[str, list[float]]:
        """Return what medians are made of."""
        return {name: list(values) for name, values in self._latest.items()}

    def load_state_dict(self, state: Mapping[str, Any], latest: Mapping[str, Sequence[float]]) -> None:
        """Restore what ``state_dict`` and ``latest`` returned."""
        self._values = {name: (kept[0], kept[1], kept[2]) for name, kept in state.items()}
        self._latest = {name: list(values) for name, values in latest.items()}


def total_of(values: Sequence[float]) -> float:
    """Return the sum, exact where it can be: ``math.fsum`` refuses numbers near the largest one, and both infinities together."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of some values, also of those whose sum is too large for a number."""
    total = total_of(values)
    return total / len(values) if math.isfinite(total) else total_of([value / len(values) for value in values])


def _median(values: list[Any]) -> Any:
    """Return the median, of an even number the mean of the middle two; on the device if all values are on one."""
    if any(isinstance(value, Tensor) for value in values):
        stacked = torch.stack([torch.as_tensor(value).reshape(()).float() for value in _on_one_device(values)])
        return stacked.quantile(0.5)
    return math.nan if any(map(math.isnan, values)) else median(values)


def _on_one_device(values: list[Any]) -> list[Any]:
    devices = {value.device if isinstance(value, Tensor) else None for value in values}
    return values if len(devices) == 1 else list(to_host(dict(enumerate(values))).values())


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
        total = part if total is None else join(total, part, reduce)
    return total


def _numbers(values: Sequence[float], weights: Sequence[float], reduce: Reduce) -> float:
    if reduce in ("mean", "sum"):
        weighted = [value * weight for value, weight in zip(values, weights, strict=True)] if reduce == "mean" else values
        return total_of(weighted)
    if any(math.isnan(value) for value in values):
        return math.nan
    return float(min(values) if reduce == "min" else max(values))


def _tensors(values: Sequence[Tensor], weights: Sequence[float], reduce: Reduce) -> Tensor:
    if len({value.dtype for value in values}) > 1:
        values = [value.double() if value.device.type != "mps" else value.float() for value in values]
    stacked = torch.stack([value.reshape(()) for value in values])
    if reduce == "mean":
        return weighted_sum(stacked, weights)
    if stacked.device.type != "mps":
        stacked = stacked.double()
    return stacked.sum() if reduce == "sum" else stacked.min() if reduce == "min" else stacked.max()


def weighted_sum(values: Tensor, weights: Sequence[float]) -> Tensor:
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


def join(a: Any, b: Any, reduce: Reduce) -> Any:
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


def over_ranks(own: Mapping[str, tuple[Reduce, Ranks, float, float]]) -> dict[str, tuple[Reduce, float, float]]:
    """Exchange values with the other ranks, in one operation that all of them must take part in.

    Args:
        own: By name the reduction, whose values count, the value and the weight behind it.

    Returns:
        By name the reduction, the value and its weight: of means the mean weighted as on each rank, of anything else the
        plain mean over the ranks that have it; for ``"all"`` the value of each under ``name/rankN``.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {name: (reduce, value, weight) for name, (reduce, _, value, weight) in own.items()}
    everybody: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everybody, dict(own))
    together: dict[str, tuple[Reduce, float, float]] = {}
    for name in dict.fromkeys(name for one in everybody for name in one):
        reduce, ranks = next(one[name][:2] for one in everybody if name in one)
        parts = {rank: one[name][2:] for rank, one in enumerate(everybody) if name in one}
        if ranks == "all":
            together |= {f"{name}/rank{rank}": (reduce, value, weight) for rank, (value, weight) in parts.items()}
        else:
            weights = [weight if reduce == "mean" else 1.0 for _, weight in parts.values()]
            total = total_of(weights)
            mean = sum(value * weight for (value, _), weight in zip(parts.values(), weights, strict=True))
            together[name] = (reduce, mean / total if total else math.nan, total)
    return together


def to_host(values: Mapping[K, Any]) -> dict[K, float]:
    """Return plain floats: one copy for all tensors of a device and type."""
    groups: dict[Any, list[K]] = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            groups.setdefault((value.device, value.dtype), []).append(name)
    host = {name: float(value) for name, value in values.items() if not isinstance(value, Tensor)}
    for names in groups.values():
        host.update(zip(names, torch.stack([values[name].reshape(()) for name in names]).tolist(), strict=True))
    return {name: float(host[name]) for name in values}
