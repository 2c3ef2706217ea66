"""A run that is killed again and again (SIGKILL, at random moments), and started anew by the same command, ends as if nothing had been.

    python tests/reliability/kills.py [--scale 1.0] [--seed N]

Each start is a process forked from one that has imported torch; a few are cold starts of ``trainhooks train --resume auto``. Checked
after each kill: every checkpoint under its final name is whole, and the next start goes on from the newest acknowledged one or a
newer one. Checked at the end: each step that any start trained, the metrics log and the whole final state are those of an
uninterrupted run, bit for bit.
"""

import argparse
import csv
import inspect
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from workload import (
    STEPS,
    Config,
    Report,
    differences,
    end_state,
    fork,
    in_child,
    make,
    reports_warnings,
    wait_for,
    warm_up,
)

from trainhooks import CheckpointError
from trainhooks_builtins import Checkpoint

KILLS, COLD_KILLS = 500, 10
#: Starts of one run after which it is given up: it makes no progress.
MOST_STARTS = 100
#: By how much longer each further start of a run may live: the machine may have become slower than it was when that was measured.
LONGER = 0.1

#: Where a kill hit, by the last line that the child had reported.
PHASES = {
    "begin": "start",
    "load": "load",
    "train": "train",
    "step": "train",
    "eval": "train",
    "epoch": "train",
    "saving": "save",
    "saved": "train",
    "end": "end",
    "state": "end",
}

CONFIGS = (
    (Config(), {}),
    (Config(accumulate=3, amp="float16", ema=True, evaluate=5, schedule="torch"), {"best": "val/loss"}),
    (Config(accumulate=3, evaluate=5, adam=True, schedule="cosine"), {"async_save": True}),
    (Config(workers=2, ema=True), {"keep": 1}),
)

PROJECT = """
import sys
import time

sys.path.insert(0, {here!r})
from workload import Model, Report, Samples, Watch, end_state

import torch
from torch.utils.data import DataLoader
from trainhooks import hookimpl


class Slow(Watch):
    name = "slow"

    @hookimpl
    def before_step(self):
        time.sleep(0.02)

    @hookimpl
    def teardown(self, trainer):
        self.report("state", end_state(trainer))


report = Report({report!r})
report("begin")
plugins = [Slow(report)]


@hookimpl
def make_model():
    return Model(3)


@hookimpl
def make_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters(), lr=0.05, momentum=0.9)


@hookimpl
def make_loader(split):
    return DataLoader(Samples(size=26 if split == "train" else 6), batch_size=4, shuffle=True)
"""


class Verdict:
    """What has been counted, and a line for each thing that was wrong."""

    def __init__(self):
        self.kills = self.lost = self.corrupt = self.diff = 0
        self.phases = Counter()
        self.lines = []

    def wrong(self, count, line):
        setattr(self, count, getattr(self, count) + 1)
        self.lines.append(f"{count}: {line}")

    def counts(self):
        return {name: getattr(self, name) for name in ("kills", "lost", "corrupt", "diff")}


def known_options(options):
    """Return those that the plugin has in this release."""
    return {name: value for name, value in options.items() if name in inspect.signature(Checkpoint).parameters}


def train(config, options, run, report):
    """Train to the end in this process, from where a former start was killed."""
    report("begin")
    reports_warnings(report)
    trainer = make(config, run, report=report, checkpoint={"every_steps": 2, **known_options(options)})
    report("load")
    trainer.train(resume="auto")
    report("state", end_state(trainer))


def kill_after(pid, delay_s):
    """Kill a child after a while; return whether it was still there, and its exit code."""
    descriptor = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([descriptor], [], [], delay_s)
        if not ended:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(descriptor)
    code = wait_for(pid)
    return code == -signal.SIGKILL, code


def broken_checkpoints(run):
    """Return what is wrong with the checkpoints under their final names."""
    found = []
    for path in sorted((run / "checkpoints").glob("step-*")):
        try:
            Checkpoint().load_checkpoint(path)
        except CheckpointError as error:
            found.append(str(error))
    return found


