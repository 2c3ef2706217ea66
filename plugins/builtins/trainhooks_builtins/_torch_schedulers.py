"""torch's own schedulers, stepped by counters and saved with the run; no plugin."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any, Final

from trainhooks import OptionError, UsageError
from trainhooks.optimizers import group_names, saved_places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from torch.optim import Optimizer

log = logging.getLogger("trainhooks")

#: What torch's schedulers keep for each parameter group.
_BY_GROUP: Final = ("base_lrs", "max_lrs", "base_momentums", "max_momentums", "lr_lambdas", "_last_lr")


class TorchSchedulers:
    """Steps torch's schedulers, and multiplies what they set by a group's ``lr_scale``.

    They work out a rate from the one before, so that each group keeps the unscaled one as ``unscaled_lr``. What they keep for
    each group is saved with the names of its parameters, so that it is that group's wherever it stands in a resumed run.

    Args:
        given: A scheduler, or a function that makes one for each optimizer.
        optimizers: Those of the run.
        model: Gives the names; may be ``None``.
    """

    def __init__(self, given: Any, optimizers: Mapping[str, Optimizer], model: nn.Module | None = None) -> None:
        self._model = model
        if not makes_one(given):
            self._schedulers = [given]
            if not any(given.optimizer is one for one in optimizers.values()):
                message = (
                    "lr.torch_scheduler was made for another optimizer than the run has; give the function that makes it "
                    "instead: torch_scheduler=lambda optimizer: StepLR(optimizer, 30)"
                )
                raise UsageError(message)
        else:
            self._schedulers = [given(optimizer) for optimizer in optimizers.values()]
        for scheduler in self._schedulers:
            check(scheduler)
        self._first = [[float(group["lr"]) for group in one.optimizer.param_groups] for one in self._schedulers]
        self._stepped = 0
        self._ended = False
        self.apply_scale()

    @property
    def name(self) -> str:
        """Name of the first one's class."""
        return type(self._schedulers[0]).__name__

    def step_to(self, count: int) -> None:
        """Step until ``count`` steps have been made since the run began, but not beyond the last one that a scheduler has."""
        if self._stepped >= count:
            return
        for scheduler, rates in zip(self._schedulers, self._first, strict=True):
            for index, group in enumerate(scheduler.optimizer.param_groups):
                if self._stepped or index >= len(rates):
                    _set(group, group.get("unscaled_lr", group["lr"]))
                else:  # it catches up in a run that was resumed without it, from its own first rate
                    _set(group, rates[index])
            for number in range(self._stepped, count):
                total = getattr(scheduler, "total_steps", None)  # OneCycleLR goes up again after its last one, then raises
                if total is not None and scheduler.last_epoch + 1 >= total:
                    self._warn_beyond(scheduler, total, count)
                    break
                if number:
                    scheduler.step()
                else:  # torch warns of a first step before the optimizer's, which a resumed run may have made long ago
                    with warnings.catch_warnings():
                        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                        scheduler.step()
            for group in scheduler.optimizer.param_groups:
                group.pop("unscaled_lr", None)
        self._stepped = count
        self.apply_scale()

    def _warn_beyond(self, scheduler: Any, total: int, count: int) -> None:
        if count > total and not self._ended:
            self._ended = True
            log.warning(
                "lr: %s has ended after %d steps and the run goes on: its last rate stays", type(scheduler).__name__, total
            )

    def apply_scale(self) -> None:
        """Set each rate to the scheduler's times the group's ``lr_scale``."""
        for scheduler in self._schedulers:
            for group in scheduler.optimizer.param_groups:
                rate = group.setdefault("unscaled_lr", float(group["lr"]))
                _set(group, rate * group.get("lr_scale", 1.0))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each scheduler, the groups that it is of, and how often they were stepped."""
        states, groups = [one.state_dict() for one in self._schedulers], self._groups()
        return {"stepped": self._stepped, "schedulers": states, "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self._stepped = state["stepped"]
        present = self._groups()
        saved = state.get("groups", present)  # before version 0.2 they had to stay where they were
        for scheduler, one, then, now in zip(self._schedulers, state["schedulers"], saved, present, strict=True):
            places = saved_places(then, now)
            known = [place for place in places if place is not None]
            scheduler.load_state_dict(_reordered(one, known) if len(known) == len(then) else one)

    def _groups(self) -> list[list[list[str]]]:
        return [group_names(one.optimizer, self._model) for one in self._schedulers]


def _reordered(state: dict[str, Any], places: list[int]) -> dict[str, Any]:
    """Return the state of a scheduler, and of those that it consists of, with each group's values in its present place."""
    changed: dict[str, Any] = {
        key: [state[key][place] for place in places if place < len(state[key])]
        for key in _BY_GROUP
        if isinstance(state.get(key), list)
    }
    if isinstance(parts := state.get("_schedulers"), list):
        changed["_schedulers"] = [_reordered(part, places) for part in parts]
    return {**state, **changed}


def makes_one(given: Any) -> bool:
    """Return whether ``given`` is a function of the optimizer that makes a scheduler, or a class of them."""
    return callable(given) and (isinstance(given, type) or not hasattr(given, "step"))


def check(scheduler: Any) -> None:
    """Refuse what is no scheduler that steps without a metric.

    Raises:
        OptionError: It is none.
    """
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    if isinstance(scheduler, ReduceLROnPlateau):
        message = "lr.torch_scheduler = ReduceLROnPlateau: it follows a metric; use the plugin 'plateau'"
        raise OptionError(message)
    if not all(hasattr(scheduler, name) for name in ("step", "state_dict", "load_state_dict", "optimizer")):
        message = f"lr.torch_scheduler = {scheduler!r}: must be a scheduler of torch.optim.lr_scheduler, or a function of the optimizer that returns one"
        raise OptionError(message)


def _set(group: dict[str, Any], rate: float) -> None:
    if hasattr(group["lr"], "fill_"):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
