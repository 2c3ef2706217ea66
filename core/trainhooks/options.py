"""Typed options from the signature of a class or factory, each with the place that it came from."""

from __future__ import annotations

import inspect
import json
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import OptionError
from .suggest import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
            values[name] = convert(one, options[name].annotation)
        except ValueError as error:
            problems.append(f"option {name!r} in {one.origin}: {error}")
    problems += [
        f"option {name!r} is missing and has no default"
        for name, parameter in options.items()
        if parameter.default is parameter.empty and name not in given
    ]
    if problems:
        raise OptionError(f"{who}: " + "\n  ".join([*problems, remedy] if remedy else problems))
    return values


def convert(given: Given, annotation: Any) -> Any:
    """Return the value in the type that is asked for; a value from the command line may also be meant as text.

    Raises:
        ValueError: It does not fit; the message says what is expected.
    """
    try:
        return _convert(given.value, annotation)
    except ValueError as error:
        candidates: list[Any] = [] if given.text is None else [given.text]
        if given.text in ("none", "None", "null"):
            candidates.append(None)
        for candidate in candidates:
            try:
                return _convert(candidate, annotation)
            except ValueError:
                continue
        raise error from None


def _convert(value: Any, annotation: Any) -> Any:
    if annotation is Any:
        return value
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:
        try:
            adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))
        except PydanticUserError:  # a model has a configuration of its own
            adapter = TypeAdapter(annotation)
        if isinstance(value, list | dict) and _holds_bool(value):
            try:
                return adapter.validate_json(json.dumps(value), strict=True)
            except TypeError:  # something that JSON does not know, so it did not come from a file
                pass
        return adapter.validate_python(value, strict=True if isinstance(value, bool) else None)
    except ValidationError as error:
        texts = dict.fromkeys(one["msg"].replace("Input should be", "must be") for one in error.errors(include_url=False))
        message = f"{' or '.join(texts)}, not {value!r}"
        raise ValueError(message) from None


def _holds_bool(value: Any) -> bool:
    """Return whether a truth value is somewhere inside, which would pass for a number unless types are taken strictly."""
    if isinstance(value, list | dict):
        return any(_holds_bool(one) for one in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, bool)


def _resolved(annotation: Any, target: Any) -> Any:
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    try:
        return eval(annotation, getattr(target, "__globals__", {}))  # noqa: S307 - an annotation of the plugin's own code
    except Exception:
        return Any
