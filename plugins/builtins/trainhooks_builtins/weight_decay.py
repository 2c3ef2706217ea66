"""``weight_decay``: the weight decay on a schedule."""

from __future__ import annotations

from typing import ClassVar

from ._group_schedule import GroupSchedule


class WeightDecay(GroupSchedule):
    """Sets the weight decay before each update, with the schedules and options of ``lr``.

    A group whose weight decay is 0 keeps it, since biases and norms are often left out on purpose.

    Args:
        schedule: A name, a list of schedules one after the other, or a function of progress and total that returns a factor.
        args: Parameters of the schedule that is named.
        base: Weight decay in place of the optimizer's own, for every parameter group.
        end: Factor at the end of the schedule, for those that have an end; above 1 it rises.
        by: What the schedule counts: updates, steps or epochs.
        warmup: How the value rises to the base.
        warmup_updates: Updates of the warmup.
        warmup_epochs: Or epochs, which may be fractions; the loader's length must be known.
        warmup_ratio: Or a share of the run.
        warmup_start: Factor at the first update, in [0, 1].
        warmup_overlaps: The schedule begins with the run, not after the warmup; by steps and epochs it always does.
        total_updates: Length of the schedule with its warmup; that of the run by default.
        total_epochs: Or in epochs.
        groups: Parameter groups to set, by index or by their ``name``; all by default.
    """

    key: ClassVar = "weight_decay"
    keeps_zero: ClassVar = True
