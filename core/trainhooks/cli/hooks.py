"""``trainhooks hooks``: the loop, or one hook with everybody who implements it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainhooks import hookspecs
from trainhooks.cli.command import RunCommand
from trainhooks.cli.output import as_json
from trainhooks.cli.target import make_importable, plugin_options, project_file, read_config
from trainhooks.errors import OptionError, PluginError, UsageError
from trainhooks.suggest import hook_suggestion

if TYPE_CHECKING:
    from trainhooks.discovery import PluginRecord


@click.command(cls=RunCommand)
@click.argument("name", required=False)
@plugin_options
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON.")
@click.option(
    "-C", "directory", type=click.Path(path_type=Path, exists=True, file_okay=False), default=".", help="Directory of the run."
)
def hooks(name: str | None, json_wanted: bool, directory: Path, conf: Path | None, **chosen: Any) -> None:
    """Show the loop with its hooks; NAME: its documentation and its implementations in call order."""
    specs = hook_specs()
    if name is None:
        if json_wanted:
            click.echo(as_json({hook: _facts(spec) for hook, spec in specs.items()}, indent=1))
        else:
            click.echo(inspect.getdoc(hookspecs))
            click.echo("\n`trainhooks hooks NAME` shows one hook and who implements it, in call order.")
        return
    implementations, failures, theirs = _implementations(name, directory, conf, chosen)
    for failure in failures:
        click.echo(f"trainhooks: not shown: {failure}", err=True)
    specs |= theirs
    spec = specs.get(name)
    if spec is None and not implementations:
        message = f"there is no hook {name!r}{hook_suggestion(name, specs)}"
        raise UsageError(message)
    if json_wanted:
        click.echo(as_json({**(_facts(spec) if spec else {}), "implementations": implementations}, indent=1))
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
) -> tuple[list[dict[str, Any]], list[str], dict[str, Any]]:
    """Import the active plugins and the project file, as a run would; return who implements a hook, and further hooks.

    What a run would refuse is left out and told of, so that one broken plugin does not hide the others.
    """
    from trainhooks.assembly import Assembly
    from trainhooks.cli.script import has_hooks, script_of, without_hooks
    from trainhooks.config import COMMAND_LINE, Choice
    from trainhooks.manager import PluginManager, function_place
    from trainhooks.project import load_project
    from trainhooks.trainer import Engine

    failures = []
    project = None
    file = project_file(directory, conf)
    if file is not None:
        make_importable(file.absolute().parent)
        try:
            project = load_project(file) if (script := script_of(file)) is None else None
            if project is None or not has_hooks(project):
                failures.append(script or without_hooks(file))
        except PluginError as error:
            failures.append(str(error))
    config = read_config(directory, **chosen)
    while True:
        manager = PluginManager()
        manager.set_engine(Engine)
        assembly = Assembly(manager, config, project=project, skip_failed=True)
        try:
            assembly.register()
            break
        except (OptionError, PluginError) as error:
            guilty = next((one.name for one in assembly.records if one.state == "active" and _is_of(error, one)), None)
            if guilty is None:
                raise
            failures.append(str(error))
            config.plugins.pop(guilty, None)
            config.choices = [choice for choice in config.choices if choice.name != guilty]
            config.choices.append(Choice(guilty, False, "", COMMAND_LINE))
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
    specified = {hook: caller.spec for hook, caller in vars(manager._pluggy.hook).items() if not hasattr(hookspecs, hook)}
    return rows, failures, {hook: spec.function for hook, spec in specified.items() if spec is not None}


def _is_of(error: Exception, record: PluginRecord) -> bool:
    """Return whether a message is about a plugin; each of them begins with its name."""
    return str(error).startswith(f"plugin {record.name!r} ")
