"""Where a run is in its train loader, so that another process reads on from the same batch: exactly, and without loading what was trained.

What is kept depends on what a loader can do:

- One with ``state_dict`` and ``load_state_dict`` (torchdata's ``StatefulDataLoader``) keeps its own place.
- torch's ``DataLoader`` with a sampler: the generators as they were when the order of the epoch was drawn. The order is drawn
  again, and the batches that were trained are taken off it as indices. With workers each batch brings them a seed of its own,
  so that random augmentation does not depend on which worker loads it, nor on what it has loaded before.
- Anything else is read from the state of the epoch's beginning, and what was trained is thrown away. An iterator, which cannot
  begin anew, is read from where the program's start left it.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch.utils.data import DataLoader, IterableDataset

from .data import LookAhead, generators_of, keep_generators, length_of
from .errors import CheckpointError
from .workers import reader_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .stateful import RandomState
    from .types import Batch, StateDict

log = logging.getLogger("trainhooks")

_END = object()
_SAY_EVERY_S = 10.0


class LoaderPosition:
    """Opens the train loader for an epoch, at its beginning or in the middle, and remembers what that takes.

    Args:
        rng: The generators of the process.
    """

    def __init__(self, rng: RandomState) -> None:
        self._rng = rng
        self._order: StateDict | None = None  # the generators when the order of the running epoch was drawn
        self._key = ""  # what the seeds of all batches are made of
        self._batches_read = 0  # from an iterator, in all
        self._known: object = None  # the iterator that they were read from
        self._begins = False  # whether nothing was read from it in this epoch
        self._look: LookAhead | None = None  # what reads the iterator, and may have its next batch already
        self._before_fetch: StateDict | None = None  # the loader's place before the loop looked ahead, while that is so
        self._restored: StateDict | None = None

    # --- State ---

    def state_dict(self, loader: Any) -> StateDict:
        """Return what ``load_state_dict`` needs in another process, as plain values and tensors."""
        if self._restored is not None:  # nothing was read since
            return self._restored
        return {
            "order": self._order,
            "key": self._key,
            "generators": [one.get_state() for one in generators_of(loader)],
            "batch_size": batch_size_of(loader),
            "workers_persist": getattr(loader, "_iterator", None) is not None,
            "ahead": self._before_fetch is not None,
            **(self._before_fetch or self._place(loader)),
        }

    def _place(self, loader: Any) -> StateDict:
        return {"batches_read": self._batches_read, "own": loader.state_dict() if is_stateful(loader) else None}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from there when the loader is opened next."""
        self._restored = state

    def restore_generators(self, loader: object) -> None:
        """Have the loader's own generators as they were in the checkpoint, before it is opened."""
        _set_each(generators_of(loader), self._restored or {})

    def rebatched(self, loader: object, batch_index: int) -> int:
        """Return how many batches of the loader make up the ``batch_index`` batches of the checkpoint, whose size may differ.

        Raises:
            CheckpointError: The loader keeps its place itself, as a number of batches.
        """
        before, now = (self._restored or {}).get("batch_size"), batch_size_of(loader)
        if not before or not now or before == now or not batch_index:
            return batch_index
        place = f"the checkpoint is {batch_index} batches of {before} into an epoch"
        if not is_stateful(loader):
            log.warning(
                "%s, the loader now has batches of %d: %d of its samples are trained twice",
                place,
                now,
                batch_index * before % now,
            )
        elif _counts_batches((self._restored or {}).get("own")):
            message = (
                f"the checkpoint is {batch_index} batches of {before} into an epoch, of which the train loader kept nothing but their "
                f"number, so with batches of {now} it would go on at another sample: give batch_size={before} until that epoch has "
                "ended, or a dataset or sampler with a state_dict"
            )
            raise CheckpointError(message)
        else:
            log.warning("%s, the loader now has batches of %d: it goes on where its own state says", place, now)
        return self.converted(loader, batch_index)

    def converted(self, loader: object, batch_index: int) -> int:
        """Return the same as ``rebatched``, whatever the loader is, and say nothing of it."""
        before, now = (self._restored or {}).get("batch_size"), batch_size_of(loader)
        return int(batch_index * before // now) if before and now else batch_index

    # --- Reading ---

    def open(
        self, loader: Iterable[Batch], length: int | None, *, stream: str, skip: int, now: StateDict | None
    ) -> Iterator[Batch]:
        """Return the batches of one epoch that are left.

        Args:
            loader: To be read; an iterator goes on where it is.
            length: Batches in the epoch, as far as known.
            stream: Tells this epoch, of this rank, from all others.
            skip: Batches of it that were trained.
            now: The generators of the process as they shall be for the first batch; ``None`` where they are so already.
        """
        restored, self._restored = self._restored or {}, None
        ahead = restored.get("ahead", self._before_fetch is not None)
        if self._known is not loader:
            self._before_fetch = None
        self._begins = not skip
        if skip and now is None:
            now = self._rng.state_dict()
        if length is not None and skip >= length > 0:  # saved with the last step, before the epoch was closed: none is left
            _set_each(generators_of(loader), restored)
            self._restored = restored or None
            batches = iter(())
        elif is_stateful(loader):
            batches = self._open_stateful(loader, length, restored, skip)
        elif isinstance(loader, Iterator):
            batches = self._open_iterator(loader, restored)
        elif _draws_its_order(loader):
            batches = self._open_sampled(loader, restored, stream, skip)
        else:
            batches = self._open_other(loader, length, restored, skip)
        if length is None:
            batches = look = self._look_ahead(batches, loader)
            if ahead and skip:
                if (before := restored.get("rng_before_fetch")) is not None:
                    self._rng.load_state_dict(before)
                look.exhausted  # noqa: B018 - fetches the batch that had been fetched, before what was drawn after it
        if now is not None:
            self._rng.load_state_dict(now)
        return batches if length is None else islice(batches, max(length - skip, 0))

    def _look_ahead(self, batches: Iterator[Batch], loader: Iterable[Batch]) -> LookAhead:
        if self._look is not None and self._known is loader:  # an iterator: it does not give again what was fetched
            return self._look
        look = LookAhead(batches, partial(LoaderPosition._note, weakref.proxy(self), loader))  # self._look must not hold self
        if self._known is loader:
            self._look = look
        return look

    def indices(self, loader: object, batch_index: int) -> list[Any] | None:
        """Return the dataset's indices of a batch of the running epoch, or ``None`` where its order is not known.

        The order is drawn again, so nothing is kept while training; the generators stay as they are.
        """
        if self._order is None or not _draws_its_order(loader):
            return None
        with self._rng.preserved(), ExitStack() as undo:
            undo.callback(keep_generators(loader))
            self._set(generators_of(loader), self._order)
            sampler: Any = loader._index_sampler
            found = next(islice(iter(sampler), batch_index, None), None)
        return found if found is None or isinstance(found, list) else [found]

    # --- The kinds of loaders ---

    def _open_stateful(self, loader: Any, length: int | None, restored: StateDict, skip: int) -> Iterator[Batch]:
        place = restored.get("own") or (loader.state_dict() if skip else None)
        if place is None:
            generators = generators_of(loader)
            _set_each(generators, restored)
            return self._begun(loader, length, generators, self._state_of(generators))
        now, generators = self._rng.state_dict(), generators_of(loader)
        loader.load_state_dict(place)
        batches = iter(reader_of(loader))
        first = next(batches, _END) if not skip else None
        if first is _END:  # it was saved at the end of an epoch, and gives that end once more
            self._rng.load_state_dict(now)
            _set_each(generators, restored)
            return iter(reader_of(loader))
        _set_each(generators, restored)
        return batches if skip else chain([first], batches)

    def _open_iterator(self, loader: Iterator[Batch], restored: StateDict) -> Iterator[Batch]:
        if self._known is not loader:
            self._known, self._batches_read, self._look = loader, 0, None
            self._order = order = restored.get("order") or self._state_of([])
            owed = restored.get("batches_read", 0)
            if owed:
                with self._rng.preserved():  # at the beginning of an epoch it is as it has to be
                    self._set([], order)
                    self._batches_read = _pass_over(_rounds(loader), owed, "the train loader is an iterator")
        return _Counted(loader, weakref.proxy(self))

    def _open_sampled(self, loader: DataLoader[Any], restored: StateDict, stream: str, skip: int) -> Iterator[Batch]:
        again = restored.get("order", self._order) if skip else None
        first_of_many = loader.persistent_workers and loader._iterator is None and restored.get("workers_persist")
        generators = generators_of(loader)  # what the loader keeps must not keep the loader
        if not skip:
            _set_each(generators, restored)
        unused = self._state_of(generators) if first_of_many else None  # workers that persist draw their seed once in a run

        def begin() -> StateDict | None:
            """Have the generators as they were when the order was drawn; return how to leave them."""
            now = self._rng.state_dict() if again is not None else None
            if again is not None or unused is not None:
                self._set(generators, again or unused or {})
            self._order = again or self._state_of(generators)
            return now

        def end(now: StateDict | None, indices: Iterator[Any]) -> Iterator[Any]:
            """Leave the generators so; return the indices that are left, with a warning if they depend on that."""
            if now is None:
                return indices
            drawn = self._rng.state_dict()
            self._rng.load_state_dict(now)
            following = list(islice(indices, 1))
            after = self._rng.state_dict()
            if any(_differ(after[name], now[name]) and _differ(drawn[name], now[name]) for name in now):
                log.warning(
                    "the sampler of the train loader draws random numbers of this process while an epoch is trained, so what is "
                    "left of this epoch may not be what it was without a break; give the sampler a generator of its own"
                )
            return chain(following, indices)

        sampler: Any = loader._index_sampler
        self._key = restored.get("key") or self._key or hashlib.sha256(bytes(torch.get_rng_state().tolist())).hexdigest()
        seed = hashlib.sha256(f"{self._key},{stream}".encode()).digest()
        order = _Order(sampler, skip, begin, end, seed if loader.num_workers else None)
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        own = vars(loader)[name]
        vars(loader)[name] = order  # DataLoader lets nobody set it, but asks for it when it is opened only
        if loader._iterator is not None:
            loader._iterator._index_sampler = order
        try:
            return iter(reader_of(loader))
        finally:
            vars(loader)[name] = own

    def _open_other(self, loader: Iterable[Batch], length: int | None, restored: StateDict, skip: int) -> Iterator[Batch]:
        again = restored.get("order", self._order) if skip else None
        generators = generators_of(loader)
        if again is not None:
            self._set(generators, again)
        elif not skip:
            _set_each(generators, restored)
        self._order = order = again or self._state_of(generators)
        if not skip:
            return self._begun(loader, length, generators, order)
        batches = iter(reader_of(loader))
        if isinstance(loader, Sequence):
            next(islice(batches, skip, skip), None)
        else:
            _pass_over(batches, skip, f"{type(loader).__name__} cannot begin in the middle of an epoch")
        return batches

    def _begun(
        self, loader: Iterable[Batch], length: int | None, generators: list[torch.Generator], before: StateDict
    ) -> Iterator[Batch]:
        """Return the batches of an epoch; if there are none although its length is known, those of the loader begun once more.

        The epoch before ended by that length: what a loader does after its last batch, such as to set itself back, comes only now.
        """
        batches = iter(reader_of(loader))
        if length is None:
            return batches

        def give() -> Iterator[Batch]:
            first = next(batches, _END)
            if first is _END:
                self._set(generators, before)
                yield from reader_of(loader)
            else:
                yield first
                yield from batches

        return give()

    def _note(self, loader: Iterable[Batch], ahead: bool) -> None:
        self._before_fetch = self._place(loader) if ahead else None
        draws_here = is_stateful(loader) or not getattr(loader, "num_workers", 0)
        if self._before_fetch is not None and draws_here:
            self._before_fetch["rng_before_fetch"] = self._rng.state_dict()

    # --- Generators ---

    def _state_of(self, generators: list[torch.Generator]) -> StateDict:
        return {"rng": self._rng.state_dict(), "generators": [one.get_state() for one in generators]}

    def _set(self, generators: list[torch.Generator], state: StateDict) -> None:
        self._rng.load_state_dict(state["rng"])
        _set_each(generators, state)


class _Order:
    """Gives the indices of one epoch, without those that were trained; each with a seed where workers load them."""

    def __init__(
        self,
        sampler: Iterable[Any],
        skip: int,
        begin: Callable[[], StateDict | None],
        end: Callable[[StateDict | None, Iterator[Any]], Iterator[Any]],
        seed: bytes | None,
    ) -> None:
        self.sampler, self.skip = sampler, skip
        self.begin, self.end, self.seed = begin, end, seed

    def __iter__(self) -> Iterator[Any]:
        now = self.begin()
        indices = iter(self.sampler)
        next(islice(indices, self.skip, self.skip), None)
        indices = self._ended(self.end(now, indices))
        if self.seed is None:
            yield from indices
        else:
            for number, index in enumerate(indices, self.skip):
                digest = hashlib.sha256(self.seed + number.to_bytes(8, "little")).digest()
                yield _Seeded(index, int.from_bytes(digest[:8], "little"))

    def _ended(self, indices: Iterator[Any]) -> Iterator[Any]:
        """Have the sampler come to its end before the last batch is given, since the epoch ends by its length.

        What it does after its last index, such as torch's with another draw, is done then as it is where workers read ahead.
        """
        length = length_of(self.sampler)
        if length is not None and length > self.skip:
            yield from islice(indices, length - self.skip - 1)
            yield from list(islice(indices, 2))
        yield from indices

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


class _Seeded:
    """The indices of a batch on their way to a worker, where they arrive as they are, and seed it."""

    def __init__(self, index: Any, seed: int) -> None:
        self.index, self.seed = index, seed

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, int]]:
        return _arrive, (self.index, self.seed)


