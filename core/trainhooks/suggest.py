"""The nearest of the names that exist, for messages about one that does not."""

from __future__ import annotations

from typing import Any


def suggestion(name: str, known: Any) -> str:
    """Return ``; did you mean 'x'?`` for the nearest of ``known``, or nothing."""
    from difflib import get_close_matches  # most names are right

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
