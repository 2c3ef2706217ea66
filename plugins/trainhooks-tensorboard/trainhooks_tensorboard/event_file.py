"""Event files of TensorBoard: written through at each delivery, whole or not at all, and cut back when a run is resumed."""

from __future__ import annotations

import io
import os
import re
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Final

from .protos import protos

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_HEADER: Final = struct.Struct("<QI")  # length of the record, and its checksum
_FOOTER: Final = 4  # bytes of the checksum of the record
_NAME: Final = re.compile(r"events\.out\.tfevents\.(\d+)\..*\.(?P<kind>hparams|records)\.(?P<run>[^.]+)\.trainhooks")


def find(folder: Path) -> list[tuple[Path, str, str]]:
    """Return what trainhooks wrote in a folder, in the order that TensorBoard reads: paths, kinds, and ids of runs.

    Files of anybody else are not among them, so they are never touched.
    """
    if not folder.is_dir():
        return []
    found = [(path, _NAME.fullmatch(path.name)) for path in sorted(folder.iterdir())]
    return [(path, match["kind"], match["run"]) for path, match in found if match]


def new_paths(folder: Path, run: str) -> tuple[Path, Path]:
    """Return paths for hyperparameters and for records, in that order for readers too, and after all that is there.

    Readers go by the name, whose seconds may stand still or be set back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    matches = [re.match(r"events\.out\.tfevents\.(\d{10})\.", one.name) for one in folder.iterdir()]
    second = max([int(time.time()), *(int(match[1]) + 1 for match in matches if match)])
    begin = f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}"
    return folder / f"{begin}.hparams.{run}.trainhooks", folder / f"{begin}.records.{run}.trainhooks"


class EventFile:
    """One event file; the first event says what version it has.

    Args:
        path: Where it will be; there must be nothing yet.
        first: Further events to begin with.
    """

    def __init__(self, path: Path, first: Iterable[Any] = ()) -> None:
        proto = protos()
        self.path = path
        self._file = path.open("xb", buffering=0)
        self._size = 0
        try:
            self.append([proto.Event(wall_time=time.time(), file_version="brain.Event:2"), *first])
        except BaseException:
            self._file.close()
            raise

    def append(self, events: Iterable[Any]) -> None:
        """Write events, all or none: what raises has left nothing, so the same may be written again."""
        data = memoryview(encoded(events))
        try:
            done = 0
            while done < len(data):
                done += self._file.write(data[done:])
        except BaseException:
            self._file.truncate(self._size)
            self._file.seek(self._size)
            raise
        self._size += len(data)

    @property
    def is_there(self) -> bool:
        """Whether nobody has removed it."""
        return self.path.exists()

    def close(self) -> None:
        """Close it."""
        self._file.close()


def encoded(events: Iterable[Any]) -> bytes:
    """Return events as records with checksums."""
    proto = protos()
    data = io.BytesIO()
    writer = proto.RecordWriter(data)
    for event in events:
        writer.write(event.SerializeToString())
    return data.getvalue()


def cut(path: Path, keep: Callable[[Any], bool]) -> None:
    """Cut a file before the first event that is not to be kept, or that a kill has left incomplete."""
    with path.open("r+b") as file:
        end = 0
        for event in _read(file):
            if not keep(event):
                break
            end = file.tell()
        file.truncate(end)


def read(path: Path) -> list[Any]:
    """Return the whole events of a file."""
    with path.open("rb") as file:
        return list(_read(file))


def _read(file: io.BufferedIOBase) -> Iterable[Any]:
    proto = protos()
    size = os.fstat(file.fileno()).st_size
    while len(header := file.read(_HEADER.size)) == _HEADER.size:
        length, _ = _HEADER.unpack(header)
        if file.tell() + length + _FOOTER > size:
            return
        data = file.read(length)
        file.seek(_FOOTER, os.SEEK_CUR)
        try:
            yield proto.Event.FromString(data)
        except proto.DecodeError:
            return