def _arrive(index: Any, seed: int) -> Any:
    """Seed the generators of this worker process for one batch."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed([seed & 0xFFFFFFFF, seed >> 32, 1])  # with the same words as Python's it would draw the same
    return index


def _set_each(generators: list[torch.Generator], state: StateDict) -> None:
    for generator, its in zip(generators, state.get("generators", ()), strict=False):
        generator.set_state(its)


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return not torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) != len(other) or any(map(_differ, one, other))
    return bool(one != other)


class _Counted(Iterator[Any]):
    """Counts what is read from an iterator.

    One that has ended is begun anew for an epoch: a generator stays ended, a loader that is its own iterator, as DALI's are, does not.
    """

    def __init__(self, iterator: Iterator[Batch], position: LoaderPosition) -> None:
        self._iterator, self._position = iterator, position

    def __next__(self) -> Batch:
        batch = next(self._iterator, _END)
        if batch is _END and self._position._begins:
            self._iterator = iter(self._iterator)
            batch = next(self._iterator, _END)
        if batch is _END:
            raise StopIteration
        self._position._begins = False
        self._position._batches_read += 1
        return batch


def _rounds(loader: Iterator[Batch]) -> Iterator[Batch]:
    """Return the batches of an iterator, begun anew when it has ended, if it can be."""
    found = True
    while found:
        found = False
        for batch in loader:
            found = True
            yield batch


def is_stateful(loader: object) -> bool:
    """Return whether a loader keeps its place itself."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def is_unordered(loader: object) -> bool:
    """Return whether it is a loader of torch's that gives the batches of its workers in the order in which they are ready."""
    return (
        isinstance(loader, DataLoader)
        and loader.num_workers > 0
        and not getattr(loader, "in_order", True)
        and not is_stateful(loader)
    )


