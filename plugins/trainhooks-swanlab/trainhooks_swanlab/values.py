"""What SwanLab takes: names, hyperparameters and media in its own types."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from trainhooks.media import Histogram, Image, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainhooks.media import Media

_LONGEST_KEY = 512
#: Prefix of what is noted of hyperparameters that changed at a resume.
CHANGED = "changed at step "


def metric_key(name: str) -> str:
    """Return a metric's name as SwanLab takes it: it refuses control characters and empty names, and cuts ends and what is too long."""
    key = str(plain(name)).strip(" \t\n\r./")[:_LONGEST_KEY].rstrip(" ./")
    return re.sub(r"[\x00-\x1f\x7f]", "_", key) or "_"


def plain(value: Any) -> Any:
    """Return a value as SwanLab stores it: ``None`` would be an empty mapping, NaN ``"NaN"``; lone surrogates are no text."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def config(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters as a configuration."""
    return {plain(key): plain(value) for key, value in hyperparameters.items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any], step: int) -> dict[str, str]:
    """Return what to note of hyperparameters that are not what they were, and what had been noted before."""
    noted = {key: str(value) for key, value in before.items() if key.startswith(CHANGED)}
    for key in sorted({key for key in before if not key.startswith((CHANGED, "artifacts/"))} | set(now)):
        if key not in before or key not in now or repr(before[key]) != repr(now[key]):
            noted[f"{CHANGED}{step}/{key}"] = f"{_said(before, key)} -> {_said(now, key)}"
    return noted


def _said(values: Mapping[str, Any], key: str) -> str:
    return f"{values[key]!r:.200}" if key in values else "not there"


def media(swanlab: Any, item: Media) -> Any:
    """Return an image, text, histogram or table as SwanLab's own; it has charts for the last two."""
    if isinstance(item, Image):
        pixels = item.pixels.numpy()
        return swanlab.Image(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    if isinstance(item, Text):
        return swanlab.Text(plain(item.text))
    if isinstance(item, Histogram):
        bar = swanlab.echarts.Bar()
        bar.add_xaxis([f"{low:.6g} .. {high:.6g}" for low, high in zip(item.edges, item.edges[1:], strict=False)])
        bar.add_yaxis("count", list(item.counts), category_gap=0)
        return bar
    table = swanlab.echarts.Table()
    table.add([plain(name) for name in item.columns], [[plain(value) for value in row] for row in item.rows])
    return table
