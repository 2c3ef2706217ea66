"""``grad_norms``: how large gradients, weights and updates are, module by module."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn.utils import get_total_norm

from trainhooks import OptionError, UsageError, hookimpl
from trainhooks.compiled import named_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from trainhooks import Trainer

_ALL = "all"


class GradNorms:
    """Logs the norms of gradients, and on request of weights and updates, of the model and of its modules.

    ``grad_norm/all`` is the norm over all gradients taken as one vector, ``grad_norm/MODULE`` that over one module's. They are
    taken when the gradients are complete and unscaled, before they are clipped. With ``updates`` also ``update_ratio/...``: the
    norm of the change that an update made to the weights, over the norm that the weights had before it. Norms stay on the
    device until metrics are flushed.

    Args:
        every_updates: Measure at every n-th update.
        depth: How many parts of a module's name count: 1 for the children of the model; 0 for the whole model only.
        norm_type: The p of the p-norm; ``inf`` for the largest absolute value.
        weights: Also log ``weight_norm/...``.
        updates: Also log ``update_ratio/...``; keeps a copy of the weights during the updates that are measured.
    """

    phase = "measurement"

    def __init__(
        self,
        every_updates: int = 10,
        depth: int = 1,
        norm_type: float | str = 2.0,
        weights: bool = False,
        updates: bool = False,
    ) -> None:
        if every_updates < 1:
            message = f"every_updates = {every_updates}: must be at least 1; -p no:grad_norms for never"
            raise OptionError(message)
        if depth < 0:
            message = f"depth = {depth}: must be 0 (the whole model) or more"
            raise OptionError(message)
        try:
            self.norm_type = float(norm_type)
        except ValueError:
            self.norm_type = math.nan
        if not self.norm_type > 0:
            message = f"norm_type = {norm_type!r}: must be above 0, or 'inf'"
            raise OptionError(message)
        self.every_updates, self.depth, self.weights, self.updates = every_updates, depth, weights, updates
        self._before: dict[str, Tensor] = {}
        if not updates:
            vars(self)["after_update"] = None  # nothing to do there: the hook is not even called

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Refuse a training without a model."""
        if trainer.model is None:
            message = "plugin 'grad_norms' needs a model, this training has none; take it out with -p no:grad_norms"
            raise UsageError(message)

    @hookimpl
    def gradients_ready(self, trainer: Trainer) -> None:
        """Measure the gradients, and the weights before the update."""
        self._before = {}  # of an update that was skipped
        if not trainer.every_n_updates(self.every_updates):
            return
        named = _named(trainer.model)
        self._log(trainer, "grad_norm", {name: p.grad for name, p in named.items() if p.grad is not None})
        weights = {name: p.detach() for name, p in named.items() if p.requires_grad}
        if self.weights:
            self._log(trainer, "weight_norm", weights)
        if self.updates:
            self._before = {name: weight.clone() for name, weight in weights.items()}

    @hookimpl
    def after_update(self, trainer: Trainer) -> None:
        """Compare the weights with those before the update."""
        before, self._before = self._before, {}
        if not before:
            return
        named = _named(trainer.model)
        changes = {name: named[name].detach() - weight for name, weight in before.items() if name in named}
        changed = self._norms(changes)
        for group, norm in self._norms({name: before[name] for name in changes}).items():
            trainer.log(f"update_ratio/{group}", changed[group] / norm)

    def _log(self, trainer: Trainer, kind: str, tensors: Mapping[str, Tensor]) -> None:
        for group, norm in self._norms(tensors).items():
            trainer.log(f"{kind}/{group}", norm)

    def _norms(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the norm of each module and that of all, on the device."""
        groups: dict[str, list[Tensor]] = {}
        for name, tensor in tensors.items():
            groups.setdefault(module_of(name, self.depth), []).append(_plain(tensor))
        if not groups:
            return {}
        norms = {group: get_total_norm(members, self.norm_type) for group, members in groups.items()}
        total = norms[_ALL] if self.depth == 0 else get_total_norm(_on_one_device(norms.values()), self.norm_type)
        named = {group if group != _ALL else "module.all": norm for group, norm in norms.items()} if self.depth else {}
        return {_ALL: total, **named}


def module_of(name: str, depth: int) -> str:
    """Return the module that a parameter is counted for: the first ``depth`` parts of its module's name.

    A parameter of the model itself stands for itself.
    """
    if depth == 0:
        return _ALL
    parts = name.split(".")
    return ".".join(parts[:-1][:depth]) or name


def _named(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by name, each once."""
    return dict(named_parameters(model))


def _plain(tensor: Tensor) -> Tensor:
    """Return what a norm can be taken of: the values of a sparse gradient, single precision for half."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _on_one_device(norms: Iterable[Tensor]) -> Sequence[Tensor]:
    norms = list(norms)
    return [norm.to(norms[0].device) for norm in norms]
