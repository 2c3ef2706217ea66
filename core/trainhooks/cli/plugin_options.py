"""``trainhooks plugins --options NAME``: the options of one plugin, installed or of the project."""

from __future__ import annotations

import json
from inspect import formatannotation, getdoc
from typing import TYPE_CHECKING, Any

import click

from trainhooks.cli.output import table
from trainhooks.errors import PluginError, PluginNotFoundError
from trainhooks.options import parameters
from trainhooks.project import PROJECT_FILE
from trainhooks.suggest import suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainhooks.discovery import PluginRecord


def show_options(name: str, records: Sequence[PluginRecord], directory: Path, *, json_wanted: bool) -> None:
    """Print the options of a plugin, and its documentation.

    Raises:
        PluginNotFoundError: It is neither installed nor listed by the project file.
    """
    record = next((one for one in records if one.name == name and one.found is not None), None)
    thing = record.found.load() if record is not None and record.found is not None else _of_project(name, records, directory)
    rows = [
        {
            "option": option,
            "type": "any" if parameter.annotation is Any else formatannotation(parameter.annotation).replace("typing.", ""),
            "default": "(required)" if parameter.default is parameter.empty else _default(parameter.default),
        }
        for option, parameter in (parameters(thing) if callable(thing) else {}).items()
    ]
    if json_wanted:
        click.echo(json.dumps(rows, indent=1))
        return
    click.echo(table(("option", "type", "default"), rows) if rows else f"plugin {name!r} has no options")
    if text := getdoc(thing):
        click.echo(f"\n{text}")


def _of_project(name: str, records: Sequence[PluginRecord], directory: Path) -> Any:
    """Import the project file for a plugin that is not installed.

    Raises:
        PluginNotFoundError: It does not list one of that name either.
    """
    listed, why = {}, ""
    file = directory / PROJECT_FILE
    if file.exists():
        from trainhooks.cli.script import script_of
        from trainhooks.cli.target import make_importable
        from trainhooks.manager import plugin_name
        from trainhooks.project import load_project

        make_importable(file.absolute().parent)
        try:
            project = load_project(file) if (why := script_of(file) or "") == "" else None
            listed = {plugin_name(one): one for one in getattr(project, "plugins", ())}
        except (PluginError, TypeError) as error:
            why = str(error)
    if name in listed:
        return listed[name]
    known = [*listed, *(one.name for one in records)]
    message = f"no plugin is named {name!r}{suggestion(name, known)}; `trainhooks plugins` lists all that are installed"
    raise PluginNotFoundError(f"{message}; what {PROJECT_FILE} lists is not known: {why}" if why else message)


def _default(value: Any) -> str:
    return value.__name__ if callable(value) and hasattr(value, "__name__") else repr(value)
