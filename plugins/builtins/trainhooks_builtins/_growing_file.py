"""A file that grows by whole deliveries: one that fails midway is taken back, and a kill costs no more than the last line."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

log = logging.getLogger("trainhooks")

_BUFFER: Final = 2**20


class GrowingFile:
    """Appends to a file, unbuffered, and knows how long it is meant to be.

    Args:
        path: Its folder must be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._excess = False  # whether a write that failed may have left something behind
        #: Bytes that count; what is behind them is not ours.
        self.size = 0

    def open(self) -> None:
        """Open it, made if it is not there."""
        self.close()
        self._file = self.path.open("ab", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size
        self._excess = False

    def close(self) -> None:
        """Close it."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def is_in_place(self) -> bool:
        """Return whether the path still leads to the file that is open, and that is as long as was written at least."""
        if self._file is None:
            return False
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        ours = os.fstat(self._file.fileno())
        return ours.st_size >= self.size and os.path.samestat(ours, found)

    def append(self, data: bytes) -> None:
        """Add bytes; when that fails nothing of them counts.

        Raises:
            OSError: What the system says.
        """
        if self._excess:
            self.cut(self.size)
        assert self._file is not None  # noqa: S101 - opened before
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BaseException:
            self.take_back(self.size)
            raise
        self.size += len(data)

    def take_back(self, size: int) -> None:
        """Forget what was appended since it had ``size`` bytes; if that fails, the next ``append`` sees to it first."""
        self.size, self._excess = size, True
        with suppress(OSError):
            self.cut(size)

    def cut(self, size: int) -> None:
        """Make it as long as given.

        Raises:
            OSError: What the system says.
        """
        if self._file is not None:
            self._file.truncate(size)
        else:
            os.truncate(self.path, size)
        self.size, self._excess = size, False

    def replace(self, chunks: Iterable[bytes]) -> None:
        """Put another content in its place in one go, which is durable before it takes that place.

        Raises:
            OSError: What the system says; the file is as it was.
        """
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        try:
            temporary.unlink(missing_ok=True)
            with temporary.open("xb", buffering=_BUFFER) as file:  # never through a link
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        if self._file is not None:
            self.open()
        else:
            self.size = self.path.stat().st_size


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Give the whole lines from here on: not what a kill has cut, nor the zeros that a power cut may leave at the end."""
    for line in file:
        if not line.endswith(b"\n"):
            return
        yield line


def keep_lines(file: GrowingFile, start: int, wanted: Callable[[bytes], bool | None]) -> tuple[int, bool]:
    """Find out which lines are to be kept, and cut the file behind the last one if they are all together.

    Args:
        file: Not open.
        start: Where the first line begins.
        wanted: Says of a line whether it is to be kept; ``None`` for one that is damaged.

    Returns:
        How many are kept, and whether the file has to be written anew, since others are between them.
    """
    kept, end, position, gap, scattered = 0, start, start, False, False
    with file.path.open("rb") as source:
        source.seek(start)
        for line in lines_of(source):
            position += len(line)
            decision = wanted(line)
            if decision:
                kept, end, scattered = kept + 1, position, scattered or gap
            else:
                gap = True
                if decision is None:
                    log.warning(
                        "%s: dropped a line that is no record: %.40r",
                        file.path,
                        line.strip(b"\0")[:40].decode("utf-8", "replace"),
                    )
    if not scattered:
        file.cut(end)
    return kept, scattered
