"""The state of an optimizer by the names of its parameters, so that none gets what belongs to another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from .errors import CheckpointError

if TYPE_CHECKING:
    import torch
    from torch import nn, optim

    from .types import StateDict

_OPTIONS: Final = (
    *("lr", "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "amsgrad", "maximize"),
    *("alpha", "centered", "rho", "lr_decay"),
)
#: Names of parameters whose state has another dtype than they have, which torch would give it.
_OWN_DTYPES: Final = "own_dtypes"


class ByName:
    """Saves and restores an optimizer; its parameters are known by their names in the model, not by their place.

    Names are those of ``model.named_parameters()``; a parameter that the model does not have is named by group and place.
    A group that was added while training (a layer that was unfrozen) is added again. An optimizer whose ``state_dict`` is not
    like torch's is left to do it in its own way.

    Args:
        optimizer: Restored in place.
        model: Gives the names; may be ``None``.
    """

    def __init__(self, optimizer: optim.Optimizer, model: nn.Module | None) -> None:
        self.optimizer = optimizer
        self.model = model

    def state_dict(self) -> StateDict:
        """Return torch's state with names in the place of numbers."""
        state: StateDict = self.optimizer.state_dict()
        if not _is_usual(state):
            return state
        names = {number: name for group in self._names() for number, name in group}
        groups = [
            {
                **{key: value for key, value in group.items() if key != "param_names"},
                "params": [names[one] for one in group["params"]],
            }
            for group in state["param_groups"]
        ]
        parameters = self._parameters()
        own = [
            names[key]
            for key, values in state["state"].items()
            if key in names and _differ(values, parameters[names[key]].dtype)
        ]
        named = {names.get(key, key): value for key, value in state["state"].items()}
        return {**state, "state": named, "param_groups": groups, **({_OWN_DTYPES: own} if own else {})}

    def load_state_dict(self, state: StateDict) -> None:
        """Give each parameter what was saved under its name.

        Raises:
            CheckpointError: The parameters, or how they are grouped, are not those of the checkpoint.
        """
        if not _is_usual(self.optimizer.state_dict()) or not _is_usual(state):
            self.optimizer.load_state_dict(state)
            return
        self._add_groups(state)
        present = self._names()
        saved = {frozenset(group["params"]): group for group in state["param_groups"]}
        _check(present, saved)
        self._check_kind(state["param_groups"])
        groups = []
        for group in present:
            its = saved[frozenset(name for _, name in group)]
            groups.append({**its, "params": [number for number, _ in group]})
        numbers = {name: number for group in present for number, name in group}
        values = {numbers.get(name, name): value for name, value in state["state"].items()}
        usual = {key: value for key, value in state.items() if key != _OWN_DTYPES}
        self.optimizer.load_state_dict({**usual, "state": values, "param_groups": groups})
        parameters = self._parameters()
        for name in state.get(_OWN_DTYPES, ()):
            its = self.optimizer.state[parameters[name]]
            for key, value in state["state"][name].items():
                if _has_dtype(key, value) and its[key].dtype != value.dtype:
                    its[key] = value.to(its[key].device, copy=True)

    def _check_kind(self, groups: list[dict[str, Any]]) -> None:
        """Refuse the groups of another kind of optimizer, which torch takes, to fail in the first step.

        An option that is no number may be new in this version of torch, which adds it.
        """
        needed = {key for key, value in getattr(self.optimizer, "defaults", {}).items() if _is_numeric(value)}
        lacking = sorted(needed.difference(*groups)) if groups else []
        if lacking:
            message = (
                f"the checkpoint's state of the optimizer is that of another kind: it has no {', '.join(lacking)}, which "
                f"{type(self.optimizer).__name__} needs; give the same optimizer, or start a new run from the weights"
            )
            raise CheckpointError(message)

    def differences(self, state: StateDict) -> list[str]:
        """Return a sentence for each option of a group that is given another value than the one saved, which is used.

        Of a rate that a schedule changes the one that it started from is compared.

        Raises:
            CheckpointError: A value is of no type that an option has.
        """
        try:
            return self._differences(state)
        except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
            message = f"the checkpoint's state of the optimizer does not fit: {error}"
            raise CheckpointError(message) from error

    def _differences(self, state: StateDict) -> list[str]:
        sentences: dict[str, None] = {}
        if not _is_usual(state):
            return []
        for saved, given in zip(state["param_groups"], self.optimizer.param_groups, strict=False):
            for key in (key for key in _OPTIONS if key in saved and key in given):
                was, now = _base(saved, key), _base(given, key)
                if not _equal(was, now):
                    sentences[f"{key} saved {_short(was)}, given {_short(now)}, using {_short(was)}"] = None
        return list(sentences)

    def _names(self) -> list[list[tuple[int, str]]]:
        """Return number and name of each parameter, by group, as torch numbers them."""
        known = {id(one): name for name, one in self.model.named_parameters()} if self.model is not None else {}
        groups: list[list[tuple[int, str]]] = []
        number = 0
        for place, group in enumerate(self.optimizer.param_groups):
            named = []
            for index, parameter in enumerate(group["params"]):
                named.append((number, known.get(id(parameter), f"#{place}.{index}").replace("_orig_mod.", "")))
                number += 1
            groups.append(named)
        return groups

    def _parameters(self) -> dict[str, nn.Parameter]:
        """Return the optimizer's parameters by name."""
        parameters = [one for group in self.optimizer.param_groups for one in group["params"]]
        return {name: parameters[number] for group in self._names() for number, name in group}

    def _add_groups(self, state: StateDict) -> None:
        """Add the groups that the saved optimizer has and this one has not, where the model has their parameters."""
        present = {name for group in self._names() for _, name in group}
        known = (
            {name.replace("_orig_mod.", ""): one for name, one in self.model.named_parameters()}
            if self.model is not None
            else {}
        )
        for group in state["param_groups"]:
            names = group["params"]
            if names and all(name in known and name not in present for name in names):
                self.optimizer.add_param_group({**group, "params": [known[name] for name in names]})


