"""A mark on a clock that leaves evaluations and checkpoints out; no plugin."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trainhooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from trainhooks import Trainer
    from trainhooks.types import Metrics


class PausedMark:
    """The hooks of a plugin that measures from a mark: evaluations and checkpoints move it past themselves.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._mark: float | None = None
        self._pauses = 0  # stages that are being left out, one inside the other

    def _begin(self) -> None:
        """Measure from now on."""
        self._mark = self._clock()

    def _lap(self) -> float | None:
        """Return the seconds since the mark, if there was one, and measure from now on."""
        began, self._mark = self._mark, self._clock()
        return None if began is None else self._mark - began

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Learn of checkpoints."""
        trainer._save_begins.append(self._leave_save_out)

    @hookimpl
    def teardown(self, trainer: Trainer) -> None:
        """Learn of them no more."""
        trainer._save_begins.remove(self._leave_save_out)

    @hookimpl(wrapper=True)
    def evaluate(self) -> Generator[None, Metrics, Metrics]:
        """Leave an evaluation out."""
        began = self._pause()
        try:
            return (yield)
        finally:
            self._resume(began)

    def _leave_save_out(self, _trainer: Trainer) -> Callable[[], None]:
        """Leave a checkpoint out, with all that belongs to it, until what is returned is called."""
        return partial(self._resume, self._pause())

    def _pause(self) -> float:
        self._pauses += 1
        return self._clock()

    def _resume(self, began: float) -> None:
        """Move the mark past what was left out, once for nested ones."""
        self._pauses -= 1
        if self._pauses == 0 and self._mark is not None:
            self._mark += self._clock() - began
