"""Which plugin an exception came from, worked out from its traceback when it leaves: nothing is paid while nothing fails."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from . import guards
from .call_site import wrong_call
from .errors import ControlFlow, TrainhooksError, UsageError, add_note, message_of
from .hookspecs import ONE_BY_ONE
from .manager import ENGINE, function_place

if TYPE_CHECKING:
    from types import CodeType, FrameType, TracebackType

    from .manager import Implementation, PluginManager

_MARK = "raised in "
#: How a message begins about what a stage gave.
_RESULT = re.compile(r"(\w+)(?:\('\w+'\))? (?:gave|gives|returned|must return)\b")
_GUARDS = inspect.getfile(guards)


def note_origin(exception: BaseException, manager: PluginManager, step: int) -> None:
    """Add a note that names the plugin, its distribution and version, the hook, the step, and how to go on without it.

    A wrong call of ours, whose error is shown without a traceback, is named by its line, too.

    Args:
        exception: What is about to leave the run; keeps its type and traceback.
        manager: Whose plugins are looked for.
        step: Index of the running step.
    """
    if any(note.startswith(_MARK) for note in getattr(exception, "__notes__", ())):
        return
    found, inner = _origin(exception, manager)
    if isinstance(exception, TrainhooksError) and (found is None or found.plugin.source == ENGINE):
        _note_givers(exception, manager)
    if found is None:
        return
    plugin, line = found.plugin, wrong_call(inner) if isinstance(exception, TrainhooksError) else None
    if plugin.source == ENGINE:
        if line is not None:  # in a model, a loss or a dataset
            add_note(exception, f"{_MARK}{line} at step {step}")
        return
    if plugin.source == "object" and not plugin.word:
        advice = f"; leave it out of Trainer(plugins=...) or call trainer.unregister({plugin.name!r}) to go on without it"
    elif inspect.ismodule(plugin.object) and plugin.source == "project":
        advice = ""  # a project is nothing without its file
    else:
        advice = f"; rerun with -p no:{plugin.name} to go on without it"
    where = f", {line}" if line is not None else ""
    add_note(exception, f"{_MARK}{found.hook}() of {plugin} at step {step}{where}{advice}")


def _note_givers(exception: TrainhooksError, manager: PluginManager) -> None:
    """Name whose functions do or wrap a stage whose result is of the wrong kind, which is noticed when they are done."""
    match = _RESULT.match(message_of(exception))
    if match is None:
        return
    others = [one for one in manager.implementations(match[1]) if one.plugin.source != ENGINE]
    theirs = [one for one in others if one.plugin.source != "built-in"] or others
    if theirs:
        names = " and ".join(f"{one.plugin}, {function_place(one.function)}" for one in theirs)
        add_note(exception, f"{match[1]}() is that of {names}")


def find_origin(exception: BaseException, manager: PluginManager) -> Implementation | None:
    """Return the innermost hook implementation in the traceback, the engine's own included."""
    return _origin(exception, manager)[0]


def _origin(exception: BaseException, manager: PluginManager) -> tuple[Implementation | None, TracebackType | None]:
    """Return the innermost hook implementation, and the traceback from it on."""
    everybody = [i for hook in vars(manager.hooks).keys() | ONE_BY_ONE for i in manager.implementations(hook)]
    everybody += [i for plugin in manager.former for i in plugin.implementations.values()]
    # By identity: code objects of two modules with the same text on the same lines are equal.
    by_code: dict[int, list[tuple[CodeType, Implementation]]] = {}
    for implementation in everybody:
        for code in _codes(implementation):
            by_code.setdefault(id(code), []).append((code, implementation))

    found, inner = None, None
    if isinstance(exception, RuntimeError) and isinstance(exception.__cause__, StopIteration):
        exception = exception.__cause__  # Python's conversion where a generator lets it out; the frames are with the cause
    if isinstance(exception, UsageError) and isinstance(exception.__cause__, ControlFlow):
        exception = exception.__cause__  # our own, of a request that nobody could serve
    traceback = exception.__traceback__
    while traceback is not None:
        candidates = [one for _, one in by_code.get(id(traceback.tb_frame.f_code), ())]
        if candidates:
            found, inner = _owner(candidates, traceback.tb_frame), traceback
        traceback = traceback.tb_next
    if isinstance(exception, RuntimeError) and "wrap_controller at" in message_of(exception):
        found = _misbehaving_wrapper(str(exception), by_code) or found
    return found, inner


def _codes(implementation: Implementation) -> list[CodeType]:
    """Return the code objects of a function and of what it decorates."""
    codes = []
    function = implementation.function
    while function is not None:
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is not None and code.co_filename != _GUARDS:
            codes.append(code)
        function = getattr(function, "__wrapped__", None)  # type: ignore[assignment]
    return codes


def _owner(candidates: list[Implementation], frame: FrameType) -> Implementation:
    """Tell two instances of one class apart by the ``self`` of the frame, two closures by what they enclose."""
    if len(candidates) > 1 and frame.f_code.co_argcount:
        owner = frame.f_locals.get(frame.f_code.co_varnames[0])
        candidates = [i for i in candidates if i.plugin.object is owner] or candidates
    if len(candidates) > 1 and frame.f_code.co_freevars:
        candidates = [i for i in candidates if _encloses(i, frame)] or candidates
    return candidates[0]


def _encloses(implementation: Implementation, frame: FrameType) -> bool:
    """Return whether the frame's free variables are those of the implementation."""
    function: Any = implementation.function
    while function is not None:
        inner = getattr(function, "__func__", function)
        if getattr(inner, "__code__", None) is frame.f_code:
            missing = object()
            cells = zip(frame.f_code.co_freevars, inner.__closure__, strict=True)
            return all(frame.f_locals.get(name, missing) is _content(cell) for name, cell in cells)
        function = getattr(function, "__wrapped__", None)
    return False


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _misbehaving_wrapper(message: str, by_code: dict[int, list[tuple[CodeType, Implementation]]]) -> Implementation | None:
    """Find the wrapper that pluggy complains of; its frame is gone, its place is in pluggy's message."""
    for code, implementation in (one for several in by_code.values() for one in several):
        if f"{code.co_filename}:{code.co_firstlineno} " in message:
            return implementation
    return None