def _check(present: list[list[tuple[int, str]]], saved: dict[frozenset[str], dict[str, Any]]) -> None:
    here = {name for group in present for _, name in group}
    there = {name for names in saved for name in names}
    if here != there:
        parts = [
            f"{what} {', '.join(sorted(names))}"
            for what, names in (("missing", here - there), ("unexpected", there - here))
            if names
        ]
        message = f"the checkpoint's state of the optimizer has other parameters: {'; '.join(parts)}"
        raise CheckpointError(message)
    for group in present:
        names = frozenset(name for _, name in group)
        if names not in saved:
            message = (
                f"the optimizer groups its parameters in another way than the checkpoint's: {', '.join(sorted(names))} were not one "
                "group; give it the same groups"
            )
            raise CheckpointError(message)


def _is_usual(state: object) -> bool:
    if (
        not isinstance(state, dict)
        or not isinstance(state.get("state"), dict)
        or not isinstance(state.get("param_groups"), list)
    ):
        return False
    return all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in state["param_groups"])


def _differ(values: Any, dtype: torch.dtype) -> bool:
    return isinstance(values, dict) and any(_has_dtype(key, value) and value.dtype != dtype for key, value in values.items())


def _has_dtype(key: str, value: object) -> bool:
    """Return whether it is a tensor that torch gives the dtype of its parameter; not so a count of steps."""
    return isinstance(value, Tensor) and key != "step"


def _is_numeric(value: object) -> bool:
    values = value if isinstance(value, tuple | list) and value else [value]
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)


def _base(group: dict[str, Any], key: str) -> Any:
    if key == "lr" and "lr" in group:
        return group.get("initial_lr", group["lr"] / group.get("lr_scale", 1.0))
    return group.get(key)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def _short(value: Any) -> str:
    return str(value) if value is None or isinstance(value, tuple | list | bool) else f"{float(value):g}"
