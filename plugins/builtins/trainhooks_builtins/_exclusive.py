"""Measures the time of every hook implementation without that of the hooks that it calls."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from trainhooks import hookspecs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from trainhooks.manager import Implementation

_ENGINE = "engine"

#: Hooks that are called in a step.
_IN_STEP = frozenset(
    {"prepare_batch", "before_step", "update_due", "train_step", "compute_loss", "scale_loss", "backward", "gradients_ready"}
    | {"clip_gradients", "optimizer_step", "after_update", "after_step", "after_skip"}
)

#: Stages within a training that are no training.
_APART = frozenset({"evaluate", "predict", "save_checkpoint"})


class Cell:
    """What one plugin has taken in one hook."""

    __slots__ = ("calls", "compared", "overhead", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        #: Since ``compare``, without evaluations.
        self.compared = 0.0
        #: Whether it is a plugin's part in a step that is not done in place of the engine.
        self.overhead = False


class _Frame:
    """A call that is running."""

    __slots__ = ("apart", "inner")

    def __init__(self, apart: bool) -> None:
        self.apart, self.inner = apart, 0.0


class ExclusiveTime:
    """Counts calls and seconds by plugin and hook, on each thread by itself.

    Args:
        clock: Returns seconds; only differences are used.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.cells: dict[tuple[str, str], Cell] = {}
        self._clock = clock
        self._threads = threading.local()
        self._began = self._apart = 0.0

    def compare(self) -> None:
        """Begin to compare from now on."""
        for cell in list(self.cells.values()):
            cell.compared = 0.0
        self._apart, self._began = 0.0, self._clock()

    @property
    def compared_seconds(self) -> float:
        """Seconds since ``compare``, without evaluations and checkpoints."""
        return self._clock() - self._began - self._apart

    def decorate(self, implementation: Implementation) -> Callable[..., Any]:
        """Return an implementation's function, measured; of a wrapper what it does before and after its yield."""
        function, hook, plugin = implementation.function, implementation.hook, implementation.plugin.name
        cell = self.cells.setdefault((plugin, hook), Cell())
        spec = getattr(getattr(hookspecs, hook, None), "trainhooks_spec", {})
        instead = bool(spec.get("firstresult")) and not implementation.wrapper
        cell.overhead = hook in _IN_STEP and plugin != _ENGINE and not instead
        measure, apart = self._measure, hook in _APART
        if not implementation.wrapper:

            @functools.wraps(function)
            def plain(*args: Any, **kwargs: Any) -> Any:
                cell.calls += 1
                return measure(cell, apart, function, *args, **kwargs)

            return plain

        @functools.wraps(function)
        def wrapper(*args: Any) -> Generator[None, Any, Any]:
            cell.calls += 1
            generator = function(*args)
            measure(cell, apart, next, generator)
            try:
                result = yield
            except BaseException as error:  # handed to the wrapper, as pluggy does
                try:
                    measure(cell, apart, generator.throw, error)
                except StopIteration as stop:
                    return stop.value
            else:
                try:
                    measure(cell, apart, generator.send, result)
                except StopIteration as stop:
                    return stop.value
            return (yield)  # a second yield, which pluggy reports

        return wrapper

    def _measure(self, cell: Cell, apart: bool, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do ``work`` and count its time, less that of the hooks that it calls."""
        frames: list[_Frame] | None = getattr(self._threads, "frames", None)
        if frames is None:
            frames = self._threads.frames = []
        outer = frames[-1] if frames else None
        inside = outer is not None and outer.apart
        frame = _Frame(apart or inside)
        frames.append(frame)
        began = self._clock()
        try:
            return work(*args, **kwargs)
        finally:
            elapsed = self._clock() - began
            frames.pop()
            own = elapsed - frame.inner
            cell.seconds += own
            if outer is not None:
                outer.inner += elapsed
            if not frame.apart:
                cell.compared += own
            elif not inside:
                self._apart += elapsed
