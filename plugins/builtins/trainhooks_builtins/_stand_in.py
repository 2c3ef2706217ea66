"""Other data in place of a model's own, for a while: how an average is evaluated; no plugin."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    Layer = list[tuple[Tensor, Tensor]]


class _Swap:
    """What a model's tensors hold of their own, and what stands in for it, the last layer on top."""

    def __init__(self) -> None:
        self.own: dict[int, tuple[Tensor, Tensor]] = {}
        self.layers: list[Layer] = []

    def push(self, layer: Layer) -> None:
        self.layers.append(layer)
        for tensor, data in layer:
            self.own.setdefault(id(tensor), (tensor, tensor.data))
            tensor.data = data

    def show_own(self) -> None:
        for tensor, data in self.own.values():
            tensor.data = data

    def show_layers(self) -> None:
        for layer in self.layers:
            for tensor, data in layer:
                tensor.data = data


#: An entry is there only while something stands in, so that several plugins can do it with one model, in any order.
_swaps: WeakKeyDictionary[nn.Module, _Swap] = WeakKeyDictionary()


@contextmanager
def standing_in(model: nn.Module, layer: Layer) -> Iterator[None]:
    """Let tensors of a model hold other data inside a ``with`` block.

    Their ``data`` is exchanged, not their content: that takes one assignment for each tensor whatever its size and no
    memory, and everybody who holds the parameters (optimizers, DDP, compiled code) still holds the same objects.

    Args:
        model: Whose they are.
        layer: Pairs of a tensor of the model and one of the same shape, type and device.
    """
    swap = _swaps.setdefault(model, _Swap())
    try:
        swap.push(layer)
        yield
    finally:
        if any(one is layer for one in swap.layers):  # else put_back was called meanwhile
            swap.layers = [one for one in swap.layers if one is not layer]
            swap.show_own()
            swap.show_layers()
        if not swap.layers and _swaps.get(model) is swap:
            del _swaps[model]


@contextmanager
def own_weights(model: nn.Module) -> Iterator[None]:
    """Let a model have its own weights inside a ``with`` block, whatever stands in for them outside."""
    swap = _swaps.pop(model, None)
    if swap is None:
        yield
        return
    swap.show_own()
    try:
        yield
    finally:
        _swaps[model] = swap
        swap.show_layers()


def put_back(model: nn.Module) -> None:
    """Give a model its own weights for good: what stands in for them is gone."""
    swap = _swaps.pop(model, None)
    if swap is not None:
        swap.show_own()
        swap.layers = []


def stands_in(model: nn.Module, layer: Layer | None = None) -> bool:
    """Return whether this, or anything, stands in for a model's own data now."""
    swap = _swaps.get(model)
    return swap is not None and (layer is None or any(one is layer for one in swap.layers))
