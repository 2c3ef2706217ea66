"""``signals``: Ctrl-C and the signals of schedulers end a run in an orderly way."""

from __future__ import annotations

import _thread
import logging
import math
import os
import signal
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainhooks import OptionError, Terminated, hookimpl
from trainhooks.suggest import suggestion

if TYPE_CHECKING:
    from trainhooks import Trainer

log = logging.getLogger("trainhooks")

_KNOWN = ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGALRM", "SIGCONT", "SIGXCPU", "SIGBREAK")
_FORWARDED_S = 0.1  # a launcher that forwards Ctrl-C, which the terminal sends to all, does so within this time


class Signals:
    """Ends the run when a signal comes: after the running step, with a checkpoint, so that it can be resumed exactly.

    The handler does nothing but note the request; the loop ends the run where its state is whole. While workers of a loader
    are waited for that is at once. Then ``train()`` raises ``KeyboardInterrupt`` for Ctrl-C (exit code 130), else
    ``Terminated``, a ``SystemExit`` (128 + n, 143 for SIGTERM). A second Ctrl-C ends the run at once, without a checkpoint, a
    third one ends the process; a second one of the others changes nothing.

    SIGHUP comes when the terminal of a run is closed; started with ``nohup`` a run ignores it and goes on.

    A handler that was there is called too, and what it raises is raised from ``train()`` in the end. A signal that is ignored
    stays ignored. Afterwards everything is as it was found. In a thread other than the main one no signal is handled, nor while
    ``evaluate()`` or ``predict()`` run by themselves, which have nothing to save.

    Loader workers that the run starts meanwhile do not die of these signals when they are sent to the whole process group.

    Args:
        signals: Names. Those that the system does not have are left out.
        patience_s: How long a loader without workers may take for the next batch, for which the run waits, since it draws
            random numbers from this process. Then the run ends all the same, and says that a resumed one may differ.
    """

    phase = "bookkeeping"  # first to be set up, last to be torn down

    def __init__(self, signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"), patience_s: float = 10.0) -> None:
        if not (patience_s > 0 and math.isfinite(patience_s)):
            message = f"patience_s = {patience_s}: must be above 0"
            raise OptionError(message)
        for name in signals:
            if name in ("SIGKILL", "SIGSTOP"):
                message = f"signals = {list(signals)}: nobody can handle {name}; leave it out"
                raise OptionError(message)
            if name not in _KNOWN:
                message = f"signals = {list(signals)}: {name!r} is none of {', '.join(_KNOWN)}{suggestion(name, _KNOWN)}"
                raise OptionError(message)
        self.signals = tuple(signal.Signals[name] for name in signals if hasattr(signal, name))
        self.patience_s = patience_s
        self._handlers: list[_Handler] = []
        self._patience: _Patience | None = None

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Handle the signals from now on."""
        if trainer.session is None or not trainer.session.training:
            return
        if threading.current_thread() is not threading.main_thread():
            log.warning("signals: the training is not in the main thread, so no signal is handled; Ctrl-C saves nothing")
            return
        self._patience = _Patience(self.patience_s)
        try:
            for number in self.signals:
                found = signal.getsignal(number)
                if found is None or (found is signal.SIG_DFL and _is_caught(number)):
                    log.warning(
                        "signals: %s is handled outside of Python, as by faulthandler, and is left to that", number.name
                    )
                elif found is not signal.SIG_IGN:
                    handler = _Handler(number, found, trainer, self._patience)
                    self._handlers.append(handler)
                    signal.signal(number, handler)
        except BaseException:
            self.teardown()
            raise

    @hookimpl
    def teardown(self) -> None:
        """Leave the handlers as they were found."""
        if self._patience is not None:
            self._patience.end()
        handlers, self._handlers, self._patience = self._handlers, [], None
        for handler in handlers:
            if signal.getsignal(handler.number) is handler or handler.given_up:  # else somebody took it over, and keeps it
                signal.signal(handler.number, handler.found)


def _is_caught(number: int) -> bool:
    """Return whether the system knows a handler of a signal, of which Python may know nothing."""
    with suppress(OSError, ValueError), Path("/proc/self/status").open(encoding="ascii", errors="replace") as file:
        caught = next((line for line in file if line.startswith("SigCgt:")), "SigCgt: 0")
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False


class _Handler:
    """Handles one signal for one run: notes the request, and calls the handler that was there.

    No lock is taken, nothing logged and nothing saved: the main thread may be anywhere.
    """

    shields_workers = True

    def __init__(self, number: signal.Signals, found: Any, trainer: Trainer, patience: _Patience) -> None:
        self.number, self.found = number, found
        self.given_up = False
        self._trainer = weakref.ref(trainer)
        self._patience = patience
        self._first: float | None = None

    def __call__(self, signum: int, frame: Any) -> None:
        trainer = self._trainer()
        if trainer is None:
            return
        if self._patience.is_over():
            trainer.lose_patience()
            return
        error = self._call_found(signum, frame)
        if error is None:
            error = KeyboardInterrupt() if signum == signal.SIGINT else Terminated(signum)
        if signum == signal.SIGINT:
            now = time.monotonic()
            if self._first is not None and now - self._first < _FORWARDED_S:
                return
            if self._first is not None and trainer.interruption is not None:
                self._give_up(trainer)
            self._first = now
        if trainer.interruption is None:
            self._patience.begin(signum)
            self._say(trainer)
        trainer.interrupt(error, "Ctrl-C" if signum == signal.SIGINT else self.number.name)

    def _say(self, trainer: Trainer) -> None:
        """Say at once that it was heard, past all buffers and locks: the step may take long."""
        name = "Ctrl-C" if self.number == signal.SIGINT else self.number.name
        then = ", saving a checkpoint" if trainer.saves and trainer.manager.has("save_checkpoint") else ""
        again = "; Ctrl-C again ends at once, and saves nothing" if self.number == signal.SIGINT else ""
        text = f"trainhooks: {name}: ending after this step{then}{again}"
        in_place = getattr(sys.stderr, "in_place", None)  # of a bar that is drawn there
        with suppress(OSError):
            os.write(2, (in_place(text) if in_place is not None else f"\n{text}\n").encode())

    def _call_found(self, signum: int, frame: Any) -> BaseException | None:
        """Call the handler that was there; return what it raises, which would come in the middle of a step."""
        if not callable(self.found) or self.found is signal.default_int_handler:
            return None
        try:
            self.found(signum, frame)
        except BaseException as error:
            return error
        return None

    def _give_up(self, trainer: Trainer) -> None:
        """End the run at once; the next Ctrl-C ends the process."""
        self.given_up = True
        self._patience.stop()
        if trainer.interruption is not None:
            trainer.interruption.hurried = True
        signal.signal(self.number, signal.SIG_DFL)
        raise KeyboardInterrupt


class _Patience:
    """Sends the signal once more to the main thread when the run has not ended in time, to break its wait for a loader.

    Args:
        seconds: Until then, and again and again.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._main = threading.get_ident()
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self._sending = _thread.allocate_lock()
        self._sent = self._over = self._begun = False

    def begin(self, signum: int) -> None:
        """Begin to wait; from a handler, so without the locks of ``threading``."""
        if not self._begun and hasattr(signal, "pthread_kill"):
            self._begun = True
            with suppress(RuntimeError):  # no thread can be started: then the run waits for the loader
                _thread.start_new_thread(self._wait, (signum,))

    def is_over(self) -> bool:
        """Return whether the signal that is handled is ours; once for each."""
        sent, self._sent = self._sent, False
        return sent

    def stop(self) -> None:
        """Send nothing more; from a handler."""
        self._over = True

    def end(self) -> None:
        """Send nothing more, for certain, and let the thread end."""
        with self._sending:
            self._over = True
        self._ended.release()

    def _wait(self, signum: int) -> None:
        while not self._ended.acquire(timeout=self._seconds):
            with self._sending:
                if self._over:
                    return
                self._sent = True
                signal.pthread_kill(self._main, signum)
