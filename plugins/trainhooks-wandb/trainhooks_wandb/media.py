"""Media and artifacts as wandb wants them."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any, Final

from trainhooks.media import Histogram, Image, Table, Text

from .values import valid

if TYPE_CHECKING:
    from pathlib import Path

    from trainhooks.media import Media

_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}
_MOST_BINS: Final = 512  # of wandb.Histogram
_LONGEST: Final = 128  # characters in the name of an artifact


def as_wandb(item: Media) -> Any:
    """Return the object of wandb for what was logged."""
    import wandb

    if isinstance(item, Image):
        return wandb.Image(_picture(item))
    if isinstance(item, Text):
        return wandb.Html(f"<pre>{html.escape(valid(item.text))}</pre>", inject=False)
    if isinstance(item, Histogram):
        both: Any = _folded(list(item.counts), list(item.edges))  # it takes lists, too
        return wandb.Histogram(np_histogram=both)
    assert isinstance(item, Table)  # noqa: S101 - there is no other kind
    rows = [[valid(value) for value in row] for row in item.rows]
    return wandb.Table(columns=[valid(name) for name in item.columns], data=rows, allow_mixed_types=True)


def _picture(item: Image) -> Any:
    from PIL import Image as Pillow

    height, width, channels = item.pixels.shape
    data = bytes(item.pixels.contiguous().flatten().tolist())  # NumPy need not be there
    return Pillow.frombytes(_MODES[channels], (width, height), data)


def _folded(counts: list[float], edges: list[float]) -> tuple[list[float], list[float]]:
    """Join neighbouring bins until there are no more than wandb takes."""
    group = -(-len(counts) // _MOST_BINS)
    if group <= 1:
        return counts, edges
    return [sum(counts[first : first + group]) for first in range(0, len(counts), group)], [*edges[:-1:group], edges[-1]]


def artifact(path: Path, name: str, kind: str) -> Any:
    """Return an artifact with a file or all files of a folder."""
    import wandb

    made = wandb.Artifact(_cleaned(name), _type(kind))
    if path.is_dir():
        for file in sorted(path.rglob("*")):  # add_dir prints
            if file.is_file():
                made.add_file(str(file), name=file.relative_to(path).as_posix())
    else:
        made.add_file(str(path), name=path.name)
    return made


def _type(kind: str) -> str:
    """Return the type of an artifact: the registry wants ``model``, and some are wandb's own."""
    cleaned = _cleaned(kind).removeprefix("wandb-")
    return {"checkpoint": "model", "job": "job-file", "": "file"}.get(cleaned, cleaned)


def _cleaned(name: str) -> str:
    """Replace what wandb does not take in names of artifacts and their types."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:_LONGEST] or "unnamed"
