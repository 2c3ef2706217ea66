"""When a metric that is measured again and again has had enough chances to get better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from trainhooks import OptionError


@dataclass
class StoppingRule:
    """Counts the values without an improvement, and says when that is enough.

    Args:
        mode: Whether lower or higher is better.
        patience: How many in a row are enough.
        min_delta: What an improvement must exceed.
        baseline: What a value must be better than too, or it counts as none.
        stopping_threshold: A value better than this is enough at once.
        divergence_threshold: A value worse than this is.
        nan: Whether NaN and infinity ``count`` as no improvement, or ``stop`` at once.
    """

    mode: Literal["min", "max"]
    patience: int
    min_delta: float
    baseline: float | None
    stopping_threshold: float | None
    divergence_threshold: float | None
    nan: Literal["count", "stop"]
    #: The best value and the step that it belongs to.
    best: float | None = None
    best_step: int | None = None
    #: Values in a row without an improvement.
    bad: int = 0
    #: The last value.
    last: float | None = None

    def __post_init__(self) -> None:
        if self.patience < 1:
            message = (
                f"patience = {self.patience}: must be at least 1, which stops at the first evaluation without an improvement"
            )
            raise OptionError(message)
        if not (self.min_delta >= 0 and math.isfinite(self.min_delta)):
            message = f"min_delta = {self.min_delta}: must be 0 or more; the direction comes from mode"
            raise OptionError(message)

    def take(self, value: float, step: int) -> bool:
        """Take a value; return whether it is the best so far. NaN and infinity never are."""
        self.last = value
        better = math.isfinite(value) and (self.best is None or self._is_better(value, self.best, self.min_delta))
        if better:
            self.best, self.best_step = value, step
        good = better and (self.baseline is None or self._is_better(value, self.baseline, self.min_delta))
        self.bad = 0 if good else self.bad + 1
        return better

    def verdict(self) -> str | None:
        """Return why the last value was enough, or ``None``."""
        value = self.last
        if value is None:
            return None
        if self.nan == "stop" and not math.isfinite(value):
            return f"is {value:g}"
        stop, diverged = self.stopping_threshold, self.divergence_threshold
        if stop is not None and math.isfinite(value) and self._is_better(value, stop):
            return f"is {value:g}, better than stopping_threshold = {stop:g}"
        if diverged is not None and self._is_better(diverged, value):
            return f"is {value:g}, worse than divergence_threshold = {diverged:g}"
        if self.bad >= self.patience:
            best = f"; best {self.best:g} at step {self.best_step}" if self.best_step is not None else ""
            return f"has not improved in {self.bad} evaluations{best}"
        return None

    def _is_better(self, value: float, than: float, delta: float = 0.0) -> bool:
        return value < than - delta if self.mode == "min" else value > than + delta

    def state_dict(self) -> dict[str, Any]:
        """Return what was best and the counter."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        for name in _STATE:
            setattr(self, name, state[name])


_STATE = ("best", "best_step", "bad", "last")
