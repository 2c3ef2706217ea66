"""What a run has left of its training, read back from its folder: metrics as columns, record, time of plugins; no torch."""

from __future__ import annotations

import csv
import io
import json
import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .errors import UsageError
from .run_lock import holder
from .run_record import outcome_of, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: Files that metrics are read from, the first that is there.
METRICS: Final = ("metrics.jsonl", "metrics.csv")
_HOOK_TIME: Final = "hook_time.json"
_MORE: Final = "more"  # the last column of a CSV, where metrics without a column of their own stand as JSON
_COUNTERS: Final = ("step", "update", "epoch", "time")
_LARGEST: Final = 16 * 2**20
_MOST_STEPS: Final = 2**62


class MetricTable:
    """The counters of each record, in columns that all metrics share."""

    def __init__(self) -> None:
        self.steps, self.updates, self.epochs = array("q"), array("q"), array("q")
        self.times = array("d")
        self.series: dict[str, MetricSeries] = {}

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, counters: tuple[Any, ...], values: Mapping[str, Any]) -> None:
        """Add a record; one of an earlier step replaces what was there from that step on.

        Raises:
            ValueError: Its counters are no numbers.
        """
        step, update, epoch, time = counters
        for one in (step, update, epoch):
            if type(one) is not int or not 0 <= one < _MOST_STEPS:
                raise ValueError(one)
        if type(time) not in (int, float) or not abs(time) < _MOST_STEPS:
            raise ValueError(time)
        row = len(self.steps)
        if row and step < self.steps[-1]:
            row = self._rewind(step)
        self.steps.append(step)
        self.updates.append(update)
        self.epochs.append(epoch)
        self.times.append(time)
        every = self.series
        for name, value in values.items():
            if value is None:
                value = math.nan  # noqa: PLW2901 - what is not finite is null in JSON lines
            elif type(value) is not float and (type(value) is not int or abs(value) >= _MOST_STEPS):
                continue
            one = every.get(name)
            if one is None:
                one = every[name] = MetricSeries(name, self)
            one.rows.append(row)
            one.values.append(value)

    def _rewind(self, step: int) -> int:
        row = bisect_left(self.steps, step)
        for column in (self.steps, self.updates, self.epochs, self.times):
            del column[row:]
        for one in self.series.values():
            kept = bisect_left(one.rows, row)
            del one.rows[kept:], one.values[kept:]
        return row


class MetricSeries:
    """The values of one metric, NaN where a value was not finite, with the counters of their records.

    Args:
        name: Of the metric.
        table: Whose records they are of.
    """

    def __init__(self, name: str, table: MetricTable) -> None:
        self.name, self.table = name, table
        #: Index of the record of each value.
        self.rows = array("q")
        self.values = array("d")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def steps(self) -> array[int]:
        """Steps done."""
        return self._of(self.table.steps)

    @property
    def updates(self) -> array[int]:
        """Updates done."""
        return self._of(self.table.updates)

    @property
    def epochs(self) -> array[int]:
        """Epochs done."""
        return self._of(self.table.epochs)

    @property
    def times(self) -> array[float]:
        """Seconds since the epoch of the clock."""
        return self._of(self.table.times)

    def _of(self, column: array[Any]) -> array[Any]:
        return array(column.typecode, column if len(self.rows) == len(column) else map(column.__getitem__, self.rows))


