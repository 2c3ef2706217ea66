"""Tables of what runs were made with, what differs first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainhooks.run_history import RunHistory

#: A name and its value in each run, ``None`` where a run does not have it; a value that all share stands once.
Row: TypeAlias = "tuple[str, list[str | None]]"

_LONGEST: Final = 2000
#: Differ in every run and say nothing of how it trains.
_NEVER_ALIKE: Final = ("work_dir", "name")


def plugin_rows(runs: Sequence[RunHistory]) -> list[Row]:
    """Return a row for each plugin, its distribution and version, and one for each of its options that a run sets."""
    columns: list[dict[str, Any]] = []
    for run in runs:
        column: dict[str, Any] = {}
        for plugin in run.plugins:
            name = str(plugin.get("name"))
            source = f"{plugin['distribution']} {plugin.get('version')}" if plugin.get("distribution") else "of the project"
            column[name] = source
            options = plugin.get("options")
            found = options.items() if isinstance(options, dict) else ()
            column |= {f"{name}.{option}": value for option, value in found}
        columns.append(column)
    return _rows(columns)


def configuration_rows(runs: Sequence[RunHistory]) -> list[Row]:
    """Return a row for each hyperparameter, setting and version, and for the device, the host and the command.

    A hyperparameter that is a setting, or an option that the plugin lock has already, stands once.
    """
    columns: list[dict[str, Any]] = []
    for run in runs:
        settings = {key: value for key, value in run.mapping("settings").items() if key not in _NEVER_ALIKE}
        options = {
            f"{plugin.get('name')}/{option}"
            for plugin in run.plugins
            for option in (plugin["options"] if isinstance(plugin.get("options"), dict) else ())
        }
        given = {key: value for key, value in run.mapping("hyperparameters").items() if key not in options}
        column = {**given, **settings}
        column |= {f"version of {name}": value for name, value in run.mapping("versions").items()}
        column |= {name: run.record[name] for name in ("device", "host", "command") if run.record.get(name) is not None}
        columns.append(column)
    return _rows(columns)


def _rows(columns: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows, those that differ first, each part in the order in which names first come."""
    names = _merged([list(column) for column in columns])
    rows = [(name, [_text(column[name]) if name in column else None for column in columns]) for name in names]
    differing = [row for row in rows if len(set(row[1])) > 1]
    return differing + [(name, values[:1]) for name, values in rows if len(set(values)) == 1]


def _merged(orders: Sequence[Sequence[str]]) -> list[str]:
    """Return all names; one that only later lists have stands behind the name that it follows there."""
    merged: list[str] = []
    known: set[str] = set()
    for order in orders:
        place = 0
        for name in order:
            if name in known:
                place = merged.index(name) + 1
            else:
                merged.insert(place, name)
                known.add(name)
                place += 1
    return merged


def _text(value: Any) -> str:
    if isinstance(value, float):
        text = f"{value:g}" if float(f"{value:g}") == value else repr(value)
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
