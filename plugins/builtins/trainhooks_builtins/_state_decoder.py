"""The way back from JSON and tensors to the state of a run: every tag, type and name is checked, no code is executed."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Any

import torch

from ._checkpoint_manifest import without_duplicates
from ._checkpoint_tensors import DTYPES, contiguous_stride, in_form, logical_shape
from ._state_files import MAX_DEPTH, WORD

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trainhooks.types import StateDict


def decode_state(text: bytes, tensors: dict[str, Tensor]) -> StateDict:
    """Return the state that a snapshot was taken of.

    Args:
        text: The tree, as JSON.
        tensors: As they were in their file; they are not copied.

    Raises:
        ValueError: The text is not one that ``take_snapshot`` makes.
    """
    try:
        tree = json.loads(text, object_pairs_hook=without_duplicates, parse_constant=_no_constant)
    except RecursionError:
        message = "it is nested too deeply"
        raise ValueError(message) from None
    decoder = _Decoder(tensors)
    state = decoder.decode(tree)
    if type(state) is not dict or not all(type(key) is str for key in state):
        message = "it is not an object"
        raise ValueError(message)
    if unused := sorted(tensors.keys() - decoder.used.keys()):
        message = f"nothing refers to the tensor {unused[0]!r}"
        raise ValueError(message)
    return state


class _Decoder:
    """Turns JSON back into values; every tag, type and name is checked before it is used."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.used: dict[str, tuple[Any, Tensor]] = {}
        self._tensors = tensors
        self._depth = 0
        self._by_tag: dict[str, Callable[[Any], Any]] = {
            "$int": lambda value: int(_checked(value, str), 16),
            "$float": _float,
            "$str": lambda value: bytes.fromhex(_checked(value, str)).decode("utf-8", "surrogatepass"),
            "$complex": lambda value: complex(*map(_float, _checked(value, list, 2))),
            "$bytes": lambda value: base64.b64decode(_checked(value, str), validate=True),
            "$bytearray": lambda value: bytearray(base64.b64decode(_checked(value, str), validate=True)),
            "$dtype": lambda value: DTYPES[_checked(value, str)],
            "$device": lambda value: torch.device(_checked(value, str)),
            "$tuple": lambda value: tuple(self._items(value)),
            "$size": lambda value: torch.Size(self._items(value)),
            "$deque": self._deque,
            "$set": lambda value: set(self._members(value)),
            "$frozenset": lambda value: frozenset(self._members(value)),
            "$dict": self._pairs,
            "$ordered": self._ordered,
            "$sparse": self._sparse,
            "$counter": lambda value: Counter(self._pairs(value)),
        }

    def decode(self, value: Any) -> Any:
        """Return what a part of the tree stands for."""
        kind = type(value)
        if kind is float and not math.isfinite(value):
            message = f"{value} is too large"
            raise ValueError(message)
        if kind is int and value not in WORD:
            message = "an integer of more than 64 bits is written in another way"
            raise ValueError(message)
        if kind is not list and kind is not dict:
            return value
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            message = f"it is nested deeper than {MAX_DEPTH} levels"
            raise ValueError(message)
        decoded = self._items(value) if kind is list else self._object(value)
        self._depth -= 1
        return decoded

    def _object(self, value: dict[str, Any]) -> Any:
        tags = [key for key in value if key.startswith("$")]
        if not tags:
            return {key: self.decode(item) for key, item in value.items()}
        tag = tags[0]
        try:
            if tag == "$tensor":
                return self._tensor(value)
            if len(value) > 1 or tag not in self._by_tag:
                message = "it is not known"
                raise ValueError(message)
            return self._by_tag[tag](value[tag])
        except (ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
            if isinstance(error, _TagError):
                raise
            message = f"{tag} is wrong: {error}"
            raise _TagError(message) from error

    def _items(self, value: Any) -> list[Any]:
        return [self.decode(item) for item in _checked(value, list)]

    def _members(self, value: Any) -> list[Any]:
        members = self._items(value)
        if len(set(members)) != len(members):
            message = "a member is there twice"
            raise ValueError(message)
        return members

    def _pairs(self, value: Any) -> dict[Any, Any]:
        pairs = [_checked(pair, list, 2) for pair in _checked(value, list)]
        decoded = {self.decode(key): self.decode(item) for key, item in pairs}
        if len(decoded) != len(pairs):
            message = "a key is there twice"
            raise ValueError(message)
        return decoded

    def _ordered(self, value: Any) -> OrderedDict[Any, Any]:
        pairs, metadata = _checked(value, list, 2)
        decoded = OrderedDict(self._pairs(pairs))
        if metadata is not None:
            vars(decoded)["_metadata"] = self.decode(metadata)
        return decoded

    def _deque(self, value: Any) -> deque[Any]:
        items, length = _checked(value, list, 2)
        return deque(self._items(items), maxlen=None if length is None else _checked(length, int))

    def _sparse(self, value: Any) -> Tensor:
        indices, values, shape, coalesced = _checked(value, list, 4)
        parts = (self.decode(indices), self.decode(values))
        if not all(isinstance(part, torch.Tensor) and part.layout == torch.strided for part in parts):
            message = "its indices and values are no tensors"
            raise ValueError(message)
        return torch.sparse_coo_tensor(
            *parts, tuple(_sizes(shape)), is_coalesced=_checked(coalesced, bool), check_invariants=True
        )

    def _tensor(self, value: dict[str, Any]) -> Tensor:
        name = _checked(value["$tensor"], str)
        form = {key: item for key, item in value.items() if key != "$tensor"}
        if name in self.used:
            if self.used[name][0] != form:
                message = f"the tensor {name!r} is said to have two forms"
                raise ValueError(message)
            return self.used[name][1]
        if name not in self._tensors:
            message = f"there is no tensor {name!r}"
            raise ValueError(message)
        stored = self._tensors[name]
        dtype = DTYPES[_checked(form["dtype"], str)] if "dtype" in form else stored.dtype
        shape = _sizes(form["shape"]) if "shape" in form else logical_shape(stored, dtype)
        stride = _sizes(form["stride"]) if "stride" in form else contiguous_stride(shape)
        if form.keys() - {"dtype", "shape", "stride"}:
            message = f"it has other keys than dtype, shape and stride: {', '.join(form)}"
            raise ValueError(message)
        self.used[name] = form, in_form(stored, dtype, shape, stride)
        return self.used[name][1]


class _TagError(ValueError):
    """What a tag says is not possible."""


def _checked(value: Any, kind: type[Any], length: int | None = None) -> Any:
    if type(value) is not kind:
        message = f"{kind.__name__} expected, not {type(value).__name__}"
        raise ValueError(message)
    if length is not None and len(value) != length:
        message = f"{length} values expected, not {len(value)}"
        raise ValueError(message)
    return value


def _sizes(value: Any) -> list[int]:
    sizes = [_checked(one, int) for one in _checked(value, list)]
    if any(one not in range(1 << 63) for one in sizes):
        message = f"{sizes} are no sizes"
        raise ValueError(message)
    return sizes


def _float(value: Any) -> float:
    packed = bytes.fromhex(_checked(value, str))
    if len(packed) != 8:  # noqa: PLR2004 - of a double
        message = f"{value!r} is no double"
        raise ValueError(message)
    return float(struct.unpack(">d", packed)[0])


def _no_constant(name: str) -> Any:
    message = f"{name} is no JSON"
    raise ValueError(message)
