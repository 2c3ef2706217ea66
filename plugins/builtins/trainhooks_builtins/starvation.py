"""``starvation``: says when training waits for data, and what to do."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from trainhooks import OptionError, hookimpl

from ._paused_mark import PausedMark

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from trainhooks import Trainer

log = logging.getLogger("trainhooks")


class Starvation(PausedMark):
    """Measures which share of the time goes to waiting for data, and warns once with a remedy when it is too much.

    A step waits from the end of the one before it to its ``before_step``: the loader and moving the batch. Evaluations,
    checkpoints and what happens between epochs count for neither. After every ``window_steps`` steps ``data/wait_share``, the
    waiting divided by the waiting and the steps together, is logged. Two things are looked at apart: batches that come slowly, and
    the first batch of each epoch but the first, for which workers are started.

    Args:
        warn_share: Share above which a warning is due, in (0, 1].
        window_steps: Steps over which it is measured.
        clock: Returns seconds; only differences are used.
    """

    phase = "bookkeeping"

    def __init__(self, warn_share: float = 0.3, window_steps: int = 50, clock: Callable[[], float] = time.perf_counter) -> None:
        if not 0 < warn_share <= 1:
            message = f"warn_share = {warn_share}: must be above 0 and at most 1"
            raise OptionError(message)
        if window_steps < 1:
            message = f"window_steps = {window_steps}: must be at least 1"
            raise OptionError(message)
        super().__init__(clock)
        self.warn_share, self.window_steps = warn_share, window_steps
        self._warned: set[str] = set()
        self._opens = self._opened = False  # whether the next batch is the first of its epoch, and whether the running one is
        self._clear()
        self._epochs = 0

    def _clear(self) -> None:
        """Begin a window."""
        self._steps = 0
        self._work = self._waiting = 0.0  # of steps that did not open the loader
        self._opening_work = self._opening = self._first_opening = 0.0  # of those that did

    @hookimpl
    def before_train(self) -> None:
        """Forget what was measured of a run before this one."""
        self._clear()
        self._epochs = self._pauses = 0

    @hookimpl
    def before_epoch(self) -> None:
        """Begin to wait for the first batch."""
        self._opens, self._opened = True, False
        self._begin()
        self._epochs += 1

    @hookimpl(tryfirst=True)
    def before_step(self) -> None:
        """End the waiting, before others do anything in the step."""
        self._wait()

    @hookimpl(wrapper=True)
    def after_step(self, trainer: Trainer) -> Generator[None, None, None]:
        """End the step, after what others do in it."""
        yield
        seconds = self._lap() or 0.0
        if self._opened:
            self._opening_work += seconds
        else:
            self._work += seconds
        self._opened = False
        self._steps += 1
        if self._steps == self.window_steps:
            self._judge(trainer)

    @hookimpl(tryfirst=True)
    def after_skip(self) -> None:
        """Begin to wait again after a batch that was dropped."""
        self._begin()

    def _wait(self) -> None:
        seconds = self._lap() or 0.0
        if not self._opens:
            self._waiting += seconds
        elif self._epochs == 1:
            self._first_opening += seconds  # to start once is nobody's fault
        else:
            self._opening += seconds
        self._opened, self._opens = self._opens, False

    def _judge(self, trainer: Trainer) -> None:
        """Log the share of a window and warn where it is too high."""
        work = self._work + self._opening_work
        trainer.log("data/wait_share", _share(self._waiting + self._opening + self._first_opening, work))
        loader = trainer.loader("train")
        steady = _share(self._waiting, self._work)
        whole = _share(self._waiting + self._opening, work)
        if steady > self.warn_share:
            self._warn("batches", f"steps wait for data during {steady:.0%} of the time", remedies(loader, trainer.device.type))
        elif whole > self.warn_share:
            self._warn("epochs", f"{whole:.0%} of the time goes to opening the loader for each epoch", [opening_remedy(loader)])
        self._clear()

    def _warn(self, kind: str, fact: str, advice: list[str]) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("starvation: %s (%d steps): %s", fact, self.window_steps, "; ".join(advice))


def _share(waiting: float, work: float) -> float:
    return waiting / (waiting + work) if waiting + work > 0 else 0.0


def remedies(loader: Any, device: str) -> list[str]:
    """Return what may make a loader faster, most likely first."""
    workers = getattr(loader, "num_workers", None)
    if workers is None:
        return [f"{type(loader).__name__} reads in this process; torch.utils.data.DataLoader(..., num_workers=n) reads ahead"]
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    advice = []
    if workers == 0:
        advice.append(f"set num_workers of the DataLoader, which now reads in this process (CPUs: {cpus})")
    elif workers < cpus:
        advice.append(f"raise num_workers (now {workers}, CPUs: {cpus})")
    else:
        advice.append(f"make the dataset cheaper: num_workers={workers} use all CPUs ({cpus})")
    if device == "cuda" and not getattr(loader, "pin_memory", False):
        advice.append("set pin_memory=True, so that batches are copied while the GPU works")
    if workers > 0:
        advice.append(f"raise prefetch_factor (now {loader.prefetch_factor}) if some batches take much longer than others")
    return advice


def opening_remedy(loader: Any) -> str:
    """Return what may make the beginning of an epoch faster."""
    if getattr(loader, "num_workers", 0) and not getattr(loader, "persistent_workers", True):
        return "set persistent_workers=True, or make epochs longer (steps_per_epoch)"
    return "make what the loader does at its beginning cheaper, or epochs longer (steps_per_epoch)"
