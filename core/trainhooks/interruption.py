"""Ending a run from outside, by a signal for example: what was asked, and whether it can be done this very moment.

A run ends where its state is that between two steps. Only a wait for workers of a loader may be cut off: what they load is
loaded again by the resumed run, and the main process has drawn nothing for it. Whether there is such a wait is read off the
stack when it is asked, so that it costs a step nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import CO_GENERATOR
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import CodeType, FrameType

_TORCH_LOADER: Final = ("torch.utils.data.dataloader", "_get_data")  # where the main process asks its workers for a batch
#: Where it has nothing of it yet: it looks at the queue of the workers, or waits for the thread that pins what they send.
_NOTHING_YET: Final = (("multiprocessing.connection", "_poll"), ("threading", "wait"))


@dataclass
class Interruption:
    """A request to end the run, leaving it so that it can be resumed exactly.

    Args:
        error: Raised from ``train()`` when everything is done.
        reason: In words, for the outcome and the log.
        exact: Whether the run has ended between two steps, with the random numbers of that place.
        hurried: Whether it was asked again to end at once, so that nothing is saved or waited for.
    """

    error: BaseException
    reason: str
    exact: bool = True
    hurried: bool = False


@dataclass(frozen=True)
class Wait:
    """A wait for the next batch.

    Args:
        reader: The frame of the loop that waits.
        on_workers: Whether it is torch's wait for worker processes, of which nothing has come yet.
    """

    reader: FrameType
    on_workers: bool


def find_wait(frame: FrameType | None, readers: Collection[CodeType]) -> Wait | None:
    """Return what the calling thread waits for, if that is the next batch of one of our loops.

    Args:
        frame: The innermost frame.
        readers: The code of the loops.
    """
    inner: FrameType | None = None
    nothing_yet = on_workers = False
    while frame is not None:
        if frame.f_code in readers:
            fetches = inner is not None and (inner.f_code.co_name == "__next__" or bool(inner.f_code.co_flags & CO_GENERATOR))
            return Wait(frame, on_workers) if fetches else None
        place = (frame.f_globals.get("__name__"), frame.f_code.co_name)
        nothing_yet = nothing_yet or place in _NOTHING_YET
        on_workers = on_workers or (nothing_yet and place == _TORCH_LOADER)
        inner, frame = frame, frame.f_back
    return None
