"""What is done on another thread, as a future; no plugin."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def run_into(future: Future[T], work: Callable[[], T]) -> None:
    """Do it, and pass on how that went."""
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


def nothing() -> Future[Any]:
    """Return what is done already, and has come to nothing."""
    future: Future[Any] = Future()
    future.set_result(None)
    return future
