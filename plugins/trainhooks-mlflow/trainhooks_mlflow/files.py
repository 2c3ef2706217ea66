"""What MLflow keeps as files: images, text, tables and histograms. The same thing always gets the same name, so that a repetition replaces it."""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .names import MAX_TAG, ascii_only, clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainhooks.media import Histogram, Image, Table, Text

#: In this tag MLflow keeps which files are tables.
TABLES_TAG: Final = "mlflow.loggedArtifacts"
#: In this folder MLflow's page looks for images, if this tag is there.
IMAGES: Final = "images"
IMAGES_TAG: Final = "mlflow.loggedImages"

#: How files of images are called, in older MLflow with other signs.
_IMAGE_FILE: Final = re.compile(r"images/(.*)[+%]step[+%](\d+)[+%]timestamp[+%]")
#: Of the small image that MLflow's page shows first.
_SMALL: Final = (256, 256)


def name_of(item: Histogram | Table | Text) -> tuple[str, str]:
    """Return the folder and the name of the file of an item."""
    kind = type(item).__name__.lower()
    suffix = "txt" if kind == "text" else "json"
    return f"{kind}/{clean(item.name)}", f"step_{item.step:08d}.{suffix}"


def content_of(item: Histogram | Table | Text) -> str:
    """Return what is in the file: of a table what ``mlflow.load_table`` reads."""
    from trainhooks.media import Table, Text

    if isinstance(item, Text):
        return item.text
    if isinstance(item, Table):
        rows = [[_finite(value) for value in row] for row in item.rows]
        return json.dumps({"columns": item.columns, "data": rows}, ensure_ascii=False, allow_nan=False)
    counters = {"step": item.step, "update": item.update, "epoch": item.epoch, "time": item.time}
    counts, edges = map(_finite, item.counts), map(_finite, item.edges)
    return json.dumps({**counters, "counts": [*counts], "edges": [*edges]}, ensure_ascii=False, allow_nan=False)


def tables_tag(before: str | None, folder: str, file: str) -> str:
    """Return the tag of tables with the newest one of a name; older ones of it stay as files."""
    try:
        found = json.loads(before or "[]")
    except ValueError:
        found = []
    others = [one for one in found if isinstance(one, dict) and not str(one.get("path", "")).startswith(f"{folder}/")]
    entries = [*others, {"path": f"{folder}/{file}", "type": "table"}]
    while len(json.dumps(entries)) > MAX_TAG and len(entries) > 1:
        entries.pop(0)
    return json.dumps(entries)


@contextmanager
def written(name: str, text: str) -> Iterator[Path]:
    """Give a file with this name and content."""
    with tempfile.TemporaryDirectory(prefix="trainhooks-mlflow-") as folder:
        path = Path(folder) / name
        path.write_bytes(text.encode("utf-8", "replace"))
        yield path


@contextmanager
def drawn(item: Image) -> Iterator[Path]:
    """Give a folder with the files of an image as MLflow's ``log_image`` makes them: one whole, and a small one."""
    import PIL.Image

    pixels = item.pixels.numpy()
    image = PIL.Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    small = image.copy()
    small.thumbnail(_SMALL)
    about = f"{image_key(item.name)}+step+{item.step}+timestamp+{int(item.time * 1000)}"
    name = f"{about}+{uuid.uuid5(uuid.NAMESPACE_URL, about)}"
    with tempfile.TemporaryDirectory(prefix="trainhooks-mlflow-") as folder:
        image.save(Path(folder) / f"{name}.png")
        small.save(Path(folder) / f"{name}+compressed.webp")
        yield Path(folder)


def image_key(name: str) -> str:
    """Return how an image is called in the names of its files."""
    return ascii_only(name).replace("/", "~")


def last_steps(files: list[str]) -> dict[str, int]:
    """Return the highest step of each image, by its ``image_key``, among the paths of files."""
    found: dict[str, int] = {}
    for match in filter(None, map(_IMAGE_FILE.match, files)):
        found[match[1]] = max(found.get(match[1], -1), int(match[2]))
    return found


@contextmanager
def called(path: Path, name: str) -> Iterator[Path]:
    """Give a file under another name, as a link where there are links."""
    if path.name == name:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="trainhooks-mlflow-") as folder:
        other = Path(folder) / name
        try:
            other.symlink_to(path.resolve())
        except OSError:
            shutil.copyfile(path, other)
        yield other


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
