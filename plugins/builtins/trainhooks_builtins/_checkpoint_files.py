"""Checkpoints on disk: one way to write them, one to read them, one to remove them. Nothing here needs torch until then.

A checkpoint is a folder ``step-00000100`` with ``tensors.safetensors``, ``state.json`` and ``manifest.json``. It is made under a
hidden name, synced and renamed, so it is there as a whole or not at all, after a power cut too.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from trainhooks import CheckpointError
from trainhooks.durable import make_folder, sync_folder

from ._checkpoint_folders import (
    candidates,
    check_checkpoint,
    clean_up,
    discard,
    foreign_names,
    hidden_name,
    in_words,
    is_checkpoint,
    is_pinned,
    list_checkpoints,
    newest_first,
    place_of,
    put_back,
    read_manifests,
    remove_checkpoint,
    remove_checkpoints,
    remove_remains,
    set_pinned,
    step_of,
    write_pin,
)
from ._checkpoint_manifest import (
    BLOCK_BYTES,
    NAME,
    TENSORS,
    TREE,
    Digests,
    FileFacts,
    Manifest,
    damaged,
    differences,
    manifest_text,
    open_file,
    read_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trainhooks.types import StateDict

    from ._state_files import Snapshot

__all__ = [
    "Manifest",
    "candidates",
    "check_checkpoint",
    "clean_up",
    "is_checkpoint",
    "is_pinned",
    "list_checkpoints",
    "newest_first",
    "place_of",
    "read_checkpoint",
    "read_manifest",
    "read_manifests",
    "remove_checkpoint",
    "remove_checkpoints",
    "remove_remains",
    "set_pinned",
    "step_of",
    "take_snapshot",
    "verify_checkpoint",
    "write_checkpoint",
]

log = logging.getLogger("trainhooks")

_NO_ROOM: Final = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)


# --- Writing ---


def take_snapshot(state: StateDict, *, copy: bool = False) -> Snapshot:
    """Return a state as it is now, to be written.

    Args:
        state: Tensors and plain values.
        copy: Whether what happens to the tensors afterwards must not be seen.

    Raises:
        CheckpointError: Something else is in it; the message says where.
    """
    from ._state_files import take_snapshot as take

    return take(state, copy=copy)


def write_checkpoint(path: Path, snapshot: Snapshot, facts: Mapping[str, Any]) -> Manifest:
    """Write a checkpoint so that ``path`` is there as a whole or not at all, and stays so when this returns.

    One that is there is replaced; at each moment the old or the new one can be read.

    Args:
        path: Of its folder.
        snapshot: What to write.
        facts: For its manifest; ``pinned`` says whether rotation must keep it.

    Raises:
        CheckpointError: With the path and the cause; nothing is left behind.
    """
    if step_of(path) not in (-1, step := facts.get("step", 0)):
        message = f"cannot write the checkpoint {path}: it is of step {step}, which its name contradicts; give it another name"
        raise CheckpointError(message)
    temporary = hidden_name(path, "tmp")
    try:
        make_folder(path.parent)
        clean_up(path.parent)
        put_back(path)
        discard(temporary)
        temporary.mkdir()
        manifest = _fill(temporary, snapshot, facts, pinned=facts.get("pinned", False) or is_pinned(path))
        sync_folder(temporary)
        _put_in_place(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            discard(temporary)
        if isinstance(error, OSError):
            message = f"cannot write the checkpoint {path}: {_explain(error, path.parent, snapshot)}"
            raise CheckpointError(message) from error
        raise
    return manifest


def _fill(folder: Path, snapshot: Snapshot, facts: Mapping[str, Any], *, pinned: bool) -> Manifest:
    """Write the files of a checkpoint, each of them synced."""
    from ._checkpoint_tensors import write_tensors

    files = {
        TENSORS: _write_file(folder / TENSORS, lambda sink: write_tensors(sink, snapshot.tensors)),
        TREE: _write_file(folder / TREE, lambda sink: sink.write(snapshot.text)),
    }
    known = {key: value for key, value in facts.items() if key != "pinned"}
    manifest = Manifest(**{"time": datetime.now(timezone.utc).isoformat(timespec="seconds"), **known, "files": files})
    _write_file(folder / NAME, lambda sink: sink.write(manifest_text(manifest).encode("ascii")))
    if pinned:
        write_pin(folder)
    return manifest


class _Digested:
    """Writes to a file and digests what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self.digests = Digests()
        self._file = file

    def write(self, data: bytes | memoryview, /) -> None:
        """Write the next bytes, a piece at a time so that they are digested while they are in the cache."""
        view = memoryview(data)
        for begin in range(0, len(view), BLOCK_BYTES):
            part = view[begin : begin + BLOCK_BYTES]
            self._file.write(part)
            self.digests.update(part)


def _write_file(path: Path, write: Callable[[_Digested], object]) -> FileFacts:
    """Write a new file and sync it; a failed sync is not tried again, since the system may have dropped what it could not write."""
    with path.open("xb", buffering=1 << 20) as file:
        sink = _Digested(file)
        write(sink)
        file.flush()
        os.fsync(file.fileno())
    return sink.digests.facts()


