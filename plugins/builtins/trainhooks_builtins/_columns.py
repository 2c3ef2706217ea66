"""Columns of a table from what a model gives for a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from trainhooks import DataError


@dataclass(frozen=True)
class Column:
    """Values of one column in one batch.

    Args:
        values: One for each row.
        single: Whether they are numbers of single precision, of which nine digits tell everything.
        depth: Dimensions of a value that is a list.
    """

    values: list[Any]
    single: bool = False
    depth: int = 0


def parts_of(output: Any) -> dict[str, Any]:
    """Return the parts of an output by name: those of a mapping or of several tensors, else one, ``prediction``."""
    if isinstance(output, Mapping):
        return {str(name): value for name, value in output.items() if value is not None}
    as_dict = getattr(output, "_asdict", None)  # of a named tuple
    if isinstance(output, tuple) and as_dict is not None:
        return parts_of(as_dict())
    if isinstance(output, tuple | list) and any(isinstance(value, Tensor) for value in output):
        return {f"prediction_{index}": value for index, value in enumerate(output)}
    return {"prediction": output}


def columns_of(name: str, value: Any, max_columns: int, *, lists: bool) -> dict[str, Column]:
    """Return the columns of one part: one for ``(N,)``, for ``(N, ...)`` one for each of its numbers.

    Args:
        name: Of the part; with several columns an index follows, for example ``logits_0``.
        value: A tensor or an array with a row for each sample, or a list of plain values.
        max_columns: How many numbers become columns of their own.
        lists: Whether more than that become one column of lists.

    Raises:
        DataError: It is something else, or too wide.
    """
    tensor = _as_tensor(value)
    if tensor is None:
        return {name: Column(_plain_list(name, value))}
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    tensor = tensor.detach().to_dense().cpu()
    single = tensor.dtype == torch.float32
    width = prod(tensor.shape[1:])
    if width == 1:
        return {name: Column(tensor.reshape(-1).tolist(), single)}
    if width <= max_columns:
        flat = tensor.reshape(tensor.shape[0], width)
        indices = product(*(range(size) for size in tensor.shape[1:]))
        return {"_".join([name, *map(str, one)]): Column(flat[:, i].tolist(), single) for i, one in enumerate(indices)}
    if lists:
        return {name: Column(tensor.tolist(), single, tensor.ndim - 1)}
    message = (
        f"predictions: {name!r} has {width} numbers for each sample, which is more than max_columns = {max_columns}: use "
        "arg_max, choose others with columns, or write Parquet, which has columns of lists"
    )
    raise DataError(message)


def _as_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if type(value).__module__ == "numpy":
        try:
            return torch.as_tensor(value)
        except TypeError:  # of text
            return None
    return torch.tensor(value) if isinstance(value, bool | int | float) else None


def _plain_list(name: str, value: Any) -> list[Any]:
    values = value.tolist() if hasattr(value, "tolist") else [value] if isinstance(value, str) else value
    odd = (
        [one for one in values if not isinstance(one, str | int | float | None)]
        if isinstance(values, tuple | list)
        else [value]
    )
    if odd:
        message = (
            f"predictions: {name!r} is made of {type(odd[0]).__name__}; predict_step must return tensors, or lists of numbers or "
            "text, with one row for each sample, or a mapping of such"
        )
        raise DataError(message)
    return list(values)
