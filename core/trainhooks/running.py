"""Calls of hooks while they are running: what they leave behind, what a wrapper loses in them, and whom they pass over."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .errors import ControlFlow
from .markers import hookimpl
from .plan import FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import FrameType

    from pluggy import PluginManager

    from .manager import Implementation, Plugin


def freed(caller: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call through pluggy, whose frame holds the error that it raises, a cycle that would keep the trainer alive."""

    def call(**kwargs: Any) -> Any:
        try:
            return caller(**kwargs)
        except BaseException as error:
            traceback = error.__traceback__
            while traceback is not None:
                if _is_pluggys(traceback.tb_frame):
                    with suppress(RuntimeError):  # one of an outer call, which is running
                        traceback.tb_frame.clear()
                traceback = traceback.tb_next
            raise

    return call


class Band:
    """What pluggy sees of a plugin: those of its functions that are registered in one go."""

    def __init__(self, plugin: Plugin, implementations: Iterable[Implementation]) -> None:
        self.plugin = plugin
        for implementation in implementations:
            setattr(self, implementation.hook, implementation.function)

    def __dir__(self) -> list[str]:
        """Return the hooks alone, since pluggy looks at every name that there is."""
        return [name for name in vars(self) if name != "plugin"]


class Witness:
    """Stands inside of all wrappers of some events and sees the errors of their listeners, which have no result to be missed.

    Args:
        events: Names of hooks.
    """

    def __init__(self, events: Iterable[str]) -> None:
        self._seen: list[BaseException | None] = []
        self._events = sorted(events)
        look = _looking(self._seen)
        for name in self._events:
            setattr(self, name, look)

    def __dir__(self) -> list[str]:
        """Return the hooks alone, since pluggy looks at every name that there is."""
        return self._events

    @classmethod
    def renewed(cls, before: Witness | None, pluggy: PluginManager, plugins: Iterable[Plugin]) -> Witness:
        """Return a new one for the events that plugins wrap, registered in the place of the one before."""
        if before is not None:
            pluggy.unregister(before)
        wrapped = {hook for plugin in plugins for hook, one in plugin.implementations.items() if one.wrapper}
        witness = cls(hook for hook in wrapped if not getattr(pluggy.hook, hook).spec.opts["firstresult"])
        pluggy.register(witness, "witness")  # as the last one, so it is the innermost of the trylast wrappers
        return witness

    def watched(self, call: Callable[..., Any], lost: Callable[[BaseException], BaseException]) -> Callable[..., Any]:
        """Return ``call``, with the error that ``lost`` makes of one that a wrapper swallowed."""
        seen = self._seen

        def watched(**kwargs: Any) -> Any:
            seen.append(None)
            try:
                result = call(**kwargs)
            except BaseException:
                seen.pop()
                raise
            if seen[-1] is not None:
                raise lost(seen[-1]) from seen.pop()  # in no variable: its frames hold this one
            seen.pop()
            return result

        return watched


def _looking(seen: list[BaseException | None]) -> Callable[[], Generator[None, Any, Any]]:
    @hookimpl(wrapper=True, trylast=True)
    def look() -> Generator[None, Any, Any]:
        try:
            return (yield)
        except ControlFlow:  # a request, which a wrapper may decide upon
            raise
        except BaseException as error:
            seen[-1] = error
            raise

    return look


def swallowers(error: BaseException, wrappers: Iterable[Implementation]) -> list[Implementation]:
    """Return who swallowed an error: the last one whose frame it came to, or one of several that have the same code."""
    wrappers = list(wrappers)
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        found = [one for one in wrappers if code_of(one.function) is code]
        if found:
            return found
        traceback = traceback.tb_next
    return wrappers


def code_of(function: Callable[..., Any]) -> Any:
    """Return the code of a function without what is put around it."""
    return inspect.unwrap(getattr(function, "__func__", function)).__code__


def pass_over(plugin: Plugin) -> None:
    """Have the calls that are running on this thread pass over a plugin that was taken out.

    A wrapper of it that has begun goes on to its end: what it has done must be undone.
    """
    own = {id(one) for i in plugin.implementations.values() for one in (i.function, i.direct)}
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(FILE):
            namespace = frame.f_globals  # of this call alone
            namespace.update({name: _decline for name, value in namespace.items() if id(value) in own})
        elif _is_pluggys(frame):
            for implementation in frame.f_locals.get("hook_impls", ()):
                if getattr(implementation.plugin, "plugin", None) is plugin:
                    implementation.function = _pass_on if implementation.wrapper else _decline
        frame = frame.f_back


def _is_pluggys(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("pluggy.")


def _decline(*_: Any) -> None:
    """Stand for a function of a plugin that is gone."""


def _pass_on(*_: Any) -> Generator[None, Any, Any]:
    """Stand for a wrapper of a plugin that is gone."""
    return (yield)
