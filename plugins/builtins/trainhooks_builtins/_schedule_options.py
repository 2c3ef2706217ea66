"""Reads the options ``schedule`` and ``args``, and puts composed schedules together; no plugin."""

from __future__ import annotations

import inspect
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trainhooks import OptionError
from trainhooks.options import Given, validated
from trainhooks.suggest import suggestion

from ._schedule_cycles import cyclic, one_cycle
from ._schedules import (
    Schedule,
    constant,
    cosine,
    cosine_restart,
    exp,
    flat_cosine,
    inv,
    inverse_sqrt,
    linear,
    multi_step,
    poly,
    step,
    wsd,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: By the name that the option ``schedule`` takes.
SCHEDULES: Final[dict[str, Callable[..., Schedule]]] = {
    "constant": constant,
    "fixed": constant,
    "step": step,
    "multi_step": multi_step,
    "exp": exp,
    "poly": poly,
    "inv": inv,
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
    "flat_cosine": flat_cosine,
    "cosine_restart": cosine_restart,
    "cyclic": cyclic,
    "one_cycle": one_cycle,
    "wsd": wsd,
}

#: What a part of a composed schedule may be measured in, by what the schedule counts.
_UNITS: Final = {"update": ("updates", "epochs", "ratio"), "step": ("steps", "ratio"), "epoch": ("epochs", "ratio")}


@dataclass(frozen=True)
class Part:
    """One of the schedules that are composed.

    Args:
        name: Of its schedule.
        schedule: With its parameters.
        unit: What its length is given in: ``updates``, ``steps``, ``epochs`` or ``ratio``; ``""`` for what is left.
        length: How many, or which share of the whole.
    """

    name: str
    schedule: Schedule
    unit: str = ""
    length: float = 0.0


def read_schedule(
    given: str | list[dict[str, Any]] | Callable[..., float],
    args: Mapping[str, Any] | None,
    end: float,
    by: str,
    known: Mapping[str, Callable[..., Schedule]],
    key: str,
) -> list[Part]:
    """Return the schedules that an option ``schedule`` names, one after the other.

    Args:
        given: A name, a function of progress and total, or a list of tables of a name, a length and parameters.
        args: Parameters of the one that is named.
        end: The option ``end``, for schedules that have one.
        by: What is counted.
        known: Builders by name.
        key: Name of the plugin, for messages.

    Raises:
        OptionError: There is no such schedule, or it has no such parameter.
    """
    if isinstance(given, list | tuple):
        if args or end or not given:
            message = (
                f"{key}.schedule is a list: each of its tables takes its own parameters, {key}.args and {key}.end do not apply"
            )
            if not given:
                message = f"{key}.schedule = []: give at least one table, for example {{name = 'cosine'}}"
            raise OptionError(message)
        parts = [_read_part(one, by, known, key) for one in given]
        if sum(part.length for part in parts if part.unit == "ratio") > 1 + 1e-9:
            message = f"{key}.schedule: the ratios of its parts are more than 1 together; they are shares of the whole"
            raise OptionError(message)
        for part in parts[:-1]:
            if not part.unit:
                message = f"{key}.schedule: {part.name!r} needs a length, only the last may go on to the end: {' or '.join(_UNITS[by])}"
                raise OptionError(message)
        return parts
    if callable(given):
        if args or end:
            message = f"{key}.schedule is a function: {key}.args and {key}.end do not apply"
            raise OptionError(message)
        return [Part(getattr(given, "__name__", type(given).__name__), _of_function(given))]
    arguments = dict(args or {})
    builder = _builder(given, known, key)
    if end:
        if "end" in arguments or "end" not in inspect.signature(builder).parameters:
            why = "it is in args too" if "end" in arguments else f"the schedule {given!r} has no end"
            message = f"{key}.end = {end}: {why}; drop one of the two"
            raise OptionError(message)
        arguments["end"] = end
    return [Part(given, _build(given, builder, arguments, key, f"{key}.args"))]


def compose(
    parts: Sequence[Part], total: int | None, in_epochs: Callable[[float], int]
) -> tuple[Schedule, int | None, list[int]]:
    """Return the parts as one schedule, its length where the parts alone say it, and where each part begins.

    Args:
        parts: Each begins where the one before it ends.
        total: Length of the whole, if it is known.
        in_epochs: Returns how much of what is counted so many epochs are.
    """
    if len(parts) == 1 and not parts[0].unit:
        return parts[0].schedule, None, [0]
    ends: list[int] = []
    for part in parts:
        ends.append(_end_of(part, ends[-1] if ends else 0, total, in_epochs))
    open_end = not parts[-1].unit
    starts = [0, *ends[:-1]]

    def value(progress: int, total: int, base: float) -> float:
        index = bisect_right(starts, progress) - 1
        length = (total if open_end and index == len(parts) - 1 else ends[index]) - starts[index]
        schedule = parts[index].schedule
        at = progress - starts[index]
        return schedule.value(min(at, length) if schedule.bounded else at, max(length, 1), base)

    bounded = not open_end or parts[-1].schedule.bounded
    whole = Schedule(value, bounded=bounded, relative=all(part.schedule.relative for part in parts))
    return whole, None if open_end else ends[-1], starts


def needs_total(parts: Sequence[Part]) -> bool:
    """Return whether the length of the whole must be known."""
    last = parts[-1]
    return any(part.unit == "ratio" for part in parts) or (not last.unit and last.schedule.bounded)


def _end_of(part: Part, start: int, total: int | None, in_epochs: Callable[[float], int]) -> int:
    if part.unit == "ratio":
        return start + round(part.length * (total or 0))
    if part.unit == "epochs":
        return start + in_epochs(part.length)
    return start + int(part.length)


def _read_part(given: Any, by: str, known: Mapping[str, Callable[..., Schedule]], key: str) -> Part:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        message = f"{key}.schedule: {given!r} must be a table with the name of a schedule, for example {{name = 'cosine'}}"
        raise OptionError(message)
    arguments = {name: value for name, value in given.items() if name != "name"}
    name = given["name"]
    builder = _builder(name, known, key)
    units = [unit for unit in ("updates", "steps", "epochs", "ratio") if unit in arguments]
    if len(units) > 1 or any(unit not in _UNITS[by] for unit in units):
        message = (
            f"{key}.schedule: {name!r} has {' and '.join(units)}: its length is one of {', '.join(_UNITS[by])} with by = {by!r}"
        )
        raise OptionError(message)
    unit, length = "", 0.0
    if units:
        unit = units[0]
        length = arguments.pop(unit)
        whole = unit in ("updates", "steps") or (unit == "epochs" and by == "epoch")
        if isinstance(length, bool) or not isinstance(length, int if whole else int | float) or not length > 0:
            message = f"{key}.schedule: {name!r} has {unit} = {length!r}: must be a {'whole ' if whole else ''}number above 0"
            raise OptionError(message)
    return Part(name, _build(name, builder, arguments, key, f"{key}.schedule"), unit, length)


def _builder(name: Any, known: Mapping[str, Callable[..., Schedule]], key: str) -> Callable[..., Schedule]:
    if not isinstance(name, str) or name not in known:
        hint = suggestion(str(name), known) or f"; there are {', '.join(known)}"
        message = f"{key}.schedule: there is no schedule {name!r}{hint}"
        raise OptionError(message)
    return known[name]


def _build(name: str, builder: Callable[..., Schedule], arguments: Mapping[str, Any], key: str, origin: str) -> Schedule:
    who = f"{key}.schedule {name!r}"
    needed = [one.name for one in inspect.signature(builder).parameters.values() if one.default is one.empty]
    if arguments or needed:
        arguments = validated(builder, {name: Given(value, origin) for name, value in arguments.items()}, who)
    try:
        return builder(**arguments)
    except OptionError as error:
        message = f"{who}: {error}"
        raise OptionError(message) from None


def _of_function(function: Callable[..., float]) -> Schedule:
    """Return the schedule of a user's function of progress, or of progress and total, which returns a factor.

    It is not asked for what lies beyond the end, which it may not have: ``rates.__getitem__``.
    """
    try:
        positional = [
            one
            for one in inspect.signature(function).parameters.values()
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
        ]
        both = len(positional) > 1
    except (TypeError, ValueError):  # it is written in C
        both = False

    def value(progress: int, total: int, base: float) -> float:
        at = min(progress, total - 1) if total > 0 else progress
        return base * float(function(at, total) if both else function(at))

    return Schedule(value, bounded=both)
