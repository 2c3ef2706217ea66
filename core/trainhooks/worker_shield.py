"""Loader workers that a signal to the whole process group does not end: the main process decides when they end.

A terminal sends Ctrl-C, and a scheduler its SIGTERM, to every process of the group. Workers that die of it turn a run that
would have saved its state into one that fails. So the signals that the main process handles are blocked while it starts
workers, which inherit that, and which handle the signals in a way of their own once they run.

This module is imported by workers as they begin, and by nothing else as long as no plugin handles signals.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import queues, resource_tracker, util
from multiprocessing.reduction import ForkingPickler
from types import MethodType
from typing import Any, Final

from .errors import add_note
from .worker_project import as_given, start_method

InitFunction = Callable[[int], Any]

#: The attribute of a handler by which the main process says that its workers are to be shielded from that signal.
MARK: Final = "shields_workers"

#: What reads a loader with shielded workers: that loader, and what ends them at exit.
_started: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[Any], util.Finalize]] = weakref.WeakKeyDictionary()

_LOOK_EVERY_S = 0.5
_GRACE_S = 5.0  # what torch gives its workers too, before it uses force
_DEPTH = 8


def shielded_signals() -> tuple[int, ...]:
    """Return the signals from which workers are to be shielded: those that a handler with the mark handles now."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where no signal reaches the group
        return ()
    return tuple(number for number in sorted(signal.valid_signals()) if hasattr(signal.getsignal(number), MARK))


class Shielded(Iterable[Any]):
    """Reads a loader whose workers are shielded as it starts them.

    Args:
        loader: With workers.
        signals: From which.
    """

    def __init__(self, loader: Any, signals: tuple[int, ...]) -> None:
        self.loader, self.signals = loader, signals

    def __iter__(self) -> Iterator[Any]:
        """Start the workers, or set back those that last."""
        loader = self.loader
        if getattr(loader, "_iterator", None) is not None:
            return iter(loader)
        own: InitFunction | None = getattr(loader, "worker_init_fn", None)
        with _blocked(self.signals, own_processes=start_method(loader) != "fork"):
            loader.worker_init_fn = begin = partial(begin_worker, self.signals, own)
            try:
                iterator: Iterator[Any] = iter(loader)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                if (culprit := _unpicklable(loader, own)) is not None:
                    add_note(error, f"{culprit}, so no worker process can be started with it")
                raise
            finally:
                loader.worker_init_fn = own
        if getattr(iterator, "_worker_init_fn", None) is begin:
            iterator._worker_init_fn = own  # type: ignore[attr-defined]  # of lasting workers, which somebody may look up
        done = getattr(iterator, "_workers_done_event", None)
        if done is not None:  # Python ends workers that are left at its exit by a signal: have them obey it
            _started[iterator] = (weakref.ref(loader), util.Finalize(iterator, done.set, exitpriority=100))
        return iterator


def reading(loaders: Iterable[object]) -> list[Any]:
    """Return what reads these loaders with shielded workers."""
    wanted = list(loaders)
    return [iterator for iterator, (loader, _) in list(_started.items()) if any(loader() is one for one in wanted)]


def kill_workers(iterator: Any, grace_s: float) -> None:
    """End the workers of what ``reading`` returned; torch waits for them no more.

    Args:
        iterator: The reader.
        grace_s: How long they may finish what they load, if they are asked to end at all.
    """
    workers = list(iterator._workers)
    if grace_s:
        iterator._workers_done_event.set()
        for indices in iterator._index_queues:
            indices.put(None)
        deadline = time.monotonic() + grace_s
        for worker in workers:
            worker.join(max(deadline - time.monotonic(), 0))
    _started[iterator][1].cancel()  # it might wait for a lock that a killed worker held
    iterator._shutdown = True
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(_LOOK_EVERY_S)


def begin_worker(signals: tuple[int, ...], own: InitFunction | None, worker: int) -> None:
    """Begin a worker process: the first thing it does, before the user's own ``worker_init_fn``.

    Subprocesses of the worker are not shielded: handlers, other than a blocked or ignored signal, are not inherited by programs.

    Args:
        signals: Handled and then unblocked.
        own: The user's function.
        worker: Number of the worker.
    """
    if multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread():
        done = _done_event()
        asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        signal.set_wakeup_fd(-1)  # a fork has that of its parent, which would take our signals for its own
        for number in signals:
            if number != signal.SIGTERM:
                signal.signal(number, _pass_over)
            elif done is not None:  # else torch's own handler, which obeys the parent, but everybody else too
                signal.signal(number, partial(_ask, asked))
            signal.siginterrupt(number, False)
        threading.Thread(target=_watch, args=(os.getppid(), done, asked), daemon=True).start()
        queues.Queue._on_queue_feeder_error = staticmethod(_end_unsent)  # type: ignore[attr-defined]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    if own is not None:
        own(worker)


