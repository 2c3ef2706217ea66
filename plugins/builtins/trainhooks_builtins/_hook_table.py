"""What ``hook_time`` measured, as a table and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    #: Calls and seconds by plugin and hook.
    Totals = Mapping[str, Mapping[str, tuple[int, float]]]


def as_plain(totals: Totals) -> dict[str, Any]:
    """Return the totals for a file: each plugin's, and each of its hooks'."""
    plain = {}
    for plugin, hooks in totals.items():
        each = {
            hook: {"calls": calls, "seconds": seconds, "mean_us": 1e6 * seconds / calls}
            for hook, (calls, seconds) in _sorted(hooks)
        }
        calls, seconds = _sum(hooks)
        plain[plugin] = {"calls": calls, "seconds": seconds, "hooks": each}
    return plain


def table_of(totals: Totals, top: int) -> list[str]:
    """Return lines: each plugin with its total, the most expensive first, and of its hooks those that are among the first ``top``.

    Args:
        totals: What was measured.
        top: Hooks to show, over all plugins; 0 for all.
    """
    every = [(seconds, plugin, hook) for plugin, hooks in totals.items() for hook, (_, seconds) in hooks.items()]
    shown = {(plugin, hook) for _, plugin, hook in sorted(every, reverse=True)[: top or None]}
    lines = [f"  {'plugin':<20} {'hook':<20} {'calls':>8} {'seconds':>10} {'us a call':>10}"]
    for plugin, hooks in sorted(totals.items(), key=lambda item: -_sum(item[1])[1]):
        lines.append(_line(plugin, "all", *_sum(hooks)))
        lines += [_line("", hook, *values) for hook, values in _sorted(hooks) if (plugin, hook) in shown]
    if len(shown) < len(every):
        lines.append(f"  ... and {len(every) - len(shown)} hooks that took less")
    return lines


def _sorted(hooks: Mapping[str, tuple[int, float]]) -> list[tuple[str, tuple[int, float]]]:
    return sorted(hooks.items(), key=lambda item: -item[1][1])


def _sum(hooks: Mapping[str, tuple[int, float]]) -> tuple[int, float]:
    return sum(calls for calls, _ in hooks.values()), sum(seconds for _, seconds in hooks.values())


def _line(plugin: str, hook: str, calls: int, seconds: float) -> str:
    return f"  {plugin:<20} {hook:<20} {calls:>8} {seconds:>10.4f} {1e6 * seconds / calls:>10.1f}"
