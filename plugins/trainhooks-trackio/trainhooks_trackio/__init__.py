"""``trackio``: reports a run to Trackio, locally or to a server."""

from __future__ import annotations

from .reporter import Trackio

__all__ = ["Trackio"]
