"""What a schedule will do in a run, worked out and said before it begins; no plugin."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, NamedTuple

from trainhooks import UsageError

from ._schedule_lengths import run_length, updates_of
from ._schedule_options import compose, needs_total

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainhooks import Trainer

    from ._group_schedule import GroupSchedule
    from ._schedule_options import Part
    from ._schedules import Schedule

log = logging.getLogger("trainhooks")


class Plan(NamedTuple):
    """The schedule of a run and the lengths of its parts.

    Args:
        schedule: What follows the warmup.
        warmup: Updates of the warmup.
        start: Progress at which the schedule begins.
        length: Of the schedule from there, 0 if it has no end.
        warns_at: Progress at which it must be said that the schedule is over, where that is not known in advance.
    """

    schedule: Schedule
    warmup: int
    start: int
    length: int
    warns_at: float


def make_plan(trainer: Trainer, options: GroupSchedule, parts: Sequence[Part]) -> Plan:
    """Work out the lengths, and log what is planned.

    Raises:
        UsageError: A length that is needed is not known.
    """
    by, key = options.by, options.key
    run = run_length(trainer, by)
    total = _given_length(trainer, options) or run
    if total is None and needs_total(parts):
        message = (
            f"{key}.schedule = {_name(parts)!r} must know where it ends: set max_steps or max_updates, or "
            f"{key}.total_updates, since the length of the run is not known in {by}s"
        )
        raise UsageError(message)
    warmup = _warmup_length(trainer, options)
    start = 0 if options.warmup_overlaps or by != "update" else warmup
    left = None if total is None else max(total - start, 1)
    until = (lambda epochs: updates_of(trainer, epochs, key, "schedule")) if by == "update" else int
    schedule, own, starts = compose(parts, left, until)
    total = start + own if own else total
    plan = Plan(schedule, warmup, start, own or left or 0, math.inf)
    over = f" over {_counted(total, by)}" if total else ""
    warms = f", warmup {_counted(warmup, 'update')}" if warmup else ""
    args = ", ".join(f"{name} {value}" for name, value in (options.args or {}).items())
    log.info("%s: %s%s by %s%s%s", key, _name(parts), f" ({args})" if args else "", by, over, warms)
    _warn_of_long_warmup(key, parts, plan, trainer.total_updates, total if by == "update" else None)
    late = [part.name for part, begin in zip(parts[1:], starts[1:], strict=True) if 0 < (run or 0) <= start + begin]
    if late:
        log.warning("%s: the run has %s, so %s never starts", key, _counted(run or 0, by), ", ".join(late))
    if schedule.bounded and total is not None:
        if run is None or run <= total:  # which it may not keep to: a limit can be raised, epochs can become longer
            return plan._replace(warns_at=total)
        log.warning(
            "%s: the schedule %r ends after %s and the run has %d: its last value stays",
            *(key, _name(parts), _counted(total, by), run),
        )
    return plan


def warn_beyond(options: GroupSchedule, parts: Sequence[Part], total: int) -> None:
    """Say that the schedule is over and the run goes on."""
    log.warning(
        "%s: the schedule %r has ended after %s and the run goes on: its last value stays",
        *(options.key, _name(parts), _counted(total, options.by)),
    )


def _warn_of_long_warmup(key: str, parts: Sequence[Part], plan: Plan, run: int | None, schedule: int | None) -> None:
    """Say so if the updates of the run, or of the whole schedule, end within the warmup."""
    owner, updates = min((("run", run), ("schedule", schedule)), key=lambda one: one[1] or math.inf)
    if updates and updates <= plan.warmup:
        then = "so it is never over"
        if plan.start:
            then = f"so the schedule {_name(parts)!r} {'never starts' if owner == 'run' else 'is over when it begins'}"
        log.warning(
            "%s: the warmup takes %s and the %s has %d, %s",
            *(key, _counted(plan.warmup, "update"), owner, updates, then),
        )


def _given_length(trainer: Trainer, options: GroupSchedule) -> int | None:
    if options.total_epochs is not None and options.by == "update":
        return updates_of(trainer, options.total_epochs, options.key, "total_epochs")
    return options.total_epochs if options.by == "epoch" else options.total_updates


def _warmup_length(trainer: Trainer, options: GroupSchedule) -> int:
    key = options.key
    if options.warmup_epochs:
        return updates_of(trainer, options.warmup_epochs, key, "warmup_epochs")
    if options.warmup_ratio:
        total = (_given_length(trainer, options) if options.by == "update" else None) or trainer.total_updates
        if total is None:
            message = f"{key}.warmup_ratio needs a run whose length is known: set max_updates, or give {key}.warmup_updates"
            raise UsageError(message)
        return round(options.warmup_ratio * total)
    return options.warmup_updates


def _name(parts: Sequence[Part]) -> str:
    return ", ".join(part.name for part in parts)


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"
