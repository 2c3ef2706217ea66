"""Requests that MLflow takes: each has at most so many entries, and so many bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MAX_METRICS: Final = 1000
MAX_ENTRIES: Final = 100  # of parameters, and of tags
#: MLflow takes a million.
_MAX_BYTES: Final = 900_000
#: In JSON a character is one byte or, with a backslash, two; up to twelve where it has none; around an entry there are names and numbers.
_PLAIN, _ESCAPED = 2, 12
_BYTES_AROUND: Final = 120

T = TypeVar("T")


def batches(entries: Iterable[T], most: int, text: Callable[[T], str]) -> Iterator[list[T]]:
    """Cut entries into requests.

    Args:
        entries: All of them.
        most: How many a request takes.
        text: Returns what there is of text in one.
    """
    batch: list[T] = []
    size = 0
    for entry in entries:
        found = text(entry)
        its_size = _BYTES_AROUND + len(found) * (_PLAIN if found.isascii() and found.isprintable() else _ESCAPED)
        if batch and (len(batch) == most or size + its_size > _MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += its_size
    if batch:
        yield batch
