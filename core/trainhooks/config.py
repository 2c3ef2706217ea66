"""The layers of settings, and where each value came from.

From weakest to strongest: ``pyproject.toml`` (``[tool.trainhooks]``), ``trainhooks.toml``, arguments of ``Trainer``, the
environment, the command line.
"""

from __future__ import annotations

import json
import os
import re
import sys
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import OptionError, UsageError
from .options import NOTHING, Given
from .suggest import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEYS = ("enable", "disable", "autoload", "train", "plugins")
_PART = r"""\s*(?:"[^"]*"|'[^']*'|[\w-]+)\s*"""
_ASSIGNED = re.compile(rf"{_PART}(?:\.{_PART})*=")
_OFF = ("", "0", "false", "no")

#: How strong a choice of plugins is, by where it was made.
FILE, PYTHON, ENVIRONMENT, COMMAND_LINE = range(4)


@dataclass(frozen=True)
class Choice:
    """One word on whether a plugin takes part.

    Args:
        name: A plugin or distribution name, or ``module:attribute``.
        wanted: Whether it is to be active.
        origin: Where that was said.
        strength: ``FILE`` to ``COMMAND_LINE``.
    """

    name: str
    wanted: bool
    origin: str
    strength: int


@dataclass
class Config:
    """Everything that was configured, in one place.

    Args:
        settings: Of the run, by name.
        plugins: Options by plugin (``checkpoint@best`` for a second instance) and option name.
        choices: Which plugins to use, weakest first.
        autoload: Whether installed plugins are active without being named, or the names of those that are.
    """

    settings: dict[str, Given] = field(default_factory=dict)
    plugins: dict[str, dict[str, Given]] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    autoload: Given = field(default_factory=lambda: Given(True, "the default"))

    @classmethod
    def read(cls, place: Path) -> Config:
        """Read a file, or ``pyproject.toml`` and ``trainhooks.toml`` of a directory.

        Raises:
            UsageError: A file that cannot be read or has keys that do not exist.
        """
        config = cls()
        if place.is_dir():
            for name in ("pyproject.toml", "trainhooks.toml"):
                if (place / name).is_file():
                    config.add_file(place / name)
        elif place.is_file():
            config.add_file(place)
        else:
            message = f"no configuration at {place}: neither a file nor a directory"
            raise UsageError(message)
        return config

    def add_file(self, path: Path) -> None:
        """Add a TOML file: ``[tool.trainhooks]``, or the same tables at the top of ``trainhooks.toml``."""
        try:
            text = path.read_text(encoding="utf-8-sig")
            content = tomllib.loads(text)
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read {path}: {error}"
            raise UsageError(message) from None
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"at line (\d+)", str(error))
            hint = "; TOML has text in quotes, true and false, and no word for nothing" if "Invalid value" in str(error) else ""
            message = f"{path}{':' + line[1] if line else ''}: not valid TOML: {error}{hint}"
            raise UsageError(message) from None
        tool = content.get("tool")
        table = tool.get("trainhooks") if isinstance(tool, dict) else None
        if table is not None and not isinstance(table, dict):
            message = f"[tool.trainhooks] of {path.name} must be a table, not {table!r}"
            raise OptionError(message)
        prefix: tuple[str, ...] = ("tool", "trainhooks")
        for name in tool if isinstance(tool, dict) else ():
            if name != "trainhooks" and re.sub("[^a-z]", "", name.lower()) in ("trainhook", "trainhooks"):
                origin = _Origins(path, text, ("tool",)).of((name,), None)
                message = f"unknown table {origin}; did you mean [tool.trainhooks]?"
                raise OptionError(message)
        if path.name != "pyproject.toml":
            top = {key: value for key, value in content.items() if key != "tool" or not isinstance(tool, dict)}
            if table is None:
                table, prefix = top, ()
            elif lost := [key for key in top if key in _KEYS]:
                message = f"{lost[0]!r} in {path.name} stands beside [tool.trainhooks]; write [tool.trainhooks.{lost[0]}]"
                raise OptionError(message)
        self._add_table(table or {}, _Origins(path, text, prefix))

    def _add_table(self, table: Mapping[str, Any], origins: _Origins) -> None:
        for key in table:
            if key not in _KEYS:
                what, place = (
                    ("options of a plugin", ("plugins", key)) if isinstance(table[key], dict) else ("settings", ("train",))
                )
                hint = suggestion(key, _KEYS) or f"; {what} stand in {origins.header(place)}"
                raise OptionError(f"unknown key {key!r} in {origins.of((), key)}{hint}; there are {', '.join(_KEYS)}")
        if "autoload" in table:
            self.autoload = Given(table["autoload"], origins.of((), "autoload"))
            _check_autoload(self.autoload)
        for key, wanted in (("enable", True), ("disable", False)):
            names = table.get(key, [])
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise OptionError(f"{key!r} in {origins.of((), key)} must be a list of plugin names, not {names!r}")
            self.choices += [Choice(name, wanted, origins.of((), key), FILE) for name in names]
        for name in table.get("enable", []):
            if name in table.get("disable", []):
                message = f"plugin {name!r} is in {origins.of((), 'enable')} and in {origins.of((), 'disable')}; drop one"
                raise UsageError(message)
        for name, value in _table(table, "train", origins).items():
            self.settings[name] = Given(value, origins.of(("train",), name))
        for plugin, options in _table(table, "plugins", origins).items():
            if not isinstance(options, dict):
                raise OptionError(f"{plugin!r} in {origins.of(('plugins',), plugin)} must be a table, not {options!r}")
            self.choices.append(Choice(plugin, True, origins.of(("plugins", plugin), None), FILE - 1))
            known = self.plugins.setdefault(plugin, {})
            known.update({name: Given(value, origins.of(("plugins", plugin), name)) for name, value in options.items()})

    def add_python(
        self, settings: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]], *, autoload: bool | list[str] = True
    ) -> None:
        """Add the arguments of ``Trainer``; those that are ``None`` were not given."""
        self.settings.update(
            {name: Given(value, f"Trainer({name}=...)") for name, value in settings.items() if value is not None}
        )
        for plugin, values in options.items():
            origin = f"Trainer(options={{{plugin!r}: ...}})"
            self.choices.append(Choice(plugin, True, origin, PYTHON))
            self.plugins.setdefault(plugin, {}).update({name: Given(value, origin) for name, value in values.items()})
        if autoload is not True:
            self.autoload = Given(autoload, "Trainer(autoload=...)")
            _check_autoload(self.autoload)

    def add_environment(self, environment: Mapping[str, str] = os.environ) -> None:
        """Add ``TRAINHOOKS_PLUGINS`` and ``TRAINHOOKS_DISABLE_AUTOLOAD``."""
        if environment.get("TRAINHOOKS_DISABLE_AUTOLOAD", "").lower() not in _OFF:
            self.autoload = Given(False, "TRAINHOOKS_DISABLE_AUTOLOAD")
        words = environment.get("TRAINHOOKS_PLUGINS", "").split(",")
        self.choose((word.strip() for word in words), "TRAINHOOKS_PLUGINS", ENVIRONMENT)

    def add_command_line(self, plugins: Iterable[str] = (), options: Iterable[str] = (), settings: Iterable[str] = ()) -> None:
        """Add ``-p NAME`` / ``-p no:NAME``, ``-o NAME.key=value`` and ``--set key=value``."""
        self.choose(plugins, "-p", COMMAND_LINE)
        said: dict[tuple[str, ...], Given] = {}
        for word in options:
            target, equals, text = word.partition("=")
            # a plugin's name has no dot; module:attribute has a colon, and may have dots
            parts = target.rsplit(".", 1) if ":" in target else target.split(".")
            if not equals or len(parts) == 1 or not all(parts):
                message = f"-o {word}: write it as PLUGIN.KEY=VALUE"
                raise UsageError(message)
            plugin, name, *inner = parts
            new = _typed(text, f"-o {word}")
            _say_once(said, (plugin, name, *inner), new)
            self.choices.append(Choice(plugin, True, new.origin, COMMAND_LINE))
            known = self.plugins.setdefault(plugin, {})
            known[name] = _inside(known.get(name), inner, new) if inner else new
        for word in settings:
            name, equals, text = word.partition("=")
            if not (equals and name):
                message = f"--set {word}: write it as KEY=VALUE"
                raise UsageError(message)
            self.settings[name] = _typed(text, f"--set {word}")
            _say_once(said, ("--set", name), self.settings[name])

    def choose(self, words: Iterable[str], origin: str, strength: int) -> None:
        """Add words of the form ``NAME`` and ``no:NAME``."""
        for word in words:
            if word:
                name = word.removeprefix("no:")
                self.choices.append(Choice(name, name == word, f"{origin} {word}", strength))

    def under(self, stronger: Config) -> Config:
        """Return this with ``stronger`` on top of it."""
        plugins = {name: dict(options) for name, options in self.plugins.items()}
        for name, options in stronger.plugins.items():
            plugins.setdefault(name, {}).update(options)
        autoload = stronger.autoload if stronger.autoload.value is not True else self.autoload
        return Config({**self.settings, **stronger.settings}, plugins, [*self.choices, *stronger.choices], autoload)

    def last_word(self, *names: str) -> Choice | None:
        """Return the strongest choice on any of ``names``, the last of those that are equally strong."""
        words = sorted((choice for choice in self.choices if choice.name in names), key=lambda choice: choice.strength)
        return words[-1] if words else None

    def wants(self, name: str) -> bool:
        """Return whether a plugin or second instance was asked for and not taken out, itself or its base, by a later word."""
        own, base = self.last_word(name), self.last_word(name.partition("@")[0])
        if own is None or not own.wanted:
            return False
        return base is None or base.wanted or base.strength < own.strength

    def taken_out(self, name: str) -> Choice | None:
        """Return the choice that takes a plugin out, unless a stronger one asks for it."""
        word = self.last_word(name)
        return word if word is not None and not word.wanted else None

    def check_contradictions(self) -> None:
        """Refuse a plugin that one layer both takes out and configures or names.

        In a file options may stay while ``disable`` takes their plugin out for a while.

        Raises:
            UsageError: With both words.
        """
        for strength in (PYTHON, ENVIRONMENT, COMMAND_LINE):
            words = [choice for choice in self.choices if choice.strength == strength]
            for out in (choice for choice in words if not choice.wanted):
                for other in words:
                    if other.wanted and other.name.partition("@")[0] == out.name:
                        message = f"{out.origin} takes plugin {out.name!r} out, but {other.origin} asks for it; drop one"
                        raise UsageError(message)


