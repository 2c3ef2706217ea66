"""The built-in plugins, each found through the same entry-point group as everybody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint import Checkpoint as Checkpoint
    from .evaluation import Evaluation as Evaluation
    from .lr import LR as LR
    from .metrics_log import MetricsLog as MetricsLog
    from .progress import Progress as Progress
    from .timer import Timer as Timer

__all__ = ["LR", "Checkpoint", "Evaluation", "MetricsLog", "Progress", "Timer"]

_MODULES = {
    "Checkpoint": "checkpoint",
    "Evaluation": "evaluation",
    "LR": "lr",
    "MetricsLog": "metrics_log",
    "Progress": "progress",
    "Timer": "timer",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
