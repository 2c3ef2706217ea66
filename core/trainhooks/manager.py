"""The plugins of one trainer, on top of pluggy's manager: order, validation, error policies, and the plan of every call."""

from __future__ import annotations

import inspect
import logging
import re
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import pluggy

from . import hookspecs
from .errors import PluginValidationError, StageResultError, UsageError
from .guards import guard_plain, guard_wrapper, note_update, report_declined
from .hooks import Hooks
from .markers import PROJECT
from .order import DEFAULT_PHASE, Place, sort
from .plan import compile_event, compile_stage
from .running import Band, Witness, code_of, freed, pass_over, swallowers
from .suggest import suggestion
from .validation import faults, hook_functions, may_return_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .trainer import Trainer

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(PROJECT)

ENGINE = "engine"


@dataclass(eq=False)
class Implementation:
    """One plugin's function for one hook."""

    hook: str
    plugin: Plugin
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    wrapper: bool
    tryfirst: bool
    trylast: bool
    #: The function without what the plugin's policy and the stage put around it.
    direct: Callable[..., Any] | None = None
    #: Called with an error of the function, where the policy is not to raise it.
    failed: Callable[[BaseException], None] | None = None

    def call(self, kwargs: dict[str, Any]) -> Any:
        """Call it with those of ``kwargs`` that it names."""
        return self.function(*[kwargs[name] for name in self.arguments])


@dataclass(eq=False)
class Plugin:
    """What is known about one registered plugin.

    Args:
        name: Its name in this run, the same in options, ``-p``, state keys and messages.
        object: The module or instance that has the hooks.
        source: One of ``order.SOURCES``.
        index: Its position among the objects that the user listed.
        distribution: Where it was installed from, or ``None``.
        version: Of the distribution.
        options: What it was built with.
        on_error: ``"raise"`` or ``"disable"``.
    """

    name: str
    object: Any
    source: str = "object"
    index: int = 0
    distribution: str | None = None
    version: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    on_error: str = "raise"
    #: Whether it or its user asked for ``"raise"``, so that the errors of its report hooks end the run, too.
    insists: bool = False
    implementations: dict[str, Implementation] = field(default_factory=dict)
    #: Where it was named as ``module:attribute``: ``-p my_hooks:Shout``; empty for other plugins, and in ``Trainer(plugins=...)``.
    word: str = ""
    #: Whether its ``configure`` is done.
    configured: bool = False
    #: Whether its policy has disabled it.
    failed: bool = False
    #: Stages whose declining has been reported.
    reported: set[str] = field(default_factory=set)

    @property
    def place(self) -> Place:
        """Return what decides its order."""
        declared = self.object if self.source != ENGINE else None
        phase = getattr(declared, "phase", None) or DEFAULT_PHASE
        before, after = (tuple(getattr(declared, name, ())) for name in ("before", "after"))
        return Place(self.name, phase, self.source, self.index, before, after)

    def __str__(self) -> str:
        return f"plugin {self.name!r}{self.origin}"

    @property
    def origin(self) -> str:
        """Return the distribution and version in brackets, or what else is known."""
        if self.distribution:
            return f" ({self.distribution} {self.version})"
        if self.word:
            return f" ({self.word})"
        return {"object": " (given to Trainer)", "project": " (project file)"}.get(self.source, "")


