"""``run_store``: images, text, histograms, tables and artifacts in the run folder.

What was logged stands in ``RUN/media.jsonl``, one JSON object a line, in the order in which it was logged:

    {"kind": "image", "name": "val/samples", "step": 8, "update": 8, "epoch": 1, "time": 1796048213.1,
     "file": "media/val_samples-1f0c2b9d/00000008.png", "width": 28, "height": 28, "channels": 1}
    {"kind": "text", ..., "file": "media/notes/00000008.txt", "characters": 120}
    {"kind": "table", ..., "file": "media/errors/00000008.csv", "columns": ["label", "count"], "rows": 10}
    {"kind": "histogram", ..., "counts": [3, 0, 5], "edges": [0.0, 0.5, 1.0, 1.5]}
    {"kind": "artifact", "name": "weights.pt", "time": 1796048213.1, "type": "file", "file": "artifacts/weights.pt",
     "bytes": 1234, "source": "/home/you/weights.pt"}

``file`` is relative to the run folder, with ``/``; a histogram has none, since it is as short as its line. ``name`` is what the
user gave, whatever is in it; the path is made of it so that any file system takes it. An artifact has no counters, ``type`` is its
kind; one of a folder has ``files`` (how many) and ``bytes`` (of all). A reader skips lines that it cannot read, kinds that it
does not know, and files that are gone. Tables are CSV in UTF-8 with a header; ``None`` is an empty cell. Hyperparameters and the
outcome are in ``run.json``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from trainhooks import hookimpl

from ._artifact_copies import keep, size_of
from ._choices import check_choice
from ._growing_file import GrowingFile, lines_of
from ._media_files import as_file
from ._one_writer import folder_to_write
from ._safe_names import safe_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainhooks import RunInfo, Trainer
    from trainhooks.media import Media
    from trainhooks.workdir import RunFolder

log = logging.getLogger("trainhooks")

Artifacts = Literal["copy", "link", "list", "off"]

INDEX: Final = "media.jsonl"
MEDIA: Final = "media"
ARTIFACTS: Final = "artifacts"
#: What keeps a file from being read, however often that is tried.
_UNREADABLE: Final = (FileNotFoundError, PermissionError, NotADirectoryError)
_PARTS: Final = 3  # of the path of a medium


class RunStore:
    """Keeps what is logged besides metrics in the run folder; without a ``work_dir``, and while nothing of it is logged, nothing.

    Images are PNG, texts UTF-8, tables CSV, all in ``media``; ``media.jsonl`` says what there is, and has the histograms. A
    resumed run drops what was logged after its checkpoint. Artifacts are copied to ``artifacts``, never over another one; those
    that are in the run folder stay where they are. They are kept at a resume.

    Args:
        media: Keep images, texts, histograms and tables.
        artifacts: ``copy`` them, ``link`` them (hard links, where the file system can), only ``list`` where they are, or ``off``.
    """

    phase = "reporting"
    on_error = "disable"
    records_per_call = 50
    files = (INDEX,)

    def __init__(self, media: bool = True, artifacts: Artifacts = "copy") -> None:
        check_choice("artifacts", artifacts, Artifacts)
        self.media, self.artifacts = media, artifacts
        self._folder: RunFolder | None = None
        self._index: GrowingFile | None = None
        self._numbers: dict[str, tuple[int, int]] = {}  # of the folder and ending: the last step, and how many files of it
        self._resumed_step = 0
        self._before: set[tuple[str, str, str]] = set()  # of the step that the run was resumed at: kind, name, digest
        self._listed: set[tuple[str, str]] = set()  # name and place of each artifact

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Note where to write, if this is a training that writes."""
        self._folder = folder_to_write(trainer, self, self.files)

    @hookimpl
    def report_start(self, run: RunInfo) -> None:
        """Drop what a resumed run has logged after its checkpoint."""
        self._close()
        self._numbers, self._before, self._listed = {}, set(), set()
        self._resumed_step = run.resumed_step
        if self._folder is not None and (self._folder.path / INDEX).exists():
            self._repair(self._folder, run.resumed_step)

    @hookimpl
    def report_media(self, items: Sequence[Media]) -> None:
        """Write the files, then what there is of them."""
        folder = self._folder
        if folder is None or not self.media:
            return
        index, numbers = self._opened(folder), dict(self._numbers)
        try:
            entries = [entry for item in items if (entry := self._keep(folder, item)) is not None]
            index.append(b"".join(map(_line, entries)))
        except BaseException:
            self._numbers = numbers  # the same items come again, and get the same names
            raise

    @hookimpl
    def report_artifact(self, path: Path, name: str, kind: str) -> None:
        """Copy a file or folder, and note where it is."""
        folder = self._folder
        if folder is None or self.artifacts == "off":
            return
        entry: dict[str, Any] = {"kind": "artifact", "name": name, "time": time.time(), "type": kind}
        try:
            source = path.resolve(strict=True)
            if not (source.is_file() or source.is_dir()):  # a device may never end
                log.warning("run_store: artifact %r is not kept: %s: neither a file nor a folder", name, path)
                return
            kept = self._place(folder, source, name)
            files, size = size_of(kept if kept is not None else source)
        except _UNREADABLE as error:
            log.warning("run_store: artifact %r is not kept: %s: %s", name, path, error.strerror)
            return
        if kept is not None:
            entry["file"] = kept.relative_to(folder.path.resolve() if kept == source else folder.path).as_posix()
        key = name, entry.get("file", str(path))
        if key in self._listed:
            return
        entry |= {**({"files": files} if source.is_dir() else {}), "bytes": size, "source": str(path)}
        self._opened(folder).append(_line(entry))
        self._listed.add(key)

    @hookimpl
    def report_end(self) -> None:
        """Close the index."""
        self._close()

    def _close(self) -> None:
        index, self._index = self._index, None
        if index is not None:
            index.close()

    def _opened(self, folder: RunFolder) -> GrowingFile:
        """Return the index, made when there is something to be noted."""
        if self._index is None or not self._index.is_in_place():
            self._close()
            index = GrowingFile(folder.file(INDEX))
            index.path.parent.mkdir(parents=True, exist_ok=True)
            index.open()
            self._index = index
        return self._index

    # --- Media ---

    def _keep(self, folder: RunFolder, item: Media) -> dict[str, Any] | None:
        """Write the file of an item and return its line, or ``None`` if it was there when the run was resumed."""
        facts, suffix, data = as_file(item)
        digest = _digest(data if suffix else json.dumps(facts).encode())
        if item.step == self._resumed_step and (facts["kind"], item.name, digest) in self._before:
            return None
        counters = {"step": item.step, "update": item.update, "epoch": item.epoch, "time": item.time}
        entry = {"kind": facts["kind"], "name": item.name, **counters}
        if suffix:
            path = self._free_path(folder, item, suffix)
            folder.check_links(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # what was written before a kill, and is not listed
            with path.open("xb") as file:
                file.write(data)
            entry["file"] = path.relative_to(folder.path).as_posix()
        return entry | facts

    def _free_path(self, folder: RunFolder, item: Media, suffix: str) -> Path:
        name = safe_name(item.name)
        step, number = self._numbers.get(name + suffix, (-1, 0))
        number = number + 1 if step == item.step else 1
        self._numbers[name + suffix] = item.step, number
        return folder.file(MEDIA) / name / f"{item.step:08d}{f'-{number}' if number > 1 else ''}{suffix}"

    # --- Artifacts ---

    def _place(self, folder: RunFolder, source: Path, name: str) -> Path | None:
        """Return where an artifact is in the run folder, or ``None`` if it is not to be there."""
        if source.is_relative_to(folder.path.resolve()):
            return source
        if self.artifacts == "list":
            return None
        target = folder.file(ARTIFACTS)
        target.mkdir(parents=True, exist_ok=True)
        return keep(source, target, safe_name(name), link=self.artifacts == "link")

    # --- After a kill ---

    def _repair(self, folder: RunFolder, step: int) -> None:
        """Drop what was logged after ``step``, with its files, and lines that a kill has damaged."""
        index = GrowingFile(folder.file(INDEX))
        dropped: list[str] = []
        kept: list[bytes] = []
        with index.path.open("rb") as source:
            for line in lines_of(source):
                entry = _entry(line)
                if entry is None:
                    continue
                if entry.get("step", 0) > step:
                    dropped.append(str(entry.get("file", "")))
                    continue
                kept.append(line)
                self._remember(folder, entry)
        if sum(map(len, kept)) != index.path.stat().st_size:
            index.replace(kept)
        for name in dropped:
            if (path := _medium(folder, name)) is not None:
                path.unlink(missing_ok=True)

    def _remember(self, folder: RunFolder, entry: dict[str, Any]) -> None:
        file = str(entry.get("file", ""))
        if entry["kind"] == "artifact":
            self._listed.add((entry["name"], file or str(entry.get("source"))))
        elif entry.get("step") == self._resumed_step:
            path = _medium(folder, file)
            if path is not None:
                key = path.parent.name + path.suffix
                self._numbers[key] = self._resumed_step, self._numbers.get(key, (0, 0))[1] + 1
            own = {name: value for name, value in entry.items() if name in ("kind", "counts", "edges")}
            data = json.dumps(own).encode() if path is None else path.read_bytes() if path.is_file() else b""
            self._before.add((entry["kind"], entry["name"], _digest(data)))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _line(entry: dict[str, Any]) -> bytes:
    return (json.dumps(entry, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _entry(line: bytes) -> dict[str, Any] | None:
    """Return what a line notes, or ``None`` where it is none of ours."""
    try:
        entry = json.loads(line)
        good = isinstance(entry["kind"], str) and isinstance(entry["name"], str) and isinstance(entry.get("step", 0), int)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return entry if good else None


def _medium(folder: RunFolder, name: str) -> Path | None:
    """Return the path of a medium in the run folder, or ``None`` for what is no name of one: somebody may have edited it."""
    parts = name.split("/")
    if len(parts) != _PARTS or parts[0] != MEDIA or "\0" in name or any(part in ("", ".", "..") for part in parts):
        return None
    path = folder.path.joinpath(*parts)
    return None if path.is_symlink() or any(one.is_symlink() for one in path.parents[:2]) else path
