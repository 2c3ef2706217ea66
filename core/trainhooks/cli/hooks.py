"""``trainhooks hooks``: the loop, or one hook with everybody who implements it."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import click

from trainhooks import hookspecs
from trainhooks.cli.target import plugin_options, project_file, read_config
from trainhooks.errors import PluginError, UsageError
from trainhooks.validation import suggestion


@click.command()
@click.argument("name", required=False)
@plugin_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "-C", "directory", type=click.Path(path_type=Path, exists=True, file_okay=False), default=".", help="Directory of the run."
)
def hooks(name: str | None, as_json: bool, directory: Path, conf: Path | None, **chosen: Any) -> None:
    """Show the loop with its hooks; NAME: its documentation and its implementations in call order."""
    specs = hook_specs()
    if name is None:
        if as_json:
            click.echo(json.dumps({hook: _facts(spec) for hook, spec in specs.items()}, indent=1))
        else:
            click.echo(inspect.getdoc(hookspecs))
            click.echo("\n`trainhooks hooks NAME` shows one hook and who implements it, in call order.")
        return
    implementations, failures = _implementations(name, directory, conf, chosen)
    for failure in failures:
        click.echo(f"trainhooks: not shown: {failure}", err=True)
    spec = specs.get(name)
    if spec is None and not implementations:
        message = f"there is no hook {name!r}{suggestion(name, specs)}"
        raise UsageError(message)
    if as_json:
        click.echo(json.dumps({**(_facts(spec) if spec else {}), "implementations": implementations}, indent=1))
        return
    if spec is not None:
        click.echo(f"{name}({', '.join(inspect.signature(spec).parameters)})\n\n{inspect.getdoc(spec)}\n")
    click.echo("Called in this order:" if implementations else "Nobody implements it.")
    depth = 0
    for one in implementations:
        flags = " ".join(flag for flag in ("wraps", "tryfirst", "trylast") if one[flag])
        where = f"{one['distribution']} {one['version']}" if one["distribution"] else one["source"]
        line = f"{'  ' * (depth + 1)}{one['plugin']}  ({where}, {one['phase']}{', ' + flags if flags else ''})  {one['place']}"
        click.echo(line)
        depth += bool(one["wraps"])


def hook_specs() -> dict[str, Any]:
    """Return every hook specification by name, in the order of the file."""
    return {name: spec for name, spec in vars(hookspecs).items() if hasattr(spec, "trainhooks_spec")}


def _facts(spec: Any) -> dict[str, Any]:
    return {
        "kind": "stage" if spec.trainhooks_spec["firstresult"] else "event",
        "arguments": list(inspect.signature(spec).parameters),
        "summary": (inspect.getdoc(spec) or "").splitlines()[0],
    }


def _implementations(
    name: str, directory: Path, conf: Path | None, chosen: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Import the active plugins and the project file, as a run would, and return who implements a hook."""
    from trainhooks.assembly import Assembly
    from trainhooks.manager import PluginManager, function_place
    from trainhooks.project import load_project
    from trainhooks.trainer import Engine

    failures = []
    manager = PluginManager()
    manager.set_engine(Engine)
    project = None
    file = project_file(directory, conf)
    if file is not None:
        sys.path.append(str(file.absolute().parent))
        try:
            project = load_project(file)
        except PluginError as error:
            failures.append(str(error))
    assembly = Assembly(manager, read_config(directory, **chosen), project=project, skip_failed=True)
    assembly.register()
    failures += [record.reason for record in assembly.records if record.state == "failed"]
    rows = [
        {
            "plugin": one.plugin.name,
            "source": one.plugin.source,
            "distribution": one.plugin.distribution,
            "version": one.plugin.version,
            "phase": one.plugin.place.phase if one.plugin.source != "engine" else "last",
            "wraps": one.wrapper,
            "tryfirst": one.tryfirst,
            "trylast": one.trylast and one.plugin.source != "engine",
            "place": function_place(one.function),
        }
        for one in manager.implementations(name)
    ]
    return rows, failures
