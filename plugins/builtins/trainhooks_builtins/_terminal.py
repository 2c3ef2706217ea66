"""What is known of a terminal from the environment."""

from __future__ import annotations

import os


def can_move_cursor() -> bool:
    """Return whether ``TERM`` names a terminal that knows control characters."""
    return os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def in_ci() -> bool:
    """Return whether the terminal is one of those whose output a CI service keeps, control characters and all."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")
