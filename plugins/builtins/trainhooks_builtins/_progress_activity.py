"""What the training thread is doing, read off its stack by another thread, so that it costs a step nothing; no plugin."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from trainhooks import inference, loop, series
from trainhooks.driver import Driver
from trainhooks.interruption import find_wait
from trainhooks.parts import RunParts
from trainhooks.position import LoaderPosition
from trainhooks.reporter import Reporter

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from trainhooks import Trainer

_READERS: Final = (loop.train_epoch.__code__, inference.evaluate.__code__, inference.predict.__code__)
_EVALUATING, _WAITING, _REPORTERS = "evaluating", "waiting for data", "waiting for reporters"
#: What a function on the stack means; the innermost counts.
_MEANINGS: Final = {
    loop.train_epoch.__code__: "",
    inference.evaluate.__code__: _EVALUATING,
    inference.predict.__code__: "predicting",
    Driver.open_epoch.__code__: "opening the loader",
    LoaderPosition.open.__code__: "opening the loader",
    RunParts.save_checkpoint.__code__: "saving a checkpoint",
    RunParts.settle_saves.__code__: "waiting for the checkpoint that is being written",
    Reporter.drain.__code__: _REPORTERS,
    Reporter.close.__code__: _REPORTERS,
    series.to_host.__code__: "waiting for the device",
}
_TYPING: Final = frozenset({"pdb", "bdb", "cmd", "code", "IPython.terminal.debugger"})


class Activity:
    """Looks at one thread from another one, from time to time.

    Args:
        thread: Its identity, as of ``threading.get_ident()``.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._key: object = None
        self._since = 0.0
        self._plugins: tuple[object, ...] = ()
        self._hooks: dict[CodeType, str] = {}
        #: Batches of the running evaluation that are done, and how many it has, if that is known.
        self.batches: tuple[int, int | None] = (0, None)

    def look(self, trainer: Trainer, now: float) -> tuple[str, float] | None:
        """Return what it does and for how many seconds it has been seen to do just that; ``None`` while somebody debugs."""
        what = self._what(trainer, sys._current_frames().get(self._thread))
        if what is None:
            return None
        evaluates = what == _EVALUATING  # all batches together
        key = (what, trainer.step, trainer.split if evaluates else trainer.batch_index, None if evaluates else self.batches[0])
        if key != self._key:
            self._key, self._since = key, now
        return what.replace(_EVALUATING, self._evaluation(trainer)), max(now - self._since, 0.0)

    def _what(self, trainer: Trainer, innermost: FrameType | None) -> str | None:
        wait = find_wait(innermost, _READERS)
        if wait is not None:
            return _WAITING if wait.reader.f_code is _READERS[0] else f"{_EVALUATING}: {_WAITING}"
        self._learn_hooks(trainer)
        hook, frame = "", innermost
        while frame is not None:
            code = frame.f_code
            if frame.f_globals.get("__name__") in _TYPING:
                return None
            if (meaning := _MEANINGS.get(code)) is not None:
                return meaning + _slow_ones(trainer) if meaning == _REPORTERS else meaning or hook
            hook = hook or self._hooks.get(code, "")
            frame = frame.f_back
        return hook

    def _evaluation(self, trainer: Trainer) -> str:
        done, total = self.batches
        return f"evaluating {trainer.split}, batch {min(done + 1, total or done + 1)}{f'/{total}' if total is not None else ''}"

    def _learn_hooks(self, trainer: Trainer) -> None:
        plugins = tuple(trainer.manager.plugins.values())
        if plugins != self._plugins:
            self._plugins = plugins
            self._hooks = {
                code: f"{name}() of {plugin.name!r}"
                for plugin in plugins
                for name, implementation in list(plugin.implementations.items())
                if (code := getattr(implementation.direct or implementation.function, "__code__", None)) is not None
            }


def _slow_ones(trainer: Trainer) -> str:
    """Return the reporters that still have something, and what they are called for."""
    lanes = trainer.reporter.lanes if trainer.reporter is not None else []
    slow = [f"{lane.plugin.name} ({lane.calling or 'pausing'}, {lane.waiting} left)" for lane in lanes if lane.waiting]
    return f": {', '.join(slow)}" if slow else ""
