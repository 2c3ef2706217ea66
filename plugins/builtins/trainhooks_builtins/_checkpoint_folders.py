"""The folders of checkpoints: their names, which there are, which are pinned, and how they are removed. Needs no torch.

While a checkpoint is written, replaced or removed its folder has a hidden name: ``.step-00000100.tmp``, ``.old`` or ``.trash``.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from trainhooks import CheckpointError
from trainhooks.durable import sync_folder

from ._checkpoint_manifest import FILES, NAME, Manifest, damaged, open_file, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

log = logging.getLogger("trainhooks")

PIN: Final = ".pinned"
_STEP: Final = re.compile(r"step-(\d{8,18})")
_HIDDEN: Final = re.compile(r"\.(step-\d{8,18})\.(tmp|old|trash)")


# --- Which there are ---


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, by step; links and what has no manifest are none."""
    with suppress(OSError):
        return read_folder(folder)
    return []


def read_folder(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, by step.

    Raises:
        OSError: It cannot be read, so that it is not known which there are.
    """
    found = [one for one in folder.iterdir() if _STEP.fullmatch(one.name)]
    return sorted((one for one in found if not one.is_symlink() and (one / NAME).is_file()), key=step_of)


def candidates(folder: Path) -> list[Path]:
    """Return everything in a folder that may be a checkpoint, broken ones too, the newest first."""
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        message = f"cannot read the folder of checkpoints {folder}: {in_words(error)}"
        raise CheckpointError(message) from error
    aside = {final_name(one) for one in entries if one.name.endswith(".old") and _HIDDEN.fullmatch(one.name)}
    named = {one for one in entries if _STEP.fullmatch(one.name)}
    return sorted(named | aside, key=step_of, reverse=True)


def read_manifests(paths: Iterable[Path]) -> tuple[dict[Path, Manifest], dict[Path, CheckpointError]]:
    """Return the manifests of checkpoints, and why others cannot be read."""
    found: dict[Path, Manifest] = {}
    errors: dict[Path, CheckpointError] = {}
    for path in paths:
        try:
            found[path] = read_manifest(place_of(path))
        except CheckpointError as error:
            errors[path] = _without_frames(error)
    return found, errors


def _without_frames(error: CheckpointError) -> CheckpointError:
    """Return an error that may be kept: the frames that it came through would keep it, and all that they hold."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = one.__context__ = None  # what is being handled now may be a context: it is let go of, not changed
        one = one.__cause__
    return error


def newest_first(found: Mapping[Path, Manifest], run: str = "") -> list[Path]:
    """Return checkpoints in the order in which a run goes back to them.

    That is the one that was saved last, then those that it went on from, which have fewer steps. Later steps that were left, when
    the run was resumed at an older one, follow, and those of other runs.

    Args:
        found: Their manifests.
        run: The ``id`` of the run.
    """
    ages = {path: (manifest.run == run, manifest.serial, manifest.step) for path, manifest in found.items()}
    line: list[Path] = []
    left: list[Path] = []
    for path in sorted(ages, key=ages.__getitem__, reverse=True):
        own, _, step = ages[path]
        leads_there = not line or (own == ages[line[0]][0] and step < ages[line[-1]][2])
        (line if leads_there else left).append(path)
    return line + left


def is_checkpoint(path: Path) -> bool:
    """Return whether a path stands for one checkpoint, broken ones too, not for a folder of several."""
    place = place_of(path)
    return (place / NAME).is_file() or (step_of(path) >= 0 and place.is_dir())


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint's folder, or -1."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else -1


def place_of(path: Path) -> Path:
    """Return where a checkpoint is: while another one of its step is put in its place it has stepped aside."""
    aside = hidden_name(path, "old")
    return aside if not os.path.lexists(path) and aside.is_dir() and not aside.is_symlink() else path


def check_checkpoint(path: Path) -> Manifest:
    """Read the manifest and compare it with the names and sizes of what is in the folder; no file is read.

    Raises:
        CheckpointError: Something is missing, of another size, or does not belong there.
    """
    manifest = read_manifest(path)
    if (step := step_of(final_name(path))) not in (-1, manifest.step):
        raise damaged(path / NAME, f"is of step {manifest.step}, the folder of step {step}: it was put in the wrong place")
    try:
        names = foreign_names(path)
    except OSError as error:
        raise damaged(path, f"cannot be read: {in_words(error)}") from error
    if names:
        raise damaged(path / names[0], "does not belong to the checkpoint")
    for name, facts in manifest.files.items():
        descriptor = open_file(path / name)
        try:
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size != facts.size_bytes:
            raise damaged(path / name, f"has {size} bytes, {NAME} says {facts.size_bytes}")
    return manifest


# --- Pins ---


def is_pinned(path: Path) -> bool:
    """Return whether a checkpoint is kept whatever happens to the others."""
    return (path / PIN).is_file()


def set_pinned(path: Path, pinned: bool) -> None:
    """Keep a checkpoint whatever happens to the others, or no longer.

    Raises:
        CheckpointError: It is none, or cannot be written to.
    """
    read_manifest(path)
    mark = path / PIN
    try:
        if pinned and not mark.exists():
            write_pin(path)
        elif not pinned:
            mark.unlink(missing_ok=True)
        sync_folder(path)
    except OSError as error:
        message = f"cannot {'pin' if pinned else 'unpin'} the checkpoint {path}: {in_words(error)}"
        raise CheckpointError(message) from error


def write_pin(folder: Path) -> None:
    """Make the mark of a pinned checkpoint, durable but for its name."""
    descriptor = os.open(folder / PIN, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Removing ---


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint; one that is removed in part has no name that is looked at.

    Raises:
        CheckpointError: It cannot be removed, or holds files that are no part of it.
    """
    errors = remove_checkpoints([path])
    if errors:
        raise errors[path]


def remove_checkpoints(paths: Iterable[Path]) -> dict[Path, CheckpointError]:
    """Remove checkpoints; return why those are still there that could not be removed."""
    errors: dict[Path, CheckpointError] = {}
    hidden: dict[Path, Path] = {}
    for path in paths:
        try:
            if path.is_symlink() or not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(path))
            if names := foreign_names(path):
                raise OSError(errno.ENOTEMPTY, "it holds a file that is no part of a checkpoint", str(path / names[0]))
            trash = hidden_name(path, "trash")
            discard(trash)
            path.rename(trash)
            hidden[path] = trash
        except OSError as error:
            errors[path] = _not_removed(path, error)
    for folder in {path.parent for path in hidden}:
        try:
            sync_folder(folder)
        except OSError as error:  # a power cut may bring back names of what is removed below, of which nothing is needed
            log.warning(
                "cannot sync the folder %s: %s; after a power cut it may lack what is new in it", folder, in_words(error)
            )
    for path, trash in hidden.items():
        try:
            discard(trash)
        except OSError as error:
            errors[path] = _not_removed(path, error)
    return errors


def _not_removed(path: Path, error: OSError) -> CheckpointError:
    message = f"cannot remove the checkpoint {path}: {in_words(error)}"
    new = CheckpointError(message)
    new.__cause__ = error
    return new


def remove_remains(path: Path, *, damaged: bool) -> bool:
    """Remove what is left of a checkpoint that was not written to its end, or is known to be damaged; return whether it is gone.

    Raises:
        OSError: It cannot be removed.
    """
    if path.is_symlink() or not path.is_dir() or foreign_names(path):
        return False
    if not damaged:
        try:
            check_checkpoint(path)
        except CheckpointError:
            pass
        else:
            return False
    discard(path)
    return True


def clean_up(folder: Path) -> None:
    """Clean up after a process that was killed while it wrote: put back what had stepped aside, remove the rest."""
    entries = [one for one in folder.iterdir() if _HIDDEN.fullmatch(one.name)]
    if entries:
        with suppress(OSError):
            sync_folder(folder)  # else a power cut may bring back the name of what is removed in part
    for entry in entries:
        try:
            if entry.name.endswith(".old"):
                put_back(final_name(entry))
            discard(entry)
        except OSError as error:
            log.warning("cannot remove the leftover %s: %s; tried again at the next save", entry, in_words(error))


def recover(folder: Path) -> None:
    """Put in order what a killed process has left, before a run goes on: hidden folders, and names that it did not sync."""
    try:
        clean_up(folder)
        sync_folder(folder)
    except OSError as error:
        log.warning("cannot sync the folder %s: %s; after a power cut it may lack what is new in it", folder, in_words(error))


def put_back(path: Path) -> None:
    """Put back what had stepped aside, if nothing is in its place."""
    if place_of(path) != path:
        place_of(path).rename(path)


def discard(path: Path) -> None:
    """Remove a folder of ours by the names that we give, or whatever else has its name; nothing that lies deeper, and no link's aim."""
    if path.is_dir() and not path.is_symlink():
        for entry in list(path.iterdir()):
            if entry.name in FILES or entry.name.startswith("."):
                entry.unlink()
        path.rmdir()
    elif os.path.lexists(path):
        path.unlink()


# --- Names ---


def hidden_name(path: Path, purpose: str) -> Path:
    """Return the hidden name that a checkpoint has for a moment: ``tmp``, ``old`` or ``trash``."""
    return path.parent / f".{path.name}.{purpose}"  # the name of the working directory is empty


def final_name(path: Path) -> Path:
    """Return the path that a folder with a hidden name has, or is to have, in its place."""
    match = _HIDDEN.fullmatch(path.name)
    return path.with_name(match[1]) if match else path


def foreign_names(folder: Path) -> list[str]:
    """Return the names in a folder that are neither files of a checkpoint nor hidden."""
    return sorted(one.name for one in folder.iterdir() if one.name not in FILES and not one.name.startswith("."))


def in_words(error: OSError) -> str:
    """Return the system's words, the number and the file of an error."""
    text = error.strerror or str(error)
    if error.errno is not None:
        text += f" (errno {error.errno})"
    return f"{text}: {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else text
