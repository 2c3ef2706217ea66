"""``trainhooks plugins``: nothing is imported unless ``--check`` or ``--options`` asks for it."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from typing import Any

import click

from trainhooks.cli.output import table
from trainhooks.cli.plugin_options import show_options
from trainhooks.config import Config
from trainhooks.discovery import PluginRecord, find_plugins, is_reference, select, unmatched_blocks
from trainhooks.errors import OptionError, PluginError, PluginValidationError
from trainhooks.options import parameters, validated
from trainhooks.project import PROJECT_FILE


@click.command()
@click.option("-p", "names", multiple=True, metavar="NAME", help="As for train: use a plugin or not (no:NAME).")
@click.option("--check", is_flag=True, help="Import, time and validate each; exit 1 on any fault.")
@click.option("--options", "options_of", metavar="NAME", help="List the options of one plugin.")
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON.")
@click.option(
    "-C", "directory", type=click.Path(path_type=Path, exists=True, file_okay=False), default=".", help="Directory of the run."
)
def plugins(names: tuple[str, ...], check: bool, options_of: str | None, json_wanted: bool, directory: Path) -> None:
    """List every plugin: its name, its state and why, its distribution and version."""
    config = Config.read(directory)
    config.add_environment()
    config.add_command_line(names)
    found = find_plugins()
    own: set[str] = set()
    if (directory / PROJECT_FILE).exists():  # it is not run here and may define any name
        installed = {one.name for one in found}
        own = {choice.name for choice in config.choices if choice.name.partition("@")[0] not in installed}
    records = select(found, config, frozenset(name for name in own if not is_reference(name)))
    records = sorted(records, key=lambda record: record.state == "available")  # what takes part first
    if options_of is not None:
        show_options(options_of, records, directory, json_wanted=json_wanted)
        return
    for sentence in unmatched_blocks(found, config, ()):
        click.echo(f"trainhooks: {sentence}", err=True)
    rows = [_row(record) for record in records]
    if check:
        import_module("trainhooks.trainer")  # torch is not to be counted as the import of the first plugin
        for record, row in zip(records, rows, strict=True):
            _check(record, row, config)
    if json_wanted:
        click.echo(json.dumps(rows, indent=1))
    else:
        columns = ("name", "state", "distribution", "version", *(("import_ms", "hooks") if check else ()), "reason")
        click.echo(table(columns, rows))
        if sys.stdout is not None and sys.stdout.isatty():  # it is None where it was closed
            click.echo("\n`trainhooks plugins --options NAME` says what one does and which options it has; -p NAME uses it.")
    if any(row["state"] in ("failed", "conflict") for row in rows):
        sys.exit(1 if check else 0)


def _row(record: PluginRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "state": "conflict" if record.rivals and record.state == "active" else record.state,
        "distribution": record.found.distribution if record.found else "",
        "version": record.found.version if record.found else "",
        "reason": ", ".join(
            filter(None, [record.reason, *(f"also in {one.distribution} {one.version}" for one in record.rivals)])
        ),
    }


def _check(record: PluginRecord, row: dict[str, Any], config: Config) -> None:
    """Import and validate one plugin; a class is validated without being built."""
    row["import_ms"], row["hooks"] = "", ""
    if record.state in ("disabled", "shadowed") or record.found is None:
        return
    who = f"plugin {record.name!r} ({record.found.distribution} {record.found.version})"
    began = time.perf_counter()
    try:
        thing = record.found.load()
        row["import_ms"] = round((time.perf_counter() - began) * 1000)
        options = config.plugins.get(record.name, {})
        if callable(thing) and (record.state == "active" or options):
            validated(thing, {name: value for name, value in options.items() if name != "on_error"}, who)
        row["hooks"] = " ".join(_hooks_of(thing, record))
    except (PluginError, OptionError) as error:
        row["state"], row["reason"] = "failed", str(error)


def _hooks_of(thing: Any, record: PluginRecord) -> list[str]:
    from trainhooks import hookspecs
    from trainhooks.manager import Plugin, PluginManager
    from trainhooks.validation import hook_functions

    instance: Any
    if isinstance(thing, type):
        instance = object.__new__(thing)
        if not any(hook_functions(instance)) and any(hasattr(hookspecs, option) for option in parameters(thing)):
            return ["(named by its options)"]
    elif isfunction(thing):
        return ["(made by a function)"]
    else:
        instance = thing
    assert record.found is not None  # noqa: S101 - it has been imported
    plugin = Plugin(record.name, instance, distribution=record.found.distribution, version=record.found.version)
    PluginManager().check(plugin)
    hooks = sorted({mark.get("specname") or attribute for attribute, _, mark in hook_functions(instance)})
    if not hooks:
        raise PluginValidationError(str(plugin), [f"entry point {record.found.value!r} is {thing!r}, which implements no hook"])
    return hooks
