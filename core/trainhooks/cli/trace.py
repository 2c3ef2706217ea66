"""``trainhooks trace``: a few real steps as a tree of hook calls, with the time of each plugin."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from trainhooks.cli.command import RunCommand
from trainhooks.cli.output import as_json
from trainhooks.cli.target import is_reference, make_trainer, run_options
from trainhooks.cli.tracer import Node, Tracer

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where the modules of the engine lie; those of its built-in plugins lie elsewhere.
_ENGINE: Final = str(Path(__file__).parents[1]) + os.sep


@click.command(cls=RunCommand)
@run_options
@click.option("--steps", default=2, show_default=True, type=click.IntRange(min=1), help="How many steps.")
@click.option("--json", "json_wanted", is_flag=True, help="Print the tree as JSON.")
def trace(target: str, steps: int, json_wanted: bool, **chosen: Any) -> None:
    """Run a few real steps of TARGET and show every hook call with its time; writes nothing.

    Neither the plugin progress takes part, unless -p names it, nor is shown what plugins log: that the run is short is known.
    """
    trainer = make_trainer(target, **chosen)
    trainer.run_folder = None
    without_progress = "progress" in trainer.plugins and "progress" not in chosen["plugins"]
    if without_progress:
        trainer.unregister("progress")
    tracer = Tracer()
    trainer.manager.trace(tracer.implementation, tracer.call)
    with _quiet_plugins():
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
    if without_progress:
        click.echo("\nleft out: progress" + ("" if is_reference(target) else "; -p progress shows it, too"))


@contextmanager
def _quiet_plugins() -> Iterator[None]:
    """Keep plugins from warning of what tracing does: that the run is short and has no folder. Errors are shown."""
    handlers = list(logging.getLogger("trainhooks").handlers)
    for handler in handlers:
        handler.addFilter(_is_shown)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_shown)


def _is_shown(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or record.pathname.startswith(_ENGINE)


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
