"""Runs every part of the reliability suite and prints the score line.

    python tests/reliability/score.py [--scale 0.1] [--only crash,powercut]

Exits with 1 if a counter that must be 0 is not, if a count is below its floor (at scale 1; below that each must be at least 1),
or if a part fails. Each part runs in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

#: What each part counts, with the least at scale 1. Everything else that it returns must be 0.
FLOORS: dict[str, dict[str, int]] = {
    "crash": {"kills": 250, "errno": 1000},
    "powercut": {"states": 1000, "unsafe": 3},
    "kills": {"kills": 500},
    "cuts": {"cuts": 400},
    "asynchronous": {"saves": 1},
    "seeded": {"faults": 20, "found": 20},
    "fuzz": {"mutations": 10_000},
    "hostile": {"hostile": 200},
    "signalled": {"signals": 60},
    "drift": {"trainers": 1000},
}
#: Counters that may be more than 0, up to this.
LIMITS = {"drift_kb": 1024}
#: The score line: part and counters, in groups.
LINE = (
    ("", ("crash", "kills", "kills"), ("crash", "kills", "lost"), ("crash", "kills", "corrupt")),
    ("powercut", ("powercut", "states"), ("powercut", "lost")),
    ("", ("cuts", "cuts"), ("cuts", "kills", "diff")),
    ("", ("crash", "errno"), ("crash", "bad")),
    ("", ("fuzz", "mutations"), ("fuzz", "silent"), ("fuzz", "hostile", "exec")),
    ("", ("signalled", "signals"), ("signalled", "missed"), ("signalled", "orphans")),
    ("", ("hostile", "hostile"), ("hostile", "outside")),
    ("seeded", ("seeded", "faults"), ("seeded", "found")),
    ("", ("drift", "drift_kb")),
)


@dataclass
class Part:
    """How one part went.

    Attributes:
        name: Its module.
        seconds: How long it took.
        counts: What it returned.
        faults: What is wrong with them, or with the part.
    """

    name: str
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def judge(self, scale: float) -> None:
        """Compare the counts with the floors and limits."""
        floors = FLOORS[self.name]
        for name, floor in floors.items():
            least = floor if scale >= 1 else 1
            if self.counts.get(name, 0) < least:
                self.faults.append(f"{name}={self.counts.get(name, 0)} is below {least}")
        for name, count in self.counts.items():
            if name not in floors and count > LIMITS.get(name, 0):
                self.faults.append(f"{name}={count} is above {LIMITS.get(name, 0)}")
        if self.counts.get("found", 0) != self.counts.get("faults", 0):
            self.faults.append("a seeded fault was not found")


def measure(name: str, scale: float) -> Part:
    """Run a part in a process of its own, show what it prints, and judge its counts."""
    part, began, lines = Part(name), time.perf_counter(), []
    command = [sys.executable, __file__, "--part", name, "--scale", str(scale)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if not line.startswith("{"):
                print(f"  {name}: {line}", end="", flush=True)
    part.seconds = time.perf_counter() - began
    if process.returncode:
        part.faults.append(f"exited with {process.returncode}")
        return part
    part.counts = json.loads(lines[-1])
    part.judge(scale)
    return part


def score_line(parts: list[Part]) -> str:
    """Return the counters of all parts in one line; those of parts that did not run are left out."""
    counts = {part.name: part.counts for part in parts}
    groups = []
    for title, *entries in LINE:
        words = []
        for *sources, name in entries:
            found = [counts[source][name] for source in sources if name in counts.get(source, {})]
            if found:
                words.append(f"{name}={sum(found)}")
        if words:
            groups.append(" ".join([title, *words] if title else words))
    return " | ".join(groups)


def main() -> None:
    """Run the parts and exit with the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the work of each part")
    parser.add_argument("--only", default="", help=f"names with commas, of {', '.join(FLOORS)}")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        counts = importlib.import_module(given.part).run(given.scale)
        print(json.dumps(counts))
        return
    names = [name for name in given.only.split(",") if name] or list(FLOORS)
    if unknown := set(names) - FLOORS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(FLOORS)}")
    parts = []
    for name in names:
        print(f"{name} ...", flush=True)
        parts.append(measure(name, given.scale))
    print()
    for part in parts:
        counts = " ".join(f"{name}={count}" for name, count in part.counts.items())
        print(f"{part.name:<13}{part.seconds:>6.0f} s  {counts}")
        for fault in part.faults:
            print(f"{'':<23}FAULT: {fault}")
    print(f"\n{score_line(parts)}")
    sys.exit(any(part.faults for part in parts))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
