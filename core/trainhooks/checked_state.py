"""The types of the engine's own parts of a checkpoint, checked before any of them is used.

Models, optimizers and plugins judge their own states. What the engine takes for a number or a list must be one, since somebody
may have written the file by hand.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, get_args

from torch import Tensor

from .errors import CheckpointError, UsageError
from .series import Ranks, Reduce

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .types import StateDict

_COUNTERS: Final = ("step", "update", "epoch", "batch_index", "records")


#: What an evaluation needs.
WITH_WEIGHTS: Final = ("run",)
#: What is compared with the run that resumes, before anything is restored.
COMPARED: Final = ("plugin_lock", "settings")


def check_state(state: StateDict, needed: tuple[str, ...] | None = None) -> None:
    """Refuse a state that ``Trainer.state_dict`` cannot have written.

    Args:
        state: All of it.
        needed: Which parts to look at; all of them if ``None``.

    Raises:
        CheckpointError: A part is missing or of another type; the message names it.
    """
    for name in needed or _PARTS:
        fault = _PARTS[name](state[name]) if name in state else "it is missing"
        if fault is not None and (name in state or name not in COMPARED):
            message = f"the checkpoint's state of {name!r} does not fit: {fault}"
            raise CheckpointError(message)


def is_registered(name: str) -> bool:
    """Return whether a part of a state may be that of an object in ``trainer.stateful``, and of no plugin, model or optimizer."""
    return name not in (*_PARTS, "model", "loss") and not name.startswith(("plugins/", "optimizers/"))


def check_names(state: StateDict, objects: Collection[str], *, model: object, weights_only: bool) -> None:
    """Refuse a state whose model and optimizers are not those that are to be restored: one that is left out would start anew.

    Args:
        state: All of it.
        objects: What will be restored.
        model: Of the run, ``None`` if it has none.
        weights_only: Whether the optimizers stay as they are.

    Raises:
        UsageError: The run has not taken its model yet.
        CheckpointError: Something is missing or unexpected; the message names it.
    """
    if model is not None and "model" in state and "model" not in objects:
        message = (
            "load_state_dict() was called before the run was built, so the model would not be restored: use train(resume=PATH), "
            "evaluate(checkpoint=PATH), or call it in a hook"
        )
        raise UsageError(message)
    here, there = ({one for one in names if one == "model" or one.startswith("optimizers/")} for names in (objects, state))
    if weights_only:
        here, there = here & {"model"}, there & {"model"} & here
    if here != there:
        what = name_differences(here, there)
        message = f"the checkpoint holds other objects than this run has: {what}; give the run the same ones by these names"
        raise CheckpointError(message)


def name_differences(here: set[str], there: set[str]) -> str:
    """Return in words which names a checkpoint lacks, and which it has besides.

    Args:
        here: Those of the run.
        there: Those of the checkpoint.
    """
    parts = (("missing", here - there), ("unexpected", there - here))
    return "; ".join(f"{what} {', '.join(sorted(names))}" for what, names in parts if names)


def _run(part: Any) -> str | None:
    if not isinstance(part, dict):
        return "it is no dict"
    wrong = [name for name in _COUNTERS if not _is_count(part.get(name))]
    if wrong:
        return f"{wrong[0]} is {_short(part.get(wrong[0]))}"
    planned = part.get("planned", [0, 0])
    if not _all(planned, list, _is_count) or len(planned) != 2:  # noqa: PLR2004 - steps and updates
        return f"planned is {_short(planned)}"
    return None if _all(part.get("owed"), list, _is_text) else "owed is no list of splits"


def _metrics(part: Any) -> str | None:
    if not isinstance(part, dict) or not _named(part.get("latest"), _is_number):
        return "latest are no numbers by name"
    if not _named(part.get("epoch"), _is_series):
        return "epoch are no series by name"
    for name, fits in _IN_METRICS.items():  # which older checkpoints lack
        if name in part and not fits(part[name]):
            return f"{name} is {_short(part[name])}"
    return None


def _evaluated(part: Any) -> str | None:
    return None if _named(part, _is_number) else "they are no numbers by name"


def _generators(part: Any) -> str | None:
    if not isinstance(part, dict) or not isinstance(part.get("torch"), Tensor):
        return "torch is no tensor"
    for name, length in (("python", 3), ("numpy", 5)):
        values = part.get(name)
        if (name == "python" or name in part) and not (isinstance(values, list | tuple) and len(values) == length):
            return f"{name} has not {length} values"
    return None if _all(part.get("cuda", []), list, _is_tensor) else "cuda is no list of tensors"


def _loader(part: Any) -> str | None:
    if not isinstance(part, dict):
        return "it is no dict"
    order = part.get("order")
    if order is not None and (
        not isinstance(order, dict) or _generators(order.get("rng")) or not _all(order.get("generators"), list, _is_tensor)
    ):
        return "order is no state of generators"
    if not _all(part.get("generators", []), list, _is_tensor):
        return "generators is no list of tensors"
    if not isinstance(part.get("key", ""), str):
        return f"key is {_short(part['key'])}"
    if not _is_count(part.get("batches_read", 0)):
        return f"batches_read is {_short(part['batches_read'])}"
    if not isinstance(part.get("ahead", False), bool):
        return f"ahead is {_short(part['ahead'])}"
    if "rng_before_fetch" in part and _generators(part["rng_before_fetch"]):
        return "rng_before_fetch is no state of generators"
    size = part.get("batch_size")
    return None if size is None or (_is_count(size) and size > 0) else f"batch_size is {_short(size)}"


def _plugin_lock(part: Any) -> str | None:
    return None if _all(part, list, _is_locked) else "it is no list of plugins"


def _settings(part: Any) -> str | None:
    return None if _named(part, lambda value: not isinstance(value, Tensor)) else "they are no values by name"


_PARTS: Final[dict[str, Callable[[Any], str | None]]] = {
    "run": _run,
    "metrics": _metrics,
    "rng": _generators,
    "loader": _loader,
    "evaluated": _evaluated,
    "plugin_lock": _plugin_lock,
    "settings": _settings,
}


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= sys.maxsize


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _is_series(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and _is_text(value[0]) and all(map(_is_number, value[1:]))  # noqa: PLR2004


def _is_pending(value: object) -> bool:
    if not isinstance(value, dict) or value.get("reduce") not in get_args(Reduce) or value.get("ranks") not in get_args(Ranks):
        return False
    values, weights = value.get("values"), value.get("weights")
    folded = value.get("folded", "") is None or _is_number(value.get("folded"))
    return _are_numbers(values) and _are_numbers(weights) and folded and _is_number(value.get("folded_weight"))


def _are_losses(value: Any) -> bool:
    if not _all(value, list, lambda one: isinstance(one, list)) or len(value) != 2:  # noqa: PLR2004
        return False
    losses, sizes = value
    return len(losses) == len(sizes) and all(one is None or _is_number(one) for one in losses) and _are_numbers(sizes)


def _are_medians(value: Any) -> bool:
    return _all(value, list, lambda one: _named(one, _are_numbers)) and len(value) == 2  # noqa: PLR2004


def _are_numbers(value: object) -> bool:
    return _all(value, list, _is_number)


def _is_locked(value: object) -> bool:
    if not isinstance(value, dict) or not _is_text(value.get("name")) or not _named(value.get("options"), lambda _: True):
        return False
    return all(key in value and (value[key] is None or _is_text(value[key])) for key in ("distribution", "version"))


def _named(part: object, fits: Callable[[Any], bool]) -> bool:
    return isinstance(part, dict) and all(isinstance(name, str) and fits(value) for name, value in part.items())


def _all(part: object, kind: type, fits: Callable[[Any], bool]) -> bool:
    return isinstance(part, kind) and all(map(fits, part))  # type: ignore[call-overload]


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 70 else f"a number of {value.bit_length()} bits"
    return text if len(text) <= 50 else f"{text[:50]}..."  # noqa: PLR2004


_IN_METRICS: Final[dict[str, Callable[[Any], bool]]] = {
    "evaluated": lambda value: _named(value, _is_series),
    "medians": _are_medians,
    "series": lambda value: _named(value, _is_pending),
    "losses": _are_losses,
    "recent": lambda value: _named(value, _are_numbers),
    "trained": lambda value: _all(value, list, _is_text),
}
