"""``timer``: how long steps take, and how long they wait for data."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trainhooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from trainhooks import Trainer
    from trainhooks.metrics import Series
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
        #: Calls and seconds of each stage over the whole run, resumed runs included.
        self.totals: dict[str, list[float]] = {}
        self._step_began: float | None = None
        self._step_ended: float | None = None
        self._pauses = 0

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Look up once what each step needs."""
        self._data, self._step = trainer.bus.series(_NAMES["data"]), trainer.bus.series(_NAMES["step"])

    @hookimpl
    def before_epoch(self) -> None:
        """Begin to wait for the first batch."""
        self._step_ended = self._clock()

    @hookimpl
    def before_step(self) -> None:
        """Note the beginning; what went before it was waiting for data."""
        now = self._step_began = self._clock()
        if self._step_ended is not None:
            self._add("data", now - self._step_ended, self._data)

    @hookimpl(trylast=True)
    def after_step(self) -> None:
        """Log the step, after what others do at its end, which is no waiting for data."""
        now = self._step_ended = self._clock()
        if self._step_began is not None:
            self._add("step", now - self._step_began, self._step)
            self._step_began = None

    @hookimpl
    def after_skip(self) -> None:
        """Do not time a step that did not happen."""
        self._step_began = None
        self._step_ended = self._clock()

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
        self._add(stage, seconds, trainer.bus.series(_NAMES[stage]))
        self._pauses -= 1
        if self._pauses == 0:
            if self._step_began is not None:
                self._step_began += seconds
            elif self._step_ended is not None:
                self._step_ended += seconds

    def _add(self, stage: str, seconds: float, series: Series) -> None:
        total = self.totals.get(stage)
        if total is None:
            total = self.totals[stage] = [0, 0.0]
        total[0] += 1
        total[1] += seconds
        series.add(seconds)

    def state_dict(self) -> dict[str, Any]:
        """Return the totals; a stage that is running is not among them."""
        return {"totals": {stage: list(total) for stage, total in self.totals.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved totals."""
        self.totals = {stage: list(total) for stage, total in state["totals"].items()}
        self._step_began = self._step_ended = None
