"""What differs between a checkpoint and the run that resumes from it, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn

from .compiled import plain_name
from .optimizers import ByName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .trainer import Trainer
    from .types import StateDict

#: Settings that a checkpoint brings with it: what was drawn with the seed goes on.
_OF_THE_CHECKPOINT: Final = ("seed",)
#: Settings of which ``None`` means that nobody knew them.
_MAY_BE_UNKNOWN: Final = ("batch_size",)


def setting_differences(trainer: Trainer, state: StateDict) -> list[str]:
    """Return a sentence for each setting, and each option of an optimizer, that is not what the checkpoint was made with."""
    sentences, decided = [], _decided(trainer, state)
    given = {name: value for name, value in trainer.given_settings().items() if name not in decided}
    for name, saved in state.get("settings", {}).items():
        if name in given and given[name] not in (saved, None) and (saved is not None or name not in _MAY_BE_UNKNOWN):
            used = saved if name in _OF_THE_CHECKPOINT else given[name]
            sentences.append(f"{name} saved {saved}, given {given[name]}, using {used}")
    for name in trainer.optimizers:
        optimizer = trainer.stateful.get(f"optimizers/{name}")
        if isinstance(optimizer, ByName) and f"optimizers/{name}" in state:
            sentences += [f"{name}: {difference}" for difference in optimizer.differences(state[f"optimizers/{name}"], decided)]
    return sentences + _dtype_differences(trainer.model, state.get("model"))


def _decided(trainer: Trainer, state: StateDict) -> set[str]:
    """Return the settings and options that plugins set, whatever is given: those that they name in ``decided_settings``."""
    names: set[str] = set()
    for name, plugin in trainer.plugins.items():
        decides: Any = getattr(plugin, "decided_settings", None)
        if decides is not None:
            names |= set(decides(state.get(f"plugins/{name}")))
    return names


def _dtype_differences(model: object, state: object) -> list[str]:
    """Return a sentence for each pair of dtypes of a model's saved and present tensors, which are converted without a word."""
    if not isinstance(model, nn.Module) or not isinstance(state, dict):
        return []
    sentences: dict[tuple[str, str], str] = {}
    for its_name, now in [*model.named_parameters(), *model.named_buffers()]:
        name = plain_name(its_name)
        was = state.get(name)
        if isinstance(was, Tensor) and was.dtype != now.dtype:
            one, other = (str(dtype).removeprefix("torch.") for dtype in (was.dtype, now.dtype))
            sentences.setdefault((one, other), f"{name}: dtype saved {one}, given {other}, using {other}")
    return list(sentences.values())


def lock_differences(saved: Sequence[dict[str, Any]], present: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each difference between two plugin locks.

    Plugins whose loss a run survives (``on_error = "disable"``: progress, reporters) are left out, since nothing depends on them.
    """
    before, now = ({one["name"]: one for one in lock if one.get("on_error") != "disable"} for lock in (saved, present))
    sentences = [f"{name!r} was active, now it is not" for name in before if name not in now]
    sentences += [f"{name!r} is new" for name in now if name not in before]
    for name in (name for name in before if name in now):
        old, new = before[name], now[name]
        for key in ("distribution", "version"):
            if old[key] != new[key]:
                sentences.append(f"{name!r}: {key} was {old[key]}, now {new[key]}")
        for key in sorted(old["options"].keys() | new["options"].keys()):
            if key not in old["options"]:
                sentences.append(f"{name!r}: option {key} was left at its default, now it is {new['options'][key]!r}")
            elif key not in new["options"]:
                sentences.append(f"{name!r}: option {key} was {old['options'][key]!r}, now it is left at its default")
            elif (was := old["options"][key]) != (given := new["options"][key]):
                sentences.append(f"{name!r}: option {key} saved {was}, given {given}, using {given}")
    common = [name for name in before if name in now]
    if common != [name for name in now if name in before]:
        sentences.append(f"the order was {' → '.join(common)}, now {' → '.join(name for name in now if name in before)}")
    return sentences
