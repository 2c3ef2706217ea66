"""``closure``: functions as a plugin, each given by the name of its hook."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

from trainhooks import OptionError, PluginImportError, hookimpl, hookspecs
from trainhooks.assembly import load_reference
from trainhooks.markers import PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

#: Every hook of the engine, in the order of the loop.
HOOKS: Final = tuple(name for name, one in vars(hookspecs).items() if hasattr(one, f"{PROJECT}_spec"))


class Closure:
    """Calls functions at hooks: ``Closure(after_step=report, before_epoch=shuffle)``.

    A function names the arguments that it wants of the hook's, as any implementation does, and may be a stage: what it returns
    counts, and ``None`` declines. A generator function wraps the hook. In a file or on the command line a function is written
    ``"module:function"``. What ``@hookimpl`` says about a function stays in force.

    Args:
        hooks: A function, or ``"module:function"``, for each hook; any hook of the engine or of a plugin package.
    """

    def __init__(self, **hooks: Callable[..., Any] | str | None) -> None:
        given = {hook: function for hook, function in hooks.items() if function is not None}
        if not given:
            message = 'name at least one hook: after_step = "module:function", or Closure(after_step=function)'
            raise OptionError(message)
        for hook, function in given.items():
            vars(self)[hook] = implementation(hook, function)


# What options are made of: one for each hook, so that they can be listed, checked and suggested.
Closure.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [inspect.Parameter(hook, inspect.Parameter.KEYWORD_ONLY, default=None) for hook in HOOKS]
)


def implementation(hook: str, function: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return a function that calls ``function`` and is marked as an implementation of ``hook``; ``function`` is not touched.

    Raises:
        OptionError: It is no function, or names none.
    """
    if isinstance(function, str):
        function = _loaded(hook, function)
    if not callable(function):
        message = f'{hook} = {function!r}: must be a function, or text such as "module:function"'
        raise OptionError(message)
    plain = inspect.isroutine(function) or isinstance(function, functools.partial | type)
    known: Any = function if plain else function.__call__  # type: ignore[operator]  # of an object, its method is the function
    mark = getattr(known, f"{PROJECT}_impl", {})
    yields = mark.get("wrapper", False) or inspect.isgeneratorfunction(inspect.unwrap(known))
    try:
        signature = inspect.signature(known)
    except (TypeError, ValueError):
        message = f"{hook} = {function!r}: nobody can tell its arguments; give a function that calls it"
        raise OptionError(message) from None
    if isinstance(function, functools.partial) and not inspect.iscoroutinefunction(function):
        known, signature = _without_bound(function, signature, yields=yields)

    def call(*arguments: Any) -> Any:
        return known(*arguments)

    def wrap(*arguments: Any) -> Generator[None, Any, Any]:
        return (yield from known(*arguments))

    made: Any = functools.update_wrapper(wrap if yields else call, known, updated=())  # its place, not its marks
    made.__signature__ = signature
    order = {name: mark[name] for name in ("tryfirst", "trylast") if name in mark}
    marked: Callable[..., Any] = hookimpl(specname=hook, wrapper=yields, **order)(made)
    return marked


def _without_bound(
    function: functools.partial[Any], signature: inspect.Signature, *, yields: bool
) -> tuple[Callable[..., Any], inspect.Signature]:
    """Return a function with the arguments that a partial one leaves open, and its signature.

    pluggy reads the names of arguments from a function's code, which a partial one has not.
    """
    left = [one for name, one in signature.parameters.items() if name not in function.keywords]
    names = [one.name for one in left]
    # What comes after an argument that is bound by its name can only be given by name.
    given = ", ".join(f"{one.name}={one.name}" if one.kind is one.KEYWORD_ONLY else one.name for one in left)
    result = f"(yield from function({given}))" if yields else f"function({given})"
    code = getattr(inspect.unwrap(function.func), "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code is not None else ("<partial>", 1)
    text = "\n" * (line - 1) + f"def call({', '.join(names)}): return {result}"
    namespace: dict[str, Any] = {"function": function}
    exec(compile(text, file, "exec"), namespace)  # noqa: S102 - made of names of arguments
    any_way = inspect.Parameter.POSITIONAL_OR_KEYWORD
    open_ones = [one.replace(kind=any_way) if one.kind is one.KEYWORD_ONLY else one for one in left]
    return namespace["call"], signature.replace(parameters=open_ones)


def _loaded(hook: str, reference: str) -> Callable[..., Any]:
    try:
        function: Any = load_reference(reference)
    except PluginImportError as error:
        message = f"{hook}: {error}"
        raise OptionError(message) from error
    if not callable(function):
        message = f"{hook} = {reference!r}: it is a {type(function).__name__}, no function; write 'module:function'"
        raise OptionError(message)
    loaded: Callable[..., Any] = function
    return loaded
