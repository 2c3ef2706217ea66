"""An offline session on disk: the SDK's folder of a task."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

METRICS: Final = "metrics.jsonl"


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a session: scalars, plots, images."""
    path = folder / METRICS
    return [event for batch in _batches(path) for event in batch]


def cut(folder: Path, last_step: int) -> None:
    """Drop what was reported after a step, a line that was cut by a kill, and the archive that was made of it."""
    folder.with_suffix(".zip").unlink(missing_ok=True)
    path = folder / METRICS
    kept = [[event for event in batch if (event.get("iter") or 0) <= last_step] for batch in _batches(path)]
    if not path.exists():
        return
    temporary = folder / f".{METRICS}.tmp"
    temporary.write_text("".join(json.dumps(batch) + "\n" for batch in kept if batch), encoding="utf-8")
    temporary.replace(path)


def _batches(path: Path) -> list[list[dict[str, Any]]]:
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
