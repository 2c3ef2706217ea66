"""Batches: reading a loader for one epoch, moving a batch to a device, its size, and calling a model with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass
from itertools import islice
from numbers import Number
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader, Sampler

from .errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from .types import Batch

_END = object()
_MOST_OWNERS = 64  # of generators: a loader that makes its samplers as they are asked for has them without end


class LookAhead(Iterator[Any]):
    """Iterates a loader without length; asked whether a batch is the last, it fetches one more.

    Only then: a loader may depend on the model as it is now.

    Args:
        batches: To be read.
        note: Told ``True`` before a batch is fetched ahead of its time, ``False`` when its time has come.
    """

    def __init__(self, batches: Iterable[Batch], note: Callable[[bool], None] | None = None) -> None:
        self._iterator = iter(batches)
        self._note = note
        self._next: Any = None
        self._fetched = False

    def __next__(self) -> Batch:
        if self._fetched:
            batch = self._next
            self._next, self._fetched = None, False
            if self._note is not None and batch is not _END:
                self._note(False)
        else:
            batch = next(self._iterator, _END)
        if batch is _END:
            raise StopIteration
        return batch

    @property
    def exhausted(self) -> bool:
        """Whether no batch is left."""
        if not self._fetched:
            if self._note is not None:
                self._note(True)
            self._next, self._fetched = next(self._iterator, _END), True
        return self._next is _END


def length_of(loader: object) -> int | None:
    """Return the number of batches of a loader, or ``None`` if it does not know."""
    if not isinstance(loader, Sized):
        return None
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # a DataLoader over an IterableDataset has __len__ but no length
        return None


def check_loader(loader: object, what: str) -> None:
    """Raise if a loader cannot be read.

    Args:
        loader: What should be one.
        what: Where it comes from, for the message.

    Raises:
        UsageError: It cannot.
    """
    if isinstance(loader, type | str | bytes | Mapping) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        kind = f"the class {loader.__name__}" if isinstance(loader, type) else f"{type(loader).__name__}: {loader!r:.60}"
        message = f"{what} {kind}; a loader is an iterable of batches, such as DataLoader(dataset, batch_size=32)"
        raise UsageError(message)


def read_epoch(loader: Iterable[Batch], length: int | None) -> Iterator[Batch]:
    """Iterate one epoch of ``loader``: ``length`` batches at most.

    An iterator of its own (a generator) goes on where the last epoch ended.
    """
    return LookAhead(loader) if length is None else islice(loader, length)


def twin_of(loader: Iterable[Batch]) -> Iterable[Batch]:
    """Return what reads the same batches while ``loader`` is being read: with workers of its own, where those persist."""
    if not isinstance(loader, DataLoader):
        return loader
    twin = copy.copy(loader)
    twin._iterator = None
    return twin


def generators_of(loader: object) -> list[torch.Generator]:
    """Return torch's generators that a loader, its samplers and the loaders and samplers that these wrap have as attributes."""
    owners: list[Any] = [loader]
    found: dict[int, torch.Generator] = {}
    for owner in owners:
        attributes = list(getattr(owner, "__dict__", {}).values())
        wrapped = [one for value in attributes for one in _members(value) if isinstance(one, DataLoader | Sampler)]
        for one in (getattr(owner, "sampler", None), getattr(owner, "batch_sampler", None), *wrapped):
            if one is not None and len(owners) < _MOST_OWNERS and not any(one is known for known in owners):
                owners.append(one)
        candidates = [getattr(owner, "generator", None), *attributes]
        found |= {id(one): one for one in candidates if isinstance(one, torch.Generator)}
    return list(found.values())


def _members(value: Any) -> Iterable[Any]:
    """Return what a loader that reads several in turn keeps of them: a list or a mapping, or the one itself."""
    if type(value) in (list, tuple):
        return cast("Iterable[Any]", value[:_MOST_OWNERS])
    return islice(value.values(), _MOST_OWNERS) if type(value) is dict else (value,)


def keep_generators(loader: object) -> Callable[[], None]:
    """Keep the states of the generators that a loader and its samplers draw from; return what puts them back."""
    states = [(generator, generator.get_state()) for generator in generators_of(loader)]

    def put_back() -> None:
        for generator, state in states:
            generator.set_state(state)

    return put_back


