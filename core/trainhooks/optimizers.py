"""The state of an optimizer by the names of its parameters, so that none gets what belongs to another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, optim
from torch._C._autograd import _profiler_enabled

from .checked_state import name_differences
from .compiled import named_parameters
from .errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection

    import torch
    from torch import nn

    from .types import StateDict

_OPTIONS: Final = (
    *("lr", "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "amsgrad", "maximize"),
    *("alpha", "centered", "rho", "lr_decay"),
)
#: Compared with, so that an optimizer that clears in its own way does so, and one whose method was replaced.
_TORCHS_ZERO_GRAD: Final = optim.Optimizer.zero_grad
#: Names of parameters whose state has another dtype than they have, which torch would give it.
_OWN_DTYPES: Final = "own_dtypes"
#: Name of the optimizer's class.
_CLASS: Final = "class"


def clear_gradients(optimizer: optim.Optimizer) -> None:
    """Do what ``optimizer.zero_grad()`` does, without the label for profiles that takes torch's most of its time.

    While a profiler runs, and for an optimizer that has its own way, ``zero_grad`` is called.
    """
    if getattr(optimizer.zero_grad, "__func__", None) is not _TORCHS_ZERO_GRAD or _profiler_enabled():
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


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
        known = {"state": named, "param_groups": groups, _CLASS: type(self.optimizer).__name__}
        return {**state, **known, **({_OWN_DTYPES: own} if own else {})}

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
        self._check_kind(state)
        groups = []
        for group in present:
            its = saved[frozenset(name for _, name in group)]
            groups.append({**its, "params": [number for number, _ in group]})
        numbers = {name: number for group in present for number, name in group}
        values = {numbers.get(name, name): value for name, value in state["state"].items()}
        usual = {key: value for key, value in state.items() if key not in (_OWN_DTYPES, _CLASS)}
        self.optimizer.load_state_dict({**usual, "state": values, "param_groups": groups})
        parameters = self._parameters()
        for name in state.get(_OWN_DTYPES, ()):
            its = self.optimizer.state[parameters[name]]
            for key, value in state["state"][name].items():
                if _has_dtype(key, value) and its[key].dtype != value.dtype:
                    its[key] = value.to(its[key].device, copy=True)

    def _check_kind(self, state: StateDict) -> None:
        """Refuse the state of another kind of optimizer, which torch takes, to fail in the first step or to train on with half of it.

        Kinds that torch does not have are told by their options only: a class of one's own may be renamed, or stand for another.
        An option that is no number may be new in this version of torch, which adds it.
        """
        groups, given = state["param_groups"], type(self.optimizer)
        needed = {key for key, value in getattr(self.optimizer, "defaults", {}).items() if _is_numeric(value)}
        lacking = sorted(needed.difference(*groups)) if groups else []
        why = f"it has no {', '.join(lacking)}, which {given.__name__} needs" if lacking else None
        saved = state.get(_CLASS, given.__name__)
        if why is None and saved != given.__name__ and all(hasattr(optim, name) for name in (saved, given.__name__)):
            why = f"of {saved}, the optimizer is {given.__name__}"
        if why is not None:
            message = (
                f"the checkpoint's state of the optimizer is that of another kind: {why}; give the same optimizer, or start a new "
                "run from the weights"
            )
            raise CheckpointError(message)

    def differences(self, state: StateDict, decided: Collection[str] = ()) -> list[str]:
        """Return a sentence for each option of a group that is given another value than the one saved, which is used.

        Of one that a schedule changes the value that it started from is compared.

        Args:
            state: That was saved.
            decided: Options that are not compared, since a plugin sets them whatever is given.

        Raises:
            CheckpointError: A value is of no type that an option has.
        """
        try:
            return self._differences(state, decided)
        except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
            message = f"the checkpoint's state of the optimizer does not fit: {error}"
            raise CheckpointError(message) from error

    def _differences(self, state: StateDict, decided: Collection[str]) -> list[str]:
        sentences: dict[str, None] = {}
        if not _is_usual(state):
            return []
        kind, its_own = state.get(_CLASS), type(self.optimizer).__name__
        if kind not in (None, its_own):
            sentences[f"class saved {kind}, given {its_own}, using {its_own}"] = None
        groups = {frozenset(group["params"]): group for group in state["param_groups"]}
        for given, names in zip(self.optimizer.param_groups, self._names(), strict=True):
            saved = groups.get(frozenset(name for _, name in names), {})
            for key in (key for key in _OPTIONS if key in saved and key in given and key not in decided):
                was, now = _base(saved, key), _base(given, key)
                if not _equal(was, now):
                    sentences[f"{key} saved {_short(was)}, given {_short(now)}, using {_short(was)}"] = None
        return list(sentences)

    def _names(self) -> list[list[tuple[int, str]]]:
        """Return number and name of each parameter, by group, as torch numbers them."""
        known = {id(one): name for name, one in named_parameters(self.model)} if self.model is not None else {}
        groups: list[list[tuple[int, str]]] = []
        number = 0
        for place, group in enumerate(self.optimizer.param_groups):
            named = []
            for index, parameter in enumerate(group["params"]):
                named.append((number, known.get(id(parameter), f"#{place}.{index}")))
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
        known = dict(named_parameters(self.model)) if self.model is not None else {}
        for group in state["param_groups"]:
            names = group["params"]
            if names and all(name in known and name not in present for name in names):
                self.optimizer.add_param_group({**group, "params": [known[name] for name in names]})


def group_names(optimizer: optim.Optimizer, model: nn.Module | None) -> list[list[str]]:
    """Return the names of the parameters of each group, as checkpoints have them."""
    return [[name for _, name in group] for group in ByName(optimizer, model)._names()]


def saved_places(saved: list[list[str]], present: list[list[str]]) -> list[int | None]:
    """Return where each present group was among the saved ones, by the names of its parameters; ``None`` for one that was not.

    Args:
        saved: The names of each group then.
        present: And now.
    """
    places = {frozenset(names): place for place, names in enumerate(saved)}
    return [places.get(frozenset(names)) for names in present]


def _check(present: list[list[tuple[int, str]]], saved: dict[frozenset[str], dict[str, Any]]) -> None:
    here = {name for group in present for _, name in group}
    there = {name for names in saved for name in names}
    if here != there:
        message = f"the checkpoint's state of the optimizer has other parameters: {name_differences(here, there)}"
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
    if key in ("momentum", "betas"):  # the plugin 'momentum' keeps the one, torch's schedulers that cycle it the other
        first = group.get("initial_momentum", group.get("max_momentum"))
        return group.get(key) if first is None else first if key == "momentum" else (first, *group["betas"][1:])
    return group.get(f"initial_{key}", group.get(key))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def _short(value: Any) -> str:
    return str(value) if value is None or isinstance(value, tuple | list | bool) else f"{float(value):g}"
