"""Hands what was logged to the plugins that report it, each on a thread of its own, so that none can slow training or another."""

from __future__ import annotations

import logging
import time
from copy import deepcopy
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .hookspecs import REPORTS
from .lane import Lane
from .metrics import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .backlog import Item
    from .manager import Plugin, PluginManager
    from .run_info import RunInfo
    from .state import Outcome

log = logging.getLogger("trainhooks")

#: Records by the name of a plugin, each as step, update, epoch, time and values.
Undelivered: TypeAlias = "Mapping[str, Sequence[Sequence[Any]]]"

_OPENING_S: Final = 10.0
#: What is waited for at the end before somebody might wonder.
_SILENCE_S: Final = 3.0
#: What a checkpoint waits for reporters, so that a kill right after it costs no row of a file.
_PATIENCE_S: Final = 0.25


class Reporter:
    """The lanes of a run.

    What an error leads to that a plugin does not forgive, ``check`` decides on the training thread: no hook changes under the
    feet of the loop.

    Args:
        manager: Whose plugins report.
        run: Handed to each of them.
        undelivered: Of a resumed run what ``undelivered`` returned before.
    """

    def __init__(self, manager: PluginManager, run: RunInfo, undelivered: Undelivered = MappingProxyType({})) -> None:
        self._run, self._undelivered = run, undelivered
        self.lanes: list[Lane] = []
        for plugin in manager.plugins.values():
            self.add(plugin)

    def add(self, plugin: Plugin, since: tuple[int, int] | None = None) -> None:
        """Give a plugin a lane, if it reports.

        Args:
            plugin: That reports.
            since: The step and the number of records where the run is by now; it is told of a run that goes on from there, so
                that it keeps what it may have of it.
        """
        if any(hook in plugin.implementations for hook in REPORTS):
            for lane in [lane for lane in self.lanes if lane.ended and lane.error is None]:  # of plugins that were taken out
                self._tell_losses(lane, ended=True)
                self.lanes.remove(lane)
            own = deepcopy(dict(self._run.settings)), dict(self._run.hyperparameters)  # it may change them
            run = replace(self._run, settings=own[0], hyperparameters=own[1])
            if since is not None:
                run = replace(run, resumed=True, resumed_step=since[0], resumed_records=since[1], offered_step=since[0])
            elif again := self._undelivered.get(plugin.name):
                run = replace(run, resumed_records=run.resumed_records - len(again), offered_step=again[0][0] - 1)
            before = [lane for lane in self.lanes if lane.plugin.object is plugin.object]
            self.lanes.append(Lane(plugin, run, after=before))

    def remove(self, plugin: Plugin, outcome: Outcome) -> None:
        """End the lane of a plugin that was taken out; what it has is still delivered."""
        for lane in self.lanes:
            if lane.plugin is plugin:
                lane.end(outcome)

    def wait_until_open(self, timeout_s: float = _OPENING_S) -> None:
        """Wait until each reporter has been opened or has failed at that once."""
        deadline = time.monotonic() + timeout_s
        for lane in self.lanes:
            if not lane.tried_to_open.wait(max(deadline - time.monotonic(), 0)):
                log.warning("%s has not opened after %g s: the training begins without waiting for it", lane.plugin, timeout_s)

    def catch_up(self, timeout_s: float = _PATIENCE_S) -> None:
        """Have what is queued delivered at once instead of gathering more; files have it then, slow servers are not waited for."""
        deadline = time.monotonic() + timeout_s
        for lane in self.lanes:
            lane.hurry()
        for lane in self.lanes:
            lane.caught_up(max(deadline - time.monotonic(), 0))

    def undelivered(self) -> Undelivered:
        """Return, as plain values, the records that have not arrived at those who are to get them again after a resume."""
        found: dict[str, list[list[Any]]] = {}
        for lane in self.lanes:  # several of one plugin, where it was taken out and has come back
            for one in lane.undelivered:
                values = [one.step, one.update, one.epoch, one.time, dict(one.values)]
                found.setdefault(lane.plugin.name, []).append(values)
        return found

    def offer_again(self) -> None:
        """Queue what had not been delivered before the run was resumed."""
        for lane in self.lanes:
            for values in self._undelivered.get(lane.plugin.name, ()):
                lane.put(Record(*values))

    def put(self, item: Item) -> None:
        """Queue something for all who take it; never waits for them."""
        for lane in self.lanes:
            if lane.takes(item):
                lane.put(item)

    def check(self) -> None:
        """Raise the error of a plugin whose policy does not forgive it; each once."""
        for lane in self.lanes:
            if lane.error is not None:
                error, lane.error = lane.error, None
                raise error

    def drain(self, timeout_s: float) -> None:
        """Have everything delivered that is queued, at most ``timeout_s`` seconds long."""
        deadline = time.monotonic() + timeout_s
        for lane in self.lanes:
            if not lane.drained(min(max(deadline - time.monotonic(), 0), _SILENCE_S)) and time.monotonic() < deadline:
                left = deadline - time.monotonic()
                log.info("waiting for %s, which has %d records left, at most %d s", lane.plugin, lane.waiting, left)
                lane.drained(left)

    def close(self, outcome: Outcome, timeout_s: float) -> None:
        """Deliver the rest, tell each how the run ended, at most ``timeout_s`` seconds long, and report what was lost."""
        deadline = time.monotonic() + timeout_s
        for lane in self.lanes:
            lane.end(outcome)
        try:
            for lane in self.lanes:
                lane.join(deadline - time.monotonic())
        finally:  # Ctrl-C included
            for lane in self.lanes:
                self._tell_losses(lane, ended=lane.join(0))

    def _tell_losses(self, lane: Lane, *, ended: bool) -> None:
        lost = lane.lost + (0 if ended else lane.waiting)
        if not ended:
            doing = f" (it is in {lane.calling}())" if lane.calling else ""
            log.warning(
                "%s did not finish in time%s and was not waited for; report_timeout_s gives it more", lane.plugin, doing
            )
        if lost:
            log.warning("%s: %d of %d records not sent", lane.plugin, lost, lost + lane.sent)
        if lane.thinned:
            log.warning(
                "%s was too slow or away: %d values were left out, evenly, of those that waited", lane.plugin, lane.thinned
            )
