"""``dvclive``: what a run logs, as the files that DVC shows and compares."""

from __future__ import annotations

from .reporter import DVCLive

__all__ = ["DVCLive"]
