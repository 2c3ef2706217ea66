"""``clip``: a limit on the gradients of each update."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

from trainhooks import OptionError, hookimpl

from ._gradients import gradients_of, multiply, with_gradient

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    from trainhooks import Trainer


class Clip:
    """Limits the gradients of an update, and logs their norm as it was before, ``grad_norm``.

    With ``max_norm`` all gradients are multiplied by ``min(1, max_norm / (norm + 1e-6))``, ``norm`` being that of all of
    them together, as ``torch.nn.utils.clip_grad_norm_`` does (Pascanu et al. 2013). With ``max_value`` every element is
    brought into ``[-max_value, max_value]``. With ``adaptive`` each row of a weight (all of a vector) that has a norm above
    ``adaptive * max(norm of the row's weights, eps)`` is shortened to that (adaptive gradient clipping, Brock et al. 2021).

    Gradients that are not finite stay so: nothing is brought over to the host to look.

    Args:
        max_norm: Largest norm; 1 if none of the three is given.
        max_value: Or largest absolute value of an element.
        adaptive: Or largest ratio of a row's gradient to its weights; the paper uses 0.01 to 0.16.
        norm_type: ``p`` of the p-norm that is limited by ``max_norm`` and logged, or ``inf`` for the largest absolute value.
        per: What ``max_norm`` applies to: ``all`` gradients together, those of each ``optimizer``, or of each parameter
            ``group``. The parts' norms are logged as ``clip/NAME`` and ``clip/NAME/INDEX``.
        eps: For ``adaptive``: the norm that weights are taken to have at least, so that those that are zero can change.
    """

    phase = "algorithm"

    def __init__(
        self,
        max_norm: float | None = None,
        max_value: float | None = None,
        adaptive: float | None = None,
        norm_type: float | Literal["inf"] = 2.0,
        per: Literal["all", "optimizer", "group"] = "all",
        eps: float = 1e-3,
    ) -> None:
        given = {"max_norm": max_norm, "max_value": max_value, "adaptive": adaptive}
        given = {name: value for name, value in given.items() if value is not None} or {"max_norm": 1.0}
        if len(given) > 1:
            message = f"give one of max_norm, max_value and adaptive, not {' and '.join(given)}"
            raise OptionError(message)
        norm = math.inf if norm_type == "inf" else float(norm_type)
        for name, value in {**given, "norm_type": norm, "eps": eps}.items():
            if value is not None and not value > 0:
                message = f"{name} = {value}: must be above 0"
                raise OptionError(message)
        if per not in ("all", "optimizer", "group") or (per != "all" and "max_norm" not in given):
            message = f"per = {per!r}: 'all', or with max_norm 'optimizer' or 'group'"
            raise OptionError(message)
        self.max_norm, self.max_value, self.adaptive = (given.get(name) for name in ("max_norm", "max_value", "adaptive"))
        self.norm_type, self.per, self.eps = norm, per, eps

    @hookimpl
    def clip_gradients(self, trainer: Trainer) -> Tensor | None:
        """Clip, log the norm before, and return it; nothing if no parameter has a gradient."""
        norms = {}
        for name, parameters in self._parts(trainer.optimizers).items():
            gradients = gradients_of(parameters, coalesced=True)
            norms[name] = norm = torch.nn.utils.get_total_norm(gradients, self.norm_type)
            if self.max_norm is not None:
                multiply(gradients, torch.clamp(self.max_norm / (norm + 1e-6), max=1.0))
            elif self.max_value is not None:
                torch._foreach_clamp_min_(gradients, -self.max_value)
                torch._foreach_clamp_max_(gradients, self.max_value)
            elif self.adaptive is not None:
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    clip_rows(parameter, gradient, self.adaptive, self.eps)
        if not norms:
            return None
        total = torch.nn.utils.get_total_norm(norms.values(), self.norm_type) if self.per != "all" else norms["all"]
        trainer.log("grad_norm", total, reduce="last")
        if self.per != "all":
            trainer.log_dict({f"clip/{name}": norm for name, norm in norms.items()}, reduce="last")
        return total

    def _parts(self, optimizers: Mapping[str, Optimizer]) -> dict[str, list[Tensor]]:
        """Return the parameters that are clipped together, by name; each once, and only those with gradients."""
        if self.per == "all":
            parts = {"all": with_gradient(optimizers.values())}
        elif self.per == "optimizer":
            parts = {name: with_gradient([optimizer]) for name, optimizer in optimizers.items()}
        else:
            parts = {
                f"{name}/{index}": [one for one in group["params"] if one.grad is not None]
                for name, optimizer in optimizers.items()
                for index, group in enumerate(optimizer.param_groups)
            }
        return _disjoint(parts)


def _disjoint(parts: Mapping[str, Iterable[Tensor]]) -> dict[str, list[Tensor]]:
    """Leave a parameter that several parts hold to the first; drop parts that are empty."""
    seen: set[int] = set()
    disjoint = {}
    for name, parameters in parts.items():
        own = [one for one in parameters if id(one) not in seen]
        seen.update(map(id, own))
        if own:
            disjoint[name] = own
    return disjoint


@torch.no_grad()
def clip_rows(parameter: Tensor, gradient: Tensor, ratio: float, eps: float) -> None:
    """Shorten the rows of a gradient in place (Brock et al. 2021, equation 3).

    Args:
        parameter: The weights; a row is what one output is computed from: all dimensions but the first.
        gradient: Of the same shape, or the values of a sparse one.
        ratio: Largest norm of a row of the gradient, as a multiple of that of the weights.
        eps: Norm that weights are taken to have at least.
    """
    weights = parameter.detach()
    if parameter.grad is not None and parameter.grad.layout is torch.sparse_coo:
        weights = weights[parameter.grad._indices()[0]]  # an embedding: the rows that have a gradient
    most = ratio * _row_norms(weights).clamp_min(eps)
    norms = _row_norms(gradient)
    gradient.mul_(torch.where(norms > most, most / norms, 1.0))


def _row_norms(tensor: Tensor) -> Tensor:
    norms: Tensor
    if tensor.ndim <= 1:
        norms = torch.linalg.vector_norm(tensor)
    else:
        norms = torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.ndim)), keepdim=True)
    return norms
