"""From what is installed, configured and given to the plugins of one trainer: each built once, with its options."""

from __future__ import annotations

import inspect
import logging
import re
import weakref
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .config import FILE
from .discovery import Found, PluginRecord, find_plugins, refuse_rivals, select, unmatched_blocks
from .errors import OptionError, PluginError, PluginImportError, PluginValidationError, UsageError
from .manager import Plugin, plugin_name, snake_case
from .options import Given, parameters, validated
from .project import PROJECT_FILE
from .validation import MARK, POLICIES, hook_functions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .config import Config
    from .manager import PluginManager
    from .trainer import Trainer

log = logging.getLogger("trainhooks")

_OWNER = "_trainhooks_owner"
#: What cannot be a plugin.
_PLAIN = (str, int, float, list, dict, tuple, type(None))
#: Trainers that are alive and have a plugin with ``__slots__``, on which its trainer cannot be noted.
_HOSTS_OF_UNMARKED: weakref.WeakSet[Trainer] = weakref.WeakSet()


@dataclass
class Assembly:
    """Builds plugins and registers them with a manager.

    Args:
        manager: Where they go.
        config: Options and choices.
        objects: What the user handed to ``Trainer``: modules, instances, classes.
        project: The loaded project file.
        skip_failed: Go on without plugins that are broken, with one warning each.
    """

    manager: PluginManager
    config: Config
    objects: Sequence[Any] = ()
    project: ModuleType | None = None
    skip_failed: bool = False
    records: list[PluginRecord] = field(default_factory=list)
    _used: set[str] = field(default_factory=set)
    _failures: list[PluginError] = field(default_factory=list)

    def register(self) -> None:
        """Build and register every plugin that takes part.

        Raises:
            UsageError: Options or names are wrong.
            PluginError: A plugin is broken, and ``skip_failed`` is off.
        """
        found = find_plugins()
        given = [("object", one) for one in self.objects]
        if self.project is not None:
            given += [("project", self.project), *(("project", one) for one in _listed(self.project))]
        names = frozenset(self._name(one, found) for _, one in given)
        self.records = select(found, self.config, names)
        named = {snake_case(re.split("[:.]", one.name)[-1]) for one in self.config.choices if one.wanted}  # my_hooks:Shout
        for sentence in unmatched_blocks(found, self.config, names | named):
            log.warning(sentence)
        plugins: dict[str, Plugin] = {}
        seen: list[object] = []
        for index, (source, one) in enumerate(given):
            name = self._name(one, found)
            if self.config.taken_out(name) is not None or any(one is other for other in seen):
                continue
            seen.append(one)
            name = _free(name, plugins)
            who = f"plugin {name!r}"
            if self.project is not None and source == "project" and isinstance(one, _PLAIN):
                who = f"'plugins' of {self.project.__file__}"
            built = self._build(name, one, source, index, who, origin=_match(one, found))
            if built is not None:
                plugins[name] = built
        for index, record in enumerate(self.records):
            if record.state == "active" and record.name not in plugins:
                try:
                    refuse_rivals(record)
                except PluginError as error:
                    self._failed(error, record)
                    continue
                loaded = self._load(record, index, plugins)
                if loaded is None or self.config.taken_out(loaded.name) is not None:
                    continue
                same = next((one for one in plugins.values() if one.object is loaded.object), None)
                if same is not None:
                    log.warning("%s is the same object as %s, under another name: it takes part once", loaded, same)
                    record.state, record.reason = "shadowed", f"the same object as {same}"
                    continue
                plugins[loaded.name] = loaded
        self._check_options(plugins)
        self._add(list(plugins.values()))
        self._check_requirements()

    def _name(self, one: object, found: Iterable[Found]) -> str:
        if one is self.project is not None:
            return str(getattr(one, "__file__", "trainconf")).rpartition("/")[2].removesuffix(".py")
        match = _match(one, found)
        return match.name if match is not None else plugin_name(one)

    def _load(self, record: PluginRecord, index: int, plugins: dict[str, Plugin]) -> Plugin | None:
        try:
            if record.found is not None:
                name, thing = record.name, record.found.load()
                source = "built-in" if record.found.built_in else "installed"
                who = f"plugin {name!r} ({record.found.distribution} {record.found.version})"
            else:
                _refuse_code_named_by_a_file(record, self.config)
                thing = load_reference(record.name)
                name, source = _free(plugin_name(thing), plugins), "object"
                if self.config.taken_out(name) is not None:
                    return None
                who = f"plugin {name!r} ({_word(record) or 'given to Trainer'})"
        except PluginImportError as error:
            self._failed(error, record)
            return None
        return self._build(name, thing, source, index, who, origin=record.found, record=record)

    def _build(
        self,
        name: str,
        thing: Any,
        source: str,
        index: int,
        who: str,
        origin: Found | None = None,
        record: PluginRecord | None = None,
    ) -> Plugin | None:
        """Make a plugin of a module, an instance, or a class or factory with options."""
        options = dict(self.config.plugins.get(name, {}))
        self._used.add(name)
        if record is not None and record.found is None:  # named by module:attribute, so its options may be too
            options = {**self.config.plugins.get(record.name, {}), **options}
            self._used.add(record.name)
        on_error = options.pop("on_error", None) if "on_error" not in _factory_options(thing) else None
        try:
            if hasattr(thing, MARK):
                raise PluginValidationError(who, [f"{thing!r} is one hook; name the module or class that it is in"])
            if inspect.isclass(thing) or inspect.isfunction(thing):
                thing, values = _made(thing, options, who, advertised=origin is not None)
            elif options:
                first = next(iter(options.values()))
                message = f"{who} was built by hand and also has options in {first.origin}; configure it in one place"
                raise UsageError(message)
            else:
                values = {}
            if isinstance(thing, str):
                remedy = (
                    f"give a module, a class or an instance, or name an installed one with -p {thing} or "
                    f"enable = [{thing!r}] in trainhooks.toml"
                )
                raise PluginValidationError(who, [f"{thing!r} is no plugin but a text; {remedy}"])
            if isinstance(thing, _PLAIN):
                raise PluginValidationError(who, [f"{thing!r} is no plugin; give a module, a class or an instance"])
        except PluginError as error:
            self._failed(error, record)
            return None
        policy = _policy(on_error, who) or getattr(thing, "on_error", None)
        return Plugin(
            name,
            thing,
            source,
            index if source in ("object", "project") else 0,
            origin.distribution if origin else None,
            origin.version if origin else None,
            values,
            policy or "raise",
            insists=policy == "raise",
            word=_word(record) if record is not None and record.found is None else "",
        )

    def _add(self, plugins: list[Plugin]) -> None:
        """Register everything at once; on faults, say all of them or leave the broken ones out."""
        broken: set[str] = set()
        for step in (self.manager.add_hookspecs, self.manager.check):  # one may implement what a later one specifies
            for plugin in (one for one in plugins if one.name not in broken):
                try:
                    step(plugin)
                except PluginValidationError as error:
                    broken.add(plugin.name)
                    self._failed(error, next((one for one in self.records if one.name == plugin.name), None))
        if self._failures and not self.skip_failed:
            if len(self._failures) == 1:
                raise self._failures[0]
            raise PluginError("\n".join(str(one) for one in self._failures)) from self._failures[0]
        for failure in self._failures:
            log.warning("going on without a broken plugin: %s", failure)
        self.manager.add(*(plugin for plugin in plugins if plugin.name not in broken))

    def _failed(self, error: PluginError, record: PluginRecord | None) -> None:
        self._failures.append(error)
        if record is not None:
            record.state, record.reason = "failed", str(error).splitlines()[0]

    def _check_options(self, plugins: dict[str, Plugin]) -> None:
        """Refuse options of plugins that do not take part, unless they were taken out on purpose."""
        failed = {record.name for record in self.records if record.state == "failed"}
        for name, options in self.config.plugins.items():
            out = self.config.taken_out(name) or self.config.taken_out(name.partition("@")[0])
            if name not in self._used | failed and out is None and name not in plugins:
                origin = next(iter(options.values())).origin if options else "the configuration"
                message = f"options of plugin {name!r} in {origin}, but no such plugin takes part in this run"
                raise UsageError(message)

    def _check_requirements(self) -> None:
        """Refuse a plugin whose ``requires`` names one that was taken out."""
        for plugin in self.manager.plugins.values():
            for needed in getattr(plugin.object, "requires", ()):
                out = self.config.taken_out(needed)
                if out is not None and needed not in self.manager.plugins:
                    message = f"{plugin} needs plugin {needed!r}, {self._why(plugin)}, but {out.origin} takes it out"
                    raise UsageError(message)

    def _why(self, plugin: Plugin) -> str:
        """Say where ``requires`` comes from: a constructor sets it because of an option, a class or module declares it."""
        if isinstance(plugin.object, ModuleType) or "requires" not in getattr(plugin.object, "__dict__", {}):
            return "as it declares"
        options = self.config.plugins.get(plugin.name, {})
        return f"as asked for in {next(iter(options.values())).origin if options else 'its options'}"


