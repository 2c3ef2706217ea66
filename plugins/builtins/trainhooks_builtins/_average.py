"""The average of a model's weights, as tensors by name; no plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trainhooks import CheckpointError, UsageError
from trainhooks.compiled import named_parameters, plain_name

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ._stand_in import Layer

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class Average:
    """Tensors by name beside a model that keeps its own: one copy of its parameters, on their devices.

    Tied parameters are one. The average of a parameter of half precision is kept in single precision, where small shares
    of a difference are not lost. Integer parameters are not averaged.

    Args:
        owner: Name of the plugin, for messages.
        buffers: Whether buffers with fractions are averaged too.
    """

    def __init__(self, owner: str, *, buffers: bool = False) -> None:
        self.owner, self.buffers = owner, buffers
        self.tensors: dict[str, Tensor] = {}
        self._parameters: dict[str, Tensor] = {}
        self._slots: dict[str, tuple[nn.Module, str]] = {}
        self._buffer_names: set[str] = set()
        self._own_names: dict[str, str] = {}
        self._same: list[tuple[list[Tensor], list[Tensor]]] = []
        self._wider: list[tuple[Tensor, Tensor]] = []

    @property
    def by_own_names(self) -> dict[str, Tensor]:
        """The tensors by the names that the model has for them, which ``torch.compile`` may have changed."""
        return {self._own_names.get(name, name): one for name, one in self.tensors.items()}

    @property
    def bound(self) -> bool:
        """Whether it knows the model."""
        return bool(self._parameters)

    def bind(self, model: nn.Module) -> None:
        """Get to know the model whose weights are averaged.

        Raises:
            CheckpointError: The tensors that were loaded are not those of this model.
        """
        self._parameters = {name: one for name, one in named_parameters(model) if _fractional(one)}
        self._slots = _buffer_slots(model) if self.buffers else {}
        self._buffer_names = {plain_name(name) for name, _ in model.named_buffers()}
        self._own_names = {plain_name(name): name for name in [*dict(model.named_parameters()), *dict(model.named_buffers())]}
        if self.tensors:
            self._fit()
        self._pair()

    def check(self, model: nn.Module) -> None:
        """Refuse a model whose parameters are no longer those that are averaged.

        Raises:
            UsageError: With the names.
        """
        now = {name: one for name, one in named_parameters(model) if _fractional(one)}
        known = self._parameters
        changed = [name for name in {**known, **now} if now.get(name) is not known.get(name)]
        if changed:
            message = (
                f"{self.owner}: parameters of the model were added, removed or replaced since training began "
                f"({_some(changed)}); they cannot be averaged: change the model before train(), in make_model or setup"
            )
            raise UsageError(message)

    def begin(self) -> None:
        """Start from the weights as they are."""
        self.tensors = {
            name: one.detach().to(_WIDER.get(one.dtype, one.dtype), copy=True) for name, one in self._sources().items()
        }
        self._pair()

    @torch.no_grad()
    def update(self, share: float) -> None:
        """Move the average towards the weights by a share of the difference, on the device, without waiting for it."""
        for averages, sources in self._same:
            torch._foreach_lerp_(averages, sources, share)
        for average, source in self._wider:
            average.lerp_(source.to(average.dtype), share)
        for name, (module, key) in self._slots.items():
            average = self.tensors[name]
            average.lerp_(getattr(module, key).to(average.dtype), share)

    def layer(self) -> Layer:
        """Return what stands in for the weights."""
        return [(one, self.tensors[name].to(one.dtype)) for name, one in self._sources().items()]

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Make the average the model's own weights."""
        for name, one in self._sources().items():
            one.copy_(self.tensors[name])

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take saved tensors, in place where there are some already."""
        old = self.tensors if self.tensors.keys() == tensors.keys() else {}
        new = {}
        for name, one in tensors.items():
            here = old.get(name)
            new[name] = here.copy_(one) if here is not None and here.shape == one.shape else one.detach().clone()
        self.tensors = new
        if self.bound:
            if new:
                self._fit()
            self._pair()

    def _sources(self) -> dict[str, Tensor]:
        return {**self._parameters, **{name: getattr(module, key) for name, (module, key) in self._slots.items()}}

    def _fit(self) -> None:
        """Bring loaded tensors to the devices and types of the weights; buffers that were not averaged begin as they are."""
        sources = self._sources()
        wrong = [name for name in self.tensors if name not in sources and name not in self._buffer_names]
        fitting = {}
        for name, one in sources.items():
            loaded = self.tensors.get(name, one.detach().clone() if name in self._slots else None)
            if loaded is None or loaded.shape != one.shape:
                wrong.append(name)
            else:
                fitting[name] = loaded.to(one.device, _WIDER.get(one.dtype, one.dtype))
        if wrong:
            message = f"the average that {self.owner!r} has loaded is not one of this model: see {_some(wrong)}"
            raise CheckpointError(message)
        self.tensors = fitting

    def _pair(self) -> None:
        """Pair averages and parameters, by device and type, so that an update takes few kernels."""
        groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        self._wider = []
        for name, one in self._parameters.items():
            average = self.tensors.get(name)
            if average is None:
                continue
            if average.dtype == one.dtype:
                averages, sources = groups.setdefault((one.device, one.dtype), ([], []))
                averages.append(average)
                sources.append(one)
            else:
                self._wider.append((average, one))
        self._same = list(groups.values())


def _fractional(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _buffer_slots(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return where the buffers with fractions are: a module may put another tensor in a buffer's place."""
    slots = {}
    for name, buffer in model.named_buffers():
        if _fractional(buffer):
            path, _, key = name.rpartition(".")
            slots[plain_name(name)] = (model.get_submodule(path), key)
    return slots


def _some(names: Any, most: int = 3) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
