"""Threads of reporters and writers that a run did not wait for, and the end of the process.

Python ends a daemon thread where it next wants to run while the process exits. If that is on the way out of torch's C++ code, the
process aborts, whatever its exit code was to be. So these threads are ended before: by an exception in their Python code, which
is what they get at the earliest when their call comes back.
"""

from __future__ import annotations

import atexit
import ctypes
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import threading

_GRACE_S: Final = 1.0
_threads: list[threading.Thread] = []


def leave_behind(thread: threading.Thread) -> None:
    """Wait for a thread no more."""
    _threads[:] = [*left_behind(), thread]


def left_behind() -> list[threading.Thread]:
    """Return the threads that were left behind and have not ended since."""
    return [thread for thread in _threads if thread.is_alive()]


@atexit.register
def _end_threads() -> None:
    """End the threads, as far as they run Python code; one in a call that does not return stays."""
    deadline = time.monotonic() + _GRACE_S
    threads = left_behind()
    for thread in threads:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
