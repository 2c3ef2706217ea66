"""Tensors in a safetensors file: written in one pass from their memory, read in one pass into memory of their own.

The file is one that every safetensors library reads. It is written and read here with plain file operations, so that each byte is
digested once on its way, an error keeps its ``errno`` and nothing stays mapped that rotation may delete.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import Tensor

from trainhooks import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: The types that tensors may have; those without a name of their own in every safetensors are stored as another.
DTYPES: Final[dict[str, torch.dtype]] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    )
    if hasattr(torch, name)
}
_CODES: Final[dict[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_CODE_OF: Final = {dtype: code for code, dtype in _CODES.items()}
_REAL: Final = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}
_MAX_HEADER_BYTES: Final = 16 << 20  # 100,000 tensors: what takes seconds to parse is no state


class Sink(Protocol):
    """What is written to."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take the next bytes."""


class Source(Protocol):
    """What is read from."""

    def read_exactly(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes."""


def stored_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return as what a type is stored: real numbers for complex ones, bytes where safetensors may not know it."""
    real = _REAL.get(dtype, dtype)
    return real if real in _CODE_OF else torch.uint8


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides that a new tensor of this shape has."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether the elements fill a piece of memory without gaps, in whatever order of dimensions."""
    if 0 in shape:
        return tuple(stride) == contiguous_stride(shape)
    step = 1
    for one, size in sorted((one, size) for one, size in zip(stride, shape, strict=True) if size > 1):
        if one != step:
            return False
        step *= size
    return True


def is_plain(value: object) -> bool:
    """Return whether a value is a tensor that every safetensors library reads as what it is."""
    return isinstance(value, Tensor) and value.layout == torch.strided and value.dtype in _CODE_OF


def write_tensors(sink: Sink, tensors: Mapping[str, Tensor], facts: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file; each tensor must be dense and on the CPU.

    Args:
        sink: Takes the content.
        tensors: By name.
        facts: Texts for the header.

    Raises:
        CheckpointError: There are more tensors than can be read again.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(facts or {})}}
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # keeps every one aligned
    end = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        code = _CODE_OF[stored_dtype(tensor.dtype)]
        header[name] = {"dtype": code, "shape": _memory_shape(tensor), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER_BYTES:
        message = (
            f"names and shapes of the {len(order)} tensors of the state make {len(text)} bytes, at most {_MAX_HEADER_BYTES} are "
            "possible: put small tensors together"
        )
        raise CheckpointError(message)
    sink.write(len(text).to_bytes(8, "little"))
    sink.write(text)
    for name in order:
        sink.write(_memory(tensors[name]))


def _memory_shape(tensor: Tensor) -> list[int]:
    """Return the sizes of the dimensions as they lie in memory, the slowest first."""
    if tensor.is_contiguous():
        shape = list(tensor.shape)
    else:
        shape = [size for _, size in sorted(zip(tensor.stride(), tensor.shape, strict=True), key=lambda one: -one[0])]
    return [*shape, 2] if tensor.is_complex() else shape


def read_tensors(path: Path, source: Source, size_bytes: int) -> dict[str, Tensor]:
    """Read a safetensors file into new memory.

    Args:
        path: Where it is, for the safetensors library, which checks the header.
        source: Gives the content.
        size_bytes: Of the file.

    Returns:
        The tensors as they are in the file, contiguous.

    Raises:
        ValueError: It is not such a file.
    """
    from safetensors import SafetensorError, safe_open

    text = _read_header(source, size_bytes)
    try:
        with _unicode(path) as file, safe_open(file, framework="pt"):
            pass  # types, shapes and places fit together and to the size of the file
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    header = _places(text, size_bytes)
    tensors = {}
    for name in sorted(header, key=lambda name: header[name]["data_offsets"]):
        code, shape = header[name]["dtype"], header[name]["shape"]
        if code not in _CODES:
            message = f"tensor {name!r} has the type {code!r}, which is not known"
            raise ValueError(message)
        tensors[name] = tensor = torch.empty(shape, dtype=_CODES[code], device="cpu")
        source.read_exactly(_memory(tensor))
        if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
            message = f"tensor {name!r} has the type BOOL and other values than 0 and 1"
            raise ValueError(message)
    return tensors


@contextmanager
def _unicode(path: Path) -> Iterator[Path]:
    """Give the safetensors library, which wants Unicode, a link to a file in a folder whose name is none."""
    if os.fsencode(path).decode(errors="ignore") == str(path):
        yield path
        return
    with TemporaryDirectory() as folder:
        link = Path(folder) / path.name
        link.symlink_to(path.absolute())
        yield link


def _read_header(source: Source, size_bytes: int) -> bytearray:
    source.read_exactly(memoryview(length := bytearray(8)))
    count = int.from_bytes(length, "little")
    if count > min(size_bytes, _MAX_HEADER_BYTES):
        message = f"its header has {count} bytes, at most {_MAX_HEADER_BYTES} are possible"
        raise ValueError(message)
    source.read_exactly(memoryview(text := bytearray(count)))
    return text


def _places(text: bytearray, size_bytes: int) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(text)
    header.pop("__metadata__", None)
    total = 8 + len(text) + sum(end - begin for begin, end in (one["data_offsets"] for one in header.values()))
    if total != size_bytes:
        message = f"its tensors make {total} bytes, it has {size_bytes}"
        raise ValueError(message)
    return header


def in_form(tensor: Tensor, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Return a tensor from a file as it was in the state, on the same memory.

    Raises:
        ValueError: The memory is not that of such a tensor.
    """
    if stored_dtype(dtype) != tensor.dtype:
        message = f"{tensor.dtype} cannot be {dtype}"
        raise ValueError(message)
    if dtype in _REAL:
        if tensor.dim() == 0 or tensor.shape[-1] != 2:  # noqa: PLR2004 - the real and the imaginary part
            message = f"a tensor of shape {list(tensor.shape)} cannot be {dtype}"
            raise ValueError(message)
        tensor = torch.view_as_complex(tensor)
    elif dtype != tensor.dtype:
        tensor = tensor.view(dtype)
    if math.prod(shape) != tensor.numel() or not is_dense(shape, stride):
        message = f"shape {list(shape)} with strides {list(stride)} does not fill {tensor.numel()} elements"
        raise ValueError(message)
    return tensor.as_strided(tuple(shape), tuple(stride))


def logical_shape(tensor: Tensor, dtype: torch.dtype) -> list[int]:
    """Return the shape that a tensor from a file has, if nothing else is said about it."""
    return list(tensor.shape[:-1] if dtype in _REAL else tensor.shape)


def _memory(tensor: Tensor) -> memoryview:
    """Return the memory of a dense CPU tensor; the tensor must be kept while it is used."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")
