"""What is logged besides metrics as files: images as PNG, texts as UTF-8, tables as CSV; a histogram needs none."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from trainhooks.media import Histogram, Image, Text

if TYPE_CHECKING:
    from trainhooks.media import Media


def as_file(item: Media) -> tuple[dict[str, Any], str, bytes]:
    """Return what is noted of an item, and the ending and content of its file if it has one."""
    if isinstance(item, Image):
        height, width, channels = item.pixels.shape
        return {"kind": "image", "width": width, "height": height, "channels": channels}, ".png", item.png()
    if isinstance(item, Text):
        return {"kind": "text", "characters": len(item.text)}, ".txt", item.text.encode("utf-8", "backslashreplace")
    if isinstance(item, Histogram):
        counts = [int(count) if float(count).is_integer() else count for count in item.counts]
        return {"kind": "histogram", "counts": counts, "edges": list(item.edges)}, "", b""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([item.columns, *item.rows])
    facts = {"kind": "table", "columns": list(item.columns), "rows": len(item.rows)}
    return facts, ".csv", text.getvalue().encode("utf-8", "backslashreplace")
