"""What waits for one reporter: bounded in number and in memory, thinned when there is more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from .metrics import Record
from .thinning import ROOM, largest, lightened, size_of, thinned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .media import Media

CAPACITY: Final = 10_000
MOST_BYTES: Final = 256 * 2**20
#: What one call is handed at most, since a reporter gets copies of images; one item that is larger comes alone.
_CALL_BYTES: Final = 32 * 2**20


@dataclass(frozen=True)
class Artifact:
    """A file that was logged, and when, as counts of what is done and seconds of the clock."""

    path: Path
    name: str
    kind: str
    step: int = 0
    update: int = 0
    epoch: int = 0
    time: float = 0.0


Item: TypeAlias = "Record | Media | Artifact"


class Backlog:
    """Items in order; whoever uses it from several threads has a lock.

    Args:
        capacity: Items that may wait.
        most_bytes: What they may take, roughly, beside the largest one, which must get through however large it is.
    """

    def __init__(self, capacity: int = CAPACITY, most_bytes: int = MOST_BYTES) -> None:
        self.capacity, self.most_bytes = capacity, most_bytes
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._room_bytes = most_bytes
        self._full = False  # whether thinning has gained little, so that it is not done again until some of it is taken
        #: Values and other items that were left out since there was too much.
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    @property
    def fills_a_call(self) -> bool:
        """Whether it takes as much memory as one call is handed at most."""
        return self._bytes >= _CALL_BYTES

    def append(self, item: Item) -> None:
        """Let an item wait; leave others out, or this one, if there are too many."""
        if self._full and len(self._items) >= self.capacity:
            self.left_out += len(item.values) if isinstance(item, Record) else 1
            return
        self._items.append(item)
        self._bytes += size_of(item)
        if len(self._items) > self.capacity:
            kept, left_out = thinned(self._items, self.capacity)
            self._full = len(kept) > self.capacity * ROOM
            self._replace(kept, left_out)
        if self._bytes > self._room_bytes:
            self._replace(*lightened(self._items, self.most_bytes))
            self._room_bytes = self.most_bytes + largest(self._items)

    def _replace(self, kept: Sequence[Item], left_out: int) -> None:
        self._items = deque(kept)
        self._bytes = sum(map(size_of, kept))
        self.left_out += left_out

    def take(self, most: int) -> list[Item]:
        """Take what goes into one call of a hook: items of one kind, an artifact alone."""
        group: list[Item] = []
        room = _CALL_BYTES
        while self._items and len(group) < most:
            item = self._items[0]
            room -= size_of(item)
            if group and (room < 0 or hook_for(item) != hook_for(group[0]) or isinstance(item, Artifact)):
                break
            group.append(self._items.popleft())
        self._bytes -= sum(map(size_of, group))
        self._room_bytes = self.most_bytes
        self._full = self._full and len(self._items) > self.capacity * ROOM
        return group

    def put_back(self, group: Sequence[Item]) -> None:
        """Undo ``take``."""
        self._items.extendleft(reversed(group))
        self._bytes += sum(map(size_of, group))

    def clear(self) -> int:
        """Forget everything; return how much it was."""
        count, self._bytes = len(self._items), 0
        self._items.clear()
        return count


def hook_for(item: Item) -> str:
    """Return the hook that an item is for."""
    if isinstance(item, Record):
        return "report_metrics"
    return "report_artifact" if isinstance(item, Artifact) else "report_media"
