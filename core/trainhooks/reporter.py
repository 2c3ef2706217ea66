"""The reporter thread: hands flushed metrics to the plugins that report them, so that none of them can slow training."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from .metrics import Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .manager import Plugin, PluginManager

log = logging.getLogger("trainhooks")

_CAPACITY = 10_000
_BATCH = 500
_GATHER_S = 0.5


@dataclass(frozen=True)
class RunInfo:
    """What a reporter needs to know of a run; immutable, since reporters run on another thread.

    Args:
        name: Of the run folder, or of the run where there is none.
        work_dir: Where the run writes, or ``None``.
        settings: Of the run and its plugins, as plain values.
        resumed_step: The step that the run was resumed from, or 0.
        total_steps: Where it will end, or ``None`` while that is not known.
    """

    name: str
    work_dir: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    resumed_step: int = 0
    total_steps: int | None = None


@dataclass(frozen=True)
class Artifact:
    """A file that was logged."""

    path: Path
    name: str
    kind: str


class Reporter:
    """Feeds ``report_metrics`` and ``report_artifact`` from a bounded queue.

    A full queue drops the newest records, counts them, and says so at the end. What an error leads to, the plugin's policy
    decides, and always on the training thread, by ``check``: no hook changes under the feet of the loop. Until then a plugin
    that failed gets nothing more.

    Args:
        manager: Whose plugins report.
        run: Handed to each of them.
    """

    def __init__(self, manager: PluginManager, run: RunInfo) -> None:
        self._manager = manager
        self._run = run
        self._queue: queue.Queue[Record | Artifact | None] = queue.Queue(_CAPACITY)
        self._failed: dict[Plugin, BaseException] = {}
        self._settled: set[Plugin] = set()
        self._abandoned = False
        self.dropped = 0
        self._urgent, self._closing = threading.Event(), False
        self._delivered = -_GATHER_S  # when, by the monotonic clock
        self._thread = threading.Thread(target=self._work, name="trainhooks-reporter", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Have what is queued delivered at once instead of gathering more; does not wait for it."""
        self._urgent.set()

    def put(self, item: Record | Artifact) -> None:
        """Queue one record or artifact; never waits."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.dropped += 1

    def check(self) -> None:
        """Take plugins that failed out, or raise the error of one whose policy does not allow that; each once."""
        if not self._failed:
            return
        raised: BaseException | None = None
        for plugin, error in list(self._failed.items()):
            if plugin in self._settled:
                continue
            self._settled.add(plugin)
            if plugin.on_error == "disable" and isinstance(error, Exception):
                self._manager.disable(plugin, error)
            else:
                raised = raised or error
        if raised is not None:
            raise raised

    def close(self, timeout_s: float) -> None:
        """Deliver what is queued, at most ``timeout_s`` seconds long, and report what was lost."""
        deadline = time.monotonic() + timeout_s
        self._closing = True
        self._urgent.set()
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            pass
        else:
            self._thread.join(max(deadline - time.monotonic(), 0))
        if self._thread.is_alive():
            self._abandoned = True  # the thread ends when the call that it hangs in returns
            lost = self._queue.qsize()
            if timeout_s:
                log.warning("reporters did not finish within %g s; about %d records are lost", timeout_s, lost)
            elif lost:
                log.warning("reporters were not waited for; about %d records are lost", lost)
        if self.dropped:
            log.warning("reporters were too slow: %d records were dropped", self.dropped)

    def _work(self) -> None:
        while not self._abandoned:
            items = self._take()
            for _, group in groupby(items, type):
                same = list(group)
                records = [item for item in same if isinstance(item, Record)]
                if records:
                    self._deliver("report_metrics", {"run": self._run, "records": records})
                for item in same:
                    if isinstance(item, Artifact):
                        kwargs = {"run": self._run, "path": item.path, "name": item.name, "kind": item.kind}
                        self._deliver("report_artifact", kwargs)
            if items[-1] is None:
                return
            self._delivered = time.monotonic()

    def _take(self) -> list[Record | Artifact | None]:
        """Wait for one item and take what else is there, up to an end mark.

        Soon after the last delivery it waits for more: a fast loop must not pay for writing each record by itself.
        """
        items = [self._queue.get()]
        if items[0] is not None and not self._closing:
            self._urgent.wait(max(self._delivered + _GATHER_S - time.monotonic(), 0))
            self._urgent.clear()
        while items[-1] is not None and len(items) < _BATCH:
            try:
                items.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return items

    def _deliver(self, hook: str, kwargs: dict[str, Any]) -> None:
        for plugin in list(self._manager.plugins.values()):
            implementation = plugin.implementations.get(hook)
            if implementation is None or plugin in self._failed or self._abandoned:
                continue
            function = implementation.direct or implementation.function
            try:
                function(*[kwargs[name] for name in implementation.arguments])
            except BaseException as error:
                self._failed[plugin] = error
