"""``tensorboard``: what a run logs, as event files that TensorBoard reads."""

from __future__ import annotations

from .reporter import TensorBoard

__all__ = ["TensorBoard"]
