"""Compiles the call of a hook that nobody wraps into one function without loops, in place of pluggy's general call.

What pluggy does beyond calling one function after the other is to run wrappers, so a hook that has a wrapper goes through
pluggy. For the others its general call, which looks at every implementation anew, is what a small model would notice of many
listeners in each step; ``nox -s bench`` prints what ten of them cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .errors import ControlFlow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .manager import Implementation


#: What the file name of a compiled call begins with; its globals are its own, so a listener in them can be replaced.
FILE: Final = "<plan of "


def compile_event(hook: str, arguments: Sequence[str], listeners: Sequence[Implementation]) -> Callable[..., None]:
    """Return a function that calls every listener in order.

    A listener whose errors must not cost the run is guarded in place, since the call of a guard would cost as much as many a
    listener does.

    Args:
        hook: Its name.
        arguments: Of the hook.
        listeners: None of them a wrapper.
    """
    lines: list[str] = []
    names: dict[str, Any] = {"ControlFlow": ControlFlow}
    for number, listener in enumerate(listeners):
        names[f"_{number}"] = listener.direct
        if listener.failed is None:
            lines.append(_call(number, listener))
        else:
            names[f"_{number}_failed"] = listener.failed
            lines += ["try:", f"    {_call(number, listener)}", "except ControlFlow:", "    raise"]
            lines += ["except Exception as error:", f"    _{number}_failed(error)"]
    return _compiled(hook, arguments, lines, names)


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
    names: dict[str, Any] = {"no_result": no_result}
    for number, worker in enumerate(workers):
        names[f"_{number}"] = worker.function
        lines += [f"result = {_call(number, worker)}", "if result is not None:", "    return result"]
    return _compiled(hook, arguments, [*lines, "raise no_result()"], names)


def _call(number: int, implementation: Implementation) -> str:
    return f"_{number}({', '.join(implementation.arguments)})"


def _compiled(hook: str, arguments: Sequence[str], lines: Sequence[str], namespace: dict[str, Any]) -> Callable[..., Any]:
    """Build the function from its lines; every name in them is an identifier that Python has parsed before."""
    source = f"def {hook}(*, {', '.join(arguments)}):\n" + "".join(f"    {line}\n" for line in lines)
    exec(compile(source, f"{FILE}{hook}>", "exec"), namespace)  # noqa: S102 - the lines above, nothing else
    function: Callable[..., Any] = namespace.pop(hook)  # whose globals this is: it must not refer to itself
    return function