def note_unlisted(plugins: Iterable[Plugin], config: Config) -> None:
    """Say which classes of the project file have hooks that nobody calls, since they are not in its list."""
    plugins = list(plugins)
    project = next((one.object for one in plugins if one.source == "project" and inspect.ismodule(one.object)), None)
    if project is None:
        return
    for cls in [one for one in vars(project).values() if inspect.isclass(one) and one.__module__ == project.__name__]:
        if inspect.isabstract(cls) or config.taken_out(plugin_name(cls)) is not None:
            continue
        if not any(isinstance(one.object, cls) for one in plugins) and any(hook_functions(cls)):
            log.warning("the hooks of class %s of %s are not called: list it in plugins = [...]", cls.__name__, PROJECT_FILE)


def claim(plugin: Plugin, trainer: Trainer) -> None:
    """Refuse an object that keeps state or resources and already serves another trainer."""
    thing = plugin.object
    if isinstance(thing, ModuleType) or plugin.source not in ("object", "project"):
        return
    keeps = hasattr(thing, "state_dict") or any(name in ("setup", "teardown") for name, _, _ in hook_functions(thing))
    owner = getattr(thing, _OWNER, None)
    serves_another = any(other is not trainer and other.manager.find(thing) for other in _HOSTS_OF_UNMARKED)
    if keeps and (serves_another or (owner is not None and owner() is not trainer)):
        message = (
            f"{plugin} is an object that already served another Trainer; its state would leak from one run into the other: "
            f"make a new one, or give the class {type(thing).__name__} instead, which is instantiated for each Trainer"
        )
        raise UsageError(message)
    try:
        object.__setattr__(thing, _OWNER, weakref.ref(trainer))  # also of a frozen dataclass
    except AttributeError:  # __slots__
        _HOSTS_OF_UNMARKED.add(trainer)


