"""The latest values of metrics, and their median and mean."""

from __future__ import annotations

import math
from collections import deque
from fnmatch import fnmatchcase
from statistics import median
from typing import TYPE_CHECKING

from trainhooks.series import mean_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RecentValues:
    """Keeps a window of values for each metric.

    Args:
        window: How many of each.
        patterns: Names of those to keep, which may have wildcards; all if there are none.
    """

    def __init__(self, window: int, patterns: Sequence[str] = ()) -> None:
        self._window, self._patterns = window, patterns
        self._values: dict[str, deque[float]] = {}
        self._wanted: dict[str, bool] = {}
        self._fresh: dict[str, None] = {}

    def add(self, values: Mapping[str, float]) -> None:
        """Take the values of a record."""
        for name, value in values.items():
            if self._is_wanted(name):
                if name not in self._values:
                    self._values[name] = deque(maxlen=self._window)
                self._values[name].append(value)
                self._fresh[name] = None

    def take_fresh(self) -> list[str]:
        """Return the metrics that have new values since the last call, the most telling first: the loss, others of training, ..."""
        fresh, self._fresh = self._fresh, {}
        return sorted(fresh, key=_rank)

    def summary(self, name: str) -> tuple[float, float, float, int]:
        """Return the latest value, median and mean of those that are finite, and how many of these there are."""
        values = self._values[name]
        finite = [value for value in values if math.isfinite(value)]
        return (values[-1], median(finite), mean_of(finite), len(finite)) if finite else (values[-1], math.nan, math.nan, 0)

    def _is_wanted(self, name: str) -> bool:
        wanted = self._wanted.get(name)
        if wanted is None:
            wanted = not self._patterns or any(name == one or fnmatchcase(name, one) for one in self._patterns)
            self._wanted[name] = wanted
        return wanted


def _rank(name: str) -> int:
    if name == "train/loss":
        return 0
    part = name.partition("/")[0] if "/" in name else ""
    return {"train": 1, "val": 2, "test": 2, "best": 4, "": 3, "lr": 5, "time": 7}.get(part, 6)
