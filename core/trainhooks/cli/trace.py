"""``trainhooks trace``: a few real steps as a tree of hook calls, with the time of each plugin."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from trainhooks.cli.output import as_json
from trainhooks.cli.target import make_trainer, run_options

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


@click.command()
@run_options
@click.option("--steps", default=2, show_default=True, type=click.IntRange(min=1), help="How many steps.")
@click.option("--json", "json_wanted", is_flag=True, help="Print the tree as JSON.")
def trace(target: str, steps: int, json_wanted: bool, **chosen: Any) -> None:
    """Run a few real steps of TARGET and show every hook call with its time; writes nothing."""
    trainer = make_trainer(target, **chosen)
    trainer.run_folder = None
    if "progress" in trainer.plugins and "progress" not in chosen["plugins"]:
        trainer.unregister("progress")
    tracer = Tracer()
    trainer.manager.trace(tracer.implementation, tracer.call)
    trainer.train(max_steps=trainer.step + steps)
    if json_wanted:
        click.echo(as_json(tracer.root.as_dict()))
        return
    for node in tracer.root.children:
        _print(node, 0, steps, "")
    click.echo("\nhost time of each plugin in all its hooks, what it calls included")
    totals: dict[str, list[float]] = {}
    _add_up(tracer.root, totals)
    for plugin, (calls, seconds) in sorted(totals.items(), key=lambda item: -item[1][1]):
        click.echo(f"  {plugin:<20} {seconds * 1000:9.3f} ms  {int(calls)} calls")


def _print(node: Node, depth: int, steps: int, caller: str) -> None:
    """Print a call and what it calls, of every hook as often as there are steps; evaluations have many more batches."""
    name = "" if node.plugin is None else f"· {node.plugin}{' (wraps)' if node.wraps else ''}"
    name = name if node.hook == caller and name else f"{node.hook} {name}"
    click.echo(f"{'  ' * depth}{name:<{max(44 - 2 * depth, 1)}} {node.seconds * 1000:9.3f} ms")
    seen: dict[tuple[str, str | None], list[float]] = {}
    for child in node.children:
        times = seen.setdefault((child.hook, child.plugin), [])
        times.append(child.seconds)
        if len(times) <= steps:
            _print(child, depth + 1, steps, node.hook)
    for (hook, _), times in seen.items():
        if rest := times[steps:]:
            line = f"{hook}, {len(rest)} more"
            click.echo(f"{'  ' * (depth + 1)}{line:<{max(42 - 2 * depth, 1)}} {sum(rest) * 1000:9.3f} ms")


def _add_up(node: Node, totals: dict[str, list[float]], inside: frozenset[str] = frozenset()) -> None:
    """Count a plugin's time once where one of its hooks calls another."""
    if node.plugin is not None and node.plugin != "engine" and node.plugin not in inside:
        total = totals.setdefault(node.plugin, [0, 0.0])
        total[0] += 1
        total[1] += node.seconds
        inside |= {node.plugin}
    for child in node.children:
        _add_up(child, totals, inside)
