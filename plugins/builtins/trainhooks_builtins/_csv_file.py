"""Records as CSV, in a file that survives kills, resumes and metrics that appear late.

The file has one header, so a new column means to write the whole file anew. Where that would not pay, the values of columns that
the header does not have yet go into a last column, ``more``, as JSON; the next time that the file is written anew, at the latest
when it is closed or repaired, they get columns of their own. So the table is complete and rectangular at any moment, and what
is written stays in proportion to the size of the file, however many columns appear one by one: with every rewriting the file must
have grown to ``_GROWTH`` times its size, so all of them together write at most ``1 / (1 - 1 / _GROWTH)`` times its final size,
and closing it once more.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from ._growing_file import GrowingFile, keep_lines, lines_of
from ._json_lines_file import COUNTERS, Wanted, counters_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trainhooks import Record

log = logging.getLogger("trainhooks")

MORE: Final = "more"
_AT_ONCE: Final = 2**18  # bytes that may be written for new columns in any case
_GROWTH: Final = 4
_LONGEST: Final = 2**16  # of a cell: csv.reader refuses one of more than 2**17 characters
_LONGEST_NAME: Final = 2**15


class CsvFile(GrowingFile):
    """A table with a row for each record; cells of what was not logged are empty.

    Args:
        path: Its folder must be there.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._has_more = False
        self._spent = self._whole_at = 0  # bytes written for new columns, and the size when that was done last
        self._name([])

    def begin(self) -> None:
        """Open it, with the columns that its header has."""
        self.open()
        with self.path.open("rb") as source:
            header = _read_header(source) or [*COUNTERS]
        self._has_more = header[-1] == MORE
        self._name(header[len(COUNTERS) : len(header) - self._has_more])
        self._spent, self._whole_at = 0, self.size

    def encode(self, records: Sequence[Record]) -> bytes:
        """Return the rows of records; new columns may have the file written anew."""
        rows = [(counters_of(record).values(), _by_column(record)) for record in records]
        new = list(dict.fromkeys(name for _, values in rows for name in values if name not in self._known))
        if new or not self.size:
            self._add_columns(new, rows)
        return _encoded(self._row(counters, values) for counters, values in rows)

    def repair(self, step: int, records: int) -> int:
        """Keep what was logged when a checkpoint was made.

        Args:
            step: Of the checkpoint.
            records: How many there were.

        Returns:
            How many are kept.
        """
        with self.path.open("rb") as source:
            header, start = _read_header(source), source.tell()
        if header is None:
            self._set_aside()
            return 0
        wanted = Wanted(step, records, lambda line: _step_of(line, len(header)))
        kept, scattered = keep_lines(self, start, wanted)
        if not kept:
            self.cut(0)
        elif scattered or header[-1] == MORE:
            wanted.left = records
            self.begin()
            self._write_anew([], keep_more=False, wanted=wanted)
            self.close()
        return kept

    def finish(self) -> None:
        """Close it, with a column for everything."""
        if self._has_more and self.is_in_place():
            self._write_anew([], keep_more=False)
        self.close()

    def _name(self, columns: list[str]) -> None:
        self._columns, self._known = columns, set(columns)

    def _add_columns(self, new: list[str], rows: Sequence[tuple[Any, Mapping[str, Any]]]) -> None:
        """Give new metrics columns, now or later."""
        if not self.size:
            self._name([*self._columns, *new])
            self.append(_encoded([self._header()]))
            return
        if self._spent + self.size <= _AT_ONCE:
            self._write_anew(new, keep_more=self._has_more)
            return
        pays = not self._has_more or self.size >= _GROWTH * self._whole_at
        if pays or any(len(self._rest(values)) > _LONGEST for _, values in rows):
            self._write_anew(new, keep_more=True)

    def _write_anew(self, new: Iterable[str], *, keep_more: bool, wanted: Wanted | None = None) -> None:
        """Write the file with more columns; what stands in ``more`` gets its own."""
        late: dict[str, None] = {}
        width = len(COUNTERS) + len(self._columns)
        whole = width + self._has_more
        if self._has_more:
            for cells in self._rows(whole):
                late.update(dict.fromkeys(_unpacked(cells[width])))
        late.update(dict.fromkeys(new))
        had_more, before = self._has_more, self._columns
        columns = before + [name for name in late if name not in self._known]

        def lines() -> Iterator[list[Any]]:
            yield self._header()
            for cells in self._rows(whole, wanted):
                values = _unpacked(cells[width]) if had_more else {}
                own = [values.get(name, "") for name in columns[len(before) :]]
                yield [*cells[:width], *own, *([""] if keep_more else [])]

        try:
            self._name(columns)
            self._has_more = keep_more
            self.replace(_encoded([line]) for line in lines())
        except BaseException:
            self._name(before)
            self._has_more = had_more
            raise
        self._spent += self.size
        self._whole_at = self.size

    def _rows(self, width: int, wanted: Wanted | None = None) -> Iterator[list[str]]:
        """Give the rows that are in the file now, as far as they are whole and wanted."""
        with self.path.open("rb") as source:
            _read_header(source)
            for line in lines_of(source):
                if _step_of(line, width) is not None and (wanted is None or wanted(line)):
                    yield next(csv.reader([line.decode("utf-8")]))

    def _header(self) -> list[str]:
        return [*COUNTERS, *self._columns, *([MORE] if self._has_more else [])]

    def _row(self, counters: Iterable[Any], values: Mapping[str, Any]) -> list[Any]:
        cells = [*counters, *[values.get(name, "") for name in self._columns]]
        if self._has_more:
            cells.append(self._rest(values))
        return cells

    def _rest(self, values: Mapping[str, Any]) -> str:
        """Return as JSON what has no column."""
        rest = {
            name: value if math.isfinite(value) else str(value) for name, value in values.items() if name not in self._known
        }
        return json.dumps(rest, ensure_ascii=False) if rest else ""

    def _set_aside(self) -> None:
        """Move away a file that is no table of ours, if there is anything in it."""
        with self.path.open("rb") as source:
            empty = not source.read(4096).strip(b"\0\r\n")
        if empty:
            self.cut(0)
            return
        aside = self.path.with_name(f"{self.path.name}.damaged")
        self.path.replace(aside)
        log.warning("%s: its header is damaged; it is now %s, and a new one is begun", self.path, aside.name)


