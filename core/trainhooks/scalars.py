"""What counts as one number: in what steps return, in what is logged, and as the weight of a batch."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .errors import UsageError

if TYPE_CHECKING:
    from .types import Output


def is_scalar(value: Any) -> bool:
    """Return whether a value of an output is averaged: a real number, or a tensor or array of NumPy without dimensions."""
    if isinstance(value, Tensor):
        return value.ndim == 0 and is_real(value)
    return isinstance(value, Real | Decimal) or (getattr(value, "ndim", None) == 0 and _is_real_array(value))


def has_one_element(value: Any) -> bool:
    """Return whether a value is a tensor or an array of NumPy with one real number, whatever its dimensions are."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and is_real(value)
    return _is_real_array(value) and getattr(value, "size", None) == 1


def number_of(value: Any) -> float:
    """Return what is a scalar, or has one element, but is no tensor, as a number."""
    return float(value if isinstance(value, Real | Decimal) else value.item())


def output_weight(output: Output, size: float, stage: str) -> Any:
    """Return for how much a batch counts: its size, or the ``"weight"`` of its output; a tensor of a device stays there.

    Raises:
        UsageError: The weight is no number, or negative; of one on a device only the shape is looked at, since it stays there.
    """
    given = output.get("weight")
    if given is None:
        return size
    fits = is_scalar(given) or has_one_element(given)
    if fits and isinstance(given, Tensor) and not given.is_cpu:
        return given
    weight = float(given) if isinstance(given, Tensor) and fits else number_of(given) if fits else math.nan
    if not 0 <= weight < math.inf:
        what = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) and given.numel() != 1 else repr(given)
        message = f"{stage} returned the weight {what}: it says for how much the batch counts, one number, 0 or more"
        raise UsageError(message)
    return weight


def is_real(value: Tensor) -> bool:
    """Return whether the numbers of a tensor can be read and averaged as they are."""
    return not (value.is_complex() or value.is_meta or value.is_quantized) and value.layout == torch.strided


def _is_real_array(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", "") in ("b", "i", "u", "f")


def kept(value: Tensor) -> Any:
    """Return a tensor with one element as it is now: of the CPU the number, of a device a copy there."""
    if value.is_cpu and type(value) is Tensor:
        return value.reshape(()).tolist()
    return value.detach().reshape(()).clone()


def as_scalar(name: str, value: Any) -> Any:
    """Return a number, or a tensor with one element, detached and still on its device.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1:
            message = f"log({name!r}): a tensor of shape {tuple(value.shape)}; log scalars, for example its mean()"
            raise UsageError(message)
        if not is_real(value):
            kind = f"{value.dtype}, {value.layout}, on {value.device}"
            message = f"log({name!r}): a tensor of {kind}; log real numbers, for example its abs() or to_dense()"
            raise UsageError(message)
        return kept(value)
    try:
        if isinstance(value, str | bytes | bytearray):  # which float() would read
            raise TypeError
        return number_of(value) if getattr(value, "size", None) == 1 else float(value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        message = f"log({name!r}): {value!r:.200} is no number"
        raise UsageError(message) from None
