"""The weights in a checkpoint as a file of their own, for programs that know nothing of trainhooks; no plugin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from trainhooks import CheckpointError, UsageError
from trainhooks.durable import sync_folder
from trainhooks.suggest import suggestion

from ._checkpoint_files import read_checkpoint
from ._checkpoint_tensors import is_plain, write_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from trainhooks.types import StateDict


def read_weights(path: Path, average: str | None) -> dict[str, Any]:
    """Return the model's ``state_dict``, with the average that a plugin keeps in the places of what it averages.

    Args:
        path: Of a checkpoint.
        average: Name of the plugin, for example ``ema``.

    Raises:
        UsageError: There is no such thing in the checkpoint.
        CheckpointError: It is broken.
    """
    state = read_checkpoint(path)
    model = _unversioned(state.get("model"))
    if not isinstance(model, Mapping) or not model:
        message = "there is no model in it: its training had none, or one without a state"
        raise UsageError(message)
    return dict(model) if average is None else _averaged(model, average, state)


def _averaged(model: Mapping[str, Any], name: str, state: StateDict) -> dict[str, Any]:
    plugins = {key.removeprefix("plugins/"): _unversioned(part) for key, part in state.items() if key.startswith("plugins/")}
    averages = {key: part for key, part in plugins.items() if isinstance(part, Mapping) and "average" in part}
    if name not in averages:
        there = f"; there is that of {', '.join(sorted(averages))}" if averages else ""
        message = f"there is no average of a plugin {name!r} in it{suggestion(name, averages)}{there}"
        raise UsageError(message)
    tensors: dict[str, Any] = {**averages[name]["average"], **averages[name].get("statistics", {})}
    if not tensors:
        message = f"{name} had not begun to average"
        raise UsageError(message)
    foreign = [one for one in tensors if one not in model]
    if foreign:
        message = f"the average of {name} has {', '.join(foreign[:3])}, which is not in the state of the model"
        raise CheckpointError(message)
    same = {_place(one): averaged for key, averaged in tensors.items() if _place(one := model[key]) is not None}
    return {key: tensors[key].to(one.dtype) if key in tensors else _of_tied(same, one) for key, one in model.items()}


def _place(value: Any) -> tuple[Any, ...] | None:
    """Return what is the same for two names of one tensor, and for nothing else; ``None`` for what has no elements."""
    if not isinstance(value, torch.Tensor) or value.numel() == 0:
        return None
    return value.data_ptr(), value.dtype, value.shape, value.stride()


def _of_tied(same: Mapping[Any, Tensor], one: Any) -> Any:
    """Return the average of a parameter under its second name, anything else as it is."""
    averaged = same.get(_place(one))
    return one if averaged is None else averaged.to(one.dtype)


def write_weights(path: Path, weights: dict[str, Any], facts: dict[str, str], *, pickled: bool) -> None:
    """Write weights so that ``path`` is there as a whole or not at all.

    Args:
        path: What is there already is replaced.
        weights: Tensors by name.
        facts: Go into the header of a safetensors file.
        pickled: Write what ``torch.load(path, weights_only=True)`` reads, instead of a safetensors file.

    Raises:
        UsageError: A safetensors file cannot hold one of them.
        CheckpointError: With the path and the cause; nothing is left behind.
    """
    others = [name for name, value in weights.items() if not is_plain(value)]
    if others and not pickled:
        message = (
            f"{', '.join(others[:3])}: no plain tensor, which a safetensors file cannot hold; --pt writes a file for torch.load"
        )
        raise UsageError(message)
    temporary = path.with_name(f".trainhooks-export-{os.getpid()}.tmp")
    try:
        apart = _apart(weights)
        if pickled:
            torch.save(apart, temporary)
        else:
            with temporary.open("wb") as file:
                write_tensors(file, apart, facts)
        _sync(temporary)
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError | RuntimeError | ValueError):
            message = f"cannot write {path}: {error}"
            raise CheckpointError(message) from error
        raise


def _apart(weights: dict[str, Any]) -> dict[str, Any]:
    """Give each name its elements for itself, tied ones too: a file of weights is read by name."""
    seen: set[int] = set()
    apart = dict(weights)
    for name, one in weights.items():
        if isinstance(one, torch.Tensor):
            storage = one.untyped_storage()
            whole = storage.nbytes() == one.nbytes and one.is_contiguous() and storage.data_ptr() not in seen
            seen.add(storage.data_ptr())
            apart[name] = one if whole else one.clone(memory_format=torch.contiguous_format)
    return apart


def _unversioned(part: Any) -> Any:
    """Return a state without the version that stands around it."""
    return part["state"] if isinstance(part, Mapping) and set(part) == {"state_version", "state"} else part


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
