"""What the files of a run have that wandb wrote in former processes, by wandb's own reader."""

from __future__ import annotations

import json
import logging
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .journal import Row

log = logging.getLogger("trainhooks")

_READ_S = 600.0  #: Longest time for one file: a million rows take less than a minute.


@dataclass
class Segment:
    """The file of one process, in the order of its records.

    Args:
        rows: Steps and what was logged for them; keys of media have their parts after a dot.
        config: The last value of each key.
    """

    rows: list[Row] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)


class Former:
    """The parts of one run below a folder.

    Args:
        folder: What wandb is given as ``dir``.
        run_id: Of the run.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        name = f"run-{run_id}.wandb"
        found = [path for below in ("wandb", ".wandb") for path in folder.glob(f"{below}/*run-*-{run_id}*/{name}")]
        #: The files, oldest first: their folders' names have the time.
        self.files = sorted(set(found), key=lambda path: path.parent.name.removeprefix("offline-"))
        self._read: dict[Path, Segment] = {}

    @property
    def unsynced(self) -> list[Path]:
        """The folders that were written offline and that ``wandb sync`` has not uploaded."""
        offline = [path for path in self.files if path.parent.name.startswith("offline-")]
        return [path.parent for path in offline if not path.with_name(path.name + ".synced").exists()]

    def newest(self) -> Segment:
        """Return the last segment that has rows, or else an empty one."""
        return next((segment for segment in self._backwards() if segment.rows), Segment())

    def rows_after(self, step: int) -> list[Row]:
        """Return the rows of later steps, in order."""
        found: list[Row] = []
        for segment in self._backwards():
            found[:0] = [row for row in segment.rows if row[0] > step]
            if segment.rows and segment.rows[0][0] <= step + 1:
                break
        return found

    def _backwards(self) -> Iterator[Segment]:
        for path in reversed(self.files):
            if path not in self._read:
                self._read[path] = read(path)
            yield self._read[path]


def read(path: Path) -> Segment:
    """Read one file with ``wandb leet inspect``; what a kill cut short is read up to there.

    It is called as that command calls it, without a Python process between, which takes more than a second: the run waits.
    """
    from wandb.util import get_core_path

    file = path.resolve()
    command = [
        get_core_path(),
        "leet",
        "inspect",
        "--no-observability",
        "--json",
        "--run-file",
        str(file),
        str(file.parent.parent),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_READ_S, check=False)  # noqa: S603 - wandb's
    segment = Segment()
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("type") == "history":
            item = record["history"]["item"]
            values = {key: value for key, value in item.items() if key == "_timestamp" or not key.startswith("_")}
            segment.rows.append((int(item["_step"]), values))
        elif record.get("type") in ("run", "config"):
            config = record["run"].get("config", {}) if record["type"] == "run" else record["config"]
            segment.config |= {key: value for key, value in config.get("update", {}).items() if not key.startswith("_")}
    if done.returncode and not segment.rows:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        log.warning("wandb: cannot read %s (%s); steps that it has may be logged twice", path, lines[-1])
    return segment
