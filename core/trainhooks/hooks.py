"""The engine's calls of the hooks, typed by the hookspecs themselves.

``trainer.hooks.before_step`` is ``None`` while nobody implements that event, and ``trainer.hooks.train_step`` is the
engine's own function while only the engine implements that stage, so either costs one attribute test a step. Hooks without
wrappers are compiled (``plan``), those with wrappers go through pluggy. All of it is computed when plugins change, never in the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from . import hookspecs as specs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
R = TypeVar("R")


class Plan(Protocol):
    """Works out the call of one hook; ``PluginManager`` does."""

    def event(self, spec: Callable[P, None]) -> Callable[P, None] | None:
        """Return what notifies everybody, or ``None`` if nobody listens."""
        raise NotImplementedError

    def stage(self, spec: Callable[P, R | None]) -> Callable[P, R]:
        """Return what does the stage's work and has its result."""
        raise NotImplementedError

    def optional(self, spec: Callable[P, R | None]) -> Callable[P, R | None] | None:
        """Return what does the work of a stage that may have no result, or ``None`` if nobody does."""
        raise NotImplementedError

    def has(self, hook: str) -> bool:
        """Return whether a plugin implements ``hook``."""
        raise NotImplementedError

    def shows(self, hook: str) -> bool:
        """Return whether a call of ``hook`` must be made, since a plugin implements it or the run is traced."""
        raise NotImplementedError

    def wants(self, hook: str, argument: str) -> bool:
        """Return whether an implementation of ``hook`` takes ``argument``."""
        raise NotImplementedError

    def extras(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Yield the calls of the hooks that plugin packages specified."""
        raise NotImplementedError


class Hooks:
    """One attribute for each hook of ``hookspecs`` that is not called plugin by plugin; keyword arguments only."""

    def __init__(self, plan: Plan) -> None:
        self.refresh(plan)

    def refresh(self, plan: Plan) -> None:
        """Compute every call anew; holders of this object see the change at their next call."""
        event, stage = plan.event, plan.stage
        #: Whether a plugin decides when an update is due, and whether one scales the loss; the engine does neither.
        self.decides_update, self.scales_loss = plan.shows("update_due"), plan.shows("scale_loss")
        #: Whether the updates of a run can be counted in advance.
        self.plans_updates = plan.has("count_updates") or not plan.has("update_due")
        #: Whether a plugin has a part in the backward pass and in the optimizer's step, which are a line or two without.
        self.shares_backward, self.shares_optimizer_step = plan.shows("backward"), plan.shows("optimizer_step")
        self.make_model = stage(specs.make_model)
        self.make_optimizer = stage(specs.make_optimizer)
        self.make_loader = stage(specs.make_loader)
        self.load_checkpoint = stage(specs.load_checkpoint)
        self.on_load = event(specs.on_load)
        self.before_train = event(specs.before_train)
        self.train = stage(specs.train)
        self.before_epoch = event(specs.before_epoch)
        self.train_epoch = stage(specs.train_epoch)
        self.prepare_batch = stage(specs.prepare_batch)
        self.before_step = event(specs.before_step)
        self.update_due = stage(specs.update_due)
        self.count_updates = stage(specs.count_updates)
        self.train_step = stage(specs.train_step)
        self.compute_loss = stage(specs.compute_loss)
        self.scale_loss = stage(specs.scale_loss)
        self.backward = stage(specs.backward)
        self.gradients_ready = event(specs.gradients_ready)
        self.clip_gradients = plan.optional(specs.clip_gradients)
        self.optimizer_step = stage(specs.optimizer_step)
        self.after_update = event(specs.after_update)
        self.after_step = event(specs.after_step)
        self.after_skip = event(specs.after_skip)
        self.after_train_epoch = event(specs.after_train_epoch)
        self.after_epoch = event(specs.after_epoch)
        self.evaluate = stage(specs.evaluate)
        self.before_eval = event(specs.before_eval)
        self.eval_step = stage(specs.eval_step)
        self.after_eval_step = event(specs.after_eval_step)
        self.after_eval = event(specs.after_eval)
        self.predict = stage(specs.predict)
        self.before_predict = event(specs.before_predict)
        self.predict_step = stage(specs.predict_step)
        self.after_predict_step = event(specs.after_predict_step)
        self.after_predict = event(specs.after_predict)
        self.save_checkpoint = stage(specs.save_checkpoint)
        self.on_save = event(specs.on_save)
        self.after_save = event(specs.after_save)
        #: Whether a plugin looks at what ``train_step`` returned.
        self.shows_output = plan.wants("after_step", "output")
        for name, call in plan.extras():
            setattr(self, name, call)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]:
            """Stand for the hooks that plugin packages specified."""
            raise NotImplementedError
