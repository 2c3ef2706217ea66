"""``predictions``: what ``predict`` returns, as a table on disk."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from torch import Tensor

from trainhooks import DataError, OptionError, UsageError, hookimpl
from trainhooks.data import batch_size

from ._choices import check_choice
from ._columns import Column, columns_of, parts_of
from ._metrics import find_target
from ._tables import CsvTable, ParquetTable, Rows, import_parquet

if TYPE_CHECKING:
    from collections.abc import Generator

    from trainhooks import Trainer
    from trainhooks.types import Batch

log = logging.getLogger("trainhooks")

Format = Literal["auto", "csv", "parquet"]

_SUFFIXES: Final[dict[str, Literal["csv", "parquet"]]] = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}


class Predictions:
    """Writes what ``predict`` returns to a CSV or Parquet file, one row for each sample, in the order of the loader.

    Rows are written batch by batch, to a hidden file beside the place of the table, which takes that place when all of it is
    there. ``index`` counts the rows from 0.

    Args:
        file: Where to, ``{split}`` is replaced. Without it ``predictions-{split}.csv`` in the run folder, if the run has one,
            else in the current directory.
        format: ``csv`` or ``parquet``; without it the file's ending says which.
        splits: Which splits are written; all that are predicted by default.
        columns: Which parts of a mapping are written, in this order; the names of the columns for any other output.
        targets: Write the target of each sample too, if the batches have one.
        arg_max: Write the index of the highest of the numbers along dimension 1 instead of them, where there are several.
        max_columns: How many numbers of a sample become columns of their own; with more, Parquet has a column of lists.
    """

    phase = "reporting"

    def __init__(
        self,
        file: str | None = None,
        format: Format = "auto",  # noqa: A002 - the option's name in the settings
        splits: tuple[str, ...] | None = None,
        columns: tuple[str, ...] | None = None,
        targets: bool = False,
        arg_max: bool = False,
        max_columns: int = 100,
    ) -> None:
        check_choice("format", format, Format)
        if max_columns < 1:
            message = f"max_columns = {max_columns}: must be 1 or more"
            raise OptionError(message)
        if columns is not None and len(set(columns)) < len(columns):
            message = f"columns = {list(columns)}: a name is there twice"
            raise OptionError(message)
        self.file, self.format = file, format if format != "auto" else _format_of(file)
        self.splits, self.columns, self.targets, self.arg_max = splits, columns, targets, arg_max
        self.max_columns = max_columns
        self._running: dict[str, Rows] = {}
        self._splits_by_file: dict[Path, str] = {}

    @hookimpl
    def setup(self) -> None:
        """Find out now, not after the training, that a library is missing."""
        if self.format == "parquet":
            import_parquet()

    @hookimpl(wrapper=True)
    def predict(self, trainer: Trainer, split: str) -> Generator[None, Any, Any]:
        """Open a table for a prediction; leave nothing of it behind if that fails."""
        if self.splits is not None and split not in self.splits:
            return (yield)
        rows = self._running[split] = Rows(self._path(trainer, split), CsvTable if self.format == "csv" else ParquetTable)
        try:
            result = yield
            if rows.finish():
                self._splits_by_file[rows.path.absolute()] = split
                log.info("predictions: %d rows of %r in %s", rows.count, split, rows.path)
                trainer.log_artifact(rows.path, kind="predictions")
            else:
                log.warning("predictions: nothing was predicted for %r, so there is no file", split)
        finally:
            self._running.pop(split, None)
            rows.discard()
            if self.file is None and trainer.run_folder is not None and not rows.path.exists():
                trainer.run_folder.forget(rows.path.name)
        return result

    @hookimpl
    def after_predict_step(self, batch: Batch, output: Any, split: str) -> None:
        """Write the rows of one batch."""
        rows = self._running.get(split)
        if rows is not None:
            rows.add(self._table_of(batch, output, split, first=rows.count == 0), batch)

    def _path(self, trainer: Trainer, split: str) -> Path:
        if trainer.world_size > 1:
            message = "predictions writes the samples of one process; predict with one, or implement after_predict_step"
            raise UsageError(message)
        if self.file is None:
            name = f"predictions-{split.replace('/', '_')}.{self.format}"
            return trainer.run_file(name) if trainer.work_dir is not None else Path(name)
        path = Path(self.file.replace("{split}", split))
        if path.is_dir() or not path.absolute().parent.is_dir():
            what = "is a folder" if path.is_dir() else f"there is no folder {path.absolute().parent}"
            message = f"predictions.file = {self.file!r}: {what}"
            raise UsageError(message)
        if (other := self._splits_by_file.get(path.absolute(), split)) != split:
            message = f"predictions.file = {self.file!r} holds the predictions of {other!r}: put {{split}} into the name"
            raise UsageError(message)
        return path

    def _table_of(self, batch: Batch, output: Any, split: str, *, first: bool) -> dict[str, Column]:
        parts = parts_of(output)
        if isinstance(output, list):
            _check_list(output, batch_size(batch))
        named = isinstance(output, Mapping) or hasattr(output, "_asdict")
        if self.columns is not None and named:
            if missing := [name for name in self.columns if name not in parts]:
                message = f"predictions.columns: {missing[0]!r} is not among what predict_step gave: {', '.join(parts)}"
                raise DataError(message)
            parts = {name: parts[name] for name in self.columns}
        if self.arg_max:
            parts = {name: _highest(value) for name, value in parts.items()}
        table = self._columns(parts)
        if self.columns is not None and not named:
            if len(self.columns) != len(table):
                message = f"predictions.columns has {len(self.columns)} names for {len(table)} columns"
                raise DataError(message)
            table = dict(zip(self.columns, table.values(), strict=True))
        if self.targets:
            target = find_target(batch)
            if target is not None:
                table = _joined(table, self._columns({"target": target}))
            elif first:
                log.warning("predictions.targets: the batches of %r have no target", split)
        return table

    def _columns(self, parts: dict[str, Any]) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for name, value in parts.items():
            columns = _joined(columns, columns_of(name, value, self.max_columns, lists=self.format == "parquet"))
        return columns


def _format_of(file: str | None) -> Literal["csv", "parquet"]:
    if file is None:
        return "csv"
    if Path(file).suffix.lower() not in _SUFFIXES:
        message = f"file = {file!r}: its ending says no format; name it .csv or .parquet, or set format"
        raise OptionError(message)
    return _SUFFIXES[Path(file).suffix.lower()]


def _joined(columns: dict[str, Column], more: dict[str, Column]) -> dict[str, Column]:
    """Return both.

    Raises:
        DataError: They have a name in common.
    """
    if common := columns.keys() & more.keys():
        message = f"predictions: two columns would have the name {min(common)!r}; rename an output in predict_step"
        raise DataError(message)
    return {**columns, **more}


def _check_list(output: list[Any], samples: int) -> None:
    """Refuse a tensor for each sample, which would become a column for each sample.

    Raises:
        DataError: It is such a list.
    """
    each = len(output) == samples > 1 and all(isinstance(one, Tensor) for one in output)
    if each and any(one.shape[:1] != (samples,) for one in output):
        message = (
            f"predictions: predict_step gave a list of {samples} tensors for {samples} samples; return one tensor with a row for "
            "each sample, for example torch.stack(list)"
        )
        raise DataError(message)


def _highest(value: Any) -> Any:
    several = isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1 and value.shape[1] > 1
    return value.argmax(1) if several else value