def logged(run):
    """Return the losses in the metrics logs of a run, in their order: of the JSON lines, then of the table."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [[int(row["step"]), float(row["train/loss"]).hex()] for row in [*lines, *rows] if row.get("train/loss")]


class KilledRun:
    """One run folder, in which starts are killed until one reaches the end.

    Args:
        folder: For it.
        wanted: The report of an uninterrupted run.
        verdict: Counts.
        name: For what is wrong.
    """

    def __init__(self, folder, wanted, verdict, name):
        self.folder, self.wanted, self.verdict, self.name = folder, wanted, verdict, name
        self.run = folder / "run"
        self.acknowledged = 0
        folder.mkdir(parents=True, exist_ok=True)

    def report(self, number):
        return Report(self.folder / f"report-{number}.jsonl")

    def look(self, number, *, killed, code):
        """Judge one start; return whether the run is over."""
        verdict, lines = self.verdict, self.report(number).read()
        for line in lines:
            if line[0] == "train" and line[1] < self.acknowledged:
                verdict.wrong(
                    "lost", f"{self.name}: start {number} went on from {line[1]}, {self.acknowledged} was acknowledged"
                )
            elif line[0] == "saved":
                self.acknowledged = max(self.acknowledged, line[1])
            elif line[0] == "warning":
                verdict.wrong("corrupt", f"{self.name}: start {number} warned of {line[1]}")
            elif line[0] == "step" and line[2] != self.wanted["steps"][line[1]]:
                verdict.wrong("diff", f"{self.name}: start {number}, step {line[1]}: {line[2]}")
        for line in broken_checkpoints(self.run):
            verdict.wrong("corrupt", f"{self.name}: after start {number}: {line}")
        if killed:
            verdict.kills += 1
            verdict.phases[next((PHASES[line[0]] for line in reversed(lines) if line[0] in PHASES), "start")] += 1
            return False
        if code:
            errors = self.folder / "errors.txt"
            text = errors.read_text() if errors.exists() else ""
            verdict.wrong("lost", f"{self.name}: start {number} ended with {code}: {text}")
            return True
        (state,) = [line[1] for line in lines if line[0] == "state"]
        for line in differences(state, self.wanted["state"])[:3]:
            verdict.wrong("diff", f"{self.name}: {line}")
        if logged(self.run) != self.wanted["log"]:
            verdict.wrong("diff", f"{self.name}: the metrics log is {logged(self.run)}")
        hidden = [path.name for path in (self.run / "checkpoints").iterdir() if path.name.startswith(".step")]
        if hidden:
            verdict.wrong("corrupt", f"{self.name}: {hidden} are left")
        return True


def reference_of(report, run):
    """Return what an uninterrupted run gave."""
    lines = report.read()
    steps = {line[1]: line[2] for line in lines if line[0] == "step"}
    if sorted(steps) != list(range(1, STEPS + 1)):
        raise RuntimeError(f"the uninterrupted run trained {sorted(steps)}")
    (state,) = [line[1] for line in lines if line[0] == "state"]
    return {"steps": steps, "state": state, "log": logged(run)}


def forked_kills(folder, kills, verdict, chance):
    """Kill forked starts until there were so many kills and the last run has ended."""
    references = []
    for number, (config, options) in enumerate(CONFIGS):
        place = folder / f"reference-{number}"
        place.mkdir()
        report = Report(place / "report.jsonl")
        begin = time.monotonic()
        in_child(lambda c=config, o=options, p=place, r=report: train(c, o, p / "run", r), place)
        references.append((reference_of(report, place / "run"), time.monotonic() - begin))
    runs = 0
    while verdict.kills < kills:
        config, options = CONFIGS[runs % len(CONFIGS)]
        wanted, life_s = references[runs % len(CONFIGS)]
        killed_run = KilledRun(folder / str(runs), wanted, verdict, f"run {runs} ({config} {options})")
        for start in range(MOST_STARTS):
            report = killed_run.report(start)
            pid = fork(
                lambda r=report, k=killed_run, c=config, o=options: train(c, o, k.run, r), killed_run.folder / "errors.txt"
            )
            killed, code = kill_after(pid, chance.uniform(0, life_s * (1 + LONGER * start)))
            if killed_run.look(start, killed=killed, code=code):
                break
        else:
            verdict.wrong("lost", f"{killed_run.name}: no end after {MOST_STARTS} starts")
        if not verdict.lines:
            shutil.rmtree(killed_run.folder)
        runs += 1


def cold_kills(folder, kills, verdict, chance):
    """Kill cold starts of the command line."""
    script = Path(sys.executable).with_name("trainhooks")

    def start(place, run, report):
        place.mkdir(parents=True, exist_ok=True)
        (place / "trainconf.py").write_text(PROJECT.format(here=str(Path(__file__).parent), report=str(report.path)))
        settings = {"max_steps": STEPS, "work_dir": run, "seed": 7, "log_every_steps": 1, "device": "cpu"}
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        command = [
            script,
            "train",
            "--resume",
            "auto",
            "-p",
            "no:progress",
            "-p",
            "no:timer",
            "-o",
            "checkpoint.every_steps=2",
            *words,
        ]
        with (place / "errors.txt").open("a") as errors:
            return subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL, stderr=errors)

    place = folder / "cold-reference"
    report = Report(place / "report.jsonl")
    begin = time.monotonic()
    if start(place, place / "run", report).wait():
        raise RuntimeError(f"the uninterrupted run failed: {(place / 'errors.txt').read_text()}")
    life_s = time.monotonic() - begin
    wanted = reference_of(report, place / "run")
    runs, target = 0, verdict.kills + kills
    while verdict.kills < target:
        killed_run = KilledRun(folder / f"cold-{runs}", wanted, verdict, f"cold run {runs}")
        for number in range(MOST_STARTS):
            process = start(killed_run.folder, killed_run.run, killed_run.report(number))
            try:
                code = process.wait(chance.uniform(0, life_s * (1 + LONGER * number)))
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            if killed_run.look(number, killed=code == -signal.SIGKILL, code=code):
                break
        runs += 1


def run(scale=1.0, seed=None):
    """Kill 500 forked starts and 10 cold ones.

    Returns:
        ``kills``; ``lost``, starts that went on from less than was acknowledged, or not at all; ``corrupt``, checkpoints that were not
        whole, and warnings; ``diff``, steps, logs and final states that differ.
    """
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    chance, verdict = random.Random(seed), Verdict()
    warm_up()
    with tempfile.TemporaryDirectory() as folder:
        forked_kills(Path(folder), max(1, round(KILLS * scale)), verdict, chance)
        cold_kills(Path(folder), max(1, round(COLD_KILLS * scale)), verdict, chance)
    phases = ", ".join(f"{name} {verdict.phases[name]}" for name in ("start", "load", "train", "save", "end"))
    print(f"kills by phase: {phases} (seed {seed})")
    for line in verdict.lines[:20]:
        print(line)
    return verdict.counts()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    counts = run(arguments.scale, arguments.seed)
    print(" ".join(f"{name}={value}" for name, value in counts.items()))
    sys.exit(any(counts[name] for name in ("lost", "corrupt", "diff")))


if __name__ == "__main__":
    main()
