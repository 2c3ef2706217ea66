"""A PyTorch training engine made of hooks: every stage of a run is a pluggy hook.

Importing this package imports neither torch nor any plugin; ``Trainer`` is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    CheckpointError,
    DataError,
    MissingPartError,
    OptionError,
    PluginError,
    PluginImportError,
    PluginNotFoundError,
    PluginValidationError,
    SkipEpoch,
    SkipStep,
    StageResultError,
    Terminated,
    TrainhooksError,
    TrainingError,
    UsageError,
)
from .markers import hookimpl, hookspec

if TYPE_CHECKING:
    __version__: str

    from .metrics import Record as Record
    from .run_info import RunInfo as RunInfo
    from .state import Outcome as Outcome
    from .trainer import Trainer as Trainer

__all__ = [
    "CheckpointError",
    "DataError",
    "MissingPartError",
    "OptionError",
    "Outcome",
    "PluginError",
    "PluginImportError",
    "PluginNotFoundError",
    "PluginValidationError",
    "Record",
    "RunInfo",
    "SkipEpoch",
    "SkipStep",
    "StageResultError",
    "Terminated",
    "Trainer",
    "TrainhooksError",
    "TrainingError",
    "UsageError",
    "__version__",
    "hookimpl",
    "hookspec",
]

_LAZY = {"Outcome": "state", "Record": "metrics", "RunInfo": "run_info", "Trainer": "trainer"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib_metadata import version

        return version("trainhooks")
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
