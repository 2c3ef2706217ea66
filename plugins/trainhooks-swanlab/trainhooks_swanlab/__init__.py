"""``swanlab``: reports a run to SwanLab, to its cloud or to files."""

from __future__ import annotations

from .reporter import SwanLab

__all__ = ["SwanLab"]