def _refuse_code_named_by_a_file(record: PluginRecord, config: Config) -> None:
    """Let a file configure code that is not installed, but not name it: data does not decide what is imported.

    Raises:
        UsageError: Neither the command line nor the environment nor the script names it.
    """
    if not any(one.name == record.name and one.wanted and one.strength > FILE for one in config.choices):
        message = (
            f"{record.name!r} in {record.reason}: a configuration file names installed plugins only; name code with "
            f"-p {record.name}, or put its class into plugins = [...] of {PROJECT_FILE}"
        )
        raise UsageError(message)


def load_reference(reference: str) -> Any:
    """Import ``module`` or ``module:attribute`` that was named on the command line.

    Raises:
        PluginImportError: It cannot be imported or has no such attribute.
    """
    module, _, attribute = reference.partition(":")
    if module.endswith(".py") or "/" in module:
        message = f"{reference!r} is the path of a file: write module:attribute, such as {PurePath(module).stem}:{attribute or 'NAME'}"
        raise PluginImportError(message)
    try:
        thing: Any = import_module(module)
        for part in filter(None, attribute.split(".")):
            thing = getattr(thing, part)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        message = f"{reference!r} cannot be imported: {type(error).__name__}: {error}"
        raise PluginImportError(message) from error
    return thing


def _made(factory: Callable[..., Any], options: dict[str, Given], who: str, *, advertised: bool) -> tuple[Any, dict[str, Any]]:
    """Call a class or factory with validated options."""
    plain = who.split("'")[1] if "'" in who else who
    values = validated(factory, options, who, f"`trainhooks plugins --options {plain}` lists them" if advertised else "")
    try:
        return factory(**values), values
    except (Exception, SystemExit) as error:
        places = ", ".join(sorted({one.origin for one in options.values()}))
        if isinstance(error, UsageError) or (places and isinstance(error, ValueError | TypeError)):
            message = f"{who}: {error}" + (f" (in {places})" if places else "")
            raise OptionError(message) from error
        message = f"{who}: cannot be built: {type(error).__name__}: {error}"
        raise PluginImportError(message) from error


def _factory_options(thing: Any) -> dict[str, Any]:
    return dict(parameters(thing)) if inspect.isclass(thing) or inspect.isfunction(thing) else {}


def _policy(given: Given | None, who: str) -> str | None:
    if given is None:
        return None
    value = given.value
    if value not in POLICIES:
        message = f"{who}: option 'on_error' in {given.origin}: must be 'raise' or 'disable', not {value!r}"
        raise OptionError(message)
    return str(value)


def _match(one: object, found: Iterable[Found]) -> Found | None:
    """Return the entry point that leads to an object's class or to a module, without importing it."""
    if isinstance(one, ModuleType):
        value = one.__name__
    else:
        cls = one if inspect.isclass(one) else type(one)
        value = f"{cls.__module__}:{cls.__qualname__}"
    return next((point for point in found if point.value == value), None)


def _word(record: PluginRecord) -> str:
    """Return what names ``module:attribute`` outside of the script, on the command line or in the environment."""
    return "" if record.reason.startswith("Trainer(") else record.reason


def _listed(project: ModuleType) -> list[Any]:
    listed = getattr(project, "plugins", [])
    if not isinstance(listed, list | tuple):
        message = f"{project.__file__}: 'plugins' must be a list, not {listed!r}"
        raise UsageError(message)
    return list(listed)


def _free(name: str, taken: dict[str, Plugin]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}@{number}"
    return free
