"""Small files and folders that are there after a power cut, as a whole or as they were before."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that it has the old or the new text at any moment, also after a power cut.

    Raises:
        OSError: What the system says; the file is as it was.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("x", encoding="utf-8") as file:  # never through a link, and never waiting for a pipe
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave an empty file under the final name
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, each of them durable."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in missing[::-1]:
        sync_folder(one.parent)


def sync_folder(path: Path) -> None:
    """Make durable what was made, renamed or removed in a folder."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that knows no such thing
            raise
    finally:
        os.close(descriptor)
