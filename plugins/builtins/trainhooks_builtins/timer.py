"""``timer``: how long steps take, and how long they wait for data."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trainhooks import hookimpl
from trainhooks.metrics import FOLD

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
        self._totals: dict[str, list[float]] = {}
        self._each_step: dict[str, Series] = {}
        self._step_began: float | None = None
        self._step_ended: float | None = None
        self._pauses = 0

    @property
    def totals(self) -> dict[str, list[float]]:
        """Calls and seconds of each stage over the whole run, resumed runs included."""
        for series in self._each_step.values():
            series.fold()
        return {stage: total for stage, total in self._totals.items() if total[0]}

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Look up once what each step needs."""
        self._data, self._step = trainer.bus.series(_NAMES["data"]), trainer.bus.series(_NAMES["step"])
        self._each_step = {"data": self._data, "step": self._step}
        self._tally()

    @hookimpl
    def before_epoch(self) -> None:
        """Begin to wait for the first batch."""
        self._step_ended = self._clock()

    @hookimpl
    def before_step(self) -> None:
        """Note the beginning; what went before it was waiting for data."""
        now = self._step_began = self._clock()
        if self._step_ended is not None:
            series = self._data  # its add() in place: a call costs more than all of this
            series.values.append(now - self._step_ended)
            series.weights.append(1)
            if len(series.values) >= FOLD:
                series.fold()

    @hookimpl(trylast=True)
    def after_step(self) -> None:
        """Log the step, after what others do at its end, which is no waiting for data."""
        now = self._step_ended = self._clock()
        if self._step_began is not None:
            series = self._step
            series.values.append(now - self._step_began)
            series.weights.append(1)
            if len(series.values) >= FOLD:
                series.fold()
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
        total = self._totals.setdefault(stage, [0, 0.0])
        total[0] += 1
        total[1] += seconds
        trainer.log(_NAMES[stage], seconds)
        self._pauses -= 1
        if self._pauses == 0:
            if self._step_began is not None:
                self._step_began += seconds
            elif self._step_ended is not None:
                self._step_ended += seconds

    def _tally(self) -> None:
        for stage, series in self._each_step.items():
            series.tally = self._totals.setdefault(stage, [0, 0.0])

    def state_dict(self) -> dict[str, Any]:
        """Return the totals; a stage that is running is not among them."""
        return {"totals": {stage: list(total) for stage, total in self.totals.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved totals."""
        self._totals = {stage: list(total) for stage, total in state["totals"].items()}
        self._tally()
        self._step_began = self._step_ended = None
