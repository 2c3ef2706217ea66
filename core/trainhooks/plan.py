"""Compiles the call of a hook that nobody wraps into one function without loops, in place of pluggy's general call.

What pluggy does beyond calling one function after the other is to run wrappers, so a hook that has a wrapper goes through
pluggy. For the others its general call, which looks at every implementation anew, is what a small model would notice of many
listeners in each step; ``nox -s bench`` prints what ten of them cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .manager import Implementation


def compile_event(hook: str, arguments: Sequence[str], listeners: Sequence[Implementation]) -> Callable[..., None]:
    """Return a function that calls every listener in order.

    Args:
        hook: Its name.
        arguments: Of the hook.
        listeners: None of them a wrapper.
    """
    lines = [f"{_call(number, listener)}" for number, listener in enumerate(listeners)]
    return _compiled(hook, arguments, lines, listeners, {})


def compile_stage(
    hook: str, arguments: Sequence[str], workers: Sequence[Implementation], no_result: Callable[[], BaseException]
) -> Callable[..., Any]:
    """Return a function that asks every worker in order until one returns a value other than ``None``.

    Args:
        hook: Its name.
        arguments: Of the hook.
        workers: None of them a wrapper.
        no_result: Gives the error to raise when all have declined.
    """
    lines = []
    for number, worker in enumerate(workers):
        lines += [f"result = {_call(number, worker)}", "if result is not None:", "    return result"]
    return _compiled(hook, arguments, [*lines, "raise no_result()"], workers, {"no_result": no_result})


def _call(number: int, implementation: Implementation) -> str:
    return f"_{number}({', '.join(implementation.arguments)})"


def _compiled(
    hook: str,
    arguments: Sequence[str],
    lines: Sequence[str],
    implementations: Sequence[Implementation],
    names: dict[str, Any],
) -> Callable[..., Any]:
    """Build the function from its lines; every name in them is an identifier that Python has parsed before."""
    source = f"def {hook}(*, {', '.join(arguments)}):\n" + "".join(f"    {line}\n" for line in lines)
    namespace = {f"_{number}": one.function for number, one in enumerate(implementations)} | names
    exec(compile(source, f"<plan of {hook}>", "exec"), namespace)  # noqa: S102 - the lines above, nothing else
    function: Callable[..., Any] = namespace.pop(hook)  # whose globals this is: it must not refer to itself
    return function
