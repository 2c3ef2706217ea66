"""The one way in for metrics: values stay on the device until a flush brings all of them over with one copy each device."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from .call_site import calling_line
from .data import batch_size
from .errors import StageResultError, UsageError
from .scalars import as_scalar, has_one_element, is_scalar, kept, number_of, output_weight
from .series import FOLD, Ranks, Reduce, Series, Totals, over_ranks, to_host, weighted_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .types import Batch, Metrics, Output

log = logging.getLogger("trainhooks")


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


def check_name(name: object) -> None:
    """Raise if what is logged has a name that is no text, or an empty one.

    Raises:
        UsageError: With the name.
    """
    if not isinstance(name, str):
        message = f"what is logged has the name {name!r}: a name is text, such as {str(name)!r}"
        raise UsageError(message)
    if not name:
        message = "what is logged has an empty name: give it one, such as 'train/accuracy'"
        raise UsageError(message)


def check_output(output: object) -> None:
    """Raise if ``train_step`` gave no mapping.

    Raises:
        StageResultError: With what it gave.
    """
    if not isinstance(output, Mapping):
        message = f"train_step must return a mapping of named values such as {{'loss': loss}}, not {type(output).__name__}"
        raise StageResultError(message)


def measured(metrics: object) -> Metrics:
    """Return what ``evaluate`` gave as plain numbers by name.

    Raises:
        StageResultError: It is none; a checkpoint with it could not be read.
    """
    if not isinstance(metrics, Mapping):
        message = f"evaluate must return a mapping of metrics such as {{'val/loss': 0.5}}, not {type(metrics).__name__}"
        raise StageResultError(message)
    numbers = {}
    for name, value in metrics.items():
        try:
            check_name(name)
            numbers[name] = as_scalar(name, value)
        except UsageError:
            message = (
                f"evaluate returned {value!r:.200} as {name!r}: a metric is a number, or a tensor with one element, by its name"
            )
            raise StageResultError(message) from None
    return to_host(numbers)


class MetricBus:
    """Collects what is logged until it is flushed."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}
        self._outputs: dict[str, Series] = {}  # what train_step returns, apart from what hooks log by the same name
        self._losses: list[Any] = []
        self._sizes: list[float] = []
        self._folded = 0  # outputs whose losses are in a series already
        self._epoch, self._evaluated = Totals(), Totals()  # what was flushed in this epoch: of the training, of evaluations
        self._trained: set[str] = set()  # names that were logged outside of evaluations
        self._restored: dict[str, Series] = {}  # of a checkpoint, until this process logs the same name
        #: What was pending when each of the running evaluations began, and what was restored.
        self._set_aside: list[tuple[dict[str, Series], dict[str, Series]]] = []
        self._lines: dict[str, str] = {}  # where train/... was logged first
        self._told: set[str] = set()
        #: Values may be logged on other threads than the one that flushes; a signal handler may log while this one does.
        self._lock = threading.RLock()
        #: Called when a flush begins, for those who keep what they measure in every step until then.
        self.before_flush: list[Callable[[], None]] = []

    def series(self, name: str, reduce: Reduce = "mean", ranks: Ranks = "main") -> Series:
        """Return the series of one name, which stays the same over flushes: for plugins that log in every step.

        Raises:
            UsageError: There is no such reduction, or the name was logged in another way before.
        """
        series = self._series.get(name)
        if series is None:
            check_name(name)
            for key, word, known in (("reduce", reduce, get_args(Reduce)), ("ranks", ranks, get_args(Ranks))):
                if word not in known:
                    message = f"log({name!r}, {key}={word!r}): must be one of {', '.join(known)}"
                    raise UsageError(message)
            series = self._series[name] = self._first(name, reduce, ranks)
        elif series.reduce != reduce:
            message = f"log({name!r}, reduce={reduce!r}): it was logged with reduce={series.reduce!r} before"
            raise UsageError(message)
        elif series.ranks != ranks:
            message = f"log({name!r}, ranks={ranks!r}): it was logged with ranks={series.ranks!r} before"
            raise UsageError(message)
        return series

    def _first(self, name: str, reduce: Reduce, ranks: Ranks) -> Series:
        """Return a series for a name that hooks log for the first time, or that of the checkpoint if it goes with that."""
        if name.startswith("train/"):
            self._lines[name] = calling_line()
            if name in self._outputs or (name == "train/loss" and any(loss is not None for loss in self._losses)):
                self._tell_taken(name)
        series, restored = Series(reduce, ranks), self._restored.pop(name, None)
        before = restored.reduce if restored is not None else self._epoch.reduction(name) if name not in self._outputs else None
        if before not in (None, reduce) or (restored is not None and restored.ranks != ranks):
            self._leave_out(name, reduce, before)
        elif restored is not None:
            series.take_back(restored)
        return series

    def _leave_out(self, name: str, reduce: Reduce, before: Reduce | None) -> None:
        self._epoch.forget(name)
        log.warning(
            "log(%r, reduce=%r): the checkpoint has values of it with reduce=%r, or of other ranks; they are left out",
            *(name, reduce, before),
        )

    def _tell_taken(self, name: str) -> None:
        if name not in self._told:
            self._told.add(name)
            log.warning(
                "log(%r): train_step returns %r, which is logged as the mean of its steps, so the value of that call is left out; "
                "log it under another name (%s)",
                *(name, name.removeprefix("train/"), self._lines.get(name, "in this run")),
            )

    def add(self, name: str, value: Any, weight: float = 1, reduce: Reduce = "mean", ranks: Ranks = "main") -> None:
        """Keep one value; a tensor stays on its device, copied there, since its owner may go on to change it in place.

        Raises:
            UsageError: The value is not a scalar.
        """
        with self._lock:
            series = self._series.get(name)
            if series is None or series.reduce != reduce or series.ranks != ranks:
                series = self.series(name, reduce, ranks)
            kind = type(value)
            if kind is Tensor and value.ndim == 0 and value.is_cpu:
                value = value.tolist()  # a number, not a copy: to keep tensors costs the allocator more
                if type(value) is not float:
                    value = as_scalar(name, value)
            elif kind is not float:
                value = as_scalar(name, value)
            series.add(value, weight)

    def add_output(self, output: Output, batch: Batch = None) -> None:
        """Keep the scalars that a training step returned, as ``train/...``; the loss is looked at when it is folded."""
        if type(output) is not dict:
            check_output(output)
        loss = output.get("loss")
        if type(loss) is Tensor and loss.ndim == 0:
            # On the CPU a number, read without a dispatched call: to keep the tensors themselves costs the allocator more.
            # On a device not even a copy, which would be another kernel in each step.
            loss = loss.tolist() if loss.is_cpu else loss.detach()
        elif type(loss) is not float:
            loss = _number(loss)
        kind = type(batch)
        size: float
        try:  # the usual batch without another call
            size = len(batch[0]) if (kind is list or kind is tuple) and type(batch[0]) is Tensor else batch_size(batch)
        except (IndexError, TypeError):  # it is empty, or a scalar
            size = batch_size(batch)
        if loss is None or len(output) > 1:
            loss, size = self._add_others(output, loss, size, one_sample=batch is not None and size == 1)
        self._losses.append(loss)
        self._sizes.append(size)
        if len(self._losses) >= FOLD:
            self._fold_losses()

    def _add_others(self, output: Output, loss: Any, size: float, *, one_sample: bool) -> tuple[Any, float]:
        """Keep the scalars beside the loss; return the loss and its weight, ``None`` where it is kept, or counts for nothing."""
        weight = output_weight(output, size, "train_step")
        for key, value in output.items():
            if key in ("loss", "weight"):
                continue
            name = f"train/{key}"
            # Of a batch with one sample a tensor such as the logits may have one element by chance.
            if is_scalar(value) or (has_one_element(value) and (not one_sample or name in self._outputs)):
                self._add_weighted(name, kept(value) if isinstance(value, Tensor) else number_of(value), weight)
        if isinstance(weight, Tensor):
            if loss is not None:
                self._add_weighted("train/loss", loss, weight)
            return None, 0
        return (loss, weight) if weight > 0 or "weight" not in output else (None, 0)

    def _add_weighted(self, name: str, value: Any, weight: float | Tensor) -> None:
        if isinstance(weight, Tensor):
            self._output(name).add_weighted(value, weight)
        elif weight > 0:
            self._output(name).add(value, weight)

    def _output(self, name: str) -> Series:
        """Return the series of what ``train_step`` returns by a name."""
        series = self._outputs.get(name)
        if series is None:
            series = self._outputs[name] = Series("mean")
            restored = self._restored.pop(name, series)
            if restored.reduce == series.reduce and restored.ranks == series.ranks:
                series.take_back(restored)
        return series

    @property
    def outputs(self) -> int:
        """How many times a step's output was added."""
        return self._folded + len(self._losses)

    def _fold_losses(self) -> None:
        losses, sizes = self._losses, self._sizes
        self._losses, self._sizes = [], []
        self._folded += len(losses)
        if not losses:
            return
        if set(map(type, losses)) == {float}:
            self._output("train/loss").extend(losses, sizes)
            return
        try:
            stacked = torch.stack(losses)
        except (TypeError, RuntimeError):  # numbers, or tensors of several kinds: one by one
            stacked = None
        if stacked is not None and stacked.ndim == 1 and not stacked.is_complex():
            self._output("train/loss").add_sum(weighted_sum(stacked, sizes), sum(sizes))
            return
        for loss, size in zip(losses, sizes, strict=True):
            if is_scalar(loss):
                self._output("train/loss").add(loss, size)

    def flush(self, world_size: int = 1, *, collective: bool = True) -> Metrics:
        """Bring everything over and forget it; the values also count for those of the epoch.

        Args:
            world_size: Ranks that there are.
            collective: Whether they all flush here; what is to be exchanged waits otherwise.
        """
        with self._lock:
            return self._flush(world_size, collective=collective)

    def _flush(self, world_size: int, *, collective: bool) -> Metrics:
        if self._set_aside:  # within an evaluation: what is pending of it is reduced at its end, all else after that
            return {}
        self._settle()
        alone = world_size == 1
        pending = {name: one for name, one in self._pending().items() if alone or one.ranks == "main"}
        self._trained.update(pending)
        values = self._reduce(pending, self._epoch)
        if not alone and collective:
            shared = {name: one for name, one in self._series.items() if not one.empty and one.ranks != "main"}
            own, own_weights = _reduced(shared)
            together = over_ranks(
                {name: (shared[name].reduce, shared[name].ranks, own[name], own_weights[name]) for name in own}
            )
            values |= {name: value for name, (_, value, _) in together.items()}
            for name, (reduce, value, weight) in together.items():
                self._epoch.add(name, reduce, value, weight)
            for series in shared.values():
                series.clear()
        return values

    def _settle(self) -> None:
        for add_kept in self.before_flush:
            add_kept()
        self._fold_losses()

    def _pending(self) -> dict[str, Series]:
        """Return what has values; of two series of one name that of ``train_step``'s values, while the other is forgotten."""
        pending = {name: one for name, one in (self._restored | self._series).items() if not one.empty}
        for name, series in self._outputs.items():
            if series.empty:
                continue
            if name in pending:
                self._tell_taken(name)
                pending[name].clear()
            pending[name] = series
        return pending

    def _reduce(self, pending: Mapping[str, Series], totals: Totals, names: Mapping[str, str] | None = None) -> Metrics:
        """Reduce, count and forget, under other names where there are any."""
        values, weights = _reduced(pending)
        reduced = {}
        for name, series in pending.items():
            called = names[name] if names is not None else name
            reduced[called] = values[name]
            totals.add(called, series.reduce, values[name], weights[name], series.latest)
            series.clear()
        return reduced

    @property
    def pending(self) -> bool:
        """Whether there is anything to be flushed."""
        logged = any(not one.empty for group in (self._restored, self._series, self._outputs) for one in group.values())
        return logged or any(loss is not None for loss in self._losses)

    @contextmanager
    def apart(self, split: str, world_size: int = 1, *, settle: bool = True) -> Iterator[Metrics]:
        """Keep what is logged while a split is evaluated apart from what is pending, which goes on afterwards.

        Args:
            split: The name of what the training logs as well begins with it.
            world_size: Ranks that there are; what is to be exchanged is not kept apart.
            settle: Whether those who keep what they measured until a flush are asked for it first.

        Yields:
            What was logged, reduced, when it is over; nothing of an evaluation that failed.
        """
        logged: Metrics = {}
        with self._lock:
            if settle and not self._set_aside:
                self._settle()
            self._set_aside.append((self._take(world_size), self._restored))
            self._restored = {}
        try:
            yield logged
            with self._lock:
                pending = self._here(world_size)
                before = {*self._trained, *self._outputs, *self._set_aside[0][0], *self._set_aside[0][1]}
                names = {name: f"{split}/{name}" if name in before else name for name in pending}
                logged.update(self._reduce(pending, self._evaluated, names))
        finally:
            with self._lock:
                self._take(world_size)
                taken, restored = self._set_aside.pop()
                for name, series in taken.items():
                    self._series[name].take_back(series)
                self._restore(restored)

    def _here(self, world_size: int) -> dict[str, Series]:
        return {name: one for name, one in self._series.items() if not one.empty and (world_size == 1 or one.ranks == "main")}

    def _restore(self, restored: Mapping[str, Series]) -> None:
        """Keep what a checkpoint has for those who log it, as far as they log it in the same way."""
        for name, series in restored.items():
            known = self._outputs.get(name) or self._series.get(name)
            if known is None:
                self._restored[name] = series
            elif (known.reduce, known.ranks) == (series.reduce, series.ranks):
                known.take_back(series)
            else:
                self._leave_out(name, known.reduce, series.reduce)

    def _take(self, world_size: int) -> dict[str, Series]:
        """Return what is pending of hooks, and forget it."""
        taken = {}
        for name, series in self._here(world_size).items():
            taken[name] = series.copy()
            series.clear()
        return taken

    def peek(self) -> Metrics:
        """Return what a flush would, and leave everything as it is."""
        copy = MetricBus()
        with self._lock:
            copy._series = {name: series.copy() for name, series in self._of_training().items()}
            copy._outputs = {name: series.copy() for name, series in self._outputs.items()}
        copy._losses, copy._sizes = list(self._losses), list(self._sizes)
        copy._told = {*copy._series, *copy._outputs}
        return copy.flush()

    def _of_training(self) -> dict[str, Series]:
        """Return what hooks log, without that of a running evaluation: a run that is resumed from within evaluates again."""
        if not self._set_aside:
            return {**self._restored, **self._series}
        shared = {name: one for name, one in self._series.items() if one.ranks != "main"}
        taken, restored = self._set_aside[0]
        return {**restored, **shared, **taken}

    def end_epoch(self, *, complete: bool = True) -> Metrics:
        """Return what was flushed during the epoch, reduced as each was logged, and start anew.

        When it was flushed does not matter: the epoch's ``max`` is the highest value of the epoch. What was logged in
        evaluations has no part in the values of the training.

        Args:
            complete: Whether the epoch is over; one that was cut short is kept for the run that goes on with it.
        """
        values = {**self._evaluated.result(), **self._epoch.result()}
        if complete:
            self._epoch, self._evaluated = Totals(), Totals()
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the running epoch, and what has not been flushed, as numbers."""
        losses = [float(loss) if is_scalar(loss) else None for loss in self._losses]
        with self._lock:
            pending = {**self._of_training(), **{name: one for name, one in self._outputs.items() if not one.empty}}
            series = {name: one.state_dict() for name, one in pending.items() if not one.empty}
        return {
            "epoch": self._epoch.state_dict(),
            "evaluated": self._evaluated.state_dict(),
            "medians": [self._epoch.latest(), self._evaluated.latest()],
            "trained": sorted(self._trained),
            "series": series,
            "losses": [losses, list(self._sizes)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        medians, evaluated = state.get("medians", ({}, {}))
        self._epoch.load_state_dict(state["epoch"], medians)
        self._evaluated.load_state_dict(state.get("evaluated", {}), evaluated)
        self._trained = set(state.get("trained", ()))
        for series in (*self._series.values(), *self._outputs.values()):
            series.clear()
        restored = {}
        for name, saved in state.get("series", {}).items():
            restored[name] = Series(saved["reduce"], saved["ranks"])
            restored[name].load_state_dict(saved)
        self._restored = {}
        self._restore(restored)
        losses, sizes = state.get("losses", ((), ()))
        self._losses, self._sizes = list(losses), list(sizes)


def _number(loss: Any) -> Any:
    """Return a loss that is no plain one as it is now, or ``None`` where it is no number, which is passed over."""
    if isinstance(loss, Tensor):
        return kept(loss) if has_one_element(loss) else None
    return number_of(loss) if is_scalar(loss) or has_one_element(loss) else None


def _reduced(series: Mapping[str, Series]) -> tuple[Metrics, dict[str, float]]:
    """Return the reduced values, on the host, and the weight behind each."""
    results = {name: one.result() for name, one in series.items()}
    return to_host({name: value for name, (value, _) in results.items()}), {
        name: float(one[1]) for name, one in results.items()
    }
