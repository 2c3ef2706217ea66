"""``momentum``: the momentum of SGD, or the first beta of Adam and its relatives, on a schedule."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - option types are read when a run starts
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ._group_schedule import By, GroupSchedule, Warmup, assigned
from ._schedule_cycles import cyclic, one_cycle_momentum
from ._schedule_options import SCHEDULES
from ._schedules import Schedule, step

if TYPE_CHECKING:
    from collections.abc import Mapping


def _step(
    every: int | None = None, milestones: list[int] | None = None, gamma: float = 0.5, floor: float | None = None
) -> Schedule:
    return step(every, milestones, gamma, floor)


def _cyclic(
    target_ratio: tuple[float, float] = (0.85 / 0.95, 1.0),
    cyclic_times: int = 1,
    step_ratio_up: float = 0.4,
    anneal: Literal["cos", "linear"] = "cos",
    gamma: float = 1.0,
) -> Schedule:
    return cyclic(target_ratio, cyclic_times, step_ratio_up, anneal, gamma)


class Momentum(GroupSchedule):
    """Sets the momentum before each update: ``momentum`` of SGD and its relatives, ``betas[0]`` of Adam and its.

    The schedules are those of ``lr``, with other defaults for ``step`` and ``cyclic``, and ``one_cycle`` running against that of
    ``lr``: down from ``high`` to ``low`` while the rate rises, then up again (Smith and Topin 2018; as in MMCV and torch). A
    warmup divides the value by its factor, as MMCV does: it falls to the schedule's.

    Args:
        schedule: A name, a list of schedules one after the other, or a function of progress and total that returns a factor.
        args: Parameters of the schedule that is named.
        base: Momentum in place of the optimizer's own, for every parameter group.
        end: Factor at the end of the schedule, for those that have an end.
        by: What the schedule counts: updates, steps or epochs.
        warmup: How the divisor rises to 1.
        warmup_updates: Updates of the warmup.
        warmup_epochs: Or epochs, which may be fractions; the loader's length must be known.
        warmup_ratio: Or a share of the run.
        warmup_start: Divisor at the first update, above 0 and at most 1.
        warmup_overlaps: The schedule begins with the run, not after the warmup; by steps and epochs it always does.
        total_updates: Length of the schedule with its warmup; that of the run by default.
        total_epochs: Or in epochs.
        groups: Parameter groups to set, by index or by their ``name``; all by default.
    """

    key: ClassVar = "momentum"
    known: ClassVar = {**SCHEDULES, "step": _step, "cyclic": _cyclic, "one_cycle": one_cycle_momentum}
    divides: ClassVar = True
    below: ClassVar = 1.0

    def __init__(
        self,
        schedule: str | list[dict[str, Any]] | Callable[..., float] = "one_cycle",
        args: dict[str, Any] | None = None,
        base: float | None = None,
        end: float = 0.0,
        by: By = "update",
        warmup: Warmup = "linear",
        warmup_updates: int = 0,
        warmup_epochs: float = 0.0,
        warmup_ratio: float = 0.0,
        warmup_start: float = 0.95,
        warmup_overlaps: bool = False,
        total_updates: int | None = None,
        total_epochs: int | None = None,
        groups: list[int | str] | None = None,
    ) -> None:
        super().__init__(
            schedule,
            args,
            base,
            end,
            by,
            warmup,
            warmup_updates,
            warmup_epochs,
            warmup_ratio,
            warmup_start,
            warmup_overlaps,
            total_updates,
            total_epochs,
            groups,
        )

    def decided_settings(self, state: Any) -> tuple[str, ...]:
        """Return the options of the optimizer that are not what it was given: ``base`` takes their place."""
        return (*super().decided_settings(state), "betas") if self.base is not None else ()

    def read(self, group: Mapping[str, Any]) -> Any:
        """Return ``momentum``, or the first of ``betas``, or ``None``."""
        return group["momentum"] if "momentum" in group else group["betas"][0] if "betas" in group else None

    def write(self, group: dict[str, Any], value: float) -> None:
        """Set it."""
        if "momentum" in group:
            group["momentum"] = value
        else:
            group["betas"] = (assigned(group["betas"][0], value), *group["betas"][1:])
