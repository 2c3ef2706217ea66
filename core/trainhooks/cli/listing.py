"""``trainhooks plugins``: nothing is imported unless ``--check`` or ``--options`` asks for it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainhooks.config import Config
from trainhooks.discovery import PluginRecord, find_plugins, select, unmatched_blocks
from trainhooks.errors import PluginNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@click.option("-p", "names", multiple=True, metavar="NAME", help="As for train: use a plugin or not (no:NAME).")
@click.option("--check", is_flag=True, help="Import, time and validate each; exit 1 on any fault.")
@click.option("--options", "options_of", metavar="NAME", help="List the options of one plugin.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "-C", "directory", type=click.Path(path_type=Path, exists=True, file_okay=False), default=".", help="Directory of the run."
)
def plugins(names: tuple[str, ...], check: bool, options_of: str | None, as_json: bool, directory: Path) -> None:
    """List every plugin: its name, its state and why, its distribution and version."""
    config = Config.read(directory)
    config.add_environment()
    config.add_command_line(names)
    found = find_plugins()
    records = select(found, config)
    if options_of is not None:
        _show_options(options_of, records)
        return
    for sentence in unmatched_blocks(found, config, ()):
        click.echo(f"trainhooks: {sentence}", err=True)
    rows = [_row(record) for record in records]
    if check:
        for record, row in zip(records, rows, strict=True):
            _check(record, row)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        columns = ("name", "state", "distribution", "version", *(("import_ms", "hooks") if check else ()), "reason")
        click.echo(table(columns, rows))
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


def _check(record: PluginRecord, row: dict[str, Any]) -> None:
    """Import and validate one plugin; a class is validated without being built, since its options are not known here."""
    from trainhooks.errors import PluginError

    row["import_ms"], row["hooks"] = "", ""
    if record.state == "disabled" or record.found is None:
        return
    began = time.perf_counter()
    try:
        thing = record.found.load()
        row["import_ms"] = round((time.perf_counter() - began) * 1000)
        row["hooks"] = " ".join(_hooks_of(thing, record.name))
    except PluginError as error:
        row["state"], row["reason"] = "failed", str(error).splitlines()[0]


def _hooks_of(thing: Any, name: str) -> list[str]:
    from trainhooks.errors import PluginValidationError
    from trainhooks.manager import Plugin, PluginManager
    from trainhooks.validation import hook_functions

    instance: Any
    if isinstance(thing, type):
        instance = object.__new__(thing)
    elif callable(thing) and not hasattr(thing, "__path__"):
        return ["(factory)"]
    else:
        instance = thing
    plugin = Plugin(name, instance)
    PluginManager().check(plugin)
    hooks = sorted({mark.get("specname") or attribute for attribute, _, mark in hook_functions(instance)})
    if not hooks:
        raise PluginValidationError(str(plugin), [f"{thing!r} implements no hook"])
    return hooks


def _show_options(name: str, records: Sequence[PluginRecord]) -> None:
    from trainhooks.options import parameters
    from trainhooks.validation import suggestion

    record = next((one for one in records if one.name == name and one.found is not None), None)
    if record is None or record.found is None:
        message = f"no plugin is named {name!r}{suggestion(name, [one.name for one in records])}"
        raise PluginNotFoundError(message)
    thing = record.found.load()
    rows = [
        {
            "option": option,
            "type": getattr(parameter.annotation, "__name__", str(parameter.annotation)).replace("typing.", ""),
            "default": "(required)" if parameter.default is parameter.empty else repr(parameter.default),
        }
        for option, parameter in (parameters(thing) if callable(thing) else {}).items()
    ]
    click.echo(table(("option", "type", "default"), rows) if rows else f"plugin {name!r} has no options")
    click.echo(f"\n{(thing.__doc__ or '').strip()}")


def table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Return aligned columns, the last of them as long as it likes."""
    cells = [[str(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[i]) for line in cells)) if cells else len(column) for i, column in enumerate(columns)]
    lines = [list(columns), *cells]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
