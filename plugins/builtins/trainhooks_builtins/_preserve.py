"""How a trial finds things and leaves them: each function keeps one kind of thing and returns what puts it back."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn, optim

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainhooks import Trainer


def keep_attributes(trainer: Trainer) -> Callable[[], None]:
    """Keep counters, requests and whatever else is an attribute of the trainer, mappings with what is in them."""
    found = dict(vars(trainer))
    mappings = [(value, dict(value)) for value in found.values() if type(value) is dict]

    def restore() -> None:
        for name in vars(trainer).keys() - found.keys():
            delattr(trainer, name)
        vars(trainer).update(found)
        for mapping, content in mappings:
            mapping.clear()
            mapping.update(content)

    return restore


def keep_model(model: nn.Module) -> Callable[[], None]:
    """Keep parameters, gradients, all buffers and extra state; each tensor stays the object that it is."""
    tensors = [
        (owner, name, tensor, to_host(tensor), to_host(tensor.grad) if isinstance(tensor, nn.Parameter) else None)
        for module in model.modules()
        for owner in cast("tuple[dict[str, Any], ...]", (module._parameters, module._buffers))
        for name, tensor in owner.items()
    ]
    own = [module for module in model.modules() if type(module).get_extra_state is not nn.Module.get_extra_state]
    extras = [(module, copy.deepcopy(module.get_extra_state())) for module in own]

    @torch.no_grad()
    def restore() -> None:
        for owner, name, tensor, value, grad in tensors:
            owner[name] = tensor
            if tensor is not None:
                tensor.copy_(value)
            if isinstance(tensor, nn.Parameter):
                tensor.grad = None if grad is None else grad.to(tensor.device)
        for module, extra in extras:
            module.set_extra_state(extra)

    return restore


def keep_optimizer(optimizer: optim.Optimizer) -> Callable[[], None]:
    """Keep the state of each parameter and the options of each group; not by ``load_state_dict``, which changes types."""
    states = [(parameter, to_host(state), _devices(state)) for parameter, state in optimizer.state.items()]
    groups = [{key: to_host(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups]

    def restore() -> None:
        optimizer.state.clear()
        for parameter, state, devices in states:
            optimizer.state[parameter] = {
                key: value.to(devices[key]) if isinstance(value, Tensor) else value for key, value in state.items()
            }
        for group, found in zip(optimizer.param_groups, groups, strict=True):
            for key in group.keys() - found.keys() - {"params"}:
                del group[key]
            for key, value in found.items():
                if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
                    group[key].copy_(value)  # a captured or compiled optimizer holds on to the object
                else:
                    group[key] = value

    return restore


def keep_state(trainer: Trainer, name: str) -> Callable[[], None]:
    """Keep the state of a plugin or another object, by the two methods that it has for that."""
    thing: Any = trainer.stateful[name]
    state = to_host(thing.state_dict())

    def restore() -> None:
        if name in trainer.stateful:  # else it was taken out meanwhile
            thing.load_state_dict(state)

    return restore


def to_host(value: Any) -> Any:
    """Return a copy of plain values and tensors, however nested, the tensors in host memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping) and type(value) is not dict:
        return copy.deepcopy(value)
    if isinstance(value, dict):
        return {key: to_host(one) for key, one in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(to_host(one) for one in value)
    return copy.deepcopy(value)


def _devices(state: Any) -> dict[Any, torch.device]:
    return {key: value.device for key, value in state.items() if isinstance(value, Tensor)}
