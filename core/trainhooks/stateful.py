"""Objects with ``state_dict`` / ``load_state_dict``, by name, and the random number generators as one of them."""

from __future__ import annotations

import copy
import random
import sys
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from .errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .types import StateDict


@runtime_checkable
class Stateful(Protocol):
    """Anything that can be saved and restored in place."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""
        raise NotImplementedError

    def load_state_dict(self, state: Any) -> Any:
        """Restore it in place."""


class StatefulRegistry(dict[str, Any]):
    """Named objects that a checkpoint holds; each is restored in place, never re-created.

    One that comes after the checkpoint was read, as from ``before_train``, is restored then.
    """

    def __init__(self, *things: Any, **named: Any) -> None:
        super().__init__(*things, **named)
        #: What was read and waits for an object of that name.
        self.waiting: StateDict = {}

    def __setitem__(self, name: str, thing: Any) -> None:
        """Register an object."""
        super().__setitem__(name, thing)
        if name in self.waiting:
            self._restore(name, self.waiting.pop(name))

    def setdefault(self, name: str, thing: Any = None) -> Any:
        """Return the object of that name; register this one if there is none."""
        if name not in self:
            self[name] = thing
        return self[name]

    def state_dict(self) -> StateDict:
        """Return the state of every object; one with ``state_version`` carries its version."""
        return {name: _versioned(thing) for name, thing in self.items()}

    def load_state_dict(self, state: StateDict) -> list[str]:
        """Restore every object that ``state`` knows; return the names of those that it does not know.

        Raises:
            CheckpointError: An object refuses its state; the message names it.
        """
        for name in self:
            if name in state:
                self._restore(name, state[name])
        return sorted(set(self) - set(state))

    def _restore(self, name: str, state: Any) -> None:
        try:
            restore(self[name], state)
        except CheckpointError:
            raise
        except Exception as error:
            message = f"the checkpoint's state of {name!r} does not fit: {error}"
            raise CheckpointError(message) from error

    def kept_places(self) -> Callable[[], None]:
        """Keep where in a run the plugins are; return what puts that back.

        A plugin whose ``holds_weights`` is true, as that of an average, belongs to the model: it is left alone.
        """
        kept: list[tuple[str, Any, Any]] = []
        for name, thing in self.items():
            if name.startswith("plugins/") and not getattr(thing, "holds_weights", False):
                with suppress(Exception):  # whatever: one that cannot tell its place, before a training, has none
                    kept.append((name, thing, copy.deepcopy(_versioned(thing))))

        def put_back() -> None:
            for name, thing, state in kept:
                if self.get(name) is thing:  # else it was taken out meanwhile
                    restore(thing, state)

        return put_back


class RandomState:
    """The random number generators of torch, CUDA, Python and, where it is loaded, NumPy."""

    def state_dict(self) -> StateDict:
        """Return the state of every generator as tensors and plain values."""
        version, words, gauss = random.getstate()
        state: StateDict = {"torch": torch.get_rng_state(), "python": [version, list(words), gauss]}
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            state["cuda"] = torch.cuda.get_rng_state_all()
        if (numpy := sys.modules.get("numpy")) is not None:
            name, keys, position, has_gauss, cached = numpy.random.get_state()
            state["numpy"] = [name, keys.tolist(), position, has_gauss, cached]
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Set every generator that ``state`` knows.

        Raises:
            CheckpointError: They do not take it.
        """
        try:
            self._set(state)
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, OverflowError) as error:
            message = f"the checkpoint's state of 'rng' does not fit: {error}"
            raise CheckpointError(message) from error

    def _set(self, state: StateDict) -> None:
        torch.set_rng_state(state["torch"].cpu())
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        if "cuda" in state and torch.cuda.is_available():
            for index, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(one.cpu(), index)
        if "numpy" in state:
            numpy = _numpy()
            if numpy is None:
                return
            name, keys, position, has_gauss, cached = state["numpy"]
            numpy.random.set_state((name, numpy.array(keys, dtype="uint32"), position, has_gauss, cached))

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Leave every generator as it was found."""
        found = self.state_dict()
        try:
            yield
        finally:
            self.load_state_dict(found)


def _numpy() -> Any:
    """Return NumPy: the run that saved its state had it, and this one may import it later; ``None`` where it is not installed."""
    try:
        return import_module("numpy")
    except ImportError:
        return None


def _versioned(thing: Any) -> Any:
    state = thing.state_dict()
    version = getattr(thing, "state_version", None)
    return state if version is None else {"state_version": version, "state": state}


def restore(thing: Any, state: Any) -> None:
    """Hand an object its state, migrated from an older version where that is needed."""
    wanted = getattr(thing, "state_version", None)
    if wanted is not None:
        found = state["state_version"] if isinstance(state, dict) and "state_version" in state else 0
        state = state["state"] if found else state
        if found != wanted:
            if not hasattr(thing, "migrate_state"):
                message = f"its state has version {found}, this release needs {wanted} and cannot migrate it"
                raise ValueError(message)
            state = thing.migrate_state(state, found)
    thing.load_state_dict(state)
