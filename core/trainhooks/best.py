"""The best value of a metric so far; NaN is never an improvement."""

from __future__ import annotations

import math
from typing import Any, Literal

Mode = Literal["auto", "min", "max"]

#: Parts of names whose metrics are better when they are lower, though they have one of the others in them.
_LOWER = ("loss", "err", "mape", "brier")
#: Parts of names whose metrics are better when they are higher; everything else is taken to be an error or a loss.
_HIGHER = ("acc", "auc", "f1", "precision", "recall", "map", "iou", "dice", "bleu", "rouge", "psnr", "ssim", "score", "r2")


def direction(metric: str, mode: Mode = "auto") -> Literal["min", "max"]:
    """Return whether lower or higher is better; ``"auto"`` infers it from the name, ``"min"`` where that says nothing."""
    if mode != "auto":
        return mode
    name = metric.rpartition("/")[2].lower()
    return "max" if any(part in name for part in _HIGHER) and not any(part in name for part in _LOWER) else "min"


class Best:
    """Keeps the best value of one metric and the step that it belongs to.

    Args:
        metric: Its name, for example ``val/accuracy``.
        mode: Which direction is better.
    """

    def __init__(self, metric: str, mode: Mode = "auto") -> None:
        self.metric = metric
        self.mode = direction(metric, mode)
        self.value: float | None = None
        self.step: int | None = None

    def update(self, value: float, step: int) -> bool:
        """Take a new value; return whether it is the best so far. NaN and infinity are not."""
        if not math.isfinite(value):
            return False
        better = self.value is None or (value < self.value if self.mode == "min" else value > self.value)
        if better:
            self.value, self.step = value, step
        return better

    def state_dict(self) -> dict[str, Any]:
        """Return the value and its step."""
        return {"metric": self.metric, "value": self.value, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them, unless they belong to another metric."""
        if state["metric"] == self.metric:
            self.value, self.step = state["value"], state["step"]