def _put_in_place(temporary: Path, path: Path) -> None:
    """Rename a folder; one that is in its place steps aside first, since a folder cannot be replaced in one go."""
    aside = hidden_name(path, "old")
    if os.path.lexists(path):
        _make_way(path, aside)
    try:
        temporary.rename(path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):  # what is not certain to be durable is not acknowledged, so it must not be there
            if not temporary.exists():
                path.rename(temporary)
            if aside.exists():
                aside.rename(path)
        raise
    if aside.exists():
        try:
            discard(aside)
        except OSError as error:
            log.warning("cannot remove what %s replaced: %s; tried again at the next save", path, in_words(error))


def _make_way(path: Path, aside: Path) -> None:
    """Move what is in the place of a checkpoint aside; what trainhooks did not write is never removed.

    Raises:
        OSError: It is no folder.
    """
    if path.is_symlink() or not path.is_dir():
        raise FileExistsError(errno.EEXIST, "something that is no checkpoint is in its place; move it away", str(path))
    if names := foreign_names(path):
        numbers = (path.with_name(f"{path.name}.aside{number or ''}") for number in range(1 << 31))
        aside = next(one for one in numbers if not os.path.lexists(one))
        log.warning("%s holds %s, which is no part of a checkpoint: it is moved to %s", path, names[0], aside)
    else:
        discard(aside)
    path.rename(aside)


def _explain(error: OSError, folder: Path, snapshot: Snapshot) -> str:
    text = in_words(error)
    if error.errno in _NO_ROOM:
        with suppress(OSError):
            text += f"; it needs {snapshot.size_bytes} bytes, {shutil.disk_usage(folder).free} are free"
            text += ": make room, then go on with --resume auto"
    return text


# --- Reading ---


def read_checkpoint(path: Path) -> StateDict:
    """Read and verify a checkpoint; executes no code. Tensors are on the CPU, in memory of their own.

    Raises:
        CheckpointError: A file is missing, damaged, or not one of a checkpoint; the message says which and where.
    """
    from ._checkpoint_tensors import read_tensors
    from ._state_decoder import decode_state
    from ._state_files import LIMIT_BYTES

    place = place_of(path)
    manifest = check_checkpoint(place)
    size = manifest.files[TREE].size_bytes
    if size > LIMIT_BYTES:
        raise damaged(place / TREE, f"has {size} bytes, at most {LIMIT_BYTES} are possible")
    text = bytearray(size)
    _read_file(place / TREE, manifest.files[TREE], lambda source: source.read_exactly(memoryview(text)))
    tensors = _read_file(
        place / TENSORS,
        manifest.files[TENSORS],
        partial(read_tensors, place / TENSORS, size_bytes=manifest.files[TENSORS].size_bytes),
    )
    try:
        return decode_state(bytes(text), tensors)
    except (ValueError, RecursionError) as error:
        raise damaged(place / TREE, f"is not what a checkpoint holds: {error}") from error


def verify_checkpoint(path: Path) -> Manifest:
    """Read every file of a checkpoint and compare it with its digests.

    Raises:
        CheckpointError: A file is missing or damaged; the message says which and where.
    """
    place = place_of(path)
    manifest = check_checkpoint(place)
    for name, facts in manifest.files.items():
        _read_file(place / name, facts, _Source.read_all)
    return manifest


class _Source:
    """Reads a file from its beginning and digests what is read."""

    def __init__(self, file: BinaryIO) -> None:
        self.digests = Digests()
        self._file = file

    def read_exactly(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes.

        Raises:
            ValueError: There are not as many.
        """
        while len(buffer):
            part = buffer[:BLOCK_BYTES]
            count = self._file.readinto(part)  # type: ignore[attr-defined]
            if not count:
                message = f"it ends after {self.digests.size_bytes} bytes"
                raise ValueError(message)
            self.digests.update(part[:count])
            buffer = buffer[count:]

    def read_all(self) -> None:
        """Read what is left."""
        buffer = memoryview(bytearray(BLOCK_BYTES))
        while count := self._file.readinto(buffer):  # type: ignore[attr-defined]
            self.digests.update(buffer[:count])


def _read_file(path: Path, expected: FileFacts, read: Callable[[_Source], Any]) -> Any:
    """Read a file in one pass; what was read is returned only if it has the right digest.

    Raises:
        CheckpointError: It has not, or cannot be read.
    """
    problem: Exception | None = None
    result = None
    try:
        with os.fdopen(open_file(path), "rb", buffering=0) as file:
            source = _Source(file)
            try:
                result = read(source)
            except (ValueError, RuntimeError, MemoryError, TypeError, KeyError, RecursionError) as error:
                problem = error
                file.seek(0)
                source = _Source(file)
            source.read_all()
    except OSError as error:
        raise damaged(path, f"cannot be read: {in_words(error)}") from error
    if (difference := differences(source.digests.facts(), expected)) is not None:
        raise damaged(path, difference) from problem
    if problem is not None:
        raise damaged(path, f"is not what a checkpoint holds: {problem}") from problem
    return result
