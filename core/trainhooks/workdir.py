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
        if self.path.exists() and not self.path.is_dir():
            message = f"work_dir {self.path} is a file; name a folder"
            raise UsageError(message)
        longest = len(os.fsencode(self.path.name))
        if longest > 255:  # noqa: PLR2004 - NAME_MAX of every common file system
            message = f"work_dir {self.path}: the folder's name has {longest} bytes, at most 255 are possible"
            raise UsageError(message)
        if self.is_run and not resume and not overwrite:
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
        self.path.mkdir(parents=True, exist_ok=True)
        if self.is_run:
            self._names = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))["files"]
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
        if not self.path.is_dir():
            log.warning("the run folder %s was removed; it is made anew", self.path)
            self._names = []
        if name not in self._names:
            if path.exists():
                message = f"{path} exists and was not made by trainhooks; move it away or name another work_dir"
                raise UsageError(message)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._names.append(name)
            self._write()
        return path

    def forget(self, name: str) -> None:
        """Take a name off the list, when its file has been removed."""
        if name in self._names:
            self._names.remove(name)
            self._write()

    def _write(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / f".{MANIFEST}.tmp"
        temporary.write_text(json.dumps({"format": 1, "files": self._names}, indent=1), encoding="utf-8")
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
