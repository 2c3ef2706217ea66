"""The manifest of a checkpoint: what it is, and size and digests of its files, under a digest of its own."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trainhooks import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 2
NAME: Final = "manifest.json"
TREE: Final = "state.json"
TENSORS: Final = "tensors.safetensors"
#: The files of a checkpoint, the manifest last.
FILES: Final = (TENSORS, TREE, NAME)
#: Bytes that one checksum covers, so that damage has a place.
BLOCK_BYTES: Final = 4 << 20
LIMIT_BYTES: Final = 16 << 20
_REMEDY: Final = "use another checkpoint; --resume auto passes over this one"


@dataclass(frozen=True)
class FileFacts:
    """What a file must be.

    Args:
        size_bytes: Its size.
        sha256: Digest of the whole file.
        crc32: Checksum of each block of ``BLOCK_BYTES``.
    """

    size_bytes: int
    sha256: str
    crc32: list[str]


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is.

    Args:
        step: Steps done.
        update: Updates done.
        epoch: Epochs done.
        kind: Why it was saved.
        metrics: Latest values; ``None`` for what is not finite.
        time: When it was written, ISO 8601 in UTC.
        files: What its files must be, by name.
        run: The ``id`` of the run that wrote it, which is no part of the state: equal states have equal files.
        serial: Above that of every checkpoint that was in the folder then: of a run that was resumed at an older one the newest
            is not the one with the most steps.
    """

    step: int = 0
    update: int = 0
    epoch: int = 0
    kind: str = "manual"
    metrics: dict[str, float | None] = field(default_factory=dict)
    time: str = ""
    files: dict[str, FileFacts] = field(default_factory=dict)
    run: str = ""
    serial: int = 0

    @property
    def size_bytes(self) -> int:
        """Size of the files that it lists."""
        return sum(one.size_bytes for one in self.files.values())


class Digests:
    """Digests what passes through."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._blocks: list[str] = []
        self._crc, self._in_block, self.size_bytes = 0, 0, 0

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        view = memoryview(data)
        self._sha256.update(view)
        self.size_bytes += len(view)
        while len(view) > 0:
            part = view[: BLOCK_BYTES - self._in_block]
            self._crc = zlib.crc32(part, self._crc)
            self._in_block += len(part)
            view = view[len(part) :]
            if self._in_block == BLOCK_BYTES:
                self._end_block()

    def _end_block(self) -> None:
        self._blocks.append(f"{self._crc:08x}")
        self._crc = self._in_block = 0

    def facts(self) -> FileFacts:
        """Return what has passed."""
        if self._in_block:
            self._end_block()
        return FileFacts(self.size_bytes, self._sha256.hexdigest(), self._blocks)


def differences(found: FileFacts, expected: FileFacts) -> str | None:
    """Return in words how a file differs from what it must be, or ``None``."""
    if found.size_bytes != expected.size_bytes:
        return f"has {found.size_bytes} bytes, {NAME} says {expected.size_bytes}"
    for index, (one, other) in enumerate(zip(found.crc32, expected.crc32, strict=False)):
        if one != other:
            begin, end = index * BLOCK_BYTES, min((index + 1) * BLOCK_BYTES, found.size_bytes)
            return f"is damaged between byte {begin} and byte {end}: the checksum there differs from the one in {NAME}"
    if found != expected:
        return f"is damaged: its SHA-256 digest differs from the one in {NAME}"
    return None


def damaged(path: Path, what: str) -> CheckpointError:
    """Return the error for a file that is not what it must be."""
    return CheckpointError(f"{path} {what}; {_REMEDY}")


def manifest_text(manifest: Manifest) -> str:
    """Return the content of the file."""
    content = {"format": FORMAT, **asdict(manifest)}
    content["metrics"] = {name: value if _is_finite(value) else None for name, value in manifest.metrics.items()}
    return json.dumps({**content, "digest": _digest_of(content)}, indent=1, allow_nan=False)


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of the checkpoint ``path``, and nothing else of it.

    Raises:
        CheckpointError: It is missing, damaged, or of a format that this release does not know.
    """
    file = path / NAME
    try:
        content = json.loads(read_small(file, LIMIT_BYTES), object_pairs_hook=without_duplicates)
        if not isinstance(content, dict) or "format" not in content:
            raise damaged(file, "is no manifest of a checkpoint")
        if content["format"] != FORMAT or type(content["format"]) is not int:
            message = f"{file}: format {content['format']!r} is not known; this release reads format {FORMAT}"
            raise CheckpointError(message)
        if content.pop("digest", None) != _digest_of(content):
            raise damaged(file, "is damaged: the digest in it is not that of its content")
        del content["format"]
        return _typed(content)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise damaged(file, f"is damaged: {error}") from error


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def _typed(content: dict[str, Any]) -> Manifest:
    """Return the manifest, every value of the right type.

    Raises:
        ValueError: One is not.
    """
    content = {"run": "", "serial": 0, **content}  # which those before version 0.2 lack
    if content.keys() != Manifest.__dataclass_fields__.keys():
        message = f"its keys are {', '.join(content)}"
        raise ValueError(message)
    kinds = {**dict.fromkeys(("step", "update", "epoch", "serial"), int), **dict.fromkeys(("kind", "time", "run"), str)}
    for name, kind in kinds.items():
        if type(content[name]) is not kind or (kind is int and content[name] < 0):
            message = f"{name} is {content[name]!r}"
            raise ValueError(message)
    metrics, files = content["metrics"], content["files"]
    if not isinstance(metrics, dict) or not all(value is None or _is_finite(value) for value in metrics.values()):
        message = "metrics are not finite numbers by name"
        raise ValueError(message)
    if not isinstance(files, dict) or files.keys() != set(FILES) - {NAME}:
        message = f"files are not {TENSORS} and {TREE}"
        raise ValueError(message)
    return Manifest(**{**content, "files": {name: _file_facts(name, facts) for name, facts in files.items()}})


def _file_facts(name: str, facts: Any) -> FileFacts:
    found = FileFacts(**facts)
    size, blocks = found.size_bytes, found.crc32
    if (
        type(size) is not int
        or size < 0
        or not isinstance(found.sha256, str)
        or not isinstance(blocks, list)
        or len(blocks) != -(-size // BLOCK_BYTES)
    ):
        message = f"size and digests of {name} do not fit"
        raise ValueError(message)
    return found


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object.

    Raises:
        ValueError: Two have the same key.
    """
    content = dict(pairs)
    if len(content) != len(pairs):
        message = "a key is there twice"
        raise ValueError(message)
    return content


def open_file(path: Path) -> int:
    """Open a regular file for reading, never through a link and never waiting for a pipe; return its descriptor.

    Raises:
        CheckpointError: It is something else, or cannot be opened.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise damaged(path, "is no file: a link or something else is in its place")
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError as error:
        raise damaged(path, "is missing") from error
    except OSError as error:
        raise damaged(path, f"cannot be read: {error.strerror} (errno {error.errno})") from error


def read_small(path: Path, limit_bytes: int) -> bytes:
    """Return the content of a file that must not be large.

    Raises:
        CheckpointError: It is, or it cannot be read.
    """
    with os.fdopen(open_file(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit_bytes:
            raise damaged(path, f"has {size} bytes, at most {limit_bytes} are possible")
        try:
            return file.read(limit_bytes + 1)
        except OSError as error:
            raise damaged(path, f"cannot be read: {error.strerror} (errno {error.errno})") from error
