"""``timer``: how long steps take, and how long they wait for data."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from trainhooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from trainhooks import Trainer
    from trainhooks.types import Metrics


_ATTEMPTS = 10
_NAMES = {stage: f"time/{stage}" for stage in ("step", "data", "evaluate", "checkpoint")}


class Timer:
    """Measures the host time of steps, of waiting for data, of evaluations and of checkpoints.

    Logs ``time/step`` (seconds from one ``before_step`` to its ``after_step``, with what other plugins do in them) and
    ``time/data`` (seconds from one ``after_step`` to the next ``before_step``: waiting for the loader and moving the batch).
    Evaluations and checkpoints count for neither. On an accelerator work is queued, so the time of a single step may show up
    in a later one.

    Args:
        clock: Returns seconds; only differences are used.
    """

    phase = "bookkeeping"

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._totals: dict[str, list[float]] = {}
        self._marks: list[float] = []  # see mark_steps
        self._pauses = 0
        self._changes = 0  # odd while the marks are being turned into totals

    @property
    def totals(self) -> dict[str, list[float]]:
        """Calls and seconds of each stage over the whole run, resumed runs included."""
        self._settle()
        return {stage: list(total) for stage, total in self._totals.items()}

    def so_far(self) -> dict[str, list[float]]:
        """Return what ``totals`` would be without changing anything: for threads that look at a running training.

        Empty where it was changed under their eyes each time.
        """
        for _ in range(_ATTEMPTS):
            changes = self._changes
            found, marks = {stage: list(total) for stage, total in dict(self._totals).items()}, list(self._marks)
            if changes == self._changes and not changes % 2:
                data, step = _lengths(marks)
                for stage, seconds in (("data", data), ("step", step)):
                    total = found.setdefault(stage, [0, 0.0])
                    total[0] += len(seconds)
                    total[1] += math.fsum(seconds)
                return found
        return {}

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Log what was measured whenever metrics are flushed."""
        self._series = {stage: trainer.bus.series(_NAMES[stage]) for stage in ("data", "step")}
        self._marks = trainer.mark_steps(self._clock)
        trainer.bus.before_flush.append(self._settle)
        trainer._save_begins.append(self._time_save)

    @hookimpl
    def teardown(self, trainer: Trainer) -> None:
        """Measure no more."""
        trainer.step_marks = None
        trainer.bus.before_flush.remove(self._settle)
        trainer._save_begins.remove(self._time_save)

    @hookimpl
    def before_epoch(self) -> None:
        """Begin to wait for the first batch."""
        self._wait()

    @hookimpl
    def after_skip(self) -> None:
        """Do not time a step that did not happen, only the waiting for it."""
        if self._marks and len(self._marks) % 2 == 0:
            began = self._marks.pop()
            self._add("data", [began - self._marks[-1]])
        self._wait()

    @hookimpl(wrapper=True)
    def evaluate(self, trainer: Trainer) -> Generator[None, Metrics, Metrics]:
        """Time an evaluation."""
        began = self._pause()
        try:
            return (yield)
        finally:
            self._resume(trainer, "evaluate", began)

    @hookimpl(wrapper=True)
    def save_checkpoint(self) -> Generator[None, Path, Path]:
        """Count a checkpoint; its time is longer than this, see ``_time_save``."""
        try:
            return (yield)
        finally:
            self._count("checkpoint", 1, 0.0)

    def _time_save(self, trainer: Trainer) -> Callable[[], None]:
        """Time a checkpoint, with waiting for the one before and what follows it, until what is returned is called."""
        return partial(self._resume, trainer, "checkpoint", self._pause(), calls=0)

    def _pause(self) -> float:
        self._pauses += 1
        return self._clock()

    def _resume(self, trainer: Trainer, stage: str, began: float, calls: int = 1) -> None:
        """Add a stage; the outermost of nested ones moves the marks of the step and of the waiting past it."""
        seconds = self._clock() - began
        self._count(stage, calls, seconds)
        if trainer.outcome is None:  # what the end of a run takes is no record of its own
            trainer.log(_NAMES[stage], seconds, reduce="sum")
        self._pauses -= 1
        if self._pauses == 0:
            self._settle()
            self._marks[:] = [mark + seconds for mark in self._marks]

    def _wait(self) -> None:
        """Begin to wait for data now."""
        self._settle()
        self._marks[:] = [self._clock()]

    def _settle(self) -> None:
        """Turn the marks into seconds; those of a running step stay."""
        data, step = _lengths(self._marks)
        if step:
            self._changes += 1
            self._add("data", data)
            self._add("step", step)
            del self._marks[: 2 * len(step)]
            self._changes += 1

    def _add(self, stage: str, seconds: list[float]) -> None:
        self._count(stage, len(seconds), math.fsum(seconds))
        self._series[stage].extend(seconds)

    def _count(self, stage: str, calls: int, seconds: float) -> None:
        total = self._totals.setdefault(stage, [0, 0.0])
        total[0] += calls
        total[1] += seconds

    def state_dict(self) -> dict[str, Any]:
        """Return the totals; a stage that is running is not among them."""
        return {"totals": self.totals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved totals."""
        self._totals = {stage: list(total) for stage, total in state["totals"].items()}
        self._marks.clear()


def _lengths(marks: list[float]) -> tuple[list[float], list[float]]:
    """Return the seconds of waiting and of steps, of the whole ones."""
    ended = (len(marks) - 1) // 2 * 2  # index of the end of the last whole step
    data = [marks[i + 1] - marks[i] for i in range(0, ended, 2)]
    return data, [marks[i + 1] - marks[i] for i in range(1, ended, 2)]
