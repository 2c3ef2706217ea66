"""What becomes of records that wait for a reporter when there are too many of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .media import Logged
from .metrics import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")

#: How full a queue may be after it was thinned, so that this is done again only after many more records.
ROOM: Final = 0.75
#: What a value of a record takes: a name in a dict, and a number.
_VALUE_BYTES: Final = 100


def thinned(items: Iterable[T], most: int) -> tuple[list[T], int]:
    """Return what is left of the items, in order, and how many values or other items were left out.

    Of two records in a row the older loses the values that the newer has too, so what is logged seldom, an evaluation for example,
    is kept. Where that gains little, since records in a row have not the same names, each name loses every second value. What is
    no record, and what is the only value of its name, stays, but the newest beyond ``most``.

    Args:
        items: Records and others, by time.
        most: How many there may be.
    """
    kept, left_out = _of_neighbours(items)
    if len(kept) > most * ROOM:
        kept, more = _of_names(kept)
        left_out += more
    return kept[:most], left_out + max(len(kept) - most, 0)


def lightened(items: Iterable[T], most_bytes: int) -> tuple[list[T], int]:
    """Return what is left of items that take too much memory, in order, and how many values or media were left out.

    Of records and media those that take more are thinned: each name loses every second one, again and again if need be. What is
    the only one of its name goes last, the oldest first. The largest item does not count, and is the last to go.

    Args:
        items: Records and others, by time.
        most_bytes: What they may take beside the largest one.
    """
    kept, left_out = list(items), 0
    while (excess := sum(map(size_of, kept)) - largest(kept) - most_bytes * ROOM) > 0:
        records = [item for item in kept if isinstance(item, Record)]
        media = [item for item in kept if isinstance(item, Logged)]
        of_records = sum(map(size_of, records)) > sum(map(size_of, media))
        kept, more = _of_names(kept) if of_records else _media_of_names(kept)
        if not more:
            kept, more = _without_oldest(kept, records if of_records else media, excess)
        left_out += more
    return kept, left_out


def size_of(item: object) -> int:
    """Return what an item takes in memory, roughly, in bytes; a file that is only named takes none."""
    if isinstance(item, Record):
        return _VALUE_BYTES * len(item.values)
    return item.size_bytes if isinstance(item, Logged) else 0


def largest(items: Iterable[object]) -> int:
    """Return the size of the largest item, 0 where there is none."""
    return max(map(size_of, items), default=0)


def _of_neighbours(items: Iterable[T]) -> tuple[list[T], int]:
    kept: list[Any] = []
    left_out = 0
    older: int | None = None  # where the record is that the next one makes a pair with
    for item in items:
        kept.append(item)
        if not isinstance(item, Record):
            continue
        if older is None:
            older = len(kept) - 1
            continue
        values = kept[older].values
        rest = {name: value for name, value in values.items() if name not in item.values}
        left_out += len(values) - len(rest)
        kept[older] = replace(kept[older], values=rest)
        older = None
    return _not_empty(kept), left_out


def _of_names(items: list[T]) -> tuple[list[T], int]:
    left_out = 0
    older: dict[str, dict[str, float]] = {}  # by name the values of the record that it is in and may be dropped from
    kept: list[Any] = []
    for item in items:
        if not isinstance(item, Record):
            kept.append(item)
            continue
        values = dict(item.values)
        kept.append(replace(item, values=values))
        for name in item.values:
            before = older.pop(name, None)
            if before is None:
                older[name] = values
            else:
                del before[name]
                left_out += 1
    return _not_empty(kept), left_out


def _media_of_names(items: Sequence[T]) -> tuple[list[T], int]:
    older: dict[tuple[type, str], int] = {}  # by kind and name the one that may be dropped
    dropped: set[int] = set()
    for index, item in enumerate(items):
        if isinstance(item, Logged):
            before = older.pop((type(item), item.name), None)
            if before is None:
                older[type(item), item.name] = index
            else:
                dropped.add(before)
    return [item for index, item in enumerate(items) if index not in dropped], len(dropped)


def _without_oldest(items: Sequence[T], these: Sequence[object], excess: float) -> tuple[list[T], int]:
    """Drop the oldest of ``these``, as many as it takes to gain ``excess`` bytes, but not the largest item."""
    spared = max(reversed(items), key=size_of)
    dropped: dict[int, int] = {}  # by identity, how many values it has
    for item in these:
        if excess <= 0:
            break
        if item is not spared:
            dropped[id(item)] = len(item.values) if isinstance(item, Record) else 1
            excess -= size_of(item)
    return [item for item in items if id(item) not in dropped], sum(dropped.values())


def _not_empty(items: list[Any]) -> list[Any]:
    return [item for item in items if not isinstance(item, Record) or item.values]
