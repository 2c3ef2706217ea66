"""Tables that grow batch by batch, written as CSV or Parquet."""

from __future__ import annotations

import csv
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from trainhooks import DataError, UsageError
from trainhooks.data import batch_size

from ._columns import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trainhooks.types import Batch

#: Rows that a Parquet file has in one group.
GROUP: Final = 8192


class Table(Protocol):
    """A file that takes rows."""

    def write(self, columns: Mapping[str, Column]) -> None:
        """Add the rows of one batch; the first one says which columns there are."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what is left."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Close the file as it is."""
        raise NotImplementedError


class CsvTable:
    """Comma-separated, UTF-8, one line for each row, a header with the names."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._begun = False

    def write(self, columns: Mapping[str, Column]) -> None:
        """Add rows."""
        if not self._begun:
            self._writer.writerow(columns)
            self._begun = True
        texts = [[f"{one:.9g}" for one in column.values] if column.single else column.values for column in columns.values()]
        self._writer.writerows(zip(*texts, strict=True))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    abandon = close


class ParquetTable:
    """Parquet, in groups of rows; types are those of the first group."""

    def __init__(self, path: Path) -> None:
        self._arrow, self._parquet = import_parquet()
        self._path = path
        self._writer: Any = None
        self._kept: dict[str, list[Any]] = {}
        self._types: dict[str, Any] = {}
        self._rows = 0

    def write(self, columns: Mapping[str, Column]) -> None:
        """Keep rows until there are enough for a group."""
        for name, column in columns.items():
            if name not in self._kept:
                self._kept[name] = []
                self._types[name] = self._type_of(column)
            self._kept[name] += column.values
        self._rows += len(next(iter(columns.values())).values)
        if self._rows >= GROUP:
            self._flush()

    def close(self) -> None:
        """Write the last group and close the file."""
        try:
            self._flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file, which lacks the last group then."""
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        if not self._rows and self._writer is not None:
            return
        arrays = {name: self._array(name, values) for name, values in self._kept.items()}
        table = self._arrow.table(arrays)
        if self._writer is None:
            self._types = {field.name: field.type for field in table.schema}
            self._writer = self._parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)
        self._kept, self._rows = {name: [] for name in self._kept}, 0

    def _array(self, name: str, values: list[Any]) -> Any:
        try:
            return self._arrow.array(values, type=self._types[name])
        except (TypeError, ValueError, OverflowError) as error:
            message = f"predictions: column {name!r} cannot be written as Parquet: {error}"
            raise DataError(message) from error

    def _type_of(self, column: Column) -> Any:
        """Return the type of single precision; others are inferred from the first group."""
        if not column.single:
            return None
        kind = self._arrow.float32()
        for _ in range(column.depth):
            kind = self._arrow.list_(kind)
        return kind


class Rows:
    """A table that is being written.

    Args:
        path: Where it is to be.
        kind: What writes it.
    """

    def __init__(self, path: Path, kind: Callable[[Path], Table]) -> None:
        self.path, self.count = path, 0
        self._kind = kind
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._table: Table | None = None
        self._names: list[str] = []

    def add(self, columns: dict[str, Column], batch: Batch) -> None:
        """Add the rows of one batch.

        Raises:
            DataError: Its columns are not of the same length, or not those of the batches before.
        """
        lengths = {name: len(column.values) for name, column in columns.items()}
        size = max(lengths.values(), default=0)
        if len(set(lengths.values())) != 1 or (size == 1 and batch_size(batch) > 1):
            shown = ", ".join(f"{name} {length}" for name, length in lengths.items()) or "no columns"
            message = (
                f"predictions: a batch of {batch_size(batch)} samples gave {shown}; each must have one row for each sample"
            )
            raise DataError(message)
        if self._table is None:
            if "index" in columns:
                message = (
                    "predictions: an output is named 'index', which is the name of the row's own; rename it in predict_step"
                )
                raise DataError(message)
            self._temporary.unlink(missing_ok=True)  # never write through a link
            self._table, self._names = self._kind(self._temporary), list(columns)
        if list(columns) != self._names:
            message = f"predictions: the columns were {', '.join(self._names)}, in a later batch {', '.join(columns)}"
            raise DataError(message)
        self._table.write({"index": Column(list(range(self.count, self.count + size))), **columns})
        self.count += size

    def finish(self) -> bool:
        """Put the table in its place; return whether there is one."""
        if self._table is None:
            return False
        table, self._table = self._table, None
        try:
            table.close()
            self._temporary.replace(self.path)
        finally:
            self._temporary.unlink(missing_ok=True)
        return True

    def discard(self) -> None:
        """Remove what has not been put in its place."""
        if self._table is not None:
            table, self._table = self._table, None
            try:
                table.abandon()
            finally:
                self._temporary.unlink(missing_ok=True)


def import_parquet() -> tuple[Any, Any]:
    """Return ``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        UsageError: They are not installed.
    """
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        message = "predictions: Parquet needs pyarrow: pip install pyarrow, or write CSV (format = 'csv')"
        raise UsageError(message) from error