def _end_unsent(error: Exception, item: object) -> None:
    """End a worker whose batch, or error, cannot be pickled: it would never arrive, and the main process wait for ever."""
    traceback.print_exception(error)
    sys.stderr.write("trainhooks: what a loader worker gives cannot be pickled, so the worker ends\n")
    sys.stderr.flush()
    os._exit(1)


def _pass_over(signum: int, frame: object) -> None:
    """Do nothing: the main process has the signal too."""


def _ask(asked: queue.SimpleQueue[None], signum: int, frame: object) -> None:
    """Have the thread look whether the main process wants this worker to end; ``put`` may be interrupted by itself."""
    asked.put(None)


def _watch(parent: int, done: Any, asked: queue.SimpleQueue[None]) -> None:
    """End this worker when its parent is gone, or wants it to end and it does not come to notice.

    ``done`` is set before the parent sends a signal, and never while it reads. The worker's own thread may be anywhere, and ends
    with the process.
    """
    looks = 0
    main = (
        multiprocessing.parent_process()
    )  # known since the fork: a parent killed right then is no parent any more when we look
    while True:
        signalled = False
        with suppress(queue.Empty):
            asked.get(timeout=_LOOK_EVERY_S)
            signalled = True
        if os.getppid() != parent or (main is not None and not main.is_alive()):
            os._exit(1)
        if done is not None and done.is_set():
            looks += 1
            if signalled or looks * _LOOK_EVERY_S > _GRACE_S:
                os._exit(0)


def _done_event() -> Any:
    """Return the event by which torch tells this worker that its loader is closed; it is given to torch's function only."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_worker_loop":
            return frame.f_locals.get("done_event")
        frame = frame.f_back  # type: ignore[assignment]
    return None


@contextmanager
def _blocked(signals: tuple[int, ...], *, own_processes: bool) -> Iterator[None]:
    """Block signals in this thread and in the processes that it starts; those that come meanwhile are delivered afterwards.

    Args:
        signals: To be blocked.
        own_processes: Whether Python's own helper process may be needed, which unblocks signals as it starts.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        if own_processes:
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unpicklable(loader: Any, own: object) -> str | None:
    """Return where in what a worker is sent the part is that cannot be pickled."""
    for name, part in (
        ("dataset", as_given(getattr(loader, "dataset", None))),
        ("collate_fn", getattr(loader, "collate_fn", None)),
        ("worker_init_fn", own),
    ):
        if (why := _fault(part)) is not None:
            place, why = _descend(name, part, why, _DEPTH)
            return f"{place} cannot be pickled ({why})"
    return None


def _descend(place: str, thing: Any, why: str, depth: int) -> tuple[str, str]:
    """Follow what cannot be pickled to the innermost part that is known by a name."""
    parts: list[tuple[str, Any]] = []
    if isinstance(thing, dict):
        parts = [(f"{place}[{key!r}]", value) for key, value in thing.items()]
    elif isinstance(thing, list | tuple):
        parts = [(f"{place}[{index}]", value) for index, value in enumerate(thing)]
    elif isinstance(thing, partial):
        parts = [(f"{place}.func", thing.func), (f"{place}.args", thing.args), (f"{place}.keywords", thing.keywords)]
    elif isinstance(thing, MethodType):
        parts = [(f"{place}.__self__", thing.__self__)]
    elif not isinstance(thing, type):
        parts = [(f"{place}.{key}", value) for key, value in getattr(thing, "__dict__", {}).items()]
    for inner, part in parts if depth else ():
        if (fault := _fault(part)) is not None:
            return _descend(inner, part, fault, depth - 1)
    return place, why


def _fault(thing: object) -> str | None:
    """Return why a worker process cannot be sent a thing."""
    try:
        ForkingPickler.dumps(thing)
    except RuntimeError:  # a lock or queue of multiprocessing, which may be sent while a process is started only
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
