"""Records as JSON lines, and what its file has in common with the CSV: counters, and what a resume keeps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from trainhooks.run_record import finite

from ._growing_file import GrowingFile, keep_lines, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainhooks import Record

COUNTERS: Final = ("step", "update", "epoch", "time")


class JsonLinesFile(GrowingFile):
    """One object for each record; what is not finite is ``null``."""

    def encode(self, records: Sequence[Record]) -> bytes:
        """Return the lines of records."""
        text = "".join(
            json.dumps(counters_of(record) | _columns(record.values), ensure_ascii=False, allow_nan=False) + "\n"
            for record in records
        )
        return text.encode("utf-8", "backslashreplace")  # of a lone surrogate, as JSON writes it

    def begin(self) -> None:
        """Open it."""
        self.open()

    def repair(self, step: int, records: int) -> int:
        """Keep what was logged when a checkpoint was made.

        Args:
            step: Of the checkpoint.
            records: How many there were.

        Returns:
            How many are kept.
        """
        wanted = Wanted(step, records, _step_in_json)
        kept, scattered = keep_lines(self, 0, wanted)
        if scattered:
            wanted.left = records
            with self.path.open("rb") as source:
                self.replace(line for line in lines_of(source) if wanted(line))
        return kept

    def finish(self) -> None:
        """Close it."""
        self.close()


class Wanted:
    """Says of a line whether it was there when a checkpoint was made; ``None`` for one that is damaged.

    Args:
        step: Of the checkpoint.
        left: How many records there were.
        step_of: Returns the step of a line, or ``None``.
    """

    def __init__(self, step: int, left: int, step_of: Callable[[bytes], Any]) -> None:
        self.step, self.left, self._step_of = step, left, step_of

    def __call__(self, line: bytes) -> bool | None:
        found = self._step_of(line)
        if type(found) is not int:
            return None
        if found > self.step or self.left < 1:
            return False
        self.left -= 1
        return True


def counters_of(record: Record) -> dict[str, Any]:
    return {"step": record.step, "update": record.update, "epoch": record.epoch, "time": record.time}


def _columns(values: Mapping[str, float]) -> dict[str, float | None]:
    return {f"metric/{name}" if name in COUNTERS else name: value for name, value in finite(dict(values)).items()}


def _step_in_json(line: bytes) -> Any:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
