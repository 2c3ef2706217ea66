"""Copies of files and folders, made in one go and never over another."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK: Final = 2**20


def keep(source: Path, folder: Path, name: str, *, link: bool) -> Path:
    """Have a file or folder under ``name`` in ``folder``, or under a name with a number where another one has that.

    What is there already with the same content is not copied again. Links to files are followed; what is neither file nor folder
    in a folder (pipes, devices, links to folders) is left out.

    Args:
        source: A file or folder.
        folder: It must be there.
        name: One path component.
        link: Make hard links where the file system can, instead of copies.

    Raises:
        OSError: It is gone, or cannot be read or written; then nothing is left behind.
    """
    target, number = folder / name, 1
    while os.path.lexists(target):
        if _same(source, target):
            return target
        number += 1
        target = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
    temporary = folder / f".{target.name}.tmp"
    _remove(temporary)
    try:
        if source.is_dir():
            _copy_folder(source, temporary, link=link)
        else:
            _copy_file(source, temporary, link=link)
        temporary.rename(target)
    except BaseException:
        with suppress(OSError):
            _remove(temporary)
        raise
    return target


def size_of(path: Path) -> tuple[int, int]:
    """Return how many files there are, and their bytes."""
    if not path.is_dir():
        return 1, path.stat().st_size
    sizes = [one.stat().st_size for _, one in files_in(path)]
    return len(sizes), sum(sizes)


def files_in(folder: Path, without: Path | None = None) -> Iterator[tuple[Path, Path]]:
    """Give each file in a folder and below it, its path from there and its path, but not what is in ``without``."""
    for root, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if without is None or not _is(Path(root, name), without))
        for name in sorted(names):
            path = Path(root, name)
            with suppress(FileNotFoundError):  # a link that leads nowhere
                if stat.S_ISREG(path.stat().st_mode):
                    yield path.relative_to(folder), path


def _is(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except FileNotFoundError:
        return False


def _raise(error: OSError) -> None:
    raise error


def _copy_folder(source: Path, target: Path, *, link: bool) -> None:
    target.mkdir()
    for name, path in files_in(source, without=target.parent):  # which it may hold
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        _copy_file(path, target / name, link=link)


def _copy_file(source: Path, target: Path, *, link: bool) -> None:
    if link:
        try:
            os.link(source.resolve(), target)
        except OSError:  # another file system, or one without hard links: a copy does
            link = False
    if not link:
        shutil.copyfile(source, target)
        shutil.copystat(source, target)


def _same(source: Path, target: Path) -> bool:
    if source.is_dir() != target.is_dir():
        return False
    if not source.is_dir():
        return target.is_file() and _same_content(source, target)
    ours, theirs = dict(files_in(source, without=target.parent)), dict(files_in(target))
    return ours.keys() == theirs.keys() and all(_same_content(path, theirs[name]) for name, path in ours.items())


def _same_content(one: Path, other: Path) -> bool:
    """Return whether two files are alike; what is written twice within a moment may have the same size and time."""
    if one.samefile(other):
        return True
    with one.open("rb") as ours, other.open("rb") as theirs:
        if os.fstat(ours.fileno()).st_size != os.fstat(theirs.fileno()).st_size:
            return False
        while chunk := ours.read(_CHUNK):
            if chunk != theirs.read(_CHUNK):
                return False
        return not theirs.read(1)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
