"""``metrics_log``: metrics as CSV and JSON lines in the run folder."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from trainhooks import hookimpl

from ._csv_file import CsvFile
from ._json_lines_file import JsonLinesFile
from ._one_writer import folder_to_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainhooks import Record, RunInfo, Trainer
    from trainhooks.workdir import RunFolder

log = logging.getLogger("trainhooks")

_BEGINS: Final = "logs_begin"


class MetricsLog:
    """Writes ``metrics.csv`` and ``metrics.jsonl`` into the run folder; without a ``work_dir`` it writes nothing.

    One row or line for each flush. A metric that appears later gets a column of its own, rows before it are left empty; where the
    file would have to be written anew for that too often, the values stand as JSON in a last column ``more`` until the file is
    closed. A resumed run drops what was logged after its checkpoint and goes on, so that each step stands there once. NaN and
    infinity are ``null`` in JSON lines. A metric that is named like a counter (``epoch``) stands there as ``metric/epoch``.

    Args:
        csv: Write ``metrics.csv``.
        jsonl: Write ``metrics.jsonl``.
    """

    phase = "reporting"
    on_error = "disable"
    records_per_call = 5000
    knows_what_arrived = True

    def __init__(self, csv: bool = True, jsonl: bool = True) -> None:
        #: Their names.
        self.files = [name for name, wanted in (("metrics.csv", csv), ("metrics.jsonl", jsonl)) if wanted]
        self._files: list[CsvFile | JsonLinesFile] = []
        self._folder: RunFolder | None = None

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Note where to write, if this is a training that writes."""
        self._folder = folder_to_write(trainer, self, self.files)

    @hookimpl
    def report_start(self, run: RunInfo) -> None:
        """Open the files; of a resumed run drop what lies after its checkpoint."""
        self._close()
        if self._folder is None:
            return
        try:
            self._open(self._folder, run)
        except BaseException:
            self._close()
            raise

    def _open(self, folder: RunFolder, run: RunInfo) -> None:
        found = folder.record.get(_BEGINS)
        #: How many records came before the first of each file: another folder has them.
        begins: dict[str, Any] = dict(found) if isinstance(found, dict) else {}
        for name in self.files:
            path = folder.file(name)
            file = (CsvFile if name.endswith(".csv") else JsonLinesFile)(path)
            begin = begins.get(name, 0)
            ours = max(run.resumed_records - begin, 0) if isinstance(begin, int) else run.resumed_records
            kept = path.exists() and file.repair(run.resumed_step, ours)
            if not kept and (run.resumed_records or name in begins):
                begins[name] = run.resumed_records
            self._files.append(file)
            file.begin()
        if begins != (found or {}):
            folder.update(logs_begin=begins)

    @hookimpl
    def report_metrics(self, records: Sequence[Record]) -> None:
        """Append one row and one line for each record: to all files, or when that fails to none."""
        encoded = []
        for file in self._files:
            if not file.is_in_place():
                log.warning("%s was removed, replaced or cut: it goes on from what is there", file.path)
                file.path.parent.mkdir(parents=True, exist_ok=True)
                file.begin()
            encoded.append(file.encode(records))
        sizes = [file.size for file in self._files]
        try:
            for file, data in zip(self._files, encoded, strict=True):
                file.append(data)
        except BaseException:
            for file, size in zip(self._files, sizes, strict=True):
                file.take_back(size)
            raise

    @hookimpl
    def report_end(self) -> None:
        """Close the files."""
        for file in self._files:
            file.finish()
        self._close()

    def _close(self) -> None:
        for file in self._files:
            file.close()
        self._files = []
