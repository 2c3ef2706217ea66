"""Records the hook calls of a trainer as a tree, with the time of each plugin's part."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from trainhooks.manager import Implementation


@dataclass
class Node:
    """One hook call, or one plugin's part in it."""

    hook: str
    plugin: str | None = None
    wraps: bool = False
    seconds: float = 0.0
    children: list[Node] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the tree as plain values."""
        own = {"hook": self.hook, "plugin": self.plugin, "wraps": self.wraps, "ms": self.seconds * 1000}
        return {**own, "children": [child.as_dict() for child in self.children]}


class Tracer:
    """Records every hook call of a trainer as a tree."""

    def __init__(self) -> None:
        self.root = Node("run")
        self._threads = threading.local()

    @property
    def _open(self) -> list[Node]:
        """The calls that are running on this thread; what another one than the trainer's does stands beside the rest."""
        stack: list[Node] | None = getattr(self._threads, "stack", None)
        if stack is None:
            stack = self._threads.stack = [self.root]
        return stack

    def call(self, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, recorded."""

        def traced(**kwargs: Any) -> Any:
            return self._record(Node(hook), lambda: call(**kwargs))

        return traced

    def implementation(self, implementation: Implementation) -> Callable[..., Any]:
        """Return a plugin's function, recorded; of a wrapper its own time, before and after its yield."""
        function, hook, name = implementation.function, implementation.hook, implementation.plugin.name
        if not implementation.wrapper:

            @functools.wraps(function)
            def plain(*args: Any, **kwargs: Any) -> Any:
                return self._record(Node(hook, name), lambda: function(*args, **kwargs))

            return plain

        @functools.wraps(function)
        def wrapper(*args: Any) -> Generator[None, Any, Any]:
            node = Node(hook, name, wraps=True)
            self._open[-1].children.append(node)
            generator = function(*args)
            self._timed(node, lambda: next(generator))
            try:
                result = yield
            except BaseException as error:  # handed to the wrapper, as pluggy does
                failure = error
                try:
                    self._timed(node, lambda: generator.throw(failure))
                except StopIteration as stop:
                    return stop.value
            else:
                try:
                    self._timed(node, lambda: generator.send(result))
                except StopIteration as stop:
                    return stop.value
            return (yield)  # a second yield, which pluggy reports

        return wrapper

    def _record(self, node: Node, work: Callable[[], Any]) -> Any:
        self._open[-1].children.append(node)
        self._open.append(node)
        try:
            return self._timed(node, work)
        finally:
            self._open.pop()

    @staticmethod
    def _timed(node: Node, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return work()
        finally:
            node.seconds += time.perf_counter() - began
