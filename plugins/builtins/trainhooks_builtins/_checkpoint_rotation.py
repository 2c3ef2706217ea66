"""Which checkpoints are kept: the newest, the best and those that are pinned."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainhooks.best import Best

from ._checkpoint_files import is_pinned, remove_checkpoints, step_of
from ._checkpoint_folders import in_words, read_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from trainhooks.best import Mode

log = logging.getLogger("trainhooks")


class Ranking(Best):
    """The values of one metric at the steps that have a checkpoint; ``step`` and ``value`` are the best of them.

    Args:
        metric: Its name, for example ``val/accuracy``.
        mode: Which direction is better; inferred from the name.
        count: How many are the best.
    """

    def __init__(self, metric: str, mode: Mode, count: int) -> None:
        super().__init__(metric, mode)
        self.count = count
        self._values: dict[int, float] = {}
        self._latest: tuple[int, float] | None = None
        #: Whether any value was a finite number.
        self.measured = False

    def update(self, value: float, step: int) -> bool:
        """Take the value of an evaluation; return whether it is among the best. NaN and infinity never are, nor is a tie."""
        if not math.isfinite(value):
            return False
        self._latest, self.measured = (step, value), True
        best = self.best_of(self._values)
        return len(best) < self.count or self._loss(value) < self._loss(self._values[best[-1]])

    def values_after(self, step: int) -> dict[int, float]:
        """Return the values as they are once there is a checkpoint of ``step``."""
        latest = {step: self._latest[1]} if self._latest is not None and self._latest[0] == step else {}
        return self._values | latest

    def commit(self, values: dict[int, float], steps: Collection[int]) -> None:
        """Take over the values of those checkpoints that are there; another thread may read meanwhile."""
        self._values = {step: value for step, value in values.items() if step in steps}
        self.step = next(iter(self.best_of(self._values)), None)
        self.value = self._values[self.step] if self.step is not None else None

    def best_of(self, values: dict[int, float]) -> list[int]:
        """Return the best steps, the best first; of equal ones the earlier."""
        return sorted(values, key=lambda step: (self._loss(values[step]), step))[: self.count]

    def _loss(self, value: float) -> float:
        return value if self.mode == "min" else -value

    def state_after(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint of ``step`` should know."""
        values = self.values_after(step)
        best = next(iter(self.best_of(values)), None)
        return {"metric": self.metric, "value": None if best is None else values[best], "step": best, "values": values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it, unless it belongs to another metric."""
        if state["metric"] == self.metric:
            self.commit(state["values"], state["values"])
            self.measured = bool(self._values)


@dataclass(frozen=True)
class Wish:
    """What one instance of the plugin wants to keep.

    Args:
        keep: How many that are not pinned; 0 for all.
        best: The steps that are the best, as far as they are there.
    """

    keep: int
    best: tuple[int, ...]

    def wanted(self, steps: Collection[int], pinned: Collection[int] = ()) -> set[int]:
        """Return which steps to keep: the newest, the best, and as many of the next newest as ``keep`` leaves room for."""
        if self.keep == 0:
            return set(steps)
        loose = sorted(set(steps) - set(pinned), reverse=True)
        always = [step for step in dict.fromkeys([max(steps, default=-1), *self.best]) if step in loose]
        return set(pinned) | set(list(dict.fromkeys([*always, *loose]))[: max(self.keep, len(always))])


def rotate(newest: Path, wishes: Sequence[Wish]) -> tuple[list[Path], set[int]]:
    """Remove the checkpoints beside ``newest``, and not later ones, that nobody wants to keep.

    Returns:
        Those that were removed, and the steps of those that are there.
    """
    try:
        own = {step_of(path): path for path in read_folder(newest.parent) if step_of(path) <= step_of(newest)}
    except OSError as error:
        log.warning(
            "cannot read the folder of checkpoints %s: %s; older ones are removed next time", newest.parent, in_words(error)
        )
        return [], {step_of(newest)}.union(*(wish.best for wish in wishes))
    pinned = {step for step, path in own.items() if is_pinned(path)}
    wanted = {step_of(newest), *pinned}.union(*(wish.wanted(own, pinned) for wish in wishes))
    unwanted = [path for step, path in own.items() if step not in wanted]
    errors = remove_checkpoints(unwanted)
    for problem in errors.values():
        log.warning(
            "%s; tried again at the next one; there are %d checkpoints now", problem, len(own) - len(unwanted) + len(errors)
        )
    removed = [path for path in unwanted if path not in errors]
    return removed, own.keys() - {step_of(path) for path in removed}
