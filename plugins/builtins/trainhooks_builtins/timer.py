"""``timer``: how long steps take, and how long they wait for data."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from trainhooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from trainhooks import Trainer
    from trainhooks.types import Metrics


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

    @property
    def totals(self) -> dict[str, list[float]]:
        """Calls and seconds of each stage over the whole run, resumed runs included."""
        self._settle()
        return {stage: list(total) for stage, total in self._totals.items()}

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Log what was measured whenever metrics are flushed."""
        self._series = {stage: trainer.bus.series(_NAMES[stage]) for stage in ("data", "step")}
        self._marks = trainer.mark_steps(self._clock)
        trainer.bus.before_flush.append(self._settle)

    @hookimpl
    def teardown(self, trainer: Trainer) -> None:
        """Measure no more."""
        trainer.step_marks = None
        trainer.bus.before_flush.remove(self._settle)

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
    def save_checkpoint(self, trainer: Trainer) -> Generator[None, Path, Path]:
        """Time a checkpoint."""
        began = self._pause()
        try:
            return (yield)
        finally:
            self._resume(trainer, "checkpoint", began)

    def _pause(self) -> float:
        self._pauses += 1
        return self._clock()

    def _resume(self, trainer: Trainer, stage: str, began: float) -> None:
        """Add a stage; the outermost of nested ones moves the marks of the step and of the waiting past it."""
        seconds = self._clock() - began
        self._count(stage, [seconds])
        trainer.log(_NAMES[stage], seconds)
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
        marks = self._marks
        ended = (len(marks) - 1) // 2 * 2  # index of the end of the last whole step
        if ended > 0:
            self._add("data", [marks[i + 1] - marks[i] for i in range(0, ended, 2)])
            self._add("step", [marks[i + 1] - marks[i] for i in range(1, ended, 2)])
            del marks[:ended]

    def _add(self, stage: str, seconds: list[float]) -> None:
        self._count(stage, seconds)
        self._series[stage].extend(seconds)

    def _count(self, stage: str, seconds: list[float]) -> None:
        total = self._totals.setdefault(stage, [0, 0.0])
        total[0] += len(seconds)
        total[1] += math.fsum(seconds)

    def state_dict(self) -> dict[str, Any]:
        """Return the totals; a stage that is running is not among them."""
        return {"totals": self.totals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved totals."""
        self._totals = {stage: list(total) for stage, total in state["totals"].items()}
        self._marks.clear()