def _step_of(line: bytes, width: int) -> int | None:
    if b"\0" in line:  # which csv.reader of Python 3.10 refuses
        return None
    try:
        cells = next(csv.reader([line.decode("utf-8")]), [])
    except (ValueError, csv.Error):
        return None
    return int(cells[0]) if len(cells) == width and cells[0].isdecimal() else None


def _read_header(source: BinaryIO) -> list[str] | None:
    """Return the header, and leave the file behind it; ``None`` where it is not whole, or not ours."""
    last = b"\n"

    def lines() -> Iterator[str]:
        nonlocal last
        while last.endswith(b"\n") and (last := source.readline()):
            yield last.decode("utf-8-sig", "replace")  # spreadsheets put a mark there

    try:
        header = next(csv.reader(lines()), [])
    except csv.Error:
        return None
    whole = last.endswith(b"\n") and len(set(header)) == len(header)
    return header if whole and tuple(header[: len(COUNTERS)]) == COUNTERS else None


def _by_column(record: Record) -> dict[str, float]:
    return {_column(name): value for name, value in record.values.items()}


def _column(name: str) -> str:
    """Return what stands for a metric in a header: neither a counter, nor what a CSV file cannot hold."""
    if name in COUNTERS or name == MORE:
        return f"metric/{name}"
    if name.isprintable() and len(name) <= _LONGEST_NAME:
        return name
    return name.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")[:_LONGEST_NAME]


def _unpacked(cell: str) -> dict[str, Any]:
    try:
        found = json.loads(cell) if cell else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _encoded(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")