class _Origins:
    """Finds the line of a key in a TOML file."""

    def __init__(self, path: Path, text: str, prefix: tuple[str, ...]) -> None:
        self._path = path
        self._lines = text.splitlines()
        self._prefix = prefix

    def of(self, table: tuple[str, ...], key: str | None) -> str:
        """Return ``[table] of file:line``, the line of the table's header where the key's own is not found."""
        full = (*self._prefix, *table)
        line = self._line(full, key)
        header = f"{self.header(table)} of " if full else ""
        return f"{header}{self._path.name}{f':{line}' if line else ''}"

    def header(self, table: tuple[str, ...]) -> str:
        """Return how the header of a table is written in this file."""
        return f"[{'.'.join(_quoted(part) for part in (*self._prefix, *table))}]"

    def _line(self, table: tuple[str, ...], key: str | None) -> int | None:
        """Return the line that goes furthest towards the key: its own, that of an inline table, or a header."""
        target = table if key is None else (*table, key)
        header: tuple[str, ...] = ()
        found, depth = None, 0
        for number, line in enumerate(self._lines, 1):
            if line.lstrip().startswith("["):
                path = header = _path(line)
            elif match := _ASSIGNED.match(line):
                path = (*header, *_path(match[0] + "0"))
            else:
                continue
            common = min(len(path), len(target))
            if common > depth and path[:common] == target[:common]:
                found, depth = number, common
        return found


