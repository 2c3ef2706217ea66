"""What is put around a plugin's function when its error policy or its stage asks for it."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from .errors import ControlFlow

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Generator

    from .manager import Plugin
    from .trainer import Trainer

log = logging.getLogger("trainhooks")


def guard_plain(function: Callable[..., Any], failed: Callable[[BaseException], None]) -> Callable[..., Any]:
    """Return ``function`` with its errors handed to ``failed`` instead of raised; requests to the loop are no errors."""

    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        try:
            return function(*args)
        except ControlFlow:
            raise
        except Exception as error:
            failed(error)
            return None

    return guarded


def guard_wrapper(
    function: Callable[..., Generator[None, Any, Any]], failed: Callable[[BaseException], None]
) -> Callable[..., Generator[None, Any, Any]]:
    """Return a wrapper with its own errors handed to ``failed``; what comes from inside passes through it unharmed."""

    @functools.wraps(function)
    def guarded(*args: Any) -> Generator[None, Any, Any]:
        generator = function(*args)
        try:
            next(generator)
        except ControlFlow:
            raise
        except StopIteration:
            failed(RuntimeError("the wrapper did not yield"))
            return (yield)
        except Exception as error:
            failed(error)
            return (yield)
        try:
            result = yield
        except BaseException as inner:
            try:
                generator.throw(inner)
            except StopIteration:  # it swallowed the exception, which passes all the same
                pass
            except ControlFlow:
                raise
            except Exception as error:
                stopped = isinstance(inner, StopIteration) and error.__cause__ is inner  # Python's own conversion
                if error is not inner and not stopped:
                    failed(error)
            raise
        try:
            generator.send(result)
        except StopIteration as stop:
            return result if stop.value is None else stop.value
        except ControlFlow:
            raise
        except Exception as error:
            failed(error)
            return result
        generator.close()
        failed(RuntimeError("the wrapper yielded a second time"))
        return result

    return guarded


def note_update(function: Callable[..., Any], owner: weakref.ref[Trainer]) -> Callable[..., Any]:
    """Tell the trainer when ``function`` has stepped the optimizers, so that it knows even if a wrapper raises afterwards."""

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        updated = function(*args, **kwargs)
        if updated and (trainer := owner()) is not None:
            trainer._in_update = True
        return updated

    return noted


def report_declined(
    function: Callable[..., Any], plugin: Plugin, hook: str, declined: dict[str, dict[str, Plugin]]
) -> Callable[..., Any]:
    """Note when a plugin declines a stage with side effects, and report it once if the engine then does the work."""
    if plugin.source == "engine":

        @functools.wraps(function)
        def work(*args: Any, **kwargs: Any) -> Any:
            for other in declined.pop(hook, {}).values():
                if hook not in other.reported:
                    other.reported.add(hook)
                    log.warning(
                        "%s implements %s() but returned None, so the engine's own implementation ran as well; "
                        "if that is not meant, return the stage's result",
                        str(other),  # a log record that is kept must not keep the plugin
                        hook,
                    )
            return function(*args, **kwargs)

        return work

    @functools.wraps(function)
    def watched(*args: Any) -> Any:
        result = function(*args)
        if result is None:
            declined.setdefault(hook, {})[plugin.name] = plugin
        return result

    return watched
