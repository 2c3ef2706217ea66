"""Options that are one of a few words: checked here too, since nobody does it for a plugin that is made in Python."""

from __future__ import annotations

from typing import Any, get_args

from trainhooks import OptionError


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Refuse a value that is none of a ``Literal``'s.

    Raises:
        OptionError: It is not.
    """
    if value not in get_args(choices):
        message = f"{name} = {value!r}: must be one of {', '.join(map(str, get_args(choices)))}"
        raise OptionError(message)
