"""The one rule of order.

What plugins declare with ``before`` / ``after`` always holds; what that leaves open is decided by phase, then closest to
the user first, then name. The result depends on the set of plugins alone: not on registration, import or the file system.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Final

from .errors import UsageError

#: Every priority list of the systems that came before encodes these six.
PHASES: Final = ("bookkeeping", "algorithm", "measurement", "decision", "persistence", "reporting")
DEFAULT_PHASE: Final = "algorithm"

#: Where a plugin comes from, closest to the user first.
SOURCES: Final = ("object", "project", "installed", "built-in", "engine")


@dataclass(frozen=True)
class Place:
    """What the rule of order needs to know about one plugin.

    Args:
        name: Its name in this run, for example ``checkpoint@best``.
        phase: One of ``PHASES``.
        source: One of ``SOURCES``.
        index: Its position among the objects that the user listed.
        before: Names of plugins that must come later.
        after: Names of plugins that must come earlier.
    """

    name: str
    phase: str = DEFAULT_PHASE
    source: str = "installed"
    index: int = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[int, int, int, str]:
        """What decides where nothing is declared; the engine is behind everything."""
        phase = len(PHASES) if self.source == "engine" else PHASES.index(self.phase)
        return (phase, SOURCES.index(self.source), self.index, self.name)


def sort(places: list[Place]) -> list[str]:
    """Return the names of ``places``, first to be called first.

    A plugin that declares ``before`` moves forward to its target, one that declares ``after`` waits for it; plugins
    that declare nothing keep their place. An absent name is ignored; ``checkpoint`` also means ``checkpoint@best``.

    Raises:
        UsageError: The declarations contradict each other; the message prints the cycle and who declared each link.
    """
    by_name = {place.name: place for place in places}
    links = _links(places)
    later: dict[str, list[str]] = {name: [] for name in by_name}
    missing = dict.fromkeys(by_name, 0)
    for first, second in links:
        later[first].append(second)
        missing[second] += 1

    keys = _pulled_keys(by_name, links)
    ready = [(keys[name], name) for name, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(name)
        for follower in later[name]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, (keys[follower], follower))
    if len(order) < len(places):
        raise UsageError(_describe_cycle(set(by_name) - set(order), links))
    return order


def _links(places: list[Place]) -> dict[tuple[str, str], str]:
    """Map (earlier, later) to the name of the plugin that declared it."""
    names = sorted(place.name for place in places)
    links: dict[tuple[str, str], str] = {}
    for place in sorted(places, key=lambda place: place.name):
        for other in names:
            if other == place.name:
                continue
            aliases = {other, other.partition("@")[0]}
            if aliases.intersection(place.before):
                links.setdefault((place.name, other), place.name)
            if aliases.intersection(place.after):
                links.setdefault((other, place.name), place.name)
    return links


_Key = tuple[tuple[int, int, int, str], int, tuple[int, int, int, str]]


def _pulled_keys(by_name: dict[str, Place], links: dict[tuple[str, str], str]) -> dict[str, _Key]:
    """Give each plugin that declares ``before`` a key just in front of its earliest target."""
    targets: dict[str, list[str]] = {name: [] for name in by_name}
    for (first, second), declarer in links.items():
        if declarer == first:
            targets[first].append(second)
    keys: dict[str, _Key] = {}
    for name in sorted(by_name):
        _pull(name, frozenset({name}), by_name, targets, keys)
    return keys


def _pull(
    name: str, path: frozenset[str], by_name: dict[str, Place], targets: dict[str, list[str]], keys: dict[str, _Key]
) -> _Key:
    """Work out the key of one plugin after those of its targets; ``path`` is what is being worked out."""
    if name not in keys:
        own = by_name[name].key
        best: _Key = (own, 0, own)
        for target in targets[name]:
            if target in path:  # a cycle, which the sort reports
                continue
            base, depth, _ = _pull(target, path | {target}, by_name, targets, keys)
            best = min(best, (base, depth - 1, own))
        keys[name] = best
    return keys[name]


def _describe_cycle(names: set[str], links: dict[tuple[str, str], str]) -> str:
    """Walk backwards from the first name until one repeats."""
    earlier = {name: sorted(a for a, b in links if b == name and a in names) for name in names}
    path = [min(name for name in names if earlier[name])]
    while True:
        previous = earlier[path[-1]][0]
        if previous in path:
            cycle = [*path[path.index(previous) :], previous][::-1]
            break
        path.append(previous)
    end = cycle.index(max(cycle[:-1])) + 1  # the same text whatever the walk began with
    cycle = [*cycle[end:-1], *cycle[:end], *cycle[end:][:1]]
    declared = (
        f"{a} before {b}, declared by {a!r}" if links[a, b] == a else f"{b} after {a}, declared by {b!r}"
        for a, b in itertools.pairwise(cycle)
    )
    return "the order of the plugins is a cycle: " + " → ".join(cycle) + "\n  " + "\n  ".join(declared)
