"""What happens when a worker process of a loader dies or hangs: an error that says which, and nobody left running.

torch's own message has pid and signal in most cases. It has not where the main process notices first by a broken connection,
or only that no batch came; and its timeout does not hold while a tensor is being handed over by a process that has stopped.
A loader without a timeout costs nothing in a step, and nothing here runs before an error.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import add_note, message_of
from .worker_project import WithProject, needs_project
from .worker_shield import Shielded, kill_workers, reading, shielded_signals

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from .types import Batch

_MARK = "loader worker (pid "  # how every note of ours begins
_OF_TORCH = "DataLoader worker (pid"  # how torch's messages about a dead one begin
_GRACE_S = 1.0  # between the end of a process's connections and its exit code; after a timeout that torch should have noticed


def reader_of(loader: Iterable[Batch]) -> Iterable[Batch]:
    """Return ``loader``, or where it has workers what reads it as the run needs it.

    With a timeout, that is held whatever happens; while signals are handled, workers are shielded from them; workers that are no
    forks are told of the project file.
    """
    if not getattr(loader, "num_workers", 0):
        return loader
    signals = shielded_signals() if hasattr(loader, "worker_init_fn") else ()
    reader: Iterable[Batch] = Shielded(loader, signals) if signals else loader
    if needs_project(loader):
        reader = WithProject(loader, reader)
    timeout = getattr(loader, "timeout", 0)
    return _Watched(reader, timeout) if isinstance(timeout, int | float) and timeout > 0 else reader


class _Watched(Iterator[Any]):
    """Reads a loader; kills its workers when a batch has not come a little after the loader's own timeout."""

    def __init__(self, loader: Iterable[Batch], timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.iterator = iter(loader)
        self.since: float | None = None
        self.late: str | None = None
        self._done = threading.Event()
        watch = threading.Thread(target=_watch, args=(weakref.ref(self), self._done, timeout_s), daemon=True)
        watch.start()
        self._finalizer = weakref.finalize(self, self._done.set)
        self._finalizer.atexit = False

    def __next__(self) -> Batch:
        self.since = time.monotonic()
        try:
            return next(self.iterator)
        except StopIteration:
            self._done.set()
            raise
        except Exception as error:
            self._done.set()
            if self.late is not None:
                add_note(error, _late_note(self.late))
            raise
        finally:
            self.since = None


def _watch(ref: weakref.ref[_Watched], done: threading.Event, timeout_s: float) -> None:
    """Look at a reader from time to time, on a thread of its own."""
    while not done.wait(min(timeout_s, _GRACE_S) / 4):
        reader = ref()
        if reader is None:
            return
        since = reader.since
        if since is not None and time.monotonic() - since > timeout_s + _GRACE_S:
            reader.late = _owing(reader.iterator)
            for worker in getattr(reader.iterator, "_workers", ()):
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
            return
        del reader


def note_lost_workers(error: BaseException, loaders: Iterable[object]) -> bool:
    """Name the loader workers that an error is about, and end those that are left of that loader.

    torch waits for each worker that does not answer, and its last means does not end a stopped process, for which the
    interpreter would then wait at its exit.

    Args:
        error: What is about to end the run; gains a note where it does not say which process it was.
        loaders: Those of the run. One whose lasting workers are gone starts new ones when it is read again.

    Returns:
        Whether the error is about workers, and so nobody else's.
    """
    if not isinstance(error, Exception):
        return False
    about_workers = message_of(error).startswith(_OF_TORCH)
    noted = any(note.startswith(_MARK) for note in getattr(error, "__notes__", ()))
    holders = [loader for loader in loaders if _has_workers(getattr(loader, "_iterator", None))]
    iterator, function = _iterator_of(error.__traceback__)
    if function == "_process_data":  # an error of the dataset, which a worker passed on
        return False
    if iterator is None and (about_workers or noted):  # raised wherever the main thread was when the process ended
        iterators: list[Any] = [vars(loader)["_iterator"] for loader in holders]
        iterator = next((one for one in iterators if any(worker.exitcode for worker in one._workers)), None)
    if iterator is None:
        return about_workers or noted
    _let_go(iterator)
    workers = list(iterator._workers)
    if function == "_try_get_data" and isinstance(error, OSError | EOFError):
        closed = multiprocessing.connection.wait([worker.sentinel for worker in workers], _GRACE_S)
        for worker in workers:
            if worker.sentinel in closed:
                worker.join(_GRACE_S)  # its files are closed a moment before its exit code is there
    dead = [worker for worker in workers if worker.exitcode or (worker.exitcode == 0 and about_workers)]
    late = not dead and function == "_get_data" and "timed out" in message_of(error)
    if not (dead or late or about_workers or noted):
        return False
    notes = [f"loader worker (pid {worker.pid}) {_cause(worker.exitcode)}" for worker in dead]
    if late:
        notes = [_late_note(_owing(iterator))]
    for worker in workers:
        if worker.is_alive():
            worker.kill()  # not terminate, which a stopped process does not hear
    for worker in workers:
        worker.join(_GRACE_S)
    for loader in holders:
        if vars(loader)["_iterator"] is iterator:
            loader._iterator = None  # type: ignore[attr-defined]
    for note in [] if noted else notes:
        add_note(error, note)
    return True


def end_workers(error: BaseException, loaders: Iterable[object], *, at_once: bool) -> None:
    """End the workers that an interrupted run has been reading, which its exception would keep.

    Those that last over epochs stay, unless the wait for them was cut off: then nobody can tell what they still owe.

    Args:
        error: What ends the run.
        loaders: Those of the run. One whose lasting workers are gone starts new ones when it is read again.
        at_once: End the workers of all loaders, and give none the time to finish what it loads.
    """
    known = list(loaders)
    lasting = {id(vars(loader)["_iterator"]): loader for loader in known if _has_workers(getattr(loader, "_iterator", None))}
    cut, _ = _iterator_of(error.__traceback__)
    for iterator in reading(known):
        if at_once or iterator is cut or id(iterator) not in lasting:
            _let_go(iterator)
            kill_workers(iterator, 0.0 if at_once else _GRACE_S)
            if id(iterator) in lasting:
                lasting[id(iterator)]._iterator = None  # type: ignore[attr-defined]


def _has_workers(thing: object) -> bool:
    return isinstance(getattr(thing, "_workers", None), list) and hasattr(thing, "_index_queues")


def _iterator_of(traceback: TracebackType | None) -> tuple[Any, str]:
    """Return the iterator of a loader with workers that an exception left, and the innermost of its functions.

    No other frame is asked for its locals, since what they are is then kept by the frame.
    """
    found, function = None, ""
    while traceback is not None:
        frame = traceback.tb_frame
        if str(frame.f_globals.get("__name__")).endswith("dataloader") and "self" in frame.f_code.co_varnames:
            owner = found if found is not None else frame.f_locals.get("self")
            if _has_workers(owner):
                found, function = owner, frame.f_code.co_name
        traceback = traceback.tb_next
    return found, function


def _let_go(iterator: Any) -> None:
    """Have torch not raise for these workers any more, in whatever code runs when the signal of their end comes."""
    import torch

    if getattr(iterator, "_worker_pids_set", False):
        torch._C._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False


def _cause(exitcode: int) -> str:
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = "unknown"
    hint = "; the system does that when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by signal {-exitcode} ({name}){hint}"


def _late_note(pids: str) -> str:
    return f"loader worker (pid {pids}) did not deliver the next batch in time; the workers of this loader were killed"


def _owing(iterator: Any) -> str:
    """Return the pids of the workers that have stopped, else that of the one whose batch is the next, else all."""
    workers: list[Any] = list(getattr(iterator, "_workers", ()))
    task = getattr(iterator, "_task_info", {}).get(getattr(iterator, "_rcvd_idx", None))
    owing = [f"{worker.pid}, stopped" for worker in workers if _stopped(worker.pid)]
    owing = owing or [str(worker.pid) for worker in ([workers[task[0]]] if task else workers)]
    return "; pid ".join(owing)


def _stopped(pid: int) -> bool:
    """Return whether a process has been stopped, as far as the system tells."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False
