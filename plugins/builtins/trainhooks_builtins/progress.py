"""``progress``: a bar on a terminal and in notebooks, a live view of the run on request, plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from trainhooks import hookimpl
from trainhooks.best import Best
from trainhooks.data import length_of

from ._choices import check_choice
from ._progress_rate import Rate
from ._progress_readings import counts, latest_metrics, short, speed, steps_text, time_left
from ._terminal import can_move_cursor, in_ci, is_terminal, one_line, write

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from trainhooks import Trainer
    from trainhooks.types import Metrics

    from ._progress_screen import Screen
    from ._progress_watch import Watch

log = logging.getLogger("trainhooks")

Style = Literal["auto", "bar", "live", "lines", "off"]

_BAR_S, _LIVE_S = 0.2, 0.25
_LINES = 20
_IN_LINE = 20  # metrics
_LONGEST_REASON = 300
_SILENCE_S = 60.0
_LOOK_S = 1.0  # so often the lines look at the clock, by the speed of late; at least after so many steps:
_LOOK_STEPS = 100


class Progress:
    """Shows how far the training is, its latest metrics, its speed, the time left, and what is being waited for.

    On a terminal and in notebooks with ipywidgets a bar, elsewhere (files, pipes, ``TERM=dumb``, terminals of CI) plain lines:
    about 20 in a run whose length is known, and at least one a minute; the last one says how it ended. ``live`` is a
    panel with all metrics (the latest value, the median of the last 20, the best of evaluations), rates and where the time goes.
    Bar and panel are drawn by a thread that looks at the run, so they cost a step nothing; what is printed or logged
    meanwhile, by workers that were forked too, goes above them; what other processes and libraries in C write to the terminal by
    themselves does not, and leaves the line as it was above itself. ``epoch 3/10`` is the running one: the third. A narrow
    terminal shows the first of the steps, the time left, the speed, the loss, and what else there is; a plain line 20 metrics at
    most, unless ``metrics`` names them. Only the main process prints.

    Args:
        style: ``bar``, ``live``, ``lines``, ``off``, or what fits (``auto``). Where there is no terminal, ``bar`` and ``live``
            are plain lines, too.
        metrics: Which metrics to show; by default those of training and of evaluations, and plain names such as ``lr``.
        clock: Returns seconds; only differences are used.
    """

    phase = "reporting"
    on_error = "disable"

    def __init__(
        self,
        style: Style = "auto",
        metrics: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_choice("style", style, Style)
        self.style, self.metrics = style, metrics
        self._clock = clock
        self._bar: Screen | None = None
        self._rate: Rate | None = None
        self._began = 0  # steps done when the run, or its resume, began
        self._next_step = 0
        self._next_time = 0.0
        self._shown = -1
        self._best: dict[str, Best] = {}
        self._watch: Watch | None = None
        self._told = False
        self._closed = False  # whether nobody is there to read
        if style in ("lines", "off"):
            vars(self)["after_eval_step"] = vars(self)["before_eval"] = None  # nobody watches: the hooks are not even called

    # --- The run ---

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Learn of checkpoints."""
        trainer._save_begins.append(self._leave_save_out)

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Show the bar, or the first line."""
        self._style = self._fitting() if trainer.is_main else "off"
        self._began = trainer.step
        self._rate = Rate(trainer.step, self._clock(), trainer.update)
        self._next_step, self._next_time, self._shown = trainer.step + 1, 0.0, -1
        self._best, self._closed = {}, False
        trainer._metrics_shown = self._style != "off"
        trainer.plan_flush()
        if self._style == "lines":
            if not trainer.limit_reached:
                self._show(trainer, trainer.step)
            return
        self._next_step = sys.maxsize
        if self._style != "off":
            self._open_screen(trainer, self._rate)

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """Show the step, if it is time to."""
        if trainer.step + 1 >= self._next_step:
            self._show(trainer, trainer.step + 1)

    @hookimpl
    def after_train(self, trainer: Trainer) -> None:
        """Show the last step and how it ended; a bar stays until all is delivered."""
        if self._rate is not None and self._style == "lines":
            if trainer.step > self._began:
                self._show(trainer, trainer.step, last=True)
            self._say_end(trainer)
            self._rate = None

    @hookimpl
    def teardown(self, trainer: Trainer) -> None:
        """Close the bar, whatever happened, and say how it ended."""
        trainer._save_begins.remove(self._leave_save_out)
        trainer._metrics_shown = False
        rate, self._rate = self._rate, None
        screen = self._bar
        try:
            self._close()
        finally:
            if rate is not None and screen is not None:
                self._say_end(trainer)

    # --- Evaluations and checkpoints ---

    @hookimpl
    def before_eval(self, trainer: Trainer, split: str) -> None:
        """Count the batches of an evaluation."""
        if self._watch is not None:
            self._watch.batches = (0, length_of(trainer.loaders.get(split)))

    @hookimpl
    def after_eval_step(self) -> None:
        """Count one more."""
        if self._watch is not None:
            done, total = self._watch.batches
            self._watch.batches = (done + 1, total)

    @hookimpl
    def after_eval(self, trainer: Trainer, split: str, metrics: Metrics) -> None:
        """Show the result of an evaluation during training."""
        for name, value in metrics.items():
            self._best.setdefault(name, Best(name)).update(value, trainer.step)
        if self._rate is not None and self._style != "off":
            values = "  ".join(f"{name} {short(value)}" for name, value in metrics.items())
            self._print(f"{split} at step {trainer.step}: {values}")

    @hookimpl(wrapper=True)
    def evaluate(self, trainer: Trainer) -> Generator[None, Metrics, Metrics]:
        """Count the time of an evaluation apart from that of steps."""
        rate = self._begin_pause()
        try:
            return (yield)
        finally:
            self._end_pause(rate, "evaluate", trainer)

    def _leave_save_out(self, trainer: Trainer) -> Callable[[], None]:
        """Count the time of a checkpoint apart, until what is returned is called."""
        return partial(self._end_pause, self._begin_pause(), "checkpoint", trainer)

    def _begin_pause(self) -> Rate | None:
        if self._rate is not None:
            self._rate.begin_pause(self._clock())
        return self._rate

    def _end_pause(self, rate: Rate | None, kind: str, trainer: Trainer) -> None:
        if rate is not None:
            rate.end_pause(kind, trainer.step, self._clock())

    # --- Lines ---

    def _show(self, trainer: Trainer, step: int, *, last: bool = False) -> None:
        assert self._rate is not None  # noqa: S101 - set in before_train
        now, total = self._clock(), trainer.total_steps
        self._rate.observe(step, now)
        if step != self._shown and (last or now >= self._next_time or self._is_mark(step, total)):
            self._shown, self._next_time = step, now + _SILENCE_S
            metrics = latest_metrics(trainer, self.metrics)
            if len(metrics) > _IN_LINE and not self.metrics:
                metrics = [*metrics[:_IN_LINE], f"and {len(metrics) - _IN_LINE} more"]
            words = [steps_text(trainer, step), *counts(trainer), *metrics]
            words += [*speed(trainer, self._rate.per_second(step, now))[:1], *time_left(trainer, self._rate, step, now)]
            self._print("  ".join(words))
        self._next_step = self._next_look(step, total, self._rate.per_second(step, now) or 0)

    @staticmethod
    def _next_look(step: int, total: int | None, rate: float) -> int:
        """Return the next step to look at: the next twentieth of the run, or about a second later."""
        soon = step + min(max(int(rate * _LOOK_S), 1), _LOOK_STEPS)
        if total is None:
            return soon
        part = _part(total)
        return min((step // part + 1) * part, soon)

    @staticmethod
    def _is_mark(step: int, total: int | None) -> bool:
        return total is not None and step % _part(total) == 0

    # --- The end ---

    def _say_end(self, trainer: Trainer) -> None:
        outcome = trainer.outcome
        if outcome is not None:
            reason = f" ({_first_line(outcome.reason)})" if outcome.reason else ""
            nothing = ", 0 steps trained" if trainer.step == self._began and not trainer.dropped else ""
            self._print(f"{outcome.status}{reason} at {steps_text(trainer, trainer.step)}{nothing}")

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.print(one_line(line))
        elif sys.stdout is not None and not self._closed:
            try:
                write(sys.stdout, f"{one_line(line)}\n")
            except (OSError, ValueError) as error:  # what reads the pipe has gone, or the stream is closed
                self._tell_closed(error)

    def _tell_closed(self, error: Exception) -> None:
        self._closed = True
        log.warning("progress: stdout takes nothing more (%s); nothing more is printed", error)

    def _close(self) -> None:
        screen, self._bar = self._bar, None
        self._watch = None
        if screen is not None:
            screen.close()
            if isinstance(screen.error, OSError) or getattr(sys.stdout, "closed", False):
                self._tell_closed(screen.error or ValueError("it is closed"))
            elif screen.error is not None:  # of the thread: the policy of this plugin decides, here
                raise screen.error

    # --- Where it is shown ---

    def _fitting(self) -> Literal["bar", "live", "lines", "off"]:
        """Return the style that is meant and possible here."""
        if self.style == "off" or sys.stdout is None:
            return "off"
        if self.style == "lines":
            return "lines"
        if _is_interactive() and not (self.style == "auto" and in_ci()):
            return "live" if self.style == "live" else "bar"
        if self.style != "auto" and not self._told:
            self._told = True
            log.warning("progress.style = %r: there is no terminal here that could show it, so it is plain lines", self.style)
        return "lines"

    def _open_screen(self, trainer: Trainer, rate: Rate) -> None:
        from ._progress_screen import Screen
        from ._progress_watch import Watch

        self._watch = Watch(trainer, rate, self._clock, self.metrics, self._best)
        live = self._style == "live"
        render = self._watch.panel if live else self._watch.bar
        self._bar = Screen(render, notebook=_in_notebook(), every_s=_LIVE_S if live else _BAR_S)
        self._bar.start()


def _part(total: int) -> int:
    """Return the steps between two lines: a twentieth of the run."""
    return max(-(-total // _LINES), 1)


def _first_line(reason: str) -> str:
    """Return the first line of a reason: of an error, which may be pages long, the traceback says the rest."""
    first = next(iter(reason.strip().splitlines()), "")
    return first if first == reason.strip() and len(first) <= _LONGEST_REASON else f"{first[: _LONGEST_REASON - 3]}..."


def _is_interactive() -> bool:
    """Return whether a bar can be drawn: on a terminal that can move its cursor and has none yet, or in a notebook."""
    if _in_notebook():
        return find_spec("ipywidgets") is not None  # rich draws its bar with it, and shows nothing without
    drawn_on = type(sys.stdout).__module__ == f"{__package__}._progress_screen"  # by the run around this one
    return not drawn_on and is_terminal(sys.stdout) and can_move_cursor()


def _in_notebook() -> bool:
    """Return whether IPython runs as a kernel, whose output is no terminal but can show a bar."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None
