"""``compile``: the model through ``torch.compile``, in place."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from trainhooks import OptionError, UsageError, hookimpl
from trainhooks.suggest import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from torch import nn

    from trainhooks import Outcome, Trainer
    from trainhooks.types import Metrics

log = logging.getLogger("trainhooks")

_CALL = "_compiled_call_impl"  # where Module.compile puts what __call__ uses; there is no public way to undo it


class Compile:
    """Compiles the model with ``torch.compile`` for as long as the run lasts.

    It is done in place, as ``Module.compile`` does it, so that the model stays the object that it was: the names in its ``state_dict``,
    the optimizer and all other plugins know nothing of it, and a checkpoint fits a run without this plugin. Unlike there, a model
    is compiled whose class is one of torch's, such as ``nn.Sequential``. How long the first call takes, in which torch traces and
    compiles, is logged as ``time/compile``. Options are those of ``torch.compile``.

    Args:
        mode: ``default``, ``reduce-overhead``, ``max-autotune`` or ``max-autotune-no-cudagraphs``; for ``inductor`` only.
        dynamic: Whether shapes may change; ``None`` lets torch find out.
        fullgraph: Fail where the model cannot be compiled as a whole.
        backend: ``inductor`` needs a C++ compiler, or Triton on a GPU; ``aot_eager`` and ``eager`` need nothing and gain nothing,
            for finding faults.
        training: Use the compiled model to train.
        evaluation: Use it to evaluate and to predict.
        clock: Returns seconds; only differences are used.
    """

    phase = "algorithm"

    def __init__(
        self,
        mode: str | None = None,
        dynamic: bool | None = None,
        fullgraph: bool = False,
        backend: str = "inductor",
        training: bool = True,
        evaluation: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not training and not evaluation:
            message = "training = False and evaluation = False: nothing would be compiled; take it out with -p no:compile"
            raise OptionError(message)
        if mode is not None and backend != "inductor":
            message = f"mode = {mode!r}: backend {backend!r} has no modes; leave it out"
            raise OptionError(message)
        self.mode, self.dynamic, self.fullgraph, self.backend = mode, dynamic, fullgraph, backend
        self.training, self.evaluation = training, evaluation
        if training == evaluation:
            vars(self).update(evaluate=None, predict=None)  # nothing changes there: the hooks are not even called
        self._clock = clock
        self._compiled: Callable[..., Any] | None = None

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Have the model's calls compiled; torch does it when the first one is made."""
        model = trainer.model
        if model is None:
            message = "plugin 'compile' needs a model, this run has none; take it out with -p no:compile"
            raise UsageError(message)
        if getattr(model, _CALL, None) is not None or hasattr(model, "_orig_mod"):
            message = "the model is compiled already: give it as it was before torch.compile, or take the plugin out with -p no:compile"
            raise UsageError(message)
        arguments: dict[str, Any] = {"dynamic": self.dynamic, "fullgraph": self.fullgraph, "backend": self.backend}
        if self.mode is not None:
            arguments["mode"] = self.mode
        try:
            self._compiled = torch.compile(_call_of(model), **arguments)
        except RuntimeError as error:  # what torch raises for names that it does not know
            known = torch._dynamo.list_backends(exclude_tags=None)
            hint = suggestion(self.backend, known) if self.mode is None else ""
            message = f"torch.compile does not take backend = {self.backend!r}, mode = {self.mode!r}{hint}: {error}"
            raise OptionError(message) from error
        vars(model)[_CALL] = self._timed(trainer) if self.training else None

    @hookimpl(wrapper=True)
    def evaluate(self, trainer: Trainer) -> Generator[None, Metrics, Metrics]:
        """Evaluate with the compiled model, or without."""
        with self._switched(trainer):
            return (yield)

    @hookimpl(wrapper=True)
    def predict(self, trainer: Trainer) -> Generator[None, Any, Any]:
        """Predict with the compiled model, or without."""
        with self._switched(trainer):
            return (yield)

    @hookimpl
    def teardown(self, trainer: Trainer, outcome: Outcome) -> None:
        """Leave the model as it was found."""
        vars(trainer.model).pop(_CALL, None)
        self._compiled = None

    @contextmanager
    def _switched(self, trainer: Trainer) -> Iterator[None]:
        found = vars(trainer.model)[_CALL]
        vars(trainer.model)[_CALL] = self._compiled if self.evaluation else None
        try:
            yield
        finally:
            vars(trainer.model)[_CALL] = found

    def _timed(self, trainer: Trainer) -> Callable[..., Any]:
        """Return what stands in for the compiled call until the first one is done."""
        calls, compiled, clock, bus = vars(trainer.model), self._compiled, self._clock, trainer.bus
        assert compiled is not None  # noqa: S101 - setup has just made it

        def first_call(*inputs: Any, **named: Any) -> Any:
            calls[_CALL] = compiled
            began = clock()
            result = compiled(*inputs, **named)
            seconds = clock() - began
            log.info("compile: the first call of the model took %.1f s, most of it to compile", seconds)
            bus.add("time/compile", seconds)
            return result

        return first_call


def _call_of(model: nn.Module) -> Callable[..., Any]:
    """Return the call of a model as a function of ours: one that begins in torch's own files torch passes over."""
    inner: Any = model._call_impl

    def call(*inputs: Any, **named: Any) -> Any:
        return inner(*inputs, **named)

    return call
