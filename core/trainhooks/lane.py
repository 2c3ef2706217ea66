"""One reporter's lane: its queue and its thread, what becomes of its errors, and what is lost.

The training thread only appends to the queue. When a call fails it is made again after a while, with the same records, so that
they arrive once and in order; ``Lane`` says what is given up, and when. Nothing of this reaches the training thread, unless the
plugin asks for that with ``on_error = "raise"``.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from .backlog import Artifact, Backlog, hook_for
from .errors import message_of
from .left_behind import leave_behind
from .media import Image
from .metrics import Record
from .state import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .backlog import Item
    from .manager import Plugin
    from .run_info import RunInfo

log = logging.getLogger("trainhooks")

#: Time between deliveries, each of all that waits: a fast loop must not pay for writing each record by itself. So many do not wait
#: for it, nor more than goes into a call.
_GATHER_S: Final = 0.5
_MANY: Final = 500
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
#: How often a call is made that fails with anything but an ``OSError``, which means that the service is away.
_TRIES: Final = 3
#: How often one is made at the end of a run, when time is short; those after it only once, until one succeeds.
_TRIES_AT_END: Final = 5
#: For what part of the run's time a service that is away when it ends is waited for, and how long at least.
_PATIENCE, _LEAST_PATIENCE_S = 0.05, 2.0
#: Attempts after which one at the next records shows whether it is the service that is away or these that it refuses.
_SUSPICIOUS: Final = 8
#: Deliveries given up in a row after which a reporter gets nothing more; at the end of a run, when time is short, sooner.
_HOPELESS, _HOPELESS_AT_END = 10, 5

#: Those of this process.
_lanes: weakref.WeakSet[Lane] = weakref.WeakSet()


class Lane:
    """Feeds one plugin from a bounded queue, on a thread of its own.

    Args:
        plugin: Whose report hooks are called.
        run: Handed to each of them.
        queue: What waits for it.
        after: Lanes that the same object had before under another record: it is not called on two threads at once.
    """

    def __init__(self, plugin: Plugin, run: RunInfo, queue: Backlog | None = None, after: Sequence[Lane] = ()) -> None:
        self.plugin = plugin
        self._run = run
        self._after = after
        self._per_call: int = getattr(plugin.object, "records_per_call", 1)
        self._queue = queue if queue is not None else Backlog()
        self._changed = threading.Condition()
        self._urgent = self._closing = self._abandoned = self._gathering = False
        self._in_hand: list[Item] = []  # what the thread has taken and not delivered yet
        self._outcome: Outcome | None = None
        self._said: set[tuple[str, str]] = set()
        self._hopeless = 0  # deliveries given up in a row
        #: The first attempt to open has been made.
        self.tried_to_open = threading.Event()
        #: The error that ends the run, or that makes the plugin useless, until the training thread has seen to it.
        self.error: BaseException | None = None
        self.dead = False
        #: The hook that is being called.
        self.calling: str | None = None
        #: What arrived and what did not.
        self.sent = self.lost = 0
        self._began = time.monotonic()
        self._patient_until = math.inf
        self._gather_until = self._began
        self._due = 0  # of what waits, how many are handed over before more is gathered
        self._called_at = self._began
        self._took_s = 0.0  # the last call
        self._failing = False  # whether it failed
        _lanes.add(self)
        self._thread = threading.Thread(target=self._work, name=f"trainhooks-reporter-{plugin.name}", daemon=True)
        self._thread.start()

    # --- The training thread's side ---

    def takes(self, item: Item) -> bool:
        """Return whether the plugin has a hook for this."""
        return hook_for(item) in self.plugin.implementations

    def put(self, item: Item) -> None:
        """Queue an item; never waits for more than the lock."""
        with self._changed:
            if self._outcome is not None:  # its plugin was taken out
                return
            if self.dead:
                self.lost += 1
                return
            self._queue.append(item)
            if len(self._queue) == 1 or (self._gathering and self._is_much()):
                self._gathering = False
                self._changed.notify_all()

    def hurry(self) -> None:
        """Have what is queued delivered at once instead of gathering more; does not wait for it."""
        with self._changed:
            self._urgent = True
            self._changed.notify_all()

    def caught_up(self, timeout_s: float) -> bool:
        """Wait until what is queued is delivered, unless the last call failed or takes longer than that; return whether it is."""
        with self._changed:
            took_s = max(self._took_s, time.monotonic() - self._called_at if self.calling else 0)
            if not self._is_idle() and (self._failing or took_s > timeout_s):
                return False
            return self._changed.wait_for(self._is_idle, timeout_s)

    def _is_idle(self) -> bool:
        return self.dead or not (self._queue or self._in_hand)

    def drained(self, timeout_s: float) -> bool:
        """Wait until everything that was queued is delivered or given up; return whether it is."""
        with self._changed:
            self._close()
            try:
                return self._changed.wait_for(self._is_idle, timeout_s)
            finally:
                self._closing = self._outcome is not None

    def end(self, outcome: Outcome) -> None:
        """Have the rest delivered, and the plugin told how the run ended; does not wait for it."""
        with self._changed:
            if self._outcome is None:
                self._outcome = outcome
            self._close()

    def _close(self) -> None:
        """Hurry, and be patient with a service that is away only for a time that is short beside that of the run."""
        now = time.monotonic()
        self._patient_until = now + max((now - self._began) * _PATIENCE, _LEAST_PATIENCE_S)
        self._urgent = self._closing = True
        self._changed.notify_all()

    @property
    def ended(self) -> bool:
        """Whether its thread is done."""
        return not self._thread.is_alive()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; one that hangs in a call is left behind, and ends with that call."""
        self._thread.join(max(timeout_s, 0))
        if self.ended:
            return True
        with self._changed:
            if not self._abandoned:
                leave_behind(self._thread)
            self._abandoned = True
            self._changed.notify_all()
        return False

    @property
    def waiting(self) -> int:
        """How much is queued or being delivered."""
        with self._changed:
            return len(self._queue) + len(self._in_hand)

    @property
    def thinned(self) -> int:
        """How many values and media were left out since there was too much of it."""
        return self._queue.left_out

    @property
    def undelivered(self) -> list[Record]:
        """The records that are queued or being delivered, if the plugin can tell on a resume which of them did arrive."""
        if not getattr(self.plugin.object, "knows_what_arrived", False):
            return []
        with self._changed:
            return [item for item in (*self._in_hand, *self._queue) if isinstance(item, Record)]

    # --- Its thread ---

    def _work(self) -> None:
        try:
            for lane in self._after:
                lane._thread.join()
            self._after = ()
            if self._open():
                while (group := self._take()) and not self._abandoned:
                    self._deliver(group)
                if not self._abandoned and "report_end" in self.plugin.implementations:
                    self._insist("report_end", outcome=self._outcome)
        finally:
            self.tried_to_open.set()
            with self._changed:
                self.dead = True
                self.lost += self._queue.clear() + len(self._in_hand)
                self._in_hand = []
                self._changed.notify_all()

    def _open(self) -> bool:
        if "report_start" in self.plugin.implementations and not self._insist("report_start"):
            return False
        self.tried_to_open.set()
        return True

    def _take(self) -> list[Item]:
        """Wait for items; return those that go into one call, or none at the end of the run."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._outcome is not None or self._abandoned)
            if self._queue and self._due <= 0:
                self._gather()
            self._in_hand = self._queue.take(self._per_call)
            self._due -= len(self._in_hand)
            if not self._queue:
                self._urgent, self._due = self._closing, 0
            return self._in_hand

    def _gather(self) -> None:
        """Wait for more to deliver."""
        self._gathering = True
        self._changed.wait_for(lambda: self._urgent or self._is_much(), max(self._gather_until - time.monotonic(), 0))
        self._gathering = False
        self._gather_until = time.monotonic() + _GATHER_S
        self._due = len(self._queue)

    def _is_much(self) -> bool:
        return len(self._queue) >= _MANY or self._queue.fills_a_call

    def _deliver(self, group: list[Item]) -> None:
        """Hand a group over, again and again if need be; count it as lost when that is hopeless."""
        delivered = self._is_delivered(group)
        with self._changed:
            self._in_hand = []
            self.lost += 0 if delivered else len(group)
            self._changed.notify_all()
        if not delivered:
            self._hopeless += 1
            if self._hopeless >= (_HOPELESS_AT_END if self._closing else _HOPELESS):
                self._end_for_good()

    def _is_delivered(self, group: list[Item]) -> bool:
        tries = 0
        while not self._abandoned:
            error = self._call(group)
            if error is None:
                return True
            tries += 1
            if self._gives_up(error, tries):
                break
            if tries >= _SUSPICIOUS and self._next_is_taken():
                return self._call(group) is None  # the service may have come back between the two
        return False

    def _next_is_taken(self) -> bool:
        """Return whether the records after those that failed can be delivered, which shows that the service is there."""
        with self._changed:
            failed, group = self._in_hand, self._queue.take(self._per_call)
            self._in_hand = [*failed, *group]
        taken = bool(group) and self._call(group) is None
        with self._changed:
            self._in_hand = failed
            if not taken:
                self._queue.put_back(group)
        return taken

    def _insist(self, hook: str, **kwargs: Any) -> bool:
        """Call a hook until it succeeds or there is no hope for it."""
        tries = 0
        while not self._abandoned:
            error = self._attempt(hook, kwargs)
            if error is None:
                return True
            if hook == "report_start":
                self.tried_to_open.set()
            tries += 1
            if self._gives_up(error, tries):
                break
        return False

    def _gives_up(self, error: BaseException, tries: int) -> bool:
        """Say what went wrong, and wait before the next attempt unless there is none."""
        if self.plugin.insists:
            self.error = error
            self._end_for_good(say=False)
            return True
        enough: float = math.inf if isinstance(error, OSError) else _TRIES
        if self._closing and self._hopeless:
            enough = 1
        elif self._closing and time.monotonic() > self._patient_until:
            enough = min(enough, _TRIES_AT_END)
        if tries >= enough:
            return True
        pause = min(_FIRST_PAUSE_S * 2 ** (tries - 1), _LONGEST_PAUSE_S)
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._abandoned, pause)
            if self._closing:
                self._changed.wait_for(lambda: self._abandoned, min(pause, _FIRST_PAUSE_S))
        return self._abandoned

    def _call(self, group: list[Item]) -> BaseException | None:
        first = group[0]
        kwargs = vars(first) if isinstance(first, Artifact) else {"records" if isinstance(first, Record) else "items": group}
        error = self._attempt(hook_for(first), kwargs)
        if error is None:
            self.sent += len(group)
            self._hopeless = 0
        return error

    def _attempt(self, hook: str, kwargs: dict[str, Any]) -> BaseException | None:
        implementation = self.plugin.implementations.get(hook)
        if implementation is None:
            return None
        function = implementation.direct or implementation.function
        given = {"run": self._run, **{name: _own(value) for name, value in kwargs.items()}}
        self._called_at = time.monotonic()
        self.calling = hook
        try:
            function(*[given[name] for name in implementation.arguments])
        except BaseException as error:
            self._failing = True
            self._say(hook, error)
            return error
        else:
            self._failing = False
            return None
        finally:
            self._took_s = time.monotonic() - self._called_at
            self.calling = None

    def _say(self, hook: str, error: BaseException) -> None:
        """Warn of each kind of failure once; who insists on success gets the error itself."""
        kind = (hook, type(error).__name__)
        if self.plugin.insists or self._abandoned or kind in self._said:
            return
        self._said.add(kind)
        message = "%s: %s() failed with %s: %s; it is tried again, the training goes on"
        traceback = None if isinstance(error, OSError) else error
        log.warning(message, self.plugin, hook, type(error).__name__, message_of(error) or "no message", exc_info=traceback)

    def _end_for_good(self, *, say: bool = True) -> None:
        with self._changed:
            self.dead = True
            self.lost += self._queue.clear()
        if say and not self._closing:
            log.warning("%s failed %d times in a row and gets nothing more in this run", self.plugin, self._hopeless)


def _own(value: Any) -> Any:
    """Return a copy of what a plugin might change: others get the same, and it gets it again if its call fails."""
    if isinstance(value, list):
        return [_own(one) for one in value]
    if isinstance(value, Record):
        return Record(value.step, value.update, value.epoch, value.time, dict(value.values))
    if isinstance(value, Image):
        return replace(value, pixels=value.pixels.clone())
    return replace(value, metrics=dict(value.metrics)) if isinstance(value, Outcome) else value


def _end_in_fork() -> None:
    """Have lanes take nothing in a forked process, such as a loader worker: their threads are not there, and may have held the locks."""
    for lane in _lanes:
        lane._changed = threading.Condition()
        lane.dead = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_in_fork)