class PluginManager:
    """Holds the plugins of one trainer in their order and computes what the engine calls."""

    def __init__(self) -> None:
        self._pluggy = pluggy.PluginManager(PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self._bands: list[Band] = []
        self._witness: Witness | None = None
        #: The active plugins by name, in call order; the engine is not among them.
        self.plugins: dict[str, Plugin] = {}
        #: Names of plugins that were disabled because they failed, with the error.
        self.disabled: dict[str, str] = {}
        #: The trainer that is told when a plugin is disabled.
        self.owner: weakref.ref[Trainer] | None = None
        #: Plugins that were taken out, while an exception or a running call still refers to them.
        self.former: weakref.WeakSet[Plugin] = weakref.WeakSet()
        self._tracer: Callable[[Implementation], Callable[..., Any]] | None = None
        self._call_tracer: Callable[[str, Callable[..., Any]], Callable[..., Any]] | None = None
        self._declined: dict[str, dict[str, Plugin]] = {}
        self._engine: Plugin | None = None
        self.hooks = Hooks(self)

    # --- Plugins come and go ---

    def set_engine(self, engine: object) -> None:
        """Register the engine's own implementations, which are always asked last."""
        self._engine = self._record(Plugin(ENGINE, engine, source=ENGINE))

    def add(self, *plugins: Plugin) -> None:
        """Register ``plugins`` in one go; they take their places from the next hook call on.

        Raises:
            PluginValidationError: One of them has faults; none is registered.
            UsageError: Their declared order is a cycle.
        """
        for plugin in plugins:
            self.add_hookspecs(plugin)
        for plugin in plugins:
            self.check(plugin)
        added = {plugin.name: self._record(plugin) for plugin in plugins}
        self._install({**self.plugins, **added})

    def remove(self, name: str) -> Plugin:
        """Take a plugin out; calls that are running go on without it."""
        plugin = self.plugins[name]
        self._install({key: value for key, value in self.plugins.items() if key != name})
        pass_over(plugin)
        self.former.add(plugin)
        for declined in self._declined.values():
            declined.pop(name, None)
        return plugin

    @contextmanager
    def only(self, wanted: Callable[[Plugin], bool]) -> Iterator[None]:
        """Leave the other plugins out for a while, without their noticing."""
        everybody = dict(self.plugins)
        those = {name: plugin for name, plugin in everybody.items() if wanted(plugin)}
        self._install(those)
        try:
            yield
        finally:
            gone = those.keys() - self.plugins.keys()  # disabled by their policy, after an error
            self._install({name: plugin for name, plugin in {**everybody, **self.plugins}.items() if name not in gone})

    def everybody(self) -> Iterator[Plugin]:
        """Yield the active plugins, without those that are taken out before their turn."""
        for plugin in list(self.plugins.values()):
            if self.plugins.get(plugin.name) is plugin:
                yield plugin

    def find(self, thing: object) -> Plugin | None:
        """Return the record of a plugin given by object or name."""
        if isinstance(thing, str):
            return self.plugins.get(thing)
        return next((plugin for plugin in self.plugins.values() if plugin.object is thing), None)

    def free_name(self, name: str) -> str:
        """Return ``name``, or ``name@2``, ``name@3``, ... when it is taken."""
        number, free = 1, name
        while free in self.plugins:
            number += 1
            free = f"{name}@{number}"
        return free

    def trace(
        self,
        implementation: Callable[[Implementation], Callable[..., Any]] | None,
        call: Callable[[str, Callable[..., Any]], Callable[..., Any]] | None,
    ) -> None:
        """Decorate every implementation and every call of a hook, or with ``None`` none of them any more."""
        self._tracer, self._call_tracer = implementation, call
        for plugin in (*self.plugins.values(), *([self._engine] if self._engine else [])):
            self._record(plugin)
        self._install(self.plugins)

    def close(self) -> None:
        """Let go of everything, so that a finished trainer is freed by reference counts."""
        for plugin in (*self.plugins.values(), *([self._engine] if self._engine else [])):
            plugin.implementations = {}  # which refer to it
        self._install({}, with_engine=False)
        self._engine = None
        vars(self._pluggy.hook).clear()  # pluggy's manager and its hook callers refer to each other
        vars(self.hooks).clear()

    def check(self, plugin: Plugin) -> None:
        """Raise ``PluginValidationError`` with all faults of a plugin."""
        self.add_hookspecs(plugin)
        known = {name: caller.spec.argnames for name, caller in self._callers() if caller.spec}
        must_return = frozenset(name for name in known if self._must_return(name))
        found = faults(plugin.object, known, must_return)
        if not found and not _has_any_part(plugin):
            found = [f"{plugin.object!r} implements no hook and has no state, so nothing of it would ever be called"]
        if found:
            raise PluginValidationError(str(plugin), found)

    def add_hookspecs(self, plugin: Plugin) -> None:
        """Add the hooks that a plugin package specifies, before anybody who implements them is checked.

        Raises:
            PluginValidationError: They do not bear the plugin's name.
        """
        specs = getattr(plugin.object, "hookspecs", None)
        if specs is None:
            return
        prefix = f"{plugin.name.partition('@')[0]}_"
        names = [name for name in dir(specs) if hasattr(getattr(specs, name), f"{PROJECT}_spec")]
        wrong = [name for name in names if not name.startswith(prefix)]
        if wrong:
            raise PluginValidationError(str(plugin), [f"hookspec {name!r} must begin with {prefix!r}" for name in wrong])
        if not all(hasattr(self._pluggy.hook, name) for name in names):
            self._pluggy.add_hookspecs(cast("Any", specs))

    def _record(self, plugin: Plugin) -> Plugin:
        implementations = {}
        for name, function, mark in hook_functions(plugin.object):
            hook = mark.get("specname") or name
            if not hasattr(self._pluggy.hook, hook):  # optionalhook of something that is not installed
                continue
            arguments = tuple(inspect.signature(function).parameters)
            implementation = Implementation(
                hook, plugin, function, arguments, mark["wrapper"], mark["tryfirst"], mark["trylast"]
            )
            self._decorate(implementation)
            implementations[hook] = implementation
        plugin.implementations = implementations  # in one go: the reporter thread may be looking
        return plugin

    def _decorate(self, implementation: Implementation) -> None:
        """Add what the plugin's policy and the stage ask for; most functions are left as they are."""
        plugin = implementation.plugin
        if self._tracer is not None:
            implementation.function = self._tracer(implementation)
        implementation.direct = implementation.function
        if implementation.hook in hookspecs.WITH_SIDE_EFFECTS and not implementation.wrapper:
            implementation.function = report_declined(implementation.function, plugin, implementation.hook, self._declined)
            if implementation.hook == "optimizer_step" and self.owner is not None:
                implementation.function = note_update(implementation.function, self.owner)
        if plugin.on_error == "disable":
            implementation.failed = lambda error: self.disable(plugin, error)
            guard = guard_wrapper if implementation.wrapper else guard_plain
            implementation.function = guard(implementation.function, implementation.failed)

    def _install(self, plugins: dict[str, Plugin], *, with_engine: bool = True) -> None:
        """Sort ``plugins`` and register them so that pluggy's last-in-first-out gives their order."""
        order = sort([plugin.place for plugin in plugins.values()])
        for band in self._bands:
            self._pluggy.unregister(band)
        self.plugins = {name: plugins[name] for name in order}
        everyone = list(self.plugins.values())
        if with_engine and self._engine is not None:
            everyone.append(self._engine)
        # Among trylast functions pluggy calls the one registered first at first, elsewhere the one registered last.
        last = [self._band(plugin, trylast=True) for plugin in everyone]
        rest = [self._band(plugin, trylast=False) for plugin in reversed(everyone)]
        self._bands = [band for band in (*last, *rest) if len(vars(band)) > 1]
        for number, band in enumerate(self._bands):
            self._pluggy.register(band, f"{number} {band.plugin.name}")
        self._witness = Witness.renewed(self._witness, self._pluggy, everyone)
        self.hooks.refresh(self)

    def _band(self, plugin: Plugin, *, trylast: bool) -> Band:
        return Band(plugin, (i for i in plugin.implementations.values() if i.trylast is trylast))

    # --- What the engine calls ---

    def event(self, spec: Callable[P, None]) -> Callable[P, None] | None:
        """Return what notifies everybody, or ``None`` if nobody listens."""
        name = _name(spec)
        implementations = self.implementations(name)
        if not implementations:
            return None
        caller = getattr(self._pluggy.hook, name)
        wrapped = any(i.wrapper for i in implementations)
        call = self._watched(name, caller) if wrapped else compile_event(name, caller.spec.argnames, implementations)
        return cast("Callable[P, None]", self._traced(name, call))

    def optional(self, spec: Callable[P, R | None]) -> Callable[P, R | None] | None:
        """Return what does the work of a stage that may have no result, or ``None`` if nobody does."""
        name = _name(spec)
        caller = getattr(self._pluggy.hook, name)
        return cast("Callable[P, R | None]", self._traced(name, freed(caller))) if caller.get_hookimpls() else None

    def stage(self, spec: Callable[P, R | None]) -> Callable[P, R]:
        """Return what does the stage's work: the engine's own function while nobody else implements it."""
        name = _name(spec)
        implementations = self.implementations(name)
        if len(implementations) == 1 and implementations[0].plugin is self._engine:
            return cast("Callable[P, R]", self._traced(name, implementations[0].direct))
        caller = getattr(self._pluggy.hook, name)
        if not any(i.wrapper for i in implementations):
            compiled = compile_stage(name, caller.spec.argnames, implementations, lambda: self._lost_result(name))
            return cast("Callable[P, R]", self._traced(name, compiled))

        through = freed(caller)

        def call(**kwargs: Any) -> Any:
            result = through(**kwargs)
            if result is None:
                raise self._lost_result(name)
            return result

        return cast("Callable[P, R]", self._traced(name, call))

    def extras(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Yield the calls of the hooks that plugin packages specified."""
        for name, caller in self._callers():
            if not hasattr(hookspecs, name):
                is_stage = caller.spec is None or caller.spec.opts["firstresult"]
                yield name, freed(caller) if is_stage else self._watched(name, caller)

    def implementations(self, hook: str) -> list[Implementation]:
        """Return the implementations of ``hook`` in call order, wrappers first."""
        caller = getattr(self._pluggy.hook, hook, None)
        if caller is None:
            return []
        found = [impl.plugin for impl in reversed(caller.get_hookimpls()) if impl.plugin is not self._witness]
        return [band.plugin.implementations[hook] for band in found]

    def has(self, hook: str) -> bool:
        """Return whether a plugin implements ``hook``."""
        return any(implementation.plugin is not self._engine for implementation in self.implementations(hook))

    @property
    def traced(self) -> bool:
        """Whether every implementation is decorated."""
        return self._tracer is not None

    def shows(self, hook: str) -> bool:
        """Return whether a call of ``hook`` must be made, since a plugin implements it or the run is traced."""
        return self.traced or self.has(hook)

    def wants(self, hook: str, argument: str) -> bool:
        """Return whether an implementation of ``hook`` takes ``argument``."""
        return any(argument in implementation.arguments for implementation in self.implementations(hook))

    def call_others(self, hook: str, plugin: object, kwargs: dict[str, Any]) -> Any:
        """Ask the implementations of a stage that come after ``plugin``'s own, without wrappers, which are around it."""
        spec = getattr(getattr(self._pluggy.hook, hook, None), "spec", None)
        if spec is None or not spec.opts["firstresult"]:
            stages = [name for name, caller in self._callers() if caller.spec and caller.spec.opts["firstresult"]]
            message = f"call_others({hook!r}): there is no such stage{suggestion(hook, stages)}"
            raise UsageError(message)
        plain = [i for i in self.implementations(hook) if not i.wrapper]
        word = plugin if isinstance(plugin, str) else None
        own = [number for number, i in enumerate(plain) if i.plugin.object is plugin or i.plugin.name == word]
        if not own:
            message = f"call_others({hook!r}): {plugin!r} is no active plugin that replaces this stage"
            raise UsageError(message)
        others = plain[own[0] + 1 :]
        wanted = {name for one in others for name in one.arguments}
        if not wanted <= kwargs.keys() <= set(spec.argnames):
            names = ", ".join(name for name in spec.argnames if name != "trainer")
            message = f"call_others({hook!r}): give the stage its arguments by name: {names or 'it has none'}"
            raise UsageError(message)
        for implementation in others:
            result = implementation.call(kwargs)
            if result is not None:
                return result
        return None

    def call_each(
        self, hook: str, plugins: Iterable[Plugin], kwargs: dict[str, Any], collect: list[BaseException] | None = None
    ) -> None:
        """Call ``hook`` of each of ``plugins``, one after the other; with ``collect``, go on after errors and add them there."""

        def work() -> None:
            for plugin in plugins:
                try:
                    if hook in plugin.implementations:
                        plugin.implementations[hook].call(kwargs)
                    plugin.configured |= hook == "configure"
                except BaseException as error:
                    if collect is None:
                        raise
                    collect.append(error)

        if self._call_tracer is not None and any(hook in plugin.implementations for plugin in self.plugins.values()):
            self._call_tracer(hook, work)()
        else:
            work()

    def disable(self, plugin: Plugin, error: BaseException) -> None:
        """Go on without a plugin whose policy allows it: one warning, recorded, its ``teardown`` called."""
        if self.plugins.get(plugin.name) is not plugin:
            log.warning("%s failed again while it was being shut down: %r", str(plugin), error)
            return
        plugin.failed = True
        self.disabled[plugin.name] = repr(error)
        log.warning("%s failed and is disabled for the rest of this run", str(plugin), exc_info=error)
        self.remove(plugin.name)
        trainer = self.owner() if self.owner is not None else None
        if trainer is not None:
            trainer.forget_plugin(plugin)

    def _watched(self, name: str, caller: Callable[..., Any]) -> Callable[..., Any]:
        assert self._witness is not None  # noqa: S101 - it is there when anybody is
        return self._witness.watched(freed(caller), lambda error: self._swallowed(name, error))

    def _traced(self, name: str, call: Callable[..., Any] | None) -> Callable[..., Any] | None:
        return self._call_tracer(name, call) if self._call_tracer is not None and call is not None else call

    def _callers(self) -> list[tuple[str, Any]]:
        return sorted(vars(self._pluggy.hook).items())

    def _must_return(self, hook: str) -> bool:
        spec = getattr(hookspecs, hook, None)
        firstresult = spec is not None and bool(getattr(spec, f"{PROJECT}_spec", {}).get("firstresult"))
        return firstresult and hook not in hookspecs.OPTIONAL_RESULT

    def _lost_result(self, hook: str) -> StageResultError:
        """Name the wrapper that turned a stage's result into nothing, or swallowed its error."""
        wrappers = [i for i in self.implementations(hook) if i.wrapper]
        guilty = [i for i in wrappers if may_return_nothing(i.function)] or wrappers
        if not guilty:
            return StageResultError(f"stage {hook!r} has no result: every implementation declined by returning None")
        return StageResultError(
            f"stage {hook!r} has no result: the wrapper of {_places(guilty)} returned None or swallowed an error; "
            "it must `return` what its `yield` gives and let exceptions pass"
        )

    def _swallowed(self, hook: str, error: BaseException) -> StageResultError:
        """Name the wrapper that swallowed an error of an event's listener."""
        guilty = swallowers(error, [i for i in self.implementations(hook) if i.wrapper])
        return StageResultError(
            f"event {hook!r} has failed: the wrapper of {_places(guilty)} swallowed the error; it must let exceptions pass"
        )


def _places(guilty: list[Implementation]) -> str:
    return " or ".join(f"{i.plugin}, {function_place(i.function)}," for i in guilty)


def _has_any_part(plugin: Plugin) -> bool:
    """Return whether a plugin does anything; a project file may be empty, or hold nothing but classes."""
    if plugin.source == "project" and inspect.ismodule(plugin.object):
        return True
    stateful = hasattr(plugin.object, "state_dict") and not type(plugin.object).__module__.startswith("torch.")
    return stateful or hasattr(plugin.object, "hookspecs") or any(hook_functions(plugin.object))


def function_place(function: Callable[..., Any]) -> str:
    """Return ``file:line`` of a function."""
    code = code_of(function)
    return f"{code.co_filename}:{code.co_firstlineno}"


def snake_case(name: str) -> str:
    """Return ``early_stopping`` for ``EarlyStopping`` and ``ema`` for ``EMA``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def plugin_name(plugin: object) -> str:
    """Return the name of a plugin object: its ``name``, else that of its module, function (which makes it), or class in snake case."""
    if inspect.ismodule(plugin):
        return plugin.__name__.rpartition(".")[2]
    name = getattr(plugin, "name", None)
    if isinstance(name, str) and name:
        return name
    if inspect.isfunction(plugin) and plugin.__name__.isidentifier():  # not so a lambda
        return plugin.__name__
    return snake_case(plugin.__name__ if inspect.isclass(plugin) else type(plugin).__name__)


def _name(spec: Callable[..., Any]) -> str:
    return spec.__name__
