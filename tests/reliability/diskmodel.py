"""What a disk may hold after a power cut, worked out from a record of file operations.

The model is conservative, as that of ALICE (OSDI 2014) is:

- what was written to a file and not synced is there wholly, by half, not at all, or as zeros;
- a change of a folder (a name that is new, moved or removed) is there or not, each for itself, until that folder is synced. To sync
  a file does not make its name durable.

A rename is one change; from one folder to another it is durable when the second one is synced.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shim import EMPTIED, EXCHANGED, NEW, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = 0
#: What may be there of data that was not synced.
LEVELS = ("all", "none", "half", "zeros")
Tree = dict[str, "bytes | None"]


class Change(NamedTuple):
    """A change of a folder: ``name`` in ``folder`` becomes ``node``, or nothing; a rename also removes the other name."""

    folder: int
    name: str
    node: int | None
    source: tuple[int, str] | None = None
    swapped: int | None = None  # what the source's name becomes in an exchange

    def apply(self, entries: dict[tuple[int, str], int]) -> None:
        """Do it."""
        if self.source is not None:
            entries.pop(self.source, None)
            if self.swapped is not None:
                entries[self.source] = self.swapped
        if self.node is None:
            entries.pop((self.folder, self.name), None)
        else:
            entries[self.folder, self.name] = self.node


@dataclass
class File:
    """What was written to a file: the part that is durable, and what came after."""

    durable: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)  # (offset, data); data at -1: cut to that size
    data: bytearray = field(default_factory=bytearray)

    def do(self, offset: int, data: bytes, size: int | None = None) -> None:
        """Write, or with ``size`` cut or lengthen."""
        self.pending.append((-1 - size, b"") if size is not None else (offset, data))
        _write(self.data, *self.pending[-1])

    def sync(self) -> None:
        """Make all of it durable."""
        self.durable, self.pending = bytes(self.data), []

    def at(self, level: str) -> bytes:
        """Return what may be on the disk."""
        if level == "all" or not self.pending:
            return bytes(self.data)
        if level == "none":
            return self.durable
        if level == "zeros":
            return self.durable[: len(self.data)] + bytes(max(0, len(self.data) - len(self.durable)))
        found, done = bytearray(self.durable), (len(self.pending) + 1) // 2
        for offset, data in self.pending[:done]:
            _write(found, offset, data[: len(data) // 2] if len(self.pending) == 1 else data)
        return bytes(found)


def _write(target: bytearray, offset: int, data: bytes) -> None:
    if offset < 0:
        size = -1 - offset
        del target[size:]
        target.extend(bytes(size - len(target)))
        return
    target.extend(bytes(max(0, offset - len(target))))
    target[offset : offset + len(data)] = data


class Disk:
    """A file system of which is known what is durable.

    Args:
        root: A folder that exists; what is in it now is durable.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[int, File] = {}
        self.entries: dict[tuple[int, str], int] = {}  # with every change done
        self.durable: dict[tuple[int, str], int] = {}
        self.pending: list[Change] = []
        self.marks: list[int] = []
        self._nodes = {root.stat().st_ino: ROOT}
        self._made = itertools.count(1)
        for path in sorted(root.rglob("*")):
            node = self._new(path.lstat().st_ino)
            self.entries[self._place(path)] = node
            if path.is_file():
                self.files[node] = File(path.read_bytes(), [], bytearray(path.read_bytes()))
        self.durable = dict(self.entries)

    def do(self, operation: Operation) -> None:
        """Do what was recorded."""
        kind, path, inode = operation.kind, Path(operation.path), operation.inode
        if kind == "mark":
            self.marks.append(inode)
        elif kind == "create":
            self._create(path, operation)
        elif kind == "write":
            self._file(inode).do(operation.offset, operation.data)
        elif kind == "truncate":
            self._file(inode).do(0, b"", operation.size)
        elif kind == "fsync":
            self._sync(path, inode)
        elif kind == "mkdir":
            self._change(*self._place(path), self._new(inode))
        elif kind == "link":
            self._change(*self._place(Path(operation.target)), self._nodes[inode])
        elif kind in ("unlink", "rmdir"):
            self._change(*self._place(path), None)
        elif kind == "rename":
            source, target = self._place(path), self._place(Path(operation.target))
            swapped = self.entries[target] if operation.flags & EXCHANGED else None
            self._change(*target, self.entries[source], source, swapped)
        else:
            message = f"the model knows no {kind}: {operation}"
            raise NotImplementedError(message)

    def tree(self, entries: dict[tuple[int, str], int] | None = None, levels: dict[int, str] | None = None) -> Tree:
        """Return what is in the folder, with every change done or with these entries and levels of data."""
        entries, levels = self.entries if entries is None else entries, levels or {}
        inside: dict[int, list[tuple[str, int]]] = {}
        for (folder, name), node in entries.items():
            inside.setdefault(folder, []).append((name, node))
        found: Tree = {}

        def walk(folder: int, prefix: str) -> None:
            for name, node in sorted(inside.get(folder, ())):
                file = self.files.get(node)
                found[prefix + name] = file.at(levels.get(node, "all")) if file is not None else None
                if file is None:
                    walk(node, f"{prefix}{name}/")

        walk(ROOT, "")
        return found

    def states(self, most: int, seed: int) -> Iterator[Tree]:
        """Return the states that a power cut may leave now: all of them where they are few, else an even choice.

        Args:
            most: How many choices of changes are tried, all and none of them among these.
            seed: Of the choice.
        """
        choice = random.Random(seed)
        changes = self._relevant()
        pending = [index for index, change in enumerate(self.pending) if change in changes]
        kept: Iterator[set[int]]
        if 2 ** len(pending) <= most:
            kept = (set(itertools.compress(pending, bits)) for bits in itertools.product((0, 1), repeat=len(pending)))
        else:
            near = [{one} for one in pending] + [set(pending) - {one} for one in pending]
            near += [set(pending[:index]) for index in range(2, len(pending) - 1)]  # in the order in which they were done
            some = [{one for one in pending if choice.random() < 0.5} for _ in range(most // 2)]
            kept = iter([set(pending), set[int](), *choice.sample(near, min(len(near), max(0, most - len(some) - 2))), *some])
        for chosen in kept:
            entries = dict(self.durable)
            for index, change in enumerate(self.pending):
                if index in chosen:
                    change.apply(entries)
            present = set(entries.values())
            unsynced = [node for node, file in self.files.items() if file.pending and node in present]
            mixed = [{node: choice.choice(LEVELS) for node in unsynced} for _ in range(2)] if len(unsynced) > 1 else []
            for levels in [dict.fromkeys(unsynced, level) for level in (LEVELS if unsynced else LEVELS[:1])] + mixed:
                yield self.tree(entries, levels)

    def _relevant(self) -> set[Change]:
        """Return the pending changes in folders that can still be reached: what is in a removed one cannot matter."""
        places: dict[int, set[int]] = {}
        for (folder, _), node in self.durable.items():
            places.setdefault(node, set()).add(folder)
        for change in self.pending:
            for node, folder in ((change.node, change.folder), (change.swapped, (change.source or (0, ""))[0])):
                if node is not None:
                    places.setdefault(node, set()).add(folder)

        def reachable(node: int, above: frozenset[int] = frozenset()) -> bool:
            inside = places.get(node, set()) - above
            return node == ROOT or any(reachable(folder, above | {node}) for folder in inside)

        return {
            change for change in self.pending if reachable(change.folder) or (change.source and reachable(change.source[0]))
        }

    def _create(self, path: Path, operation: Operation) -> None:
        if operation.flags & NEW:
            node = self._new(operation.inode)
            self.files[node] = File()
            self._change(*self._place(path), node)
        elif operation.flags & EMPTIED and self._file(operation.inode).data:
            self._file(operation.inode).do(0, b"", 0)

    def _sync(self, path: Path, inode: int) -> None:
        node = self._nodes[inode]
        if node in self.files:
            place = self._place(path)
            if self.entries.get(place) != node:  # a rename by a raw system call, as the Rust of safetensors does it
                source = next(key for key, value in self.entries.items() if value == node)
                self._change(*place, node, source)
            self.files[node].sync()
            return
        for change in self.pending:
            if change.folder == node:
                change.apply(self.durable)
        self.pending = [change for change in self.pending if change.folder != node]

    def _change(
        self, folder: int, name: str, node: int | None, source: tuple[int, str] | None = None, swapped: int | None = None
    ) -> None:
        change = Change(folder, name, node, source, swapped)
        change.apply(self.entries)
        self.pending.append(change)

    def _new(self, inode: int) -> int:
        node = self._nodes[inode] = next(self._made)
        return node

    def _file(self, inode: int) -> File:
        return self.files[self._nodes[inode]]

    def _place(self, path: Path) -> tuple[int, str]:
        """Return the folder and the name of a path."""
        node = ROOT
        *above, name = path.relative_to(self.root).parts
        for part in above:
            node = self.entries[node, part]
        return node, name


def materialise(tree: Tree, folder: Path) -> None:
    """Write a state into an empty folder."""
    for name, data in tree.items():
        path = folder / name
        if data is None:
            path.mkdir()
        else:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(descriptor, data)
            os.close(descriptor)
