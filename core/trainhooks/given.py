"""What a script can get wrong in what it gives a ``Trainer``: its parts, and options of plugins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from .errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger("trainhooks")


def check_parts(model: Any, loss: Any, optimizer: Any) -> None:
    """Refuse what is no part but, for example, a class or the name of one.

    Raises:
        UsageError: With the argument and what to give.
    """
    if model is not None:
        check_model(model, "model is")
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        message = f"loss is the class {loss.__name__}; give {loss.__name__}()"
        raise UsageError(message)
    if loss is not None and not callable(loss):
        message = f"loss is {described(loss)}: must be a function such as torch.nn.functional.cross_entropy"
        raise UsageError(message)
    if optimizer is not None:
        check_optimizer(optimizer, "optimizer is")


def check_model(model: Any, what: str) -> None:
    """Refuse what is no model.

    Args:
        model: What should be one.
        what: Where it comes from, for the message: ``make_model gave``.

    Raises:
        UsageError: It is none.
    """
    if not isinstance(model, nn.Module):
        given = f"the class {model.__name__}; give {model.__name__}(...)" if isinstance(model, type) else described(model)
        message = f"{what} {given}: must be a torch.nn.Module"
        raise UsageError(message)


def check_optimizer(optimizer: Any, what: str) -> None:
    """Refuse what is neither an optimizer nor a mapping of some.

    Args:
        optimizer: What should be one.
        what: Where it comes from, for the message: ``make_optimizer gave``.

    Raises:
        UsageError: It is none.
    """
    for one in optimizer.values() if isinstance(optimizer, Mapping) else [optimizer]:
        if isinstance(one, type):
            message = f"{what} the class {one.__name__}; give {one.__name__}(model.parameters(), ...)"
            raise UsageError(message)
        if not all(callable(getattr(one, name, None)) for name in ("step", "zero_grad")):  # a schedule has the first only
            message = (
                f"{what} {described(one)}: must be one such as torch.optim.AdamW(model.parameters()), or a mapping of them"
            )
            raise UsageError(message)


def note_foreign_parameters(name: str, optimizer: Any, owners: Iterable[nn.Module]) -> None:
    """Warn of an optimizer that trains nothing of what a checkpoint holds: mostly it was made for another model.

    Args:
        name: Of the optimizer.
        optimizer: With ``param_groups`` as torch's have them.
        owners: Modules whose weights are saved.
    """
    known = {id(parameter) for owner in owners for parameter in owner.parameters()}
    own = [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]
    if own and not any(id(parameter) in known for parameter in own):
        log.warning(
            "%r trains no parameter of the model or the loss: was it made for another model? What it trains is neither moved to the "
            "device nor saved, unless it is in trainer.stateful",
            name,
        )


def check_options(options: Any) -> None:
    """Refuse options that are not mappings by plugin.

    Raises:
        UsageError: With what to give.
    """
    example = "{'lr': {'warmup_updates': 3}}"
    if not isinstance(options, Mapping):
        message = f"options must be a mapping such as {example}, not {described(options)}"
        raise UsageError(message)
    for plugin, values in options.items():
        if isinstance(plugin, str) and isinstance(values, Mapping) and all(isinstance(name, str) for name in values):
            continue
        given = f"options={{{plugin!r}: {described(values)}}}"
        if isinstance(plugin, str) and "." in plugin and ":" not in plugin:  # as -o has it
            message = f"{given}: write options={_nested(plugin.split('.'), described(values))}"
            raise UsageError(message)
        message = f"{given}: write the options of a plugin by name, as in options={example}"
        raise UsageError(message)


def _nested(names: list[str], text: str) -> str:
    for name in reversed(names):
        text = f"{{{name!r}: {text}}}"
    return text


def described(value: Any) -> str:
    """Return a value as a message has it."""
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"  # noqa: PLR2004 - a line of a message has room for it
