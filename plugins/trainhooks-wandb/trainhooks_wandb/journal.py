"""What was handed to wandb in the last half minute, kept where a kill cannot take it."""

from __future__ import annotations

import json
import logging
import time
from typing import IO, TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

log = logging.getLogger("trainhooks")

Row: TypeAlias = tuple[int, dict[str, Any]]

#: Seconds after which wandb-core has long written a row to its own file: it does so twice a second.
_SAFE_S = 30.0


class Journal:
    """Two files of JSON lines, the older of which is replaced every half minute.

    wandb-core holds the row of the current step, and what was logged within its last flush interval, in memory, and ends without
    writing them when the process that trains is killed.

    Args:
        path: Of the newer file; the older one has ``.old`` appended.
        clock: Returns seconds; only differences are used.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._old = path, path.with_name(path.name + ".old")
        self._clock = clock
        self._file: IO[str] | None = None
        self._since = 0.0
        self._usable = True

    def rows(self) -> list[Row]:
        """Return what a former process left, in its order, the values of one step together; a line cut short is left out."""
        found: dict[int, dict[str, Any]] = {}
        for path in (self._old, self._path):
            try:
                lines = path.read_text(encoding="utf-8").splitlines()
            except OSError:
                continue
            for line in lines:
                try:
                    step, values = json.loads(line)
                    found.setdefault(step, {}).update(values)
                except (ValueError, TypeError):  # the process was killed in the middle of it
                    continue
        return sorted(found.items())

    def restart(self, rows: Sequence[Row]) -> None:
        """Forget what a former process left, but ``rows``."""
        self.close(remove=not rows)
        if rows:
            whole = self._path.with_name(self._path.name + ".new")
            whole.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            whole.replace(self._old)
            self._path.unlink(missing_ok=True)

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Keep values of one step; whether that works is not the concern of who logs them."""
        if not self._usable:
            return
        try:
            if self._file is None or self._clock() - self._since > _SAFE_S:
                self._turn()
            assert self._file is not None  # noqa: S101 - opened above
            self._file.write(json.dumps([step, dict(values)]) + "\n")
            self._file.flush()
        except OSError as error:
            self._usable = False
            log.warning("wandb: cannot write %s (%s); a kill may cost the last rows that were logged", self._path, error)

    def _turn(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._path.exists():
            self._path.replace(self._old)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a", encoding="utf-8")
        self._since = self._clock()

    def close(self, *, remove: bool = False) -> None:
        """Close it; remove it when wandb has everything."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if remove:
            for path in (self._old, self._path):
                path.unlink(missing_ok=True)