def _counts_batches(own: Any) -> bool:
    """Return whether the state of a loader of torchdata tells where it is by a number of batches only: nothing else gave it a state."""
    if not isinstance(own, dict):
        return False
    snapshot = own.get("_snapshot")
    if isinstance(snapshot, dict):
        main, readers = snapshot.get("_main_snapshot"), list(snapshot.get("_worker_snapshots", {}).values())
    else:
        main, readers = own, [own]
    if not isinstance(main, dict) or "_sampler_iter_yielded" not in main:  # it is of somebody else's
        return False
    if own.get("_steps_since_snapshot"):
        return True
    fetchers = [reader.get("fetcher_state") for reader in readers]
    if any(fetchers):
        states = [
            reader.get("dataset_state") or (fetcher or {}).get("dataset_iter_state")
            for reader, fetcher in zip(readers, fetchers, strict=True)
        ]
        return not all(states)
    return main.get("_sampler_iter_state") is None and main.get("_index_sampler_state") is None


def _draws_its_order(loader: object) -> TypeGuard[DataLoader[Any]]:
    """Return whether it is torch's loader of a dataset with indices, and read in torch's way."""
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        return False
    return not isinstance(loader.dataset, IterableDataset)


def batch_size_of(loader: object) -> int | None:
    """Return how many samples a batch has by what a loader or its batch sampler says; it may be one of NumPy's or a tensor."""
    for one in (loader, getattr(loader, "batch_sampler", None)):
        try:
            size = operator.index(getattr(one, "batch_size", None))  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):
            continue
        return size if size > 0 else None
    return None


def _pass_over(batches: Iterator[Batch], count: int, why: str) -> int:
    """Read and drop batches, and say how far it is when that takes long; return how many there were."""
    log.info("%s: reading over the %d batches that were trained", why, count)
    said = time.monotonic()
    for number in range(count):
        if next(batches, _END) is _END:
            return number
        if time.monotonic() - said > _SAY_EVERY_S:
            said = time.monotonic()
            log.info("read over %d of %d batches", number + 1, count)
    return count
