"""The gradients of all optimizers as lists of tensors: what clipping and accumulation have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from trainhooks.compiled import named_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer

#: Where a checkpoint that was written within a window of the plugin ``accumulate`` has its gradients.
OF_WINDOW: Final = "accumulate/gradients"


def with_gradient(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return every parameter that has a gradient, once, even if several groups or optimizers hold it."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    found = {id(one): one for group in groups for one in group["params"] if one.grad is not None}
    return list(found.values())


def gradients_of(parameters: Iterable[Tensor], *, coalesced: bool = False) -> list[Tensor]:
    """Return the gradients as dense tensors that can be changed in place: of a sparse one its values.

    Args:
        parameters: All have a gradient.
        coalesced: Sum what a sparse gradient holds several times first, which elementwise functions and norms need.
    """
    gradients = []
    for parameter in parameters:
        gradient = parameter.grad
        assert gradient is not None  # noqa: S101 - they are picked for it
        if gradient.layout is torch.sparse_coo:
            if coalesced and not gradient.is_coalesced():
                gradient = parameter.grad = gradient.coalesce()
            gradient = gradient._values()
        gradients.append(gradient)
    return gradients


@torch.no_grad()
def multiply(gradients: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply in place by one number that is on a device, without bringing it over to the host."""
    for device, group in _by_device(gradients).items():
        torch._foreach_mul_(group, factor.to(device, non_blocking=True))


@torch.no_grad()
def divide(gradients: Iterable[Tensor], divisor: float | Tensor) -> None:
    """Divide in place by one number, which may be on a device."""
    for device, group in _by_device(gradients).items():
        torch._foreach_div_(group, divisor.to(device, non_blocking=True) if isinstance(divisor, torch.Tensor) else divisor)


def saved(optimizers: Mapping[str, Optimizer], model: nn.Module | None) -> dict[str, Tensor]:
    """Return the gradients by the names of their parameters in the model, of others by their places, for a checkpoint."""
    names, places = _names(model), _places(optimizers)
    return {names.get(id(one), place): one.grad for place, one in places.items() if one.grad is not None}


def restore(optimizers: Mapping[str, Optimizer], model: nn.Module | None, gradients: Mapping[str, Tensor]) -> bool:
    """Put copies of saved gradients where they belong; return whether all of them fit somewhere, and change nothing otherwise.

    Checkpoints of before version 0.2 have all of them by place.
    """
    names, places = _names(model), _places(optimizers)
    known = {names.get(id(one), place): one for place, one in places.items()}
    if not gradients.keys() <= known.keys():
        known = places
    fits = all(name in known and known[name].shape == gradient.shape for name, gradient in gradients.items())
    if fits:
        for name, parameter in known.items():
            parameter.grad = gradients[name].to(parameter.device, copy=True) if name in gradients else None
    return fits


def _names(model: nn.Module | None) -> dict[int, str]:
    return {id(one): name for name, one in named_parameters(model)} if model is not None else {}


def _places(optimizers: Mapping[str, Optimizer]) -> dict[str, Tensor]:
    """Return every parameter by its place in the optimizers, as their own state has them."""
    return {
        f"{name}/{number}/{index}": parameter
        for name, optimizer in optimizers.items()
        for number, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    }


def _by_device(gradients: Iterable[Tensor]) -> dict[torch.device, list[Tensor]]:
    groups: dict[torch.device, list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(gradient.device, []).append(gradient)
    return groups
