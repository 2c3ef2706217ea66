"""The best value of a metric so far; NaN is never an improvement."""

from __future__ import annotations

import logging
import math
import re
from typing import Any, Literal

from .errors import OptionError

log = logging.getLogger("trainhooks")

Mode = Literal["auto", "min", "max"]

#: Words in the names of metrics that are better when they are lower, whatever other words there are.
_LOWER = re.compile("loss|err|error|mse|mae|rmse|mape|brier|fid|kid|cost|distance|perplexity|ppl|wer|cer|nll|divergence|kl")
#: Words in the names of those that are better when they are higher; everything else is taken to be an error or a loss.
_HIGHER = re.compile(
    "acc|accuracy|auc|auroc|auprc|f1|precision|recall|map|ap|ar|iou|miou|dice|mdice|macc|aacc|bleu|rouge|psnr|ssim|score|r2|top|"
    "ndcg|mrr|mcc|kappa|hit|hits|similarity|corr|correlation|reward"
)


def direction(metric: str, mode: Mode = "auto") -> Literal["min", "max"]:
    """Return whether lower or higher is better; ``"auto"`` infers it from the name, ``"min"`` where that says nothing.

    Raises:
        OptionError: There is no such mode.
    """
    if mode not in ("auto", "min", "max"):
        message = f"mode = {mode!r}: must be 'auto', 'min' or 'max'"
        raise OptionError(message)
    if mode != "auto":
        return mode
    words = _words(metric.rpartition("/")[2])
    return "max" if any(map(_HIGHER.fullmatch, words)) and not any(map(_LOWER.fullmatch, words)) else "min"


def _words(name: str) -> set[str]:
    """Return the words of a name, ``val_acc@5`` and ``MulticlassF1Score`` alike, with and without the digits at their end."""
    parts = re.findall(r"[a-z]+\d*", name.lower()) + re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z][a-z]+\d*|[A-Z]\d+", name)
    words = {part.lower() for part in parts}
    return words | {word.rstrip("0123456789") for word in words}


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
        return {"metric": self.metric, "mode": self.mode, "value": self.value, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them, unless they belong to another metric or direction."""
        metric, mode = state["metric"], state.get("mode", self.mode)  # no mode in checkpoints of before version 0.2
        if (metric, mode) == (self.metric, self.mode):
            self.value, self.step = state["value"], state["step"]
        elif state["value"] is not None:
            log.warning(
                "the best %s (%s) begins anew, the checkpoint has that of %s (%s)", self.metric, self.mode, metric, mode
            )
