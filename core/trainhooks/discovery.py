"""Installed plugins: from entry points to records, without importing anything."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from importlib_metadata import EntryPoint, distributions

from .errors import PluginError, PluginImportError, PluginNotFoundError
from .suggest import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .config import Choice, Config

log = logging.getLogger("trainhooks")

OWN_DISTRIBUTION: Final = "trainhooks"
GROUP: Final = "trainhooks"
OPTIONAL_GROUP: Final = "trainhooks.optional"

State = Literal["active", "available", "disabled", "failed", "shadowed"]

#: Trackers whose plugins are distributions of this project, ``trainhooks-NAME``, that have to be installed.
_TRACKERS: Final = frozenset({"clearml", "comet", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"})


@dataclass(frozen=True)
class Found:
    """One entry point."""

    name: str
    value: str
    optional: bool
    distribution: str
    version: str

    @property
    def built_in(self) -> bool:
        """Whether it comes with trainhooks itself."""
        return self.distribution == OWN_DISTRIBUTION

    def __str__(self) -> str:
        return f"plugin {self.name!r} ({self.distribution} {self.version})"

    def load(self) -> Any:
        """Import it.

        Raises:
            PluginImportError: Whatever went wrong, with the distribution, the entry point and the original error.
        """
        try:
            return EntryPoint(self.name, self.value, GROUP).load()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # pytest.skip() in a module is none of Exception
            from .project import format_frames

            frames = format_frames(error)
            message = (
                f"{self}: entry point {self.name!r} = {self.value!r} cannot be imported: {type(error).__name__}: {error}\n"
                + (f"{frames}\n" if frames else "")
                + f"  rerun with -p no:{self.name} to go on without it, or repair it with: pip install --force-reinstall "
                f"{self.distribution}"
            )
            raise PluginImportError(message) from error


@dataclass
class PluginRecord:
    """What is known of one plugin before it is imported.

    Args:
        name: Its name in this run; ``checkpoint@best`` for a second instance.
        state: Whether it takes part.
        reason: Why, or why not.
        found: Its entry point, ``None`` for ``module:attribute``.
        rivals: Other distributions with a plugin of this name, so that a run would have to choose.
    """

    name: str
    state: State
    reason: str
    found: Found | None = None
    rivals: tuple[Found, ...] = ()


def find_plugins() -> list[Found]:
    """Return every advertised plugin: own distribution first, then by distribution and name."""
    found: dict[tuple[str, str], Found] = {}
    seen = set()
    for distribution in distributions():
        name, version, points = _advertised(distribution)
        if not points:
            continue
        if name in seen:  # the same distribution twice on sys.path: the first one is what would be imported
            continue
        seen.add(name)
        for point in points:
            optional = point.group == OPTIONAL_GROUP
            found.setdefault((name, point.name), Found(point.name, point.value, optional, name, version))
    return sorted(found.values(), key=lambda one: (not one.built_in, one.distribution, one.name))


def is_reference(name: str) -> bool:
    """Return whether ``name`` is a module or ``module:attribute`` rather than the name of a plugin."""
    return ":" in name or "." in name


def select(found: Iterable[Found], config: Config, given: frozenset[str] = frozenset()) -> list[PluginRecord]:
    """Decide which plugins take part.

    Args:
        found: What is installed.
        config: What was asked for.
        given: Names of plugins that exist otherwise: objects and those of the project file.

    Raises:
        PluginNotFoundError: A name that was asked for matches nothing.
    """
    config.check_contradictions()
    everything = list(found)
    records: dict[str, PluginRecord] = {}
    hidden: list[PluginRecord] = []
    for one in everything:
        choice = config.last_word(*_names(one))
        if choice is not None and not choice.wanted and choice.name != one.name:
            hidden.append(PluginRecord(one.name, "disabled", choice.origin, one))
            continue
        first = records.get(one.name)
        if first is None:
            state, reason = _state(one, choice, config)
            records[one.name] = PluginRecord(one.name, state, reason, one)
        elif first.found is not None and first.found.built_in:
            reason = f"{one.name!r} is the name of a built-in plugin of {first.found.distribution} {first.found.version}"
            hidden.append(PluginRecord(one.name, "shadowed", reason, one))
        else:
            first.rivals = (*first.rivals, one)
            reason = f"{first.found.distribution if first.found else '?'} has a plugin of this name too"
            hidden.append(PluginRecord(one.name, "shadowed", reason, one))
    _add_named(records, config, given)
    return [*records.values(), *hidden]


def refuse_rivals(record: PluginRecord) -> None:
    """Raise if an active plugin would have to be chosen from several distributions."""
    if record.rivals and record.found is not None:
        everyone = (record.found, *record.rivals)
        names = " and ".join(f"{one.distribution} {one.version}" for one in everyone)
        how = " or ".join(f"-p no:{one.distribution}" for one in everyone)
        message = f"plugin {record.name!r} is provided by {names}; take one out with {how}"
        raise PluginError(message)


def _add_named(records: dict[str, PluginRecord], config: Config, given: frozenset[str]) -> None:
    """Add second instances and code references; complain about names that match nothing."""
    known = {word for one in records.values() if one.found for word in (one.found.distribution, one.found.value)} | given
    for choice in config.choices:
        base, at, _ = choice.name.partition("@")
        if choice.name in records or choice.name in known or not config.wants(choice.name):
            continue
        if is_reference(choice.name):
            records[choice.name] = PluginRecord(choice.name, "active", choice.origin)
        elif at and base in records:
            records[choice.name] = PluginRecord(choice.name, "active", choice.origin, records[base].found, records[base].rivals)
        else:
            hint = f"; pip install trainhooks-{choice.name} adds it" if choice.name in _TRACKERS else ""
            message = (
                f"no plugin is named {choice.name!r}, in {choice.origin}{suggestion(choice.name, [*records, *given])}{hint}; "
                "`trainhooks plugins` lists all"
            )
            raise PluginNotFoundError(message)


def unmatched_blocks(found: Iterable[Found], config: Config, others: Iterable[str]) -> list[str]:
    """Return a sentence for each ``no:NAME``, and each name that ``autoload`` lists, that matches nothing."""
    known = {one.name for one in found} | {one.distribution for one in found} | set(others)
    known |= {choice.name for choice in config.choices if choice.wanted}
    return [
        f"{choice.origin}: no plugin is named {choice.name!r}, nothing was taken out{suggestion(choice.name, known)}"
        for choice in config.choices
        if not choice.wanted and choice.name not in known
    ] + [
        f"'autoload' in {config.autoload.origin}: no plugin is named {name!r}{suggestion(name, known)}"
        for name in (config.autoload.value if isinstance(config.autoload.value, list) else ())
        if name not in known
    ]


def _state(one: Found, choice: Choice | None, config: Config) -> tuple[State, str]:
    if choice is not None:
        return ("active" if choice.wanted else "disabled"), choice.origin
    if one.optional:
        return "available", "not named"
    autoload = config.autoload
    if autoload.value is True:
        return "active", "installed"
    if isinstance(autoload.value, list) and one.name in autoload.value:
        return "active", autoload.origin
    return "available", f"autoload is off, in {autoload.origin}"


def _advertised(distribution: Any) -> tuple[str, str, list[EntryPoint]]:
    """Return name, version and the entry points that are for us; one with broken metadata must not hide all others."""
    try:
        text = distribution.read_text("entry_points.txt") or ""
        if f"[{GROUP}" in text.replace(" ", ""):  # most have nothing for us, and parsing them all takes its time
            points = [point for point in distribution.entry_points if point.group in (GROUP, OPTIONAL_GROUP)]
            head = (distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or "").partition("\n\n")[0]
            fields = dict(re.findall(r"^(Name|Version):[ \t]*(.*?)[ \t\r]*$", head, re.MULTILINE))
            if points:  # the two lines are read as text, since the e-mail parser that does it otherwise costs 20 ms
                return _normalized(fields["Name"]), fields["Version"], points
    except Exception as error:
        log.warning("the metadata of an installed distribution cannot be read, so its plugins are not found: %r", error)
    return "", "", []


def _names(one: Found) -> tuple[str, ...]:
    return (one.name, one.value) if one.built_in else (one.name, one.value, one.distribution)


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-")
