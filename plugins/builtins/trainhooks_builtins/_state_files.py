"""The state of a run as JSON and tensors, exactly typed and bit for bit; ``_state_decoder`` is the way back.

What JSON has is written as it is; the rest is an object with one key that begins with ``$``: ``{"$tuple": [1, 2]}``. Tensors are
referred to by name, ``{"$tensor": "model/weight"}``, and lie in a safetensors file.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from trainhooks import CheckpointError

from ._checkpoint_tensors import DTYPES, contiguous_stride, is_dense, stored_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trainhooks.types import StateDict

#: Bytes that the JSON text may have: what is read from a file must not become gigabytes of small objects.
LIMIT_BYTES: Final = 16 << 20
#: How deep containers may be nested.
MAX_DEPTH: Final = 100
#: Integers that other readers of JSON know too.
WORD: Final = range(-(1 << 63), 1 << 63)
_EXPECTED: Final = "tensors and plain values (None, bool, int, float, str, bytes, list, tuple, dict, set)"


@dataclass(frozen=True)
class Snapshot:
    """A state at one moment.

    Args:
        text: The tree, as JSON.
        tensors: What it refers to, by name; on the CPU, each one dense in memory.
    """

    text: bytes
    tensors: dict[str, Tensor]

    @property
    def size_bytes(self) -> int:
        """How much there is to write."""
        return len(self.text) + sum(one.numel() * one.element_size() for one in self.tensors.values())


def take_snapshot(state: StateDict, *, copy: bool = False) -> Snapshot:
    """Return a state as it is now.

    Args:
        state: Tensors and plain values, nested in lists, tuples, dicts and sets.
        copy: Whether later changes of the tensors must not be seen, since it is written while the run goes on.

    Raises:
        CheckpointError: Something else is in it; the message says where.
    """
    encoder = _Encoder(copy=copy)
    tree = encoder.encode(dict(state))
    encoder.finish()
    text = _dump(tree)
    if len(text) > LIMIT_BYTES:
        sizes = {name: len(_dump(part)) for name, part in tree.items()}
        largest = max(sizes, key=lambda name: sizes[name])
        message = (
            f"the plain values of the state make {len(text)} bytes of JSON, at most {LIMIT_BYTES} are possible; {largest!r} alone "
            f"has {sizes[largest]}: put its numbers into a tensor"
        )
        raise CheckpointError(message)
    return Snapshot(text, encoder.tensors)


def _dump(tree: Any) -> bytes:
    return json.dumps(tree, allow_nan=False, separators=(",", ":")).encode("ascii")


class _Encoder:
    """Turns values into what JSON has, and collects the tensors."""

    def __init__(self, *, copy: bool) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._copy = copy
        self._path: list[Any] = []
        self._known: dict[Any, dict[str, Any]] = {}
        self._devices: set[torch.device] = set()
        self._by_type: dict[type, Callable[[Any], Any]] = {
            int: lambda value: value if value in WORD else {"$int": hex(value)},
            float: lambda value: value if math.isfinite(value) else {"$float": _bits(value)},
            str: lambda value: value if _is_text(value) else {"$str": value.encode("utf-8", "surrogatepass").hex()},
            complex: lambda value: {"$complex": [_bits(value.real), _bits(value.imag)]},
            bytes: lambda value: {"$bytes": base64.b64encode(value).decode("ascii")},
            bytearray: lambda value: {"$bytearray": base64.b64encode(value).decode("ascii")},
            torch.dtype: self._dtype,
            torch.device: lambda value: {"$device": str(value)},
            list: self._items,
            tuple: lambda value: {"$tuple": self._items(value)},
            torch.Size: lambda value: {"$size": self._items(value)},
            deque: lambda value: {"$deque": [self._items(value), value.maxlen]},
            set: lambda value: {"$set": self._members(value)},
            frozenset: lambda value: {"$frozenset": self._members(value)},
            dict: self._dict,
            OrderedDict: self._ordered,
            Counter: lambda value: {"$counter": self._pairs(value)},
            Tensor: self._tensor,
            nn.Parameter: self._tensor,
        }

    def encode(self, value: Any) -> Any:
        """Return a value as JSON has it."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        encode = self._by_type.get(kind)
        if encode is None:
            name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
            raise self._refuse(f"is {'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}")
        if len(self._path) > MAX_DEPTH:
            raise self._refuse(f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
        return encode(value)

    def finish(self) -> None:
        """Wait for what is still being copied from other devices."""
        for device in self._devices:
            torch.cuda.synchronize(device)

    def _inside(self, key: Any, value: Any) -> Any:
        self._path.append(key)
        encoded = self.encode(value)
        self._path.pop()
        return encoded

    def _items(self, values: Iterable[Any]) -> list[Any]:
        return [self._inside(index, value) for index, value in enumerate(values)]

    def _members(self, values: Iterable[Any]) -> list[Any]:
        """Return the members of a set in an order that does not depend on the process."""
        return sorted(self._items(values), key=json.dumps)

    def _pairs(self, value: dict[Any, Any]) -> list[list[Any]]:
        return [[self._inside(key, key), self._inside(key, item)] for key, item in value.items()]

    def _dict(self, value: dict[Any, Any]) -> dict[str, Any]:
        if all(type(key) is str and not key.startswith("$") and _is_text(key) for key in value):
            return {key: self._inside(key, item) for key, item in value.items()}
        return {"$dict": self._pairs(value)}

    def _ordered(self, value: OrderedDict[Any, Any]) -> dict[str, Any]:
        """Keep the attribute that ``Module.state_dict()`` puts on it: versions by which modules read older states."""
        attributes = vars(value)
        if attributes.keys() - {"_metadata"}:
            raise self._refuse(f"is an OrderedDict with attributes ({', '.join(attributes)})")
        return {"$ordered": [self._pairs(value), self._inside("_metadata", attributes.get("_metadata"))]}

    def _dtype(self, value: torch.dtype) -> dict[str, Any]:
        return {"$dtype": str(value).removeprefix("torch.")} if value in DTYPES.values() else self._no_tensor(value)

    def _tensor(self, value: Tensor) -> dict[str, Any]:
        if value.layout == torch.sparse_coo:  # gradients of nn.Embedding(sparse=True)
            parts = [self._inside("indices", value._indices()), self._inside("values", value._values())]
            return {"$sparse": [*parts, list(value.shape), value.is_coalesced()]}
        if value.is_nested:
            self._no_tensor("nested tensor")
        if value.layout != torch.strided or value.is_quantized or value.dtype not in DTYPES.values():
            self._no_tensor(f"{value.layout} tensor of {value.dtype}")
        if value.device.type == "meta" or (value.numel() and value.data_ptr() == 0):
            self._no_tensor("tensor without data (device meta)")
        if not value.numel():  # it has no memory that would tell it from another one
            return self._store(value)
        memory = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride(), value.is_conj(), value.is_neg())
        if memory not in self._known:
            self._known[memory] = self._store(value)
        return self._known[memory]

    def _store(self, value: Tensor) -> dict[str, Any]:
        tensor = value.detach().resolve_conj().resolve_neg()
        if not tensor.numel():
            tensor = torch.empty(
                tensor.shape, dtype=tensor.dtype
            )  # whatever its strides are, which contiguous() leaves as they are
        elif not is_dense(tensor.shape, tensor.stride()):
            tensor = tensor.contiguous()
        if tensor.device.type == "cuda":
            self._devices.add(tensor.device)
            tensor = tensor.to("cpu", non_blocking=True)  # not to be looked at before finish()
        elif tensor.device.type != "cpu":
            tensor = tensor.to("cpu")
        if self._copy and tensor.data_ptr() == value.data_ptr():
            tensor = tensor.clone()
        name = self._free_name()
        self.tensors[name] = tensor
        reference: dict[str, Any] = {"$tensor": name}
        if stored_dtype(tensor.dtype) != tensor.dtype:
            reference["dtype"] = str(tensor.dtype).removeprefix("torch.")
        if tensor.stride() != contiguous_stride(tensor.shape):
            reference |= {"shape": list(tensor.shape), "stride": list(tensor.stride())}
        return reference

    def _free_name(self) -> str:
        """Return the place of the tensor in the state as a name that a safetensors file can have."""
        wanted = "/".join(map(str, self._path)).encode("utf-8", "replace").decode("utf-8")
        name, number = wanted, 1
        while name in self.tensors or name == "__metadata__":
            number += 1
            name = f"{wanted}#{number}"
        return name

    def _no_tensor(self, what: object) -> Any:
        raise self._refuse(f"is a {what}")

    def _refuse(self, what: str) -> CheckpointError:
        place = str(self._path[0]) if self._path else "the state"
        place += "".join(f"[{key!r}]" for key in self._path[1 : MAX_DEPTH // 5])
        message = f"{place} {what}: a checkpoint holds {_EXPECTED} only; have state_dict() return such"
        return CheckpointError(message)


def _is_text(value: str) -> bool:
    """Return whether a string is Unicode; a lone surrogate would not come back from JSON as it was."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _bits(value: float) -> str:
    return struct.pack(">d", value).hex()
