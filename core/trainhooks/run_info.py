"""What reporters are told of a run."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    from .parts import RunParts

Plain: TypeAlias = str | int | float | bool | None

#: Settings that change nothing of what is trained.
_ASIDE: Final = ("work_dir", "name", "report_timeout_s", "log_every_steps")


@dataclass(frozen=True)
class RunInfo:
    """What a reporter needs to know of a run; immutable, since reporters run on threads of their own.

    Args:
        name: Of the run folder, or of the run where there is none.
        work_dir: Where the run writes, or ``None``.
        settings: Of the run and its plugins, as plain values.
        resumed_step: The step that the run was resumed from, or 0.
        total_steps: Where it will end, or ``None`` while that is not known.
        id: The same over all resumes of a run; it is in ``run.json`` and in every checkpoint.
        parent: The ``id`` of the run whose checkpoint this one began with in another folder, or ``None``.
        resumed: Whether it goes on with what a former process has trained, or the reporter came while it trained.
        resumed_records: How many records it had logged by ``resumed_step``; for a reporter that knows what arrived, without those
            that it is offered again.
        offered_step: Records after this step are offered again; less than ``resumed_step`` where some had not arrived then.
        hyperparameters: By name, such as ``seed``, ``optimizer/lr``, ``checkpoint/keep``, with those of ``log_hyperparameters``.
    """

    name: str
    work_dir: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    resumed_step: int = 0
    total_steps: int | None = None
    id: str = ""
    parent: str | None = None
    resumed: bool = False
    resumed_records: int = 0
    offered_step: int = 0
    hyperparameters: Mapping[str, Plain] = field(default_factory=dict)


def plain(value: Any) -> bool:
    """Return whether a value can stand in JSON and in a checkpoint as it is; a member of an enumeration of texts cannot."""
    return value is None or type(value) in (str, int, float, bool)


def new_id() -> str:
    """Return 12 hexadecimal digits that no other run has; Python's generator, which users seed, is left alone."""
    return secrets.token_hex(6)


def settings_of(run: RunParts) -> dict[str, Any]:
    """Return the settings as plain values."""
    values = {one.name: getattr(run.settings, one.name) for one in fields(run.settings)}
    return {key: value if plain(value) else str(value) for key, value in values.items()}


def hyperparameters(run: RunParts) -> dict[str, Plain]:
    """Return what a run was made with, flat: its settings, the optimizer's, those of plugins, and what the user gave."""
    settings = {**settings_of(run), "max_epochs": run.max_epochs, "max_steps": run.max_steps, "max_updates": run.max_updates}
    found: dict[str, Any] = {key: value for key, value in settings.items() if key not in _ASIDE and value is not None}
    found["device"] = str(run.device)
    found |= {key: value for key, value in run.given_settings().items() if value is not None}
    if run.model is not None:
        found["model"] = type(run.model).__name__
    for name, optimizer in run.optimizers.items():
        defaults = {key: value for key, value in optimizer.defaults.items() if value is not None}
        found[name if name == "optimizer" else f"optimizer/{name}"] = {"name": type(optimizer).__name__, **defaults}
    for plugin in run.manager.plugins.values():
        found[plugin.name] = plugin.options
    return flat({**found, **run.own_hyperparameters})


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Plain]:
    """Return nested values by names with ``/`` between the parts; what is no plain value becomes text."""
    found: dict[str, Plain] = {}
    for key, given in values.items():
        name, value = f"{prefix}{key}", _item(given)
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}/")
        elif plain(value):
            found[name] = value
        elif isinstance(value, list | tuple) and all(plain(_item(one)) for one in value):
            found[name] = json.dumps([_item(one) for one in value])
        else:
            found[name] = str(value)
    return found


def _item(value: Any) -> Any:
    """Return a scalar of NumPy, or a tensor or array without dimensions, as a plain value if it has one; anything else as it is."""
    if getattr(value, "ndim", None) != 0 or not callable(getattr(value, "item", None)):
        return value
    try:
        item = value.item()
    except (RuntimeError, NotImplementedError):  # a tensor without data
        return value
    return item if plain(item) else value