def no_batches(loader: object, what: str) -> DataError:
    """Return an error that says why a loader may be empty: the dataset's length, the batch size, ``drop_last``."""
    facts = [f"loader {type(loader).__name__}"]
    dataset = getattr(loader, "dataset", None)
    size = length_of(dataset) if dataset is not None else None
    if size is not None:
        facts.append(f"dataset of {size} samples")
    known = {name: getattr(loader, name, None) for name in ("batch_size", "drop_last")}
    facts += [f"{name}={value}" for name, value in known.items() if value is not None]
    hint = ""
    if isinstance(loader, Iterator):
        hint = "; a generator can be read once only, give an iterable that starts anew"
    elif size and getattr(loader, "drop_last", False):
        hint = "; use a smaller batch or drop_last=False"
    return DataError(f"{what}: no batches ({', '.join(facts)}){hint}")


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return ``batch`` with every tensor on ``device``; what is there already is neither copied nor rebuilt."""
    kind = type(batch)
    if kind is tuple or kind is list:
        for item in batch:
            if type(item) is not torch.Tensor or item.device != device:
                return kind([to_device(item, device) for item in batch])
        return batch
    if isinstance(batch, torch.Tensor):
        if batch.device == device:
            return batch
        return batch.to(device, non_blocking=batch.device.type == "cpu" and batch.is_pinned())
    if callable(getattr(batch, "to", None)):  # a PackedSequence is a named tuple too, and knows what stays on the host
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return kind(*(to_device(item, device) for item in batch))
    if isinstance(batch, Mapping):
        moved = {key: to_device(value, device) for key, value in batch.items()}
        return moved if kind is dict or not isinstance(batch, dict) else _like(batch, moved)
    return batch


def _like(batch: dict[Any, Any], moved: dict[Any, Any]) -> Any:
    """Keep the type of a mapping that is a dict of its own kind."""
    copy = batch.copy()
    copy.update(moved)
    return copy


def batch_size(batch: Batch) -> int:
    """Return the length of the first array that has one, however nested, or of a plain sequence; 1 where neither is found.

    A list of mappings with the same keys is taken for a list of samples (Detectron2), as is one of tuples with a number or an array
    without dimensions in them; a tuple of tuples for one whose samples are not stacked (``tuple(zip(*samples))`` as
    ``collate_fn``), unless an array beside them says how many there are.
    """
    if not isinstance(batch, tuple | list) or not batch:
        length = _first_length(batch)
        return length if length is not None else _first_count(batch) or 1
    first = batch[0]
    if isinstance(first, torch.Tensor) and first.ndim:
        return first.shape[0]
    if isinstance(batch, list) and _are_samples(batch, first):
        return len(batch)
    if isinstance(first, tuple | list):
        return _first_length([one for one in batch[1:] if not isinstance(one, tuple | list)]) or len(first)
    return _first_length(batch) or len(batch)


def _are_samples(batch: list[Any], first: Any) -> bool:
    if isinstance(first, Mapping):
        return all(isinstance(item, Mapping) and item.keys() == first.keys() for item in batch)
    has_number = isinstance(first, tuple) and any(isinstance(one, Number) or getattr(one, "shape", None) == () for one in first)
    return has_number and all(isinstance(item, tuple) and len(item) == len(first) for item in batch)


def _first_length(value: Any) -> int | None:
    """Return the length of the first array with dimensions in a value."""
    if getattr(value, "ndim", 0) and hasattr(value, "shape"):
        return int(value.shape[0])
    return next((length for one in _parts(value) if (length := _first_length(one)) is not None), None)


def _first_count(value: Any) -> int | None:
    return next((len(one) for one in _parts(value) if isinstance(one, tuple | list)), None)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, tuple | list):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in fields(value)]
    return ()


def is_call_of_model(error: TypeError) -> bool:
    """Return whether a model could not be called with what it was given, other than that something in it failed."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return frame.f_code.co_name in ("_call_impl", call_model.__name__)


def call_model(model: nn.Module, batch: Batch) -> Any:
    """Call ``model`` with a batch: ``**`` for a mapping, ``*`` for a tuple or list, else as its only argument.

    A list of mappings is one argument, as Detectron2's models take it.
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, Sequence) and not isinstance(batch, str) and not (batch and isinstance(batch[0], Mapping)):
        return model(*batch)
    return model(batch)
