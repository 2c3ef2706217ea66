"""What can be wrong with a plugin's hooks, found when it is registered: all faults at once, with a suggestion each."""

from __future__ import annotations

import dis
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .hookspecs import ONE_BY_ONE
from .markers import PROJECT
from .order import PHASES
from .suggest import hook_suggestion, may_be_of_a_plugin, suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MARK = f"{PROJECT}_impl"
POLICIES = ("raise", "disable")


def hook_functions(plugin: object) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Yield attribute name, function and marker of each hook implementation of ``plugin``, without running properties."""
    for name in dir(plugin):
        if name.startswith("__") or not inspect.isroutine(_static(plugin, name)):
            continue
        function = getattr(plugin, name)
        mark = getattr(function, MARK, None)
        if isinstance(mark, dict):
            yield name, function, mark


def faults(plugin: object, hooks: Mapping[str, tuple[str, ...]], must_return: frozenset[str]) -> list[str]:
    """Return one sentence for each fault of ``plugin``.

    Args:
        plugin: A module or an instance.
        hooks: Names of all hooks with the arguments of each.
        must_return: Stages whose result must not be lost.
    """
    found = [*_declaration_faults(plugin), *_unmarked(plugin, hooks), *_marked_in_vain(plugin)]
    seen: set[str] = set()
    for name, function, mark in hook_functions(plugin):
        hook = mark.get("specname") or name
        where = f"{hook}() {_place(function)}"
        if hook in seen:
            found.append(f"{where}: a second implementation of the same hook")
        seen.add(hook)
        if hook not in hooks:
            if not mark["optionalhook"]:
                remedy = "; mark it @hookimpl(optionalhook=True) if a plugin that may be out specifies it"
                remedy = remedy if may_be_of_a_plugin(hook, hooks) else ""
                found.append(f"{where}: there is no such hook{hook_suggestion(hook, hooks)}{remedy}")
            continue
        found.extend(f"{where}: {fault}" for fault in _signature_faults(function, hooks[hook]))
        found.extend(f"{where}: {fault}" for fault in _wrapper_faults(hook, function, mark, must_return))
    return found


def returns_nothing(function: Callable[..., Any]) -> bool:
    """Return whether no path through ``function`` can return anything but ``None``."""
    returns = _constant_returns(function)
    return bool(returns) and all(returns)


def may_return_nothing(function: Callable[..., Any]) -> bool:
    """Return whether some path through ``function`` returns the constant ``None``, as one without ``return`` does."""
    return any(_constant_returns(function))


def _constant_returns(function: Callable[..., Any]) -> list[bool]:
    """Return for each ``return`` in the function's code, the one at its end included, whether it returns ``None`` as such."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    if code is None:
        return []
    instructions = [one for one in dis.get_instructions(code) if one.opname != "NOP"]
    returns = []
    for previous, instruction in zip([None, *instructions], instructions, strict=False):
        if instruction.opname == "RETURN_CONST":
            returns.append(instruction.argval is None)
        elif instruction.opname == "RETURN_VALUE":
            returns.append(previous is not None and previous.opname == "LOAD_CONST" and previous.argval is None)
    return returns


def _declaration_faults(plugin: object) -> Iterator[str]:
    phase = getattr(plugin, "phase", None)
    if phase is not None and phase not in PHASES:
        yield f"phase = {phase!r}: there is no such phase{suggestion(str(phase), PHASES)}; phases are {', '.join(PHASES)}"
    policy = getattr(plugin, "on_error", None)
    if policy is not None and policy not in POLICIES:
        yield f"on_error = {policy!r}: must be 'raise' or 'disable'"
    for name in ("before", "after", "requires"):
        value = getattr(plugin, name, ())
        if isinstance(value, str):
            yield f"{name} = {value!r}: must be a tuple of plugin names, write ({value!r},)"
        elif not isinstance(value, tuple | list | set | frozenset) or not all(isinstance(one, str) for one in value):
            yield f"{name} = {value!r}: must be a tuple of plugin names"
    saves, loads = (callable(getattr(plugin, name, None)) for name in ("state_dict", "load_state_dict"))
    if saves != loads:
        has, lacks = ("state_dict", "load_state_dict") if saves else ("load_state_dict", "state_dict")
        yield f"has {has}() but no {lacks}(), so its state would never be saved; write both, or rename it"
    per_call = getattr(plugin, "records_per_call", 1)
    if type(per_call) is not int or per_call < 1:
        yield f"records_per_call = {per_call!r}: must be a whole number, 1 or more"


