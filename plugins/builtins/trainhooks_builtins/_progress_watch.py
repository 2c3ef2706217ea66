"""Looks at a run, on the thread that draws, and says what is to be drawn; no plugin."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from ._progress_activity import Activity
from ._progress_readings import counts, latest_metrics, metric_names, run_name, short, speed, time_left, time_split
from ._progress_view import View, bar, panel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console, RenderableType

    from trainhooks import Trainer
    from trainhooks.best import Best

    from ._progress_rate import Rate

_LONG_S = 1.0  # after which it is said what is being waited for


class Watch:
    """Looks at the run of the calling thread.

    Args:
        trainer: Whose run it is.
        rate: Of its steps.
        clock: Returns seconds.
        chosen: Which metrics to show.
        best: The best value of each metric that was evaluated.
    """

    def __init__(
        self, trainer: Trainer, rate: Rate, clock: Callable[[], float], chosen: Sequence[str], best: dict[str, Best]
    ) -> None:
        self._trainer = weakref.ref(trainer)
        self._rate, self._clock, self._chosen, self._best = rate, clock, chosen, best
        self._activity = Activity(threading.get_ident())

    @property
    def batches(self) -> tuple[int, int | None]:
        """Batches of the running evaluation that are done, and how many it has, if that is known."""
        return self._activity.batches

    @batches.setter
    def batches(self, value: tuple[int, int | None]) -> None:
        self._activity.batches = value

    def bar(self, console: Console) -> RenderableType | None:
        """Return a line, or ``None`` while somebody debugs."""
        trainer = self._trainer()
        if trainer is None or (view := self._view(trainer)) is None:
            return None
        return bar(view, latest_metrics(trainer, self._chosen), console)

    def panel(self, console: Console) -> RenderableType | None:
        """Return the panel, or ``None`` while somebody debugs."""
        trainer = self._trainer()
        if trainer is None or (view := self._view(trainer)) is None:
            return None
        view.metrics, view.split = self._rows(trainer), time_split(trainer)
        if trainer.outcome is None:
            view.activity = view.activity or "training"
        return panel(view, console)

    def _view(self, trainer: Trainer) -> View | None:
        now, step = self._clock(), trainer.step
        doing = self._activity.look(trainer, now)
        if doing is None:
            return None
        self._rate.observe(step, now)
        what, seconds = doing
        shown = seconds >= _LONG_S or what.startswith(("evaluating", "predicting"))
        return View(
            run_name(trainer),
            step,
            trainer.total_steps,
            counts(trainer),
            time_left(trainer, self._rate, step, now),
            speed(trainer, self._rate.per_second(step, now)),
            activity=f"{what} ({seconds:.1f} s)" if what and shown else "",
            notes=_notes(trainer),
        )

    def _rows(self, trainer: Trainer) -> list[tuple[str, str, str, str]]:
        latest = dict(trainer.metrics)
        rows = []
        for name in metric_names(trainer, self._chosen):
            if name not in latest:
                continue
            median = trainer.smoothed(name)
            rows.append((name, short(latest[name]), "" if median is None else short(median), self._best_of(name, latest)))
        return rows

    def _best_of(self, name: str, latest: dict[str, float]) -> str:
        best = self._best.get(name)
        former = latest.get(f"best/{name}")  # of the runs that this one is resumed from, too
        if best is not None and best.value is not None and former in (None, best.value):
            return f"{short(best.value)} at step {best.step}"
        return "" if former is None else short(former)


def _notes(trainer: Trainer) -> list[str]:
    """Return what is about to happen, and what goes on beside the training."""
    notes = []
    if trainer.interruption is not None:
        notes.append(f"ending: {trainer.interruption.reason}")
    elif trainer.stop_reason is not None and trainer.outcome is None:
        notes.append(f"ending: {trainer.stop_reason}")
    if trainer.pending_saves:
        notes.append("a checkpoint is being written in the background")
    return notes
