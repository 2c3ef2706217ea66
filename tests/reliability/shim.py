"""Builds and steers ``faultshim.c``: faults at the n-th file operation of this process, and a record of all of them.

A process uses it only if it was started with it: ``run_under_shim`` starts a script so, ``loaded`` gives it there.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import support

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(__file__).with_name("faultshim.c")
KINDS = ("", "create", "write", "fsync", "rename", "unlink", "mkdir", "rmdir", "link", "truncate", "symlink", "mark")
NEW, EMPTIED, EXCHANGED = 1, 2, 2
ENTRY = struct.Struct("<4I3Q")


class Operation(NamedTuple):
    """One change of the file system, as it succeeded.

    Attributes:
        kind: One of ``KINDS``.
        flags: ``NEW`` and ``EMPTIED`` of a create, ``EXCHANGED`` of a rename.
        path: What was changed, or ``""`` where the file is known by its inode only.
        target: The second path of a rename or link.
        inode: Of the file or folder; the number of a mark.
        offset: Where a write began.
        size: To which a file was cut.
        data: What was written.
    """

    kind: str
    flags: int
    path: str
    target: str
    inode: int
    offset: int
    size: int
    data: bytes

    def __str__(self) -> str:
        return " ".join(
            str(part) for part in (self.kind, self.path, self.target, f"#{self.inode}", len(self.data)) if part != ""
        )


def build() -> Path:
    """Compile the library into a cache folder of this user, once for each version of its source."""
    source = SOURCE.read_bytes()
    folder = Path(tempfile.gettempdir()) / f"trainhooks-faultshim-{os.getuid()}"
    library = folder / f"{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not library.exists():
        folder.mkdir(exist_ok=True)
        building = library.with_suffix(f".{os.getpid()}")
        command = ["gcc", "-O2", "-Wall", "-shared", "-fPIC", "-D_LARGEFILE64_SOURCE", "-o", building, SOURCE]
        subprocess.run([*command, "-ldl", "-lpthread"], check=True)
        building.replace(library)
    return library


class Shim:
    """The library in this process.

    Args:
        library: What ``build`` gave, preloaded.
    """

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.fi_mark.argtypes = [ctypes.c_uint64]
        self._paths = ctypes.c_char.in_dll(self._library, "fi_path")

    def set(self, **values: int) -> None:
        """Set variables of the library: ``kill_at=3``."""
        for name, value in values.items():
            ctypes.c_int.in_dll(self._library, f"fi_{name}").value = value

    def get(self, name: str) -> int:
        """Return a variable of the library."""
        return ctypes.c_int.in_dll(self._library, f"fi_{name}").value

    def reset(self) -> None:
        """Ask for no fault and count from 0."""
        self._library.fi_reset()

    def watch(self, folder: Path | None) -> None:
        """Count what happens below a folder, or nothing."""
        data = (os.fsencode(folder) if folder is not None else b"") + b"\0"
        ctypes.memmove(ctypes.addressof(self._paths), data, len(data))

    def names(self) -> list[str]:
        """Return what each operation so far was: ``"write /path"``."""
        text = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(self._library, "fi_names")))
        return os.fsdecode(text).splitlines()

    def mark(self, number: int) -> None:
        """Put a number of the test's own into the record."""
        self._library.fi_mark(number)


def loaded() -> Shim:
    """Return the library in this process, which must have been started with it."""
    library = build()
    if str(library) not in os.environ.get("LD_PRELOAD", "").split(":"):
        message = f"this process was started without {library.name}: use run_under_shim"
        raise RuntimeError(message)
    return Shim(library)


def run_under_shim(script: str | Path, *arguments: str) -> Any:
    """Run a script with the library loaded, show what it prints, and return the JSON value of its last line."""
    environment = {**os.environ, "LD_PRELOAD": str(build()), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(script), *arguments]
    last = ""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if last:
                print(last, flush=True)
            last = line.rstrip("\n")
    if process.returncode:
        message = f"{' '.join(map(str, command))} exited with {process.returncode}; its last line: {last}"
        raise RuntimeError(message)
    return json.loads(last)


class ShimScript:
    """A script whose scenarios run under the shim: as ``run``, called from another module, and as the script's ``main``.

    Args:
        script: Its path.
        count: What it does, given the share of the work, the names of scenarios and whether to print every fault; returns the counters.
    """

    def __init__(self, script: str, count: Callable[[float, list[str], bool], dict[str, int]]) -> None:
        self.script, self.count = script, count

    def run(self, scale: float = 1.0, only: tuple[str, ...] = (), patch: str = "") -> dict[str, int]:
        """Do it in a process with the shim and return the counters.

        Args:
            scale: Share of the work.
            only: Names of scenarios.
            patch: ``module:function`` that is called first in that process, to seed a fault.
        """
        words = ("--scale", str(scale), "--only", ",".join(only), "--patch", patch)
        counts: dict[str, int] = run_under_shim(self.script, *words)
        return counts

    def main(self, about: str | None, more: str = "") -> None:
        """Print the counters, as JSON in the last line.

        Args:
            about: Of the script.
            more: What else than scenarios ``--only`` may name.
        """
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--scale", type=float, default=1.0, help="share of the work")
        parser.add_argument("--only", default="", help=f"names of scenarios{more}, with commas")
        parser.add_argument("--patch", default="", help="module:function that is called first")
        parser.add_argument("--verbose", action="store_true", help="every fault, not only the first 20")
        given = parser.parse_args()
        if "faultshim" not in os.environ.get("LD_PRELOAD", ""):
            counts = run_under_shim(self.script, *sys.argv[1:])
        else:
            support.call(given.patch)
            counts = self.count(given.scale, [name for name in given.only.split(",") if name], given.verbose)
        print(json.dumps(counts))


def read_record(path: Path) -> list[Operation]:
    """Return what was recorded in a file."""
    data, place, found = path.read_bytes(), 0, []
    while place < len(data):
        kind, flags, length1, length2, inode, offset, size = ENTRY.unpack_from(data, place)
        place += ENTRY.size
        one, two = data[place : place + length1], data[place + length1 : place + length1 + length2]
        place += length1 + length2
        written = data[place : place + size] if KINDS[kind] == "write" else b""
        place += len(written)
        found.append(Operation(KINDS[kind], flags, os.fsdecode(one), os.fsdecode(two), inode, offset, size, written))
    return found
