"""Images, text, histograms and tables that a run has left in its folder, found through ``media.jsonl``; no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

MEDIA: Final = "media.jsonl"
_MOST: Final = 100_000


@dataclass(frozen=True)
class MediaItem:
    """What was logged besides metrics.

    Args:
        kind: ``image``, ``text``, ``histogram``, ``table`` or ``artifact``.
        name: What the user has called it.
        step: Steps done, or ``None`` for an artifact.
        path: Its file, or ``None`` where the line has everything.
        facts: The whole line.
    """

    kind: str
    name: str
    step: int | None
    path: Path | None
    facts: dict[str, Any] = field(repr=False)


def read_media(folder: Path) -> list[MediaItem]:
    """Return what is listed in a run folder and still there, in the order in which it was logged.

    Lines that are no entries are left out, and so is a file outside of the folder, whether by its name or by a link.
    """
    found: list[MediaItem] = []
    try:
        with (folder / MEDIA).open("rb") as file:
            for line in file:
                if len(found) >= _MOST:
                    break
                item = _item(folder, line)
                if item is not None:
                    found.append(item)
    except OSError:
        return found
    return found


def _item(folder: Path, line: bytes) -> MediaItem | None:
    try:
        facts = json.loads(line)
        kind, name, step = facts["kind"], facts["name"], facts.get("step")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(kind, str) or not isinstance(name, str) or not (step is None or type(step) is int):
        return None
    if "file" not in facts:
        return MediaItem(kind, name, step, None, facts)
    path = _inside(folder, facts["file"])
    return MediaItem(kind, name, step, path, facts) if path is not None else None


def _inside(folder: Path, name: object) -> Path | None:
    if not isinstance(name, str) or "\0" in name:
        return None
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        return None
    try:
        path = (folder / parts).resolve()
        return path if path.is_relative_to(folder.resolve()) and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None
