"""``progress``: a bar on a terminal and in notebooks, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from trainhooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress as RichProgress

    from trainhooks import Trainer
    from trainhooks.types import Metrics

_REFRESH_S = 0.1
_LINES = 20
_SILENCE_S = 60.0
_TELLING = 3  # metrics that come before the speed


class Rate:
    """Steps per second since this run began; what was done before a resume does not count.

    Args:
        step: Steps done when the clock starts.
        now: Seconds.
    """

    def __init__(self, step: int, now: float) -> None:
        self._step, self._began = step, now

    def per_second(self, step: int, now: float) -> float | None:
        """Return steps per second, or ``None`` while nothing has been done."""
        done, seconds = step - self._step, now - self._began
        return done / seconds if done > 0 and seconds > 0 else None

    def seconds_left(self, step: int, total: int | None, now: float) -> float | None:
        """Return the estimated time to ``total`` steps, or ``None`` where it cannot be known."""
        rate = self.per_second(step, now)
        return None if rate is None or total is None else max(total - step, 0) / rate


class Progress:
    """Shows how far the training is, its latest metrics, its speed and the time left.

    On a terminal and in notebooks with ipywidgets a bar of rich, elsewhere (files, pipes, ``TERM=dumb``) plain lines: about
    20 in a run whose length is known, and at least one a minute; the last one says how it ended. Only the main process
    prints.

    Args:
        style: ``bar``, ``lines``, ``off``, or what fits (``auto``).
        metrics: Which metrics to show; by default those of training and of evaluations, and plain names such as ``lr``.
        clock: Returns seconds; only differences are used.
    """

    phase = "reporting"
    on_error = "disable"

    def __init__(
        self,
        style: Literal["auto", "bar", "lines", "off"] = "auto",
        metrics: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.style, self.metrics = style, metrics
        self._clock = clock
        self._bar: RichProgress | None = None
        self._task: Any = None
        self._rate: Rate | None = None
        self._next_step = 0
        self._next_time = 0.0
        self._shown = -1

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Show the bar, or the first line."""
        if self.style == "auto":
            self._style = "bar" if _is_interactive() else "lines"
        else:
            self._style = self.style
        if not trainer.is_main:
            self._style = "off"
        self._rate = Rate(trainer.step, self._clock())
        self._next_step, self._next_time = trainer.step + 1, 0.0
        if self._style == "off":
            self._next_step = sys.maxsize
        elif self._style == "bar":
            self._bar = _make_bar()
            self._task = self._bar.add_task("train", total=trainer.total_steps, completed=trainer.step, facts="")
            self._bar.start()
        else:
            self._show(trainer, trainer.step)

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """Show the step, if it is time to."""
        if trainer.step + 1 >= self._next_step:
            self._show(trainer, trainer.step + 1)

    @hookimpl
    def after_eval(self, trainer: Trainer, split: str, metrics: Metrics) -> None:
        """Show the result of an evaluation during training."""
        if self._rate is not None and self._style != "off":
            values = "  ".join(f"{name} {_short(value)}" for name, value in metrics.items())
            self._print(f"{split} at step {trainer.step}: {values}")

    @hookimpl
    def after_train(self, trainer: Trainer) -> None:
        """Show the last step and how it ended."""
        if self._rate is None or self._style == "off":
            return
        self._show(trainer, trainer.step, last=True)
        self._close()
        outcome = trainer.outcome
        if outcome is not None:
            reason = f" ({outcome.reason})" if outcome.reason else ""
            self._print(f"{outcome.status}{reason} at {self._counts(trainer, trainer.step)}")
        self._rate = None

    @hookimpl
    def teardown(self) -> None:
        """Close the bar, whatever happened."""
        self._close()
        self._rate = None

    def _show(self, trainer: Trainer, step: int, *, last: bool = False) -> None:
        assert self._rate is not None  # noqa: S101 - set in before_train
        now = self._clock()
        rate, left = self._rate.per_second(step, now), self._rate.seconds_left(step, trainer.total_steps, now)
        metrics, speed = self._metrics(trainer), [f"{_short(rate)} steps/s"] if rate else []
        if self._bar is not None:  # whose end a narrow terminal does not show
            facts = "  ".join([f"{_duration(left)} left", *metrics[:_TELLING], *speed, *metrics[_TELLING:]])
            self._bar.update(self._task, completed=step, facts=facts, total=trainer.total_steps)
            self._next_step = step + max(int((rate or 0) * _REFRESH_S), 1)
            return
        if step != self._shown and (last or now >= self._next_time or self._is_mark(step, trainer.total_steps)):
            self._shown, self._next_time = step, now + _SILENCE_S
            print("  ".join([self._counts(trainer, step), *metrics, *speed, f"{_duration(left)} left"]), flush=True)
        self._next_step = self._next_mark(step, trainer.total_steps, (rate or 0) * (self._next_time - now))

    def _next_mark(self, step: int, total: int | None, in_silence: float) -> int:
        """Return the next step to look at: the next twentieth of the run, or a minute after the last line."""
        by_time = step + max(int(in_silence), 1)
        if total is None:
            return by_time
        part = _part(total)
        return min((step // part + 1) * part, by_time)

    @staticmethod
    def _is_mark(step: int, total: int | None) -> bool:
        return total is not None and step % _part(total) == 0

    def _counts(self, trainer: Trainer, step: int) -> str:
        total = trainer.total_steps
        return f"step {step}/{total}" if total is not None else f"step {step}"

    def _metrics(self, trainer: Trainer) -> list[str]:
        """Return the latest values, the most telling ones first: the loss, evaluations, what else is of training, the rest."""
        metrics, splits = trainer.metrics, set(trainer.loaders) - {"train"}
        names = self.metrics
        if not names:
            parts = {name: name.rpartition("/")[0] for name in metrics}
            telling = {"train/loss": 0} | {name: 1 for name, split in parts.items() if split in splits}
            names = tuple(name for name, split in parts.items() if split in ("", "train") or name in telling)
            names = tuple(sorted(names, key=lambda name: telling.get(name, 2 if parts[name] else 3)))
        return [f"{name} {_short(metrics[name])}" for name in names if name in metrics]

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, flush=True)

    def _close(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()


def _part(total: int) -> int:
    """Return the steps between two lines: a twentieth of the run."""
    return max(-(-total // _LINES), 1)


def _make_bar() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(file=sys.stdout, force_jupyter=True) if _in_notebook() else Console(file=sys.stdout)
    facts = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # what is too long gives way, not the bar and the counts
    columns = (
        BarColumn(bar_width=16, table_column=Column(min_width=16)),
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=9)),
        TextColumn("{task.fields[facts]}", markup=False, table_column=facts),
    )
    return Progress(*columns, console=console, refresh_per_second=10, expand=True)


def _is_interactive() -> bool:
    if _in_notebook():
        return find_spec("ipywidgets") is not None  # rich draws its bar with it, and shows nothing without
    return sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


def _in_notebook() -> bool:
    """Return whether IPython runs as a kernel, whose output is no terminal but can show a bar."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


def _short(value: float) -> str:
    return f"{value:.4g}"


def _duration(seconds: float | None) -> str:
    return "?" if seconds is None else str(timedelta(seconds=round(seconds)))
