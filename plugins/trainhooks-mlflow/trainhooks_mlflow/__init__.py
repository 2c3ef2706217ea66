"""``mlflow``: what a run logs, as a run of MLflow."""

from __future__ import annotations

from .reporter import MLflow

__all__ = ["MLflow"]
