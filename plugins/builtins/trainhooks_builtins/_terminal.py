"""What is known of a terminal from the environment, and of what stands for stdout."""

from __future__ import annotations

import os
from typing import Any


def can_move_cursor() -> bool:
    """Return whether ``TERM`` names a terminal that knows control characters."""
    return os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def in_ci() -> bool:
    """Return whether the terminal is one of those whose output a CI service keeps, control characters and all."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def is_terminal(out: Any) -> bool:
    """Return whether a stream is a terminal; not one that is closed, nor an object that has no more than ``write``."""
    try:
        return bool(out.isatty())
    except (AttributeError, ValueError):
        return False


def write(out: Any, text: str) -> None:
    """Write a text in one go, with escapes for what the stream's encoding does not have.

    Raises:
        OSError: What the system says, such as that the reader of a pipe has gone.
        ValueError: The stream is closed.
    """
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    if (flush := getattr(out, "flush", None)) is not None:
        flush()


def one_line(text: str) -> str:
    """Return a text with escapes for what would move the cursor, line ends included."""
    return text if text.isprintable() else "".join([one if one.isprintable() else repr(one)[1:-1] for one in text])
