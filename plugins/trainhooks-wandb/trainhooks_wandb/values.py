"""Values as wandb takes them, and as it has kept them."""

from __future__ import annotations

import math
from typing import Any


def valid(value: Any) -> Any:
    """Return a text without what is no character, as names of files may have it, and other values as they are."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


def is_scalar(value: Any) -> bool:
    """Return whether a value is a number, as wandb's reader gives it."""
    return isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")


def same(before: Any, now: Any) -> bool:
    """Compare a value that wandb has kept, which has no NaN and infinities, with one of now."""
    if isinstance(now, float) and not math.isfinite(now):
        return before is None or before == now or isinstance(before, str)
    return bool(before == now)


def short(value: Any) -> str:
    """Return a value as a text of which several fit in a line."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004 - a line is to hold several
