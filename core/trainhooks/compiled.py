"""The names that a model's tensors have without ``torch.compile``, which holds each module that it is given as ``_orig_mod``."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import nn

_COMPILED: Final = "_orig_mod"


def plain_name(name: str) -> str:
    """Return the name of a parameter, a buffer or a module as it is without ``torch.compile``."""
    return ".".join(part for part in name.split(".") if part != _COMPILED) if _COMPILED in name else name


def named_parameters(model: nn.Module, *, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield what ``model.named_parameters`` does, by names that do not depend on what is compiled."""
    for name, parameter in model.named_parameters(remove_duplicate=remove_duplicate):
        yield plain_name(name), parameter


def stateful_model(model: nn.Module) -> nn.Module | PlainNames:
    """Return what saves and restores a model so that it does not matter which of its parts are compiled, then or now."""
    while _COMPILED in (inner := getattr(model, "_modules", {})):  # that of a scripted model has no get()
        model = inner[_COMPILED]
    named_modules = getattr(model, "named_modules", tuple)
    return PlainNames(model) if any(_COMPILED in name.split(".") for name, _ in named_modules()) else model


class PlainNames:
    """Saves and restores a model with compiled parts by the names that it has without.

    Args:
        model: Restored in place.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        """Return the model's state, by plain names."""
        state = self.model.state_dict()
        return _renamed(state, {name: plain_name(name) for name in _names(state)})

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """Give the model a state by plain names."""
        return self.model.load_state_dict(_renamed(state, {plain_name(name): name for name in _names(self.model.state_dict())}))


def _names(state: Mapping[str, Any]) -> Iterable[str]:
    return [*state, *getattr(state, "_metadata", ())]


def _renamed(state: Mapping[str, Any], names: Mapping[str, str]) -> OrderedDict[str, Any]:
    renamed = OrderedDict((names.get(name, name), value) for name, value in state.items())
    metadata = getattr(state, "_metadata", None)  # versions, by which modules read older states
    if metadata is not None:
        renamed._metadata = OrderedDict((names.get(name, name), value) for name, value in metadata.items())  # type: ignore[attr-defined]
    return renamed
