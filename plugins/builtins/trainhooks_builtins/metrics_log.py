"""``metrics_log``: metrics as CSV and JSON lines in the run folder."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from trainhooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainhooks import Record, RunInfo, Trainer

log = logging.getLogger("trainhooks")

_COUNTERS = ("step", "update", "epoch", "time")


class MetricsLog:
    """Writes ``metrics.csv`` and ``metrics.jsonl`` into the run folder; without a ``work_dir`` it writes nothing.

    One row or line for each flush. A metric that appears later gets a column of its own; rows before it are left empty. A
    resumed run drops what was logged after its checkpoint and goes on, so that each step stands there once. NaN and
    infinity are ``null`` in JSON lines. A metric that is named like a counter (``epoch``) stands there as ``metric/epoch``.

    Args:
        csv: Write ``metrics.csv``.
        jsonl: Write ``metrics.jsonl``.
    """

    phase = "reporting"
    on_error = "disable"

    def __init__(self, csv: bool = True, jsonl: bool = True) -> None:
        self._kinds = [name for name, wanted in (("metrics.csv", csv), ("metrics.jsonl", jsonl)) if wanted]
        self._files: dict[str, TextIO] = {}
        self._columns: list[str] = []

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Open the files; on a resumed run drop what lies after its checkpoint."""
        folder = trainer.run_folder
        if folder is None or not trainer.is_main or self._files:
            return
        found = folder.record.get("logs_begin")
        begins = (
            dict(found) if isinstance(found, dict) else {}
        )  # records before the first of each file: another folder has them
        for name in self._kinds:
            path = trainer.run_file(name)
            begin = begins.get(name, 0)
            ours = max(trainer.records - begin, 0) if isinstance(begin, int) else trainer.records
            if not (path.exists() and self._repair(path, trainer.step, ours)) and (trainer.records or name in begins):
                begins[name] = trainer.records
            self._files[name] = path.open("a", encoding="utf-8", newline="")
        if begins != (found or {}):
            folder.update(logs_begin=begins)

    @hookimpl
    def report_metrics(self, run: RunInfo, records: Sequence[Record]) -> None:
        """Append one row and one line for each record."""
        for name, file in self._files.items():
            if name.endswith(".csv"):
                self._write_csv(name, records)
            else:
                for record in records:
                    file.write(json.dumps(_as_dict(record, finite=True), ensure_ascii=False, allow_nan=False) + "\n")
        for file in self._files.values():
            file.flush()

    @hookimpl
    def teardown(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files = {}
        self._columns = []

    def _write_csv(self, name: str, records: Sequence[Record]) -> None:
        rows = [_as_dict(record) for record in records]
        new = dict.fromkeys(key for row in rows for key in row if key not in self._columns and key not in _COUNTERS)
        if new or not self._columns:
            self._columns += new
            path = Path(self._files[name].name)
            self._files[name].close()
            _write_whole(path, _as_csv(self._columns, _read_csv(path)))  # each new column costs this once
            self._files[name] = path.open("a", encoding="utf-8", newline="")
        csv.DictWriter(self._files[name], [*_COUNTERS, *self._columns]).writerows(rows)

    def _repair(self, path: Path, step: int, records: int) -> int:
        """Keep what was logged when the checkpoint of ``step`` was made, and return how much that is.

        A line that was cut by a kill is dropped.
        """
        if path.suffix == ".csv":
            rows = [row for row in _read_csv(path) if _whole(row) and int(row["step"]) <= step]
            rows = rows[:records]
            self._columns = [key for key in (rows[0] if rows else {}) if key not in _COUNTERS]
            _write_whole(path, _as_csv(self._columns, rows) if rows else "")
            return len(rows)
        kept = []
        for line in _whole_lines(path).split("\n")[:-1]:
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                log.warning("%s: dropped a line that is no record: %.40r", path, line)
        _write_whole(path, "".join(kept[:records]))
        return len(kept[:records])


def _as_dict(record: Record, *, finite: bool = False) -> dict[str, Any]:
    values = {
        f"metric/{key}" if key in _COUNTERS else key: None if finite and not math.isfinite(value) else value
        for key, value in record.values.items()
    }
    return {"step": record.step, "update": record.update, "epoch": record.epoch, "time": record.time, **values}


def _read_csv(path: Path) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(_whole_lines(path), newline="")))


def _as_csv(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*_COUNTERS, *columns])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _whole_lines(path: Path) -> str:
    """Read a file up to its last line end: a kill may have cut what comes after, within a number or a character."""
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1].decode("utf-8", errors="replace")


def _write_whole(path: Path, text: str) -> None:
    """Replace a file in one go, so that a kill in the middle costs nothing."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with temporary.open("xb") as file:  # never through a link
        file.write(text.encode("utf-8"))
    temporary.replace(path)


def _whole(row: dict[str, Any]) -> bool:
    return None not in row and None not in row.values() and row.get("step", "").isdigit()
