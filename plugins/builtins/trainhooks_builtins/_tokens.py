"""How many tokens a step has, without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainhooks import DataError

if TYPE_CHECKING:
    from trainhooks.types import Batch, Output


def tokens_of(key: str, batch: Batch, output: Output) -> Any:
    """Return how many tokens a step had: a number, or a tensor that is left on its device.

    Raises:
        DataError: Nobody has the key, or it is no count.
    """
    sources = [source for source in (output, batch) if isinstance(source, Mapping)]
    source = next((source for source in sources if key in source), None)
    if source is None:
        known = ", ".join(str(name) for one in sources for name in one)
        message = f"throughput.tokens = {key!r}: neither the output nor the batch has it (there are {known}); or 'sequence'"
        raise DataError(message)
    value = source[key]
    if isinstance(value, Tensor):
        if value.dtype is torch.bool:
            return value.sum()
        return value.detach().reshape(()).clone() if value.numel() == 1 else value.numel()
    if isinstance(value, Real):
        return value
    if hasattr(value, "__len__"):
        return len(value)
    message = f"throughput.tokens = {key!r}: {type(value).__name__} is neither a number nor a tensor"
    raise DataError(message)


def elements_of(batch: Batch) -> int:
    """Return the number of elements of the first tensor.

    Raises:
        DataError: There is none.
    """
    values = [batch]
    while values:
        value = values.pop(0)
        if isinstance(value, Tensor):
            return value.numel()
        if isinstance(value, Mapping):
            values[:0] = value.values()
        elif isinstance(value, tuple | list):
            values[:0] = value
    message = f"throughput.tokens = 'sequence': there is no tensor in a batch of type {type(batch).__name__}"
    raise DataError(message)
