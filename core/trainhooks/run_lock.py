"""The lock of a run folder: one training at a time writes to it, and a process that dies, however it dies, frees it.

``flock`` belongs to the opened file. So it holds against another trainer in this process as against another process, and it
is not lost when anybody in this process opens and closes the file, as copying the folder does; a POSIX lock (``lockf``) would
be. What is opened is inherited by a fork, though: a loader's worker that outlives a killed parent would keep the lock, so a
child closes its copies at once.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import socket
import stat
import sys
import time
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from .errors import UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

log = logging.getLogger("trainhooks")

LOCK: Final = "run.lock"
_UNSUPPORTED: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_TRIES, _PAUSE_S = 10, 0.02  # somebody who only looks holds the lock for some microseconds
_LONGEST: Final = 65_536

#: Descriptors of the locks that this process holds: what a forked child has to close, and nothing else.
_held: set[int] = set()


def _close_copies() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


class RunLock:
    """The lock of one folder, to be held with ``acquire`` and ``release`` or in a ``with`` block.

    Args:
        folder: Of the run; it must be there.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._descriptor: int | None = None
        self._process = 0

    @property
    def held(self) -> bool:
        """Whether this object holds the lock; its copy in a forked child does not."""
        return self._descriptor is not None and self._process == os.getpid()

    def acquire(self) -> bool:
        """Take the lock, or do without where the file system has none.

        Returns:
            Whether there is a lock now.

        Raises:
            UsageError: Somebody else has it; the message names the process.
        """
        if self.held:
            return True
        if fcntl is None:
            log.debug("this system has no flock: %s is not locked", self.path.parent)
            return False
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE_S)
            descriptor = self._open()
            _held.add(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not self._is_in_place(descriptor):  # its last holder removed it meanwhile
                    self._close(descriptor)
                    continue
            except BlockingIOError:
                self._close(descriptor)
                continue
            except OSError as error:
                self._close(descriptor)
                if error.errno not in _UNSUPPORTED:
                    raise self._refused(error) from None
                log.debug("the file system of %s has no locks (%s): it is not locked", self.path.parent, error.strerror)
                return False
            self._descriptor, self._process = descriptor, os.getpid()
            try:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(_myself()).encode())
            except OSError as error:
                self.release()
                raise self._refused(error) from None
            return True
        who = holder(self.path.parent) or "another process"
        message = f"work_dir {self.path.parent} is in use by {who}: wait for it, or name another folder"
        raise UsageError(message)

    def release(self) -> None:
        """Give the lock back and remove its file."""
        descriptor, held = self._descriptor, self.held
        self._descriptor = None
        if descriptor is None or not held:
            return
        try:
            if self._is_in_place(descriptor):
                self.path.unlink()
        except OSError as error:
            log.debug("%s stays: %s", self.path, error)
        self._close(descriptor)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.release()

    def _open(self) -> int:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise self._refused(error) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            message = f"cannot lock work_dir {self.path.parent}: {self.path} is no file; remove it"
            raise UsageError(message)
        return descriptor

    def _refused(self, error: OSError) -> UsageError:
        return UsageError(
            f"cannot lock work_dir {self.path.parent}: {self.path}: {error.strerror}; name a folder that is yours"
        )

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self.path))
        except FileNotFoundError:
            return False

    @staticmethod
    def _close(descriptor: int) -> None:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that is being forked just now may have a copy
        _held.discard(descriptor)
        os.close(descriptor)


def holder(folder: Path) -> str | None:
    """Return who trains in a folder, in words, or ``None`` if nobody does as far as locks tell; changes nothing."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    _held.add(descriptor)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _in_words(_content(descriptor))
        except OSError:
            return None
        return None
    finally:
        RunLock._close(descriptor)


def _content(descriptor: int) -> bytes:
    """Read what a holder wrote, who may have the lock since just now and is about to write."""
    for _ in range(_TRIES):
        if content := os.pread(descriptor, _LONGEST, 0):
            return content
        time.sleep(_PAUSE_S)
    return b""


def _myself() -> dict[str, Any]:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": now, "command": shlex.join(sys.argv)}


def _in_words(content: bytes) -> str:
    """Describe the holder by what it wrote, which may be anything."""
    try:
        found = json.loads(content)
        since = datetime.fromisoformat(found["started"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        host, command = ("".join(c if c.isprintable() else "?" for c in str(found[key]))[:200] for key in ("host", "command"))
        pid = int(found["pid"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another process"
    here = pid == os.getpid() and host == socket.gethostname()
    return f"{'another Trainer of this process' if here else f'process {pid} on {host}'} since {since} (command {command})"
