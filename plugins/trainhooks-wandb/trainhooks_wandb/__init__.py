"""Reports runs to Weights & Biases: the plugin ``wandb`` of trainhooks."""

from __future__ import annotations

from .plugin import WandB

__all__ = ["WandB"]
