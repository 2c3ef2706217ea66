"""Typed options from the signature of a class or factory, each with the place that it came from."""

from __future__ import annotations

import collections.abc
import inspect
import json
import re
import shlex
import types
import typing
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .errors import OptionError
from .suggest import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pydantic_core import ErrorDetails

#: Names in annotations that modules often import for type checkers only.
_USUAL: Final = {**vars(typing), **vars(collections.abc), "Path": Path}
#: What is one word for sure.
_WORD: Final = re.compile(r"[\w./*:@-]+")
#: Words of the command line for no value.
NOTHING: Final = ("none", "None", "null")


@dataclass(frozen=True)
class Given:
    """A value that somebody gave.

    Args:
        value: As it was read.
        origin: Where, in words that follow "in": ``[tool.trainhooks.train] of pyproject.toml:12``, ``-o lr.base=1``.
        text: What was typed, for a value from the command line.
    """

    value: Any
    origin: str
    text: str | None = None


def parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the options of a class or factory: its parameters, resolved type hints as annotations."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return {}
    target = factory.__init__ if inspect.isclass(factory) else factory
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except Exception:
        hints = {name: _resolved(p.annotation, target) for name, p in signature.parameters.items()}
    return {
        name: parameter.replace(annotation=hints.get(name, Any))
        for name, parameter in signature.parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def validated(factory: Callable[..., Any], given: Mapping[str, Given], who: str, remedy: str = "") -> dict[str, Any]:
    """Return ``given`` converted to the types of ``factory``'s options.

    Args:
        factory: A class or function.
        given: Values by option name.
        who: What is configured, for messages: ``plugin 'wandb' (trainhooks-wandb 0.3.1)``.
        remedy: What the message ends with.

    Raises:
        OptionError: Unknown or missing options, or values of a wrong type; all of them in one message.
    """
    options = parameters(factory)
    problems = []
    values = {}
    for name, one in given.items():
        if name not in options:
            hint = suggestion(name, options) or f"; there are {', '.join(options) or 'none'}"
            problems.append(f"unknown option {name!r} in {one.origin}{hint}")
            continue
        try:
            values[name] = convert(one, options[name].annotation, name)
        except ValueError as error:
            problems.append(f"option {name!r} in {one.origin}: {error}{_meant(name, one, options)}")
    problems += [
        f"option {name!r} is missing and has no default"
        for name, parameter in options.items()
        if parameter.default is parameter.empty and name not in given
    ]
    if problems:
        raise OptionError(f"{who}: " + "\n  ".join([*problems, remedy] if remedy else problems))
    return values


def _meant(name: str, one: Given, options: Mapping[str, inspect.Parameter]) -> str:
    """Return a hint at the option whose name goes on from ``name`` and which takes the value that this one refuses."""
    for other in options:
        if other.startswith(f"{name}_"):
            with suppress(ValueError):
                convert(one, options[other].annotation, other)
                return f"; did you mean {other!r}?"
    return ""


def convert(given: Given, annotation: Any, name: str = "") -> Any:
    """Return the value in the type that is asked for.

    A value from the command line may also be meant as text, and a bare word as a list of one; ``none`` and ``null`` are no
    value where there may be none.

    Args:
        given: The value.
        annotation: The type.
        name: What the option is called, for places inside of its value.

    Raises:
        ValueError: It does not fit; the message says what is expected.
    """
    candidates = [given.value] if given.text is None else [given.value, given.text]
    if given.text in NOTHING and not _is_choice(given.text, annotation):
        candidates.insert(0, None)
    elif given.text is not None and given.text == given.value and _WORD.fullmatch(given.text) and _is_list_of_text(annotation):
        candidates.append([given.text])
    refusal = ""
    for candidate in candidates:
        try:
            return _convert(candidate, annotation, name)
        except ValueError as error:
            if candidate is given.value:
                refusal = str(error)
    if given.text is not None and given.value == given.text and given.text[:1] in ("{", "["):
        refusal += ', which is neither TOML such as {a = 1} nor JSON such as {"a": 1}'
    elif (word := _as_list(given, annotation)) is not None:
        refusal = f"must be a list, not {given.value!r}: write {word}"
    raise ValueError(refusal)


def _is_list_of_text(annotation: Any) -> bool:
    """Return whether an annotation is a list or tuple of any number of texts, or nothing."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _is_list_of_text(arguments[0])
    if origin in (typing.Union, types.UnionType):
        others = [one for one in arguments if one is not types.NoneType]
        return len(others) == 1 and _is_list_of_text(others[0])
    if origin is tuple and arguments[1:] != (...,):
        return False
    if origin not in (list, tuple, collections.abc.Sequence):
        return False
    item = arguments[0]
    return item is str or (
        typing.get_origin(item) is typing.Literal and all(isinstance(one, str) for one in typing.get_args(item))
    )


def _as_list(given: Given, annotation: Any) -> str | None:
    """Return how a value on the command line, single or with commas, is written as the list that is wanted, if it is one."""
    target, equals, _ = given.origin.partition("=")
    if given.text is None or not equals or isinstance(given.value, list | dict):
        return None
    parts = [part.strip() for part in given.text.split(",")]
    for items in ([_plain(part) for part in parts], parts):
        try:
            if isinstance(_convert(items, annotation), list | tuple):
                flag, _, key = target.partition(" ")
                return f"{flag} {shlex.quote(f'{key}={json.dumps(items)}')}"
        except ValueError:
            continue
    return None


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_choice(word: str, annotation: Any) -> bool:
    """Return whether a word is one of those that an annotation lists."""
    parts = typing.get_args(annotation)
    return word in parts if typing.get_origin(annotation) is typing.Literal else any(_is_choice(word, one) for one in parts)


def _convert(value: Any, annotation: Any, name: str = "") -> Any:
    if annotation is Any:
        return value
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:
        try:
            adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))
        except PydanticUserError:  # a model has a configuration of its own
            try:
                adapter = TypeAdapter(annotation)
            except PydanticUserError:  # it does not take such a type
                return value
        if isinstance(value, list | dict) and _holds_bool(value):
            try:
                made = adapter.validate_json(json.dumps(value), strict=True)
            except TypeError:  # something that JSON does not know, so it did not come from a file
                made = adapter.validate_python(value)
        else:
            made = adapter.validate_python(value, strict=True if isinstance(value, bool) else None)
    except ValidationError as error:
        message = _refusal(error.errors(include_url=False), value, name)
        raise ValueError(message) from None
    if unknown := list(_left_out(value, made)):
        message = f"unknown key {' and '.join(unknown)}, in {value!r}"
        raise ValueError(message)
    return made


def _left_out(given: Any, made: Any) -> Iterator[str]:
    """Yield the keys of tables that have no place in what was made of them, which pydantic passes over."""
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(given, dict):
        if is_table := is_dataclass(made):
            made = {one.name: getattr(made, one.name) for one in fields(made)}
        if isinstance(made, dict):
            if is_table or len(made) < len(given):  # a dict may have turned its keys into others, but loses none
                yield from (f"{key!r}{suggestion(str(key), made)}" for key in given if key not in made)
            inner = [(given[key], made[key]) for key in given if key in made]
    elif isinstance(given, list | tuple) and isinstance(made, list | tuple):
        inner = zip(given, made, strict=False)
    for one, its in inner:
        yield from _left_out(one, its)


def _refusal(errors: Iterable[ErrorDetails], value: Any, name: str) -> str:
    """Return what pydantic expects of a value, and of what is inside of it by its place there."""
    places: dict[str, tuple[Any, dict[str, None]]] = {}
    for error in errors:
        place, inner = _inside(value, error["loc"])
        places.setdefault(place, (inner, {}))[1][_expected(error)] = None
    return "; ".join(_sentence(f"{name}{place}".removeprefix(".") if place else "", *one) for place, one in places.items())


def _sentence(place: str, value: Any, texts: Iterable[str]) -> str:
    text = " or ".join(texts)
    return f"{place}{' ' if text.startswith('must ') else ': '}{text}, not {value!r}" if place else f"{text}, not {value!r}"


def _inside(value: Any, path: tuple[int | str, ...]) -> tuple[str, Any]:
    """Return what is at a path of pydantic's, and where; it also has the branches of types, which are no keys."""
    place = ""
    for step in path:
        if step == "[key]":
            return f"{place} as a key", path[path.index(step) - 1]
        if isinstance(value, dict) and step in value:
            place, value = f"{place}.{step}", value[step]
        elif isinstance(value, list | tuple) and isinstance(step, int) and 0 <= step < len(value):
            place, value = f"{place}[{step}]", value[step]
    return place, value


def _expected(error: ErrorDetails) -> str:
    """Return what pydantic expects, without how it has tried to read the value."""
    if error["type"] in ("missing", "missing_argument"):
        last = error["loc"][-1]
        return f"item {last} is missing" if isinstance(last, int) else f"{last!r} is missing"
    text = re.sub(r", unable to (parse|interpret) .*", "", error["msg"]).replace("Input should be", "must be")
    return re.sub(r"\ba valid (list|tuple)\b", "a list", text)


def _holds_bool(value: Any) -> bool:
    """Return whether a truth value is somewhere inside, which would pass for a number unless types are taken strictly."""
    if isinstance(value, list | dict):
        return any(_holds_bool(one) for one in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, bool)


def _resolved(annotation: Any, target: Any) -> Any:
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    try:
        return eval(annotation, {**_USUAL, **getattr(target, "__globals__", {})})  # noqa: S307 - of the plugin's own code
    except Exception:
        return Any
