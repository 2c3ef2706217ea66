"""The suite's own test: mistakes are made in the code on purpose, and a check of the suite has to notice each.

    python tests/reliability/seeded.py [--only NAME,NAME]

Every check is run without a fault first, where it must find nothing, then once with each fault that it has to find, each time in a
process of its own.
"""

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import asynchronous
import crash
import cuts
import faults
import fuzz
import kills
import powercut
import pytest
from faults import FAULTS
from workload import Config, in_child, warm_up

TESTS = Path(__file__).parent.parent
EVERYTHING = Config(accumulate=3, amp="float16", ema=True, evaluate=5, schedule="cosine")


def cutting(config, *cut):
    """Return a check: a run that is cut and resumed ends as one that is not."""

    def check(folder, fault):
        plant(fault)
        found = []
        for number, (step, way) in enumerate(cut):
            place = folder / str(number)
            wanted = cuts.reference(config, place)
            found += cuts.compare(cuts.run_in_parts(config, place / "cut", [(step, way)]), wanted, [(step, way)])
        return found

    return check


def killing(folder, fault):
    """Kill a few runs at moments that are the same each time, as far as the machine is."""
    plant(fault)
    verdict = kills.Verdict()
    kills.forked_kills(folder, 12, verdict, random.Random(0))
    return verdict.lines


def testing(*places, match=""):
    """Return a check: tests of the project pass, those whose names match."""

    def check(folder, fault):
        plant(fault)
        words = [
            "-q",
            "-x",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            f"--basetemp={folder / 'pytest'}",
            f"--rootdir={TESTS.parent}",
        ]
        words += ["-k", match] if match else []
        code = pytest.main([*words, *(str(TESTS / place) for place in places)])
        if code not in (0, 1):
            raise RuntimeError(f"pytest ended with {code!r}")
        return ["tests fail"] * int(code)

    return check


def under_shim(part, only, *counters, scale):
    """Return a check that runs in a process with the shim, into which it takes the fault: these counters are 0."""

    def check(folder, fault):
        return wrong(part.run(scale, only=(only,), patch=f"faults:{fault}" if fault else ""), *counters)

    return check


def mutating(folder, fault):
    """Read a few mutations of each kind."""
    plant(fault)
    return wrong(fuzz.run(0.02), "silent", "lost", "untyped", "exec")


def saving(folder, fault):
    """Compare what is written in the background."""
    plant(fault)
    return asynchronous.compare(asynchronous.CONFIGS[0], folder)[1]


def wrong(counts, *names):
    return [f"{name}={counts[name]}" for name in names if counts.get(name)]


CHECKS = {
    "cuts of everything": cutting(EVERYTHING, (8, "kill"), (12, "stop")),
    "cuts of a torch schedule": cutting(Config(schedule="torch"), (6, "kill")),
    "cuts of a scaler": cutting(
        Config(amp="float16"), (4, "kill"), (5, "kill")
    ),  # it grows after 3 updates: one cut is between
    "cuts of the position": cutting(Config(own_generator=True), (10, "kill"), (19, "stop")),
    "cuts with workers": cutting(Config(workers=2), (10, "kill")),
    "interrupts": cutting(Config(evaluate=5), (5, "interrupt"), (9, "interrupt")),
    "cases of evaluation": testing("cases/test_rs.py::TestRS10"),
    "cases of accumulation": testing("cases/test_ga.py"),
    "cases of checkpoints": testing("cases/test_ck.py::TestCK07", "cases/test_ck.py::TestCK09"),
    "tests of the lock": testing("unit/test_workdir.py", match="a_second_one_in_this_process"),
    "power cuts": under_shim(powercut, "first-save", "lost", "corrupt", scale=0.1),
    "crashes": under_shim(crash, "rotation", "lost", "corrupt", scale=0.2),
    "failing operations": under_shim(crash, "first-save", "bad", "leftovers", scale=0.2),
    "kills": killing,
    "mutations": mutating,
    "flipped manifests": testing("reliability/test_manifest.py"),
    "background saves": saving,
}


def plant(fault):
    """Make a mistake in this process."""
    if fault:
        getattr(faults, fault)()


def findings(check, fault, folder):
    """Run a check in a process of its own, quietly; return what it finds."""
    answer = folder / "findings.txt"

    def work():
        place = folder / "work"
        place.mkdir(parents=True)
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            try:
                found = CHECKS[check](place, fault)
            except RuntimeError as error:
                found = [f"{type(error).__name__}: {error}"]
        answer.write_text("\n".join(line.replace("\n", " ") for line in found))

    folder.mkdir(parents=True)
    in_child(work, folder, limit_s=1800)
    return answer.read_text().splitlines()


def run(scale=1.0, only=()):
    """Seed every fault.

    Returns:
        ``faults``; ``found``, of which the check found something; ``alarms``, what checks found without a fault.
    """
    warm_up()
    wanted = {name: check for name, check in FAULTS.items() if not only or name in only}
    if scale < 1 and not only:
        wanted = dict(list(wanted.items())[:: max(1, round(1 / scale))])
    found, alarms = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for check in dict.fromkeys(wanted.values()):
            begin = time.monotonic()
            without = findings(check, "", Path(folder) / "without")
            shutil.rmtree(Path(folder) / "without")
            alarms += bool(without)
            print(f"{check}: {without[0][:300] if without else 'nothing'} ({time.monotonic() - begin:.1f} s)", flush=True)
            for name in (name for name, its in wanted.items() if its == check):
                with_it = findings(check, name, Path(folder) / name)
                shutil.rmtree(Path(folder) / name)
                found += bool(with_it)
                print(f"  {'found' if with_it else 'MISSED':7}{name}: {with_it[0][:160] if with_it else ''}", flush=True)
    return {"faults": len(wanted), "found": found, "alarms": alarms}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default="", help="names of faults, with commas")
    given = parser.parse_args()
    counts = run(given.scale, tuple(name for name in given.only.split(",") if name))
    print(" ".join(f"{name}={value}" for name, value in counts.items()))
    sys.exit(counts["found"] != counts["faults"] or counts["alarms"] > 0)


if __name__ == "__main__":
    main()
