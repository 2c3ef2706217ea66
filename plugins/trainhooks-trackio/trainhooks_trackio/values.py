"""What Trackio takes: names, hyperparameters and media in its own types."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trainhooks.media import Histogram, Image, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainhooks.media import Media

#: Names that Trackio keeps for itself and would rename, with a warning each time.
_RESERVED = frozenset({"project", "run", "timestamp", "step", "time", "metrics"})
_INT64 = 2**63
#: Prefix of what is noted of hyperparameters that changed at a resume.
CHANGED = "changed at step "


def metric_name(name: str) -> str:
    """Return the name of a metric as Trackio has it."""
    name = str(plain(name))
    return f"metric/{name}" if name in _RESERVED or name.startswith("__") else name


def artifact_name(name: str) -> str:
    """Return the name of an artifact as Trackio has it: letters, digits, dots, underscores and hyphens."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "artifact"


def plain(value: Any) -> Any:
    """Return a value that Trackio can store: integers have 64 bits there, and text no lone surrogates."""
    if isinstance(value, int) and not isinstance(value, bool) and not -_INT64 <= value < _INT64:
        return str(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def config(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters as a configuration; Trackio keeps names with an underscore in front for itself."""
    return {f"hyperparameter{key}" if key.startswith("_") else key: plain(value) for key, value in hyperparameters.items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return what to note of hyperparameters that are not what they were, and what had been noted before."""
    noted = {key: value for key, value in before.items() if key.startswith(CHANGED)}
    for key in sorted({key for key in before if not key.startswith(("_", CHANGED, "outcome/"))} | set(now)):
        old, new = before.get(key), now.get(key)
        if old != new and not (old != old and new != new):  # noqa: PLR0124 - NaN is what it was
            noted[f"{CHANGED}{step}/{key}"] = f"{_said(before, key)} -> {_said(now, key)}"
    return noted


def _said(values: Mapping[str, Any], key: str) -> str:
    return f"{values[key]!r:.200}" if key in values else "not there"


def media(trackio: Any, item: Media) -> Any:
    """Return an image, text, histogram or table as Trackio's own."""
    if isinstance(item, Image):
        pixels = item.pixels.numpy()
        return trackio.Image(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    if isinstance(item, Text):
        return trackio.Markdown(plain(item.text))
    if isinstance(item, Histogram):
        return trackio.Histogram(np_histogram=(item.counts, item.edges))
    rows = [[plain(value) for value in row] for row in item.rows]
    return trackio.Table(columns=[plain(name) for name in item.columns], data=rows)