@dataclass(frozen=True)
class RunHistory:
    """What is known of a run from its folder.

    Args:
        folder: Of the run.
        record: What ``run.json`` says; empty where it is missing or damaged.
        outcome: ``completed``, ``stopped``, ``interrupted``, ``failed``, ``running``, ``killed`` or ``unknown``.
        table: The records; ``table.series`` are the metrics by name.
        source: Name of the file that metrics were read from, or ``None`` where there is none.
        damaged: Lines of it that are no records; a last line that a kill has cut is not counted.
        hook_time: Calls and seconds by plugin and hook, or ``None`` where the run did not measure them.
    """

    folder: Path
    record: Mapping[str, Any]
    outcome: str
    table: MetricTable = field(repr=False)
    source: str | None
    damaged: int = 0
    hook_time: Mapping[str, Mapping[str, tuple[int, float]]] | None = field(default=None, repr=False)

    @property
    def series(self) -> Mapping[str, MetricSeries]:
        """The metrics by name, in the order in which they were first logged."""
        return self.table.series

    @property
    def plugins(self) -> list[Mapping[str, Any]]:
        """The plugin lock: name, distribution, version and options of each plugin, in order."""
        found = self.record.get("plugins")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    @property
    def resumed_steps(self) -> list[int]:
        """The steps at which the run was resumed."""
        found = self.record.get("resumed")
        times = [one.get("step") for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        return [step for step in times if type(step) is int and 0 <= step < _MOST_STEPS]

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return a table of the record, such as ``settings``, ``hyperparameters`` or ``versions``; empty if it has none."""
        found = self.record.get(name)
        return found if isinstance(found, dict) else {}

    def steps_per_epoch(self) -> float | None:
        """Return how many steps an epoch has, or ``None`` where that cannot be said or changes.

        A record with ``epoch`` epochs done was made after at least ``epoch`` whole epochs and no later than at the end of the
        next one.
        """
        least, most = 1.0, math.inf
        for step, epoch in zip(self.table.steps, self.table.epochs, strict=True):
            least = max(least, step / (epoch + 1))
            if epoch:
                most = min(most, step / epoch)
        if not math.isfinite(most) or least > most:
            return None
        whole = math.ceil(least)
        return float(whole) if whole <= most else (least + most) / 2


def read_history(folder: Path) -> RunHistory:
    """Read what a run has left in its folder; what is missing or damaged there is left out.

    Args:
        folder: Of the run; it may be running.

    Raises:
        UsageError: There is no such folder, or a file in it cannot be read.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        message = f"run folder {folder} {what}: name the folder that the run was given as work_dir"
        raise UsageError(message)
    record = read_record(folder) or {}
    table, source, damaged = MetricTable(), None, 0
    for name in METRICS:
        if (folder / name).is_file():
            try:
                damaged = _read_metrics(folder / name, table)
            except OSError as error:
                message = f"cannot read {folder / name}: {error.strerror}: see its permissions, or name another run"
                raise UsageError(message) from error
            source = name
            break
    running = holder(folder) is not None
    outcome = outcome_of(record, running=running)
    return RunHistory(folder, record, outcome, table, source, damaged, _read_hook_time(folder / _HOOK_TIME))


def _read_metrics(path: Path, table: MetricTable) -> int:
    """Fill the table and return how many lines are no records."""
    damaged = 0
    with path.open("rb") as file:
        lines = _json_records(file) if path.suffix == ".jsonl" else _csv_records(file)
        for found in lines:
            if found is None:
                damaged += 1
                continue
            try:
                table.add(tuple(found.pop(name) for name in _COUNTERS), found)
            except (ValueError, KeyError):
                damaged += 1
    return damaged


def _json_records(file: io.BufferedReader) -> Iterator[dict[str, Any] | None]:
    loads = json.loads
    for line in file:
        try:
            found = loads(line)
        except (ValueError, RecursionError):
            if line.endswith(b"\n"):
                yield None
            continue
        yield found if type(found) is dict else None


def _csv_records(file: io.BufferedReader) -> Iterator[dict[str, Any] | None]:
    data = file.read()
    whole = data[: data.rfind(b"\n") + 1].decode("utf-8-sig", errors="replace")  # a kill may have cut what comes after
    rows = csv.reader(io.StringIO(whole, newline=""))
    try:
        header = next(rows, [])
        for cells in rows:
            if len(cells) != len(header):
                yield None
                continue
            try:
                found: dict[str, Any] = {
                    name: int(cell) if name in _COUNTERS[:3] else float(cell)
                    for name, cell in zip(header, cells, strict=True)
                    if cell and name != _MORE
                }
                if cells[-1] and header[-1] == _MORE:
                    found |= {name: float(value) for name, value in json.loads(cells[-1]).items()}
                yield found
            except (ValueError, TypeError, AttributeError):
                yield None
    except csv.Error:
        yield None


def _read_hook_time(path: Path) -> dict[str, dict[str, tuple[int, float]]] | None:
    """Return what the plugin ``hook_time`` has written, as far as it is what that writes."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        plugins = json.loads(path.read_text(encoding="utf-8"))["plugins"]
        return {
            str(plugin): {str(hook): _calls_and_seconds(cell) for hook, cell in entry["hooks"].items()}
            for plugin, entry in plugins.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _calls_and_seconds(cell: Mapping[str, Any]) -> tuple[int, float]:
    calls, seconds = int(cell["calls"]), float(cell["seconds"])
    if not (0 <= calls < _MOST_STEPS and 0 <= seconds < _MOST_STEPS):
        raise ValueError(cell)
    return calls, seconds
