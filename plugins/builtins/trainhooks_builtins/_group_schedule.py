"""What ``lr``, ``momentum`` and ``weight_decay`` have in common: one value of every parameter group follows a schedule; no plugin."""

from __future__ import annotations

import math
from collections.abc import Callable  # noqa: TC003 - option types are read when a run starts
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from trainhooks import OptionError, UsageError, hookimpl

from ._schedule_lengths import check_lengths
from ._schedule_options import SCHEDULES, read_schedule
from ._schedule_plan import make_plan, warn_beyond
from ._schedules import Schedule, warmup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trainhooks import Trainer

_ROUNDING = 1e-12  # how far below 0 a value of somebody's own formula may be

By = Literal["update", "step", "epoch"]
Warmup = Literal["linear", "constant", "exp"]


class GroupSchedule:
    """Sets one value of each parameter group, from the value that the group had at first and from progress alone.

    The options are described in the classes that take them.
    """

    phase = "algorithm"
    #: Name of the plugin, of the metric and, unless ``read`` and ``write`` say otherwise, of the group's value.
    key: ClassVar[str]
    #: Schedules by name.
    known: ClassVar[Mapping[str, Callable[..., Schedule]]] = SCHEDULES
    #: Whether a warmup divides the value, instead of multiplying it.
    divides: ClassVar[bool] = False
    #: Whether every group of every optimizer has the value.
    in_every_group: ClassVar[bool] = False
    #: Whether a group whose value is 0 is left alone.
    keeps_zero: ClassVar[bool] = False
    #: What every value must be below.
    below: ClassVar[float] = math.inf

    def __init__(
        self,
        schedule: str | list[dict[str, Any]] | Callable[..., float] = "cosine",
        args: dict[str, Any] | None = None,
        base: float | None = None,
        end: float = 0.0,
        by: By = "update",
        warmup: Warmup = "linear",
        warmup_updates: int = 0,
        warmup_epochs: float = 0.0,
        warmup_ratio: float = 0.0,
        warmup_start: float = 0.0,
        warmup_overlaps: bool = False,
        total_updates: int | None = None,
        total_epochs: int | None = None,
        groups: list[int | str] | None = None,
    ) -> None:
        for name, value, values in (("by", by, get_args(By)), ("warmup", warmup, get_args(Warmup))):
            if value not in values:
                message = f"{self.key}.{name} = {value!r}: must be one of {', '.join(values)}"
                raise OptionError(message)
        if not 0 <= warmup_start <= 1:
            message = f"warmup_start = {warmup_start}: must be between 0 and 1"
            raise OptionError(message)
        if not (end >= 0 and math.isfinite(end)):
            message = f"end = {end}: must be 0 or more"
            raise OptionError(message)
        if base is not None and not (base >= 0 and math.isfinite(base)):
            message = f"base = {base}: must be 0 or more"
            raise OptionError(message)
        if (warmup_updates or warmup_epochs or warmup_ratio) and warmup_start == 0 and (warmup == "exp" or self.divides):
            why = "divides by it" if self.divides else "is a power of it"
            message = f"warmup_start = 0: must be above 0 for {self.key}.warmup = {warmup!r}, which {why}"
            raise OptionError(message)
        check_lengths(self.key, by, (warmup_updates, warmup_epochs, warmup_ratio), total_updates, total_epochs)
        self._parts = read_schedule(schedule, args, end, by, self.known, self.key)
        self.schedule, self.args, self.base, self.end, self.by = schedule, args, base, end, by
        self.warmup, self.warmup_start, self.warmup_overlaps = warmup, warmup_start, warmup_overlaps
        self.warmup_updates, self.warmup_epochs, self.warmup_ratio = warmup_updates, warmup_epochs, warmup_ratio
        self.total_updates, self.total_epochs, self.groups = total_updates, total_epochs, groups
        self._schedule = self._parts[0].schedule
        self._warmup = self._start = self._length = 0
        self._initial, self._scale = f"initial_{self.key}", f"{self.key}_scale"
        self._planned = False
        self._step = 0  # whose value is set, by steps
        self._warns_at = math.inf
        for hook, unit in (("before_step", "step"), ("before_epoch", "epoch")):
            if by != unit:
                vars(self)[hook] = None  # nothing to do: the hook is not even called

    # --- What is read and written ---

    def read(self, group: Mapping[str, Any]) -> Any:
        """Return the value of a parameter group, or ``None`` if it has none."""
        return group.get(self.key)

    def write(self, group: dict[str, Any], value: float) -> None:
        """Set the value of a parameter group."""
        group[self.key] = assigned(group[self.key], value)

    def value(self, update: int, progress: int, base: float) -> float:
        """Return the value for a group with the given base, as planned for the run.

        Args:
            update: Index of the update, for the warmup.
            progress: What the schedule counts, from the start of the run.
            base: The group's own value.
        """
        at = max(progress - self._start, 0)
        if self._schedule.bounded and at > self._length:
            at = self._length
        value = self._schedule.value(at, self._length, base)
        return value if update >= self._warmup else self._warmed(update, value)

    def decided_settings(self, state: Any) -> tuple[str, ...]:
        """Return the option of the optimizer that is not what the optimizer was given: ``base`` takes its place."""
        return () if self.base is None else (self.key,)

    # --- Hooks ---

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Work out the lengths, say what is planned, and set the first value."""
        self._require_groups(trainer)
        self._plan(trainer)
        if self.base is not None:
            for group in self._groups(trainer):
                group[self._initial] = self.base
        self._step = max(trainer.step - 1, 0)  # whose value stays until the next one begins
        self._apply(trainer, trainer.update, self._progress(trainer))

    @hookimpl
    def before_epoch(self, trainer: Trainer) -> None:
        """Set the value of an epoch."""
        if not self._planned:
            self._plan(trainer)
        if trainer.epoch >= self._warns_at:
            self._warn_beyond()
        self._apply(trainer, trainer.update, trainer.epoch)

    @hookimpl
    def before_step(self, trainer: Trainer) -> None:
        """Set the value of a step."""
        if not self._planned:
            self._plan(trainer)
        self._step = trainer.step
        if trainer.step >= self._warns_at:
            self._warn_beyond()
        self._apply(trainer, trainer.update, trainer.step)

    @hookimpl
    def after_update(self, trainer: Trainer) -> None:
        """Log the value that was in force and set the next one."""
        if trainer.reporter is not None:
            for group in self._groups(trainer):
                trainer.log(self.key, self.read(group), reduce="last")
                break
        if not self._planned:  # registered while the training runs
            self._plan(trainer)
        update = trainer.update
        if self.by == "update":
            if update >= self._warns_at:
                self._warn_beyond()
            self._apply(trainer, update + 1, update + 1)
        elif update < self._warmup:
            self._apply(trainer, update + 1, self._progress(trainer))

    # --- Values ---

    def _progress(self, trainer: Trainer) -> int:
        return trainer.update if self.by == "update" else self._step if self.by == "step" else trainer.epoch

    def _warmed(self, update: int, value: float) -> float:
        factor = warmup(self.warmup, self.warmup_start, update, self._warmup)
        return value / factor if self.divides else value * factor

    def _apply(self, trainer: Trainer, update: int, progress: int) -> None:
        relative = self._schedule.relative
        factor = self.value(update, progress, 1.0) if relative else 0.0
        initial, scale = self._initial, self._scale
        for group in self._groups(trainer):
            base = self.base
            if base is None:
                base = group[initial] if initial in group else self._base_of(group)
            if base == 0 and self.keeps_zero:
                continue
            value = factor * base if relative else self.value(update, progress, base)
            if scale in group:
                value *= group[scale]
            if not -_ROUNDING < value < self.below:
                message = (
                    f"{self.key}.schedule gives {value:g} at update {update}, which is not in [0, {self.below:g}); "
                    "look at its parameters, its end and the warmup"
                )
                raise UsageError(message)
            self.write(group, value)

    def _groups(self, trainer: Trainer) -> Iterable[dict[str, Any]]:
        """Return the parameter groups that the schedule is for and that have the value."""
        if self.groups is None and self.in_every_group and len(trainer.optimizers) == 1:
            for optimizer in trainer.optimizers.values():
                return optimizer.param_groups
        return self._wanted_groups(trainer)

    def _wanted_groups(self, trainer: Trainer) -> Iterator[dict[str, Any]]:
        index = -1
        for optimizer in trainer.optimizers.values():
            for group in optimizer.param_groups:
                index += 1
                wanted = self.groups is None or index in self.groups or group.get("name") in self.groups
                if wanted and self.read(group) is not None:
                    yield group

    def _base_of(self, group: dict[str, Any]) -> float:
        """Return the value that a group had before any schedule, kept under the name that torch's schedulers give it."""
        base = group[self._initial] = float(self.read(group))
        return base

    def _require_groups(self, trainer: Trainer) -> None:
        if not trainer.optimizers:
            message = (
                f"plugin {self.key!r} needs an optimizer whose value it can set, this training has none; "
                f"take it out with -p no:{self.key}"
            )
            raise UsageError(message)
        groups = [group for optimizer in trainer.optimizers.values() for group in optimizer.param_groups]
        names = [group["name"] for group in groups if "name" in group]
        for one in self.groups or ():
            if one not in names and not (isinstance(one, int) and 0 <= one < len(groups)):
                message = f"{self.key}.groups: there is no parameter group {one!r}; there are 0 to {len(groups) - 1}, named: {', '.join(map(str, names)) or 'none'}"
                raise UsageError(message)
        self._refuse_rivals(trainer)
        if next(iter(self._groups(trainer)), None) is None:
            message = (
                f"plugin {self.key!r}: no parameter group of the optimizer has such a value; take it out with -p no:{self.key}"
            )
            raise UsageError(message)

    def _refuse_rivals(self, trainer: Trainer) -> None:
        """Refuse a second schedule of the same value of the same group, of which one would win without a word."""
        own = {id(group) for group in self._groups(trainer)}
        plugins = trainer.plugins
        mine = next((name for name, plugin in plugins.items() if plugin is self), self.key)
        for name, plugin in plugins.items():
            rival = plugin is not self and isinstance(plugin, GroupSchedule) and plugin.key == self.key
            if rival and own & {id(group) for group in plugin._groups(trainer)}:
                message = (
                    f"plugins {mine!r} and {name!r} both set {self.key!r} of the same parameter group; give each its own with "
                    "groups, or take one out"
                )
                raise UsageError(message)

    # --- Lengths ---

    def _plan(self, trainer: Trainer) -> None:
        self._planned = True
        plan = make_plan(trainer, self, self._parts)
        self._schedule, self._warmup, self._start, self._length, self._warns_at = plan

    def _warn_beyond(self) -> None:
        warn_beyond(self, self._parts, self._start + self._length)
        self._warns_at = math.inf


def assigned(old: Any, value: float) -> Any:
    """Return what to put in the place of ``old``: a tensor is filled, since a captured or compiled optimizer holds on to it."""
    if hasattr(old, "fill_"):
        old.fill_(value)
        return old
    return value
