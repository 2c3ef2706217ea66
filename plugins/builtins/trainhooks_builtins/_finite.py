"""Whether gradients and parameters are finite, and what a forward pass changes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainhooks import Trainer


def largest_gradient(trainer: Trainer) -> Tensor | None:
    """Return the largest absolute value of all gradients, on the device; it is NaN or infinite if any of them is."""
    parameters = (p for o in trainer.optimizers.values() for group in o.param_groups for p in group["params"])
    gradients = [_values(p.grad) for p in parameters if p.grad is not None]
    return get_total_norm(gradients, math.inf) if gradients else None


def bad_names(trainer: Trainer) -> dict[str, list[str]]:
    """Return which parameters and gradients are not finite now; one synchronization each, so only when something is wrong."""
    named = list(trainer.model.named_parameters()) if trainer.model is not None else []
    return {
        "parameters": [name for name, parameter in named if not _finite(parameter)],
        "gradients": [name for name, parameter in named if parameter.grad is not None and not _finite(parameter.grad)],
    }


def statistics_of(model: nn.Module | None) -> list[tuple[Tensor, Tensor]]:
    """Return the statistics that normalization layers gather in training, each with a copy as it is now."""
    layers = [one for one in (model.modules() if model is not None else ()) if isinstance(one, _NormBase) and one.training]
    buffers = {id(buffer): buffer for layer in layers for buffer in layer.buffers(recurse=False)}
    return [(buffer, buffer.clone()) for buffer in buffers.values()]


def _finite(tensor: Tensor) -> bool:
    return bool(_values(tensor).isfinite().all())


def _values(tensor: Tensor) -> Tensor:
    """Return what a sparse tensor holds, others as they are."""
    return tensor.coalesce().values() if tensor.is_sparse else tensor