def _path(line: str) -> tuple[str, ...]:
    """Return the keys that a header or an assignment names."""
    try:
        inner: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    path = []
    while isinstance(inner, dict) and inner:
        path.append(next(iter(inner)))
        inner = inner[path[-1]]
    return tuple(path)


def _quoted(part: str) -> str:
    return part if re.fullmatch(r"[\w-]+", part) else f'"{part}"'


def _table(table: Mapping[str, Any], key: str, origins: _Origins) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise OptionError(f"{key!r} in {origins.of((), key)} must be a table, not {value!r}")
    return value


def _typed(text: str, origin: str) -> Given:
    """Read a value as TOML would, or a table or list as JSON; a bare word is text."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        read = {}
    if len(read) == 1:
        return Given(read["value"], origin, text)
    return Given(_json(text) if text[:1] in ("{", "[") else text, origin, text)


def _json(text: str) -> Any:
    """Return what a text is in JSON, the text where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _inside(old: Given | None, keys: list[str], new: Given) -> Given:
    """Return a table with a value at ``keys``; what a weaker layer or another word of the command line has beside it stays."""
    table = deepcopy(old.value) if old is not None and isinstance(old.value, dict) else {}
    inner = table
    for key in keys[:-1]:
        inner[key] = inner[key] if isinstance(inner.get(key), dict) else {}
        inner = inner[key]
    inner[keys[-1]] = None if new.text in NOTHING else new.value
    return Given(table, f"{old.origin}, {new.origin}" if old is not None else new.origin)


def _say_once(said: dict[tuple[str, ...], Given], path: tuple[str, ...], new: Given) -> None:
    """Take note of a value of the command line, which may replace one of a weaker layer but not contradict itself."""
    for other, old in said.items():
        shorter = min(len(path), len(other))
        if path[:shorter] == other[:shorter] and (path != other or old.text != new.text):
            message = f"{old.origin} and {new.origin} contradict each other; drop one"
            raise UsageError(message)
    said[path] = new


def _check_autoload(given: Given) -> None:
    value = given.value
    if not isinstance(value, bool) and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise OptionError(f"'autoload' in {given.origin} must be true, false or a list of plugin names, not {value!r}")
