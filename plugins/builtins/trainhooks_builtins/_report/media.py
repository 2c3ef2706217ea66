"""What of a run's images, text, histograms and tables goes into the page: the newest of each name, within bounds."""

from __future__ import annotations

import base64
import csv
import math
from typing import TYPE_CHECKING, Any, Final

from trainhooks.run_media import MediaItem, read_media

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainhooks.run_history import RunHistory

_PNG: Final = b"\x89PNG\r\n\x1a\n"
#: Bounds of the page: bytes of one item and of all, items of one name in a run, and of all.
_LARGEST: Final = 1_000_000
_LARGEST_TOGETHER: Final = 6_000_000
_OF_ONE_NAME: Final = 3
_MOST: Final = 120
_CHARACTERS: Final = 4000
_ROWS: Final = 20
_COLUMNS: Final = 30
_BINS: Final = 512


def embedded(runs: Sequence[RunHistory]) -> dict[str, Any]:
    """Return what the page shows, by run and name, the newest of each name first, and how many are left out."""
    shown: list[dict[str, Any]] = []
    left_out = size = 0
    for index, run in enumerate(runs):
        by_name: dict[tuple[str, str], list[MediaItem]] = {}
        for item in read_media(run.folder):
            if item.kind in _READERS:
                by_name.setdefault((item.kind, item.name), []).append(item)
        for items in by_name.values():
            left_out += len(items[:-_OF_ONE_NAME])
            for item in reversed(items[-_OF_ONE_NAME:]):
                content = _content(item) if len(shown) < _MOST else None
                cost = sum(len(str(value)) for value in content.values()) if content is not None else 0
                if content is None or size + cost > _LARGEST_TOGETHER:
                    left_out += 1
                    continue
                size += cost
                shown.append({"run": index, "kind": item.kind, "name": item.name, "step": item.step, **content})
    return {"media": shown, "media_left_out": left_out}


def _content(item: MediaItem) -> dict[str, Any] | None:
    try:
        if item.path is not None and (not item.path.is_file() or item.path.stat().st_size > _LARGEST):
            return None
        return _READERS[item.kind](item)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, csv.Error):
        return None


def _image(item: MediaItem) -> dict[str, Any] | None:
    data = item.path.read_bytes() if item.path is not None else b""
    return {"png": base64.b64encode(data).decode("ascii")} if data.startswith(_PNG) else None


def _text(item: MediaItem) -> dict[str, Any] | None:
    if item.path is None:
        return None
    text = item.path.read_text(encoding="utf-8", errors="replace")
    return {"text": text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"}


def _histogram(item: MediaItem) -> dict[str, Any] | None:
    counts, edges = ([float(one) for one in item.facts[key]] for key in ("counts", "edges"))
    whole = 0 < len(counts) <= _BINS and len(edges) == len(counts) + 1
    return {"counts": counts, "edges": edges} if whole and all(map(math.isfinite, counts + edges)) else None


def _table(item: MediaItem) -> dict[str, Any] | None:
    if item.path is None:
        return None
    with item.path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = [row[:_COLUMNS] for _, row in zip(range(_ROWS + 1), csv.reader(file), strict=False)]
    return {"columns": rows[0], "rows": rows[1:]} if rows else None


_READERS: Final[dict[str, Callable[[MediaItem], dict[str, Any] | None]]] = {
    "image": _image,
    "text": _text,
    "histogram": _histogram,
    "table": _table,
}
