"""What torch's profiler can record here, and the operators that took most time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.profiler import ProfilerActivity

from trainhooks import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

Activity = Literal["cpu", "cuda", "xpu"]


def pick_activities(wanted: Sequence[Activity] | None) -> list[ProfilerActivity]:
    """Return torch's names of the activities, by default of all that there are on this machine.

    Raises:
        UsageError: One cannot be recorded here.
    """
    supported = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    available = {"cpu": ProfilerActivity.CPU}
    for name in ("cuda", "xpu"):
        activity = getattr(ProfilerActivity, name.upper(), None)
        if activity is not None and activity in supported and getattr(torch, name).is_available():
            available[name] = activity
    names = list(available) if not wanted else list(wanted)
    missing = [name for name in names if name not in available]
    if missing:
        message = f"profiler.activities = {names}: {missing[0]!r} cannot be recorded here; there are {', '.join(available)}"
        raise UsageError(message)
    return [available[name] for name in names]


def top_rows(averages: Any, attribute: str, count: int) -> list[str]:
    """Return the operators with the most time of their own, as lines."""
    rows = sorted((one for one in averages), key=lambda one: -getattr(one, attribute))
    rows = [one for one in rows if not one.key.startswith("ProfilerStep")]
    total = sum(getattr(one, attribute) for one in rows) or 1
    kind = "device" if "device" in attribute else "host"
    lines = []
    for one in rows[:count]:
        own = getattr(one, attribute)
        lines.append(
            f"  {one.key:<40.40} {own / 1000:10.3f} ms of {kind} time of its own {own / total:6.1%}  {one.count} calls"
        )
    return lines