def _unmarked(plugin: object, hooks: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Find functions that have a hook's name but are not marked, where the author of the plugin wrote them."""
    if isinstance(plugin, ModuleType):
        own = {name: value for name, value in vars(plugin).items() if getattr(value, "__module__", "") == plugin.__name__}
    else:
        classes = [base for base in type(plugin).__mro__ if base.__module__ == type(plugin).__module__]
        own = {name: value for base in reversed(classes) for name, value in vars(base).items()}
    for name in sorted(set(own) & set(hooks)):
        written = _bare(own[name])
        marked = hasattr(written, MARK) or _has_mark(own[name])
        if inspect.isroutine(written) and not marked and inspect.isroutine(getattr(plugin, name, None)):
            yield f"{name}() {_place(written)}: has a hook's name but no @hookimpl, so it would never be called"


def _marked_in_vain(plugin: object) -> Iterator[str]:
    """Find what is marked but would not be taken for a hook: no function, or one whose mark Python does not pass on."""
    called = {name for name, _, _ in hook_functions(plugin)}
    for name in sorted(set(dir(plugin)) - called):
        written = inspect.getattr_static(plugin, name, None)
        if name.startswith("__") or not _has_mark(written):
            continue
        kind = type(written).__name__
        if isinstance(written, staticmethod | classmethod):
            yield f"{name}() {_place(_bare(written))}: @hookimpl stands above @{kind}, which hides it; write it below"
        else:
            yield f"{name}: is marked as a hook, but is a {kind}, which would never be called; write a function: def {name}(...)"


def _has_mark(written: object) -> bool:
    return isinstance(inspect.getattr_static(written, MARK, None), dict)


def _signature_faults(function: Callable[..., Any], arguments: tuple[str, ...]) -> Iterator[str]:
    code = getattr(getattr(function, "__func__", None), "__code__", None)
    if code is not None and code.co_argcount and code.co_varnames[0] in arguments:
        yield f"its first parameter, which gets the object itself, is {code.co_varnames[0]!r}; write self before it"
    for parameter in inspect.signature(function).parameters.values():
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield f"takes *{name}; name the arguments that it wants of {_listed(arguments)}"
        elif name not in arguments:
            yield f"the hook has no argument {name!r}; it has {_listed(arguments)}{suggestion(name, arguments)}"
        elif parameter.kind is parameter.KEYWORD_ONLY:
            yield f"argument {name!r} is keyword-only; remove the *"
        if parameter.default is not parameter.empty:
            yield f"argument {name!r} has a default, which would never be used; write {name!r} alone"


def _wrapper_faults(
    hook: str, function: Callable[..., Any], mark: Mapping[str, Any], must_return: frozenset[str]
) -> Iterator[str]:
    plain = inspect.unwrap(getattr(function, "__func__", function))
    yields = inspect.isgeneratorfunction(plain)
    if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        yield "is async; hooks are plain functions"
    elif mark["hookwrapper"]:
        yield "is an old-style wrapper; write @hookimpl(wrapper=True) and return the result of the yield"
    elif yields and not mark["wrapper"]:
        yield "yields but is not marked @hookimpl(wrapper=True), so its body would never run"
    elif mark["wrapper"] and not yields:
        yield "is marked wrapper=True but never yields; yield exactly once"
    elif mark["wrapper"] and not inspect.isgeneratorfunction(function):
        yield "yields inside of a decorator whose own function does not, so it could not be called; take the decorator off"
    elif mark["wrapper"] and hook in ONE_BY_ONE:
        yield "cannot be a wrapper: this hook is called plugin by plugin"
    elif mark["wrapper"] and hook in must_return and returns_nothing(plain):
        yield "never returns the stage's result, which would be lost; end it with `return (yield)`"


def _static(plugin: object, name: str) -> object:
    return _bare(inspect.getattr_static(plugin, name, None))


def _bare(function: object) -> object:
    return function.__func__ if isinstance(function, staticmethod | classmethod) else function


def _place(function: object) -> str:
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)  # type: ignore[arg-type]
    return f"in {code.co_filename}:{code.co_firstlineno}" if code else ""


def _listed(arguments: tuple[str, ...]) -> str:
    return ", ".join(arguments) or "none"
