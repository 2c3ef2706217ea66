"""The run folder: made, refused or taken over, locked while a training runs, and recorded in ``run.json``.

What trainhooks creates in it is listed there, so that nothing else is ever removed. The record is replaced as a whole, so a
process that is killed leaves the one before.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .durable import make_folder, replace_text, sync_folder
from .errors import UsageError
from .run_lock import LOCK, RunLock, holder
from .run_record import RECORD, checkpoints_of, is_run, left_nothing, now, outcome_of, read_record

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("trainhooks")

#: What is there before the first record is, and no sign of somebody else's folder.
_PASSING: Final = (LOCK, f".{RECORD}.tmp")
_AGES_S: Final = 1e10
#: What a training that goes on keeps of the record before.
_KEPT: Final = ("id", "parent", "started", "resumed", "checkpoint", "best", "logs_begin", "hyperparameters")


class RunFolder:
    """A folder that a run writes to.

    Args:
        path: May be relative: it is fixed now, whatever the working directory becomes.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link that the user chose
        #: What ``run.json`` holds besides the list of files.
        self.record: dict[str, Any] = {}
        #: Where an earlier run was looked for in vain, so that this folder is a new one: for a message.
        self.sought = ""
        self._former: dict[str, Any] | None = None
        self._names: list[str] = []
        self._known = False  # whether the list is this run's
        self._adopts = False  # whether a former run's list is lost, so that what this run writes is taken for its own
        self._lock = RunLock(self.path)
        self._link = self.path / "checkpoints"  # which may be a link to another disk
        self._link_lock: RunLock | None = None
        #: Whether a training is writing here now.
        self.is_open = False
        self._began, self._seconds_before = 0.0, 0.0
        self._writing = threading.RLock()  # a checkpoint may be finished by another thread

    @property
    def is_run(self) -> bool:
        """Whether a run has written here before: there is its record, or at least a checkpoint."""
        return is_run(self.path)

    def check(self, *, resume: bool, overwrite: bool) -> None:
        """Refuse a folder that this run must not write to; changes nothing.

        Raises:
            UsageError: With the path and the remedy.
        """
        self._check_path()
        if self._link.is_symlink() and not self._link.is_dir():
            message = (
                f"{self._link} is a link to {self._link.readlink()}, where no folder is: mount or make it, or remove the link"
            )
            raise UsageError(message)
        self._check_free()
        refusal = None if self._known or overwrite else self._refusal(resume=resume)
        if refusal is not None:
            self._check_free()  # what is in the way may be of a run that has begun meanwhile
            raise UsageError(refusal)

    def _check_free(self) -> None:
        if not self._lock.held and (who := holder(self.path)) is not None:
            message = f"work_dir {self.path} is in use by {who}: wait for it, or name another folder"
            raise UsageError(message)
        place = self._linked_place()
        if place is not None and self._link_lock is None and (who := holder(place)) is not None:
            message = f"{self._link} is a link to {place}, which is in use by {who}: link it to a folder of its own"
            raise UsageError(message)

    def _refusal(self, *, resume: bool) -> str | None:
        """Return why what is in the folder must not be touched. A run's record is there before its files: they are listed first."""
        passing = (*_PASSING, self._link.name) if self._is_linked else _PASSING
        try:
            others = self.path.is_dir() and any(one.name not in passing for one in self.path.iterdir())
        except OSError as error:
            message = f"cannot read work_dir {self.path}: {error.strerror}"
            raise UsageError(message) from None
        if self.is_run:
            if resume or left_nothing(self.path):
                return None
            return (
                f"work_dir {self.path} holds a former run: resume it with --resume auto (train(resume='auto')), "
                "replace it with --overwrite (Trainer(overwrite=True)), or name another folder"
            )
        if not others:
            return None
        return (
            f"work_dir {self.path} is not empty and holds no run of trainhooks: name another folder, or write beside "
            "what is there with --overwrite (Trainer(overwrite=True)), which removes nothing that trainhooks did not make"
        )

    def _check_path(self) -> None:
        longest = max((len(os.fsencode(part)) for part in self.path.parts), default=0)
        if longest > 255:  # noqa: PLR2004 - NAME_MAX of every common file system
            message = f"work_dir {self.path}: a name in it has {longest} bytes, at most 255 are possible"
            raise UsageError(message)
        if "\0" in str(self.path):
            message = f"work_dir {str(self.path)!r}: a path cannot hold a NUL character"
            raise UsageError(message)
        try:
            above = next((one for one in (self.path, *self.path.parents) if one.exists()), None)
        except OSError as error:
            message = f"work_dir {self.path}: {error.strerror}; name another folder"
            raise UsageError(message) from None
        if above is not None and not above.is_dir():
            message = f"work_dir {self.path}: {above} is a file; name a folder"
            raise UsageError(message)

    # --- Beginning and end of a training ---

    def open(self, *, resume: bool, overwrite: bool, facts: Mapping[str, Any] | None = None) -> None:
        """Make the folder, or take it over from a former run, and hold its lock until ``close``.

        Args:
            resume: Keep what a former run has made.
            overwrite: Remove what a former run has made.
            facts: What the record says of this run.

        Raises:
            UsageError: It cannot be made, or belongs to somebody else; nothing was changed then.
        """
        self.check(resume=resume, overwrite=overwrite)
        try:
            make_folder(self.path)
            self._sync_above()
        except OSError as error:
            message = f"cannot make work_dir {self.path}: {error.strerror}"
            raise UsageError(message) from None
        locked = self._lock.acquire()
        try:
            if (place := self._linked_place()) is not None:
                self._link_lock = RunLock(place)
                locked = self._link_lock.acquire() and locked
            self.check(resume=resume, overwrite=overwrite)  # another run may have come and gone meanwhile
            former = read_record(self.path) if resume or self._known else None
            if not self._known and self.is_run:
                self._take_over(resume=resume)
            self._known = True
            kept: dict[str, Any] = {key: former[key] for key in _KEPT if key in former} if former is not None else {}
            seconds = former.get("seconds") if former is not None else None
            before = float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < _AGES_S else 0.0
            self._began, self._seconds_before = time.monotonic(), before
            self._former = former
            self.record = {**(facts or {}), **kept, "status": "running", "locked": locked}
            self.is_open = True
            self._write()
        except BaseException as error:
            self.is_open = False
            self._unlock()
            if not isinstance(error, OSError):
                raise
            message = f"cannot write to work_dir {self.path}: {error.strerror}"
            raise UsageError(message) from None

    def _sync_above(self) -> None:
        """Make the folder's name and those above it durable: a process that made them may have been killed before it did that."""
        device = self.path.stat().st_dev
        for one in self.path.parents:
            if one.stat().st_dev != device:
                return
            if os.access(one, os.R_OK):
                try:
                    sync_folder(one)
                except OSError as error:
                    log.warning(
                        "cannot sync the folder %s: %s; after a power cut it may lack what is new in it", one, error.strerror
                    )

    def update(self, made: str | None = None, **facts: Any) -> None:
        """Change the record; that it cannot be written is a warning, since the run is worth more.

        Args:
            made: A file or folder that is the run's, listed if it is not yet.
            facts: What is new.
        """
        with self._writing:
            self.record.update(facts)
            if made is not None and made not in self._names:
                self._names.append(made)
            if self.path.is_dir():
                self._write_or_warn()

    def close(self, **facts: Any) -> None:
        """Write the record of a training that is over, and give the lock back."""
        if not self.is_open:
            return
        try:
            self.update(**{"status": "failed", **facts})
        finally:
            self.is_open = False
            self._unlock()

    @property
    def _is_linked(self) -> bool:
        return self._link.is_symlink() and self._link.is_dir()

    def _linked_place(self) -> Path | None:
        """Return where to lock what the folder of checkpoints is a link to, as on a large disk: two runs must not write there."""
        if not self._is_linked:
            return None
        place = self._link.resolve()
        place = place.parent if (place.parent / RECORD).is_file() else place  # the folder of another run is locked as a whole
        return None if place == self.path.resolve() else place

    def _unlock(self) -> None:
        if self._link_lock is not None:
            self._link_lock.release()
            self._link_lock = None
        self._lock.release()

    def abandon(self, **facts: Any) -> None:
        """Close as if this run had not been: it could not restore what the former one has made, whose record stays."""
        if self.is_open and self._former is not None:
            self.record, facts = dict(self._former), {"status": self._former.get("status", "failed")}
        self.close(**facts)

    # --- Files ---

    def file(self, name: str) -> Path:
        """Return the path of a file or folder of this run, listed as its own.

        Raises:
            UsageError: Something of that name is there that trainhooks did not make, or the name leaves the folder.
        """
        path = self.path / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            message = f"run_file({name!r}): must be a name inside the run folder"
            raise UsageError(message)
        self.check_links(path)
        with self._writing:
            if not self._known:
                self._join()
            if not self.path.is_dir():
                self._remake()
            if name not in self._names:
                if path.exists() and not self._adopts:
                    message = f"{path} exists and was not made by trainhooks; move it away or name another work_dir"
                    raise UsageError(message)
                make_folder(path.parent)
                self._names.append(name)
                self._write_or_warn()
        return path

    def check_links(self, path: Path) -> None:
        """Refuse to write through a link, to what is no part of this folder, or to a pipe or device.

        Args:
            path: Of a file or folder in it.

        Raises:
            UsageError: One of the folders on the way or the file itself is a link, or it is no file.
        """
        way = [one for one in (path, *path.parents) if self.path in one.parents and one != self._link]
        odd = path.exists() and not path.is_file() and not path.is_dir()
        wrong = [one for one in way if one.is_symlink() or (one == path and odd)]
        if wrong:
            message = f"{wrong[-1]} is a link or no file, and was not made by trainhooks; move it away or name another work_dir"
            raise UsageError(message)

    def forget(self, name: str) -> None:
        """Take a name off the list, when its file has been removed; while a training runs the next change writes that too."""
        with self._writing:
            if name in self._names:
                self._names.remove(name)
                if not self.is_open:
                    self._write_or_warn()

    def _join(self) -> None:
        """Write beside what a former run made, for an evaluation or prediction, which opens no folder; keep its list."""
        if self.is_run:
            self.record = read_record(self.path) or {}
            names = self._former_names()
            self._names = names if names is not None else self._found_names()
        elif not self.path.is_dir():
            self.path.mkdir(parents=True)
            self._known = True

    def _remake(self) -> None:
        log.warning("the run folder %s was removed; it is made anew", self.path)
        make_folder(self.path)
        self._names = []
        if self._lock.held:
            self._lock.release()
            self._lock.acquire()

    def _former_names(self) -> list[str] | None:
        """Return what the former run lists as its own, or ``None`` where its list is lost."""
        names = (read_record(self.path) or {}).get("files")
        return [str(name) for name in names] if isinstance(names, list) else None

    def _found_names(self) -> list[str]:
        """Return what is certain to be a former run's where its list is lost; what this run writes will be its own."""
        what = "is missing or damaged; the checkpoints, and what this run writes, are taken for the run's own"
        log.warning("%s %s", self.path / RECORD, what)
        self._adopts = True
        return [f"checkpoints/{path.name}" for path in checkpoints_of(self.path)]

    def _take_over(self, *, resume: bool) -> None:
        names = self._former_names()
        if resume:
            self._names = names if names is not None else self._found_names()
            return
        if names is None:
            message = (
                f"{self.path / RECORD} is damaged or missing, so it is not known what the former run made: remove {self.path} "
                "yourself, or name another folder"
            )
            raise UsageError(message)
        if names:
            log.info("replacing the former run in %s (%s)", self.path, outcome_of(read_record(self.path) or {}, running=False))
        self._names = names
        self._remove_former()

    def _write_or_warn(self) -> None:
        try:
            self._write()
        except OSError as error:
            log.warning("cannot update %s: %s; it is tried again with the next change", self.path / RECORD, error.strerror)

    def _write(self) -> None:
        if self.is_open:
            self.record["seconds"] = round(self._seconds_before + time.monotonic() - self._began, 1)
            self.record["updated"] = now()
        text = json.dumps({"format": 1, **self.record, "files": self._names}, indent=1, allow_nan=False)
        replace_text(self.path / RECORD, text)

    def _remove_former(self) -> None:
        """Remove what the former run's list names, never through a link, and folders that this leaves empty."""
        self._names = [name for name in self._names if self._is_inside(name)]
        for name in self._names:
            path = self.path / name
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.is_dir():
                shutil.rmtree(path)
        for parent in sorted({(self.path / name).parent for name in self._names} - {self.path}, reverse=True):
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        self._names = []

    def _is_inside(self, name: str) -> bool:
        """Return whether a name of a list, which somebody may have edited, is that of something within this folder."""
        parts = Path(name).parts
        if not parts or ".." in parts or "\0" in name or Path(name).is_absolute():
            return False
        if max(len(os.fsencode(part)) for part in parts) > 255:  # noqa: PLR2004 - see above
            return False
        if any((self.path / Path(*parts[:count])).is_symlink() for count in range(1, len(parts))):
            log.warning("%s is behind a link: it is not removed", self.path / name)
            return False
        return True
