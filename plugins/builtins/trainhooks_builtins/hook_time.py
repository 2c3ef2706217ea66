"""``hook_time``: how much host time each plugin takes, hook by hook."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

from trainhooks import OptionError, hookimpl

from ._exclusive import ExclusiveTime
from ._hook_table import as_plain, table_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainhooks import Trainer

log = logging.getLogger("trainhooks")

_FILE = "hook_time.json"
_FIRST_STEPS, _ENOUGH_STEPS = 5, 20


class HookTime:
    """Measures the host time that each plugin takes in each hook, and warns where that is much of the training.

    Time is exclusive: what a hook calls, when it evaluates for example, counts for the plugins that do it, and a wrapper's time is
    what it takes before and after its ``yield``. At the end of the run a table is logged and ``hook_time.json`` written into the
    run folder. While training it warns once if the plugins' share of the time exceeds ``warn_share``. What a plugin does in place
    of the engine, a ``compute_loss`` of the project file for example, does not count for the share; nor do evaluations,
    checkpoints and the first 5 steps, and 20 more are waited for. On an accelerator work is queued: a plugin that waits for the
    device is charged with the waiting.

    Args:
        warn_share: Share of the training's time, in (0, 1], from which on to warn; 0 for never.
        top: Hooks in the table that is logged, over all plugins; 0 for all.
        clock: Returns seconds; only differences are used.
    """

    phase = "bookkeeping"

    def __init__(self, warn_share: float = 0.2, top: int = 20, clock: Callable[[], float] = time.perf_counter) -> None:
        if not 0 <= warn_share <= 1:
            message = f"warn_share = {warn_share}: must be between 0 (never) and 1"
            raise OptionError(message)
        if top < 0:
            message = f"top = {top}: must be 0 (all) or more"
            raise OptionError(message)
        self.warn_share, self.top = warn_share, top
        self._times = ExclusiveTime(clock)
        self._tracing = self._warned = False
        self._steps = 0

    @property
    def totals(self) -> dict[str, dict[str, tuple[int, float]]]:
        """Calls and seconds of this run by plugin and hook; the engine is among the plugins."""
        totals: dict[str, dict[str, tuple[int, float]]] = {}
        for (plugin, hook), cell in list(self._times.cells.items()):
            if cell.calls:
                totals.setdefault(plugin, {})[hook] = (cell.calls, cell.seconds)
        return totals

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Begin to measure every implementation of every hook."""
        self._times.cells.clear()
        self._warned, self._steps = False, 0
        manager = trainer.manager
        if manager.traced:
            log.warning("hook_time: this run is traced by something else already, so nothing is measured")
            return
        self._tracing = True
        manager.trace(self._times.decorate, lambda _, call: call)
        trainer.bus.before_flush.append(self._check)

    @hookimpl(trylast=True)
    def after_step(self) -> None:
        """Count the step; begin to compare when what comes only once is over."""
        self._steps += 1
        if self._steps == _FIRST_STEPS:
            self._times.compare()

    @hookimpl
    def teardown(self, trainer: Trainer) -> None:
        """Leave every implementation as it was, and tell."""
        if not self._tracing:
            return
        self._tracing = False
        trainer.bus.before_flush.remove(self._check)
        trainer.manager.trace(None, None)
        totals = self.totals
        table = "\n".join(table_of(totals, self.top))
        log.info("hook_time: host time of each plugin in each hook, without what it calls\n%s", table)
        if self._steps and trainer.run_folder is not None and trainer.is_main:
            content = {"format": 1, "steps": trainer.step, "plugins": as_plain(totals)}
            trainer.run_file(_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def _check(self) -> None:
        """Warn once if plugins take too much of the training's time."""
        if self._warned or not self.warn_share or self._steps < _FIRST_STEPS + _ENOUGH_STEPS:
            return
        whole = self._times.compared_seconds
        costs = {key: cell for key, cell in list(self._times.cells.items()) if cell.overhead and cell.compared > 0}
        share = sum(cell.compared for cell in costs.values()) / whole if whole > 0 else 0.0
        if share <= self.warn_share:
            return
        self._warned = True
        by_plugin: dict[str, float] = {}
        for (plugin, _), cell in costs.items():
            by_plugin[plugin] = by_plugin.get(plugin, 0.0) + cell.compared
        worst = max(by_plugin, key=lambda plugin: by_plugin[plugin])
        hook = max((key for key in costs if key[0] == worst), key=lambda key: costs[key].compared)[1]
        cell = costs[worst, hook]
        log.warning(
            "hook_time: plugins take %s of the training's time (warn_share = %g), %r alone %s, most of it in %s, %s us a call: "
            "have it do less there, or only in every n-th step, or leave it out with -p no:%s",
            f"{share:.0%}",
            self.warn_share,
            worst,
            f"{by_plugin[worst] / whole:.0%}",
            hook,
            f"{1e6 * cell.seconds / cell.calls:.0f}",
            worst,
        )
