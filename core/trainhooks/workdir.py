"""The run folder: made, refused or taken over; what trainhooks creates in it is listed, so that nothing else is ever removed."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Final

from .errors import UsageError

log = logging.getLogger("trainhooks")

MANIFEST: Final = "run.json"


class RunFolder:
    """A folder that a run writes to.

    Args:
        path: May be relative: it is fixed now, whatever the working directory becomes.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link that the user chose
        self._names: list[str] = []
        self._open = False

    @property
    def is_run(self) -> bool:
        """Whether a run has written here before."""
        return (self.path / MANIFEST).is_file()

    def check(self, *, resume: bool, overwrite: bool) -> None:
        """Refuse a folder that this run must not write to; changes nothing.

        Raises:
            UsageError: With the path and the remedy.
        """
        if self._open:
            return
        longest = max((len(os.fsencode(part)) for part in self.path.parts), default=0)
        if longest > 255:  # noqa: PLR2004 - NAME_MAX of every common file system
            message = f"work_dir {self.path}: a name in it has {longest} bytes, at most 255 are possible"
            raise UsageError(message)
        if "\0" in str(self.path):
            message = f"work_dir {str(self.path)!r}: a path cannot hold a NUL character"
            raise UsageError(message)
        above = next((one for one in (self.path, *self.path.parents) if one.exists()), None)
        if above is not None and not above.is_dir():
            message = f"work_dir {self.path}: {above} is a file; name a folder"
            raise UsageError(message)
        if self.is_run and not resume and not overwrite and self._former_names() != []:
            message = (
                f"work_dir {self.path} holds a former run: resume it with --resume auto (train(resume='auto')), "
                "replace it with --overwrite (overwrite=True), or name another folder"
            )
            raise UsageError(message)
        if self.path.is_dir() and not self.is_run and any(self.path.iterdir()) and not overwrite:
            message = (
                f"work_dir {self.path} is not empty and holds no run of trainhooks: name another folder, or write beside "
                "what is there with --overwrite (overwrite=True), which removes nothing that trainhooks did not make"
            )
            raise UsageError(message)

    def open(self, *, resume: bool, overwrite: bool) -> None:
        """Make the folder, or take it over from a former run."""
        if self._open:
            return
        self.check(resume=resume, overwrite=overwrite)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot make work_dir {self.path}: {error.strerror}"
            raise UsageError(message) from None
        if self.is_run:
            self._names = self._taken_over(resume=resume)
            if not resume:
                self._remove_former()
        self._open = True
        self._write()

    def file(self, name: str) -> Path:
        """Return the path of a file or folder of this run, listed as its own.

        Raises:
            UsageError: Something of that name is there that trainhooks did not make, or the name leaves the folder.
        """
        path = self.path / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            message = f"run_file({name!r}): must be a name inside the run folder"
            raise UsageError(message)
        if not self._open:
            self._join()
        if not self.path.is_dir():
            log.warning("the run folder %s was removed; it is made anew", self.path)
            self.path.mkdir(parents=True)
            self._names = []
        if name not in self._names:
            if path.exists():
                message = f"{path} exists and was not made by trainhooks; move it away or name another work_dir"
                raise UsageError(message)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._names.append(name)
            self._write()
        return path

    def _join(self) -> None:
        """Write beside what a former run made, for an evaluation or prediction, which opens no folder; keep its list."""
        if self.is_run:
            self._names = self._taken_over(resume=True)
        elif not self.path.is_dir():
            self.path.mkdir(parents=True)
            self._open = True

    def forget(self, name: str) -> None:
        """Take a name off the list, when its file has been removed."""
        if name in self._names:
            self._names.remove(name)
            self._write()

    def _former_names(self) -> list[str] | None:
        """Return what the former run lists as its own, or ``None`` where its list is damaged."""
        try:
            names = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))["files"]
        except (ValueError, KeyError, TypeError):
            return None
        return [str(name) for name in names] if isinstance(names, list) else None

    def _taken_over(self, *, resume: bool) -> list[str]:
        names = self._former_names()
        if names is None and not resume:
            message = (
                f"{self.path / MANIFEST} is damaged, so it is not known what the former run made: remove {self.path} "
                "yourself, or name another folder"
            )
            raise UsageError(message)
        if names is None:
            log.warning("%s is damaged; everything in the folder is taken for the former run's", self.path / MANIFEST)
            folder = self.path / "checkpoints"
            inside = [f"checkpoints/{entry.name}" for entry in folder.iterdir()] if folder.is_dir() else []
            names = inside + [entry.name for entry in self.path.iterdir() if entry.name not in (MANIFEST, folder.name)]
        return names

    def _write(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / f".{MANIFEST}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"format": 1, "files": self._names}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave an empty list under the final name
        temporary.replace(self.path / MANIFEST)

    def _remove_former(self) -> None:
        """Remove what the former run's list names, never through a link, and folders that this leaves empty."""
        for name in self._names:
            path = self.path / name
            if ".." in Path(name).parts or Path(name).is_absolute():
                continue
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.is_dir():
                shutil.rmtree(path)
        for parent in sorted({(self.path / name).parent for name in self._names} - {self.path}, reverse=True):
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        self._names = []
