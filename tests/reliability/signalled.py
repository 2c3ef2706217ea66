"""A run that a signal ends, in any phase, is saved where it was, exits as documented, leaves no process, and resumes to the bit.

    python tests/reliability/signalled.py [--scale 1.0]

Each run is a session of processes of its own. It says on a pipe that it has come to its phase and stays there until the signal
has arrived, so that no run is cut elsewhere than it says; some are signalled at a moment drawn at random instead. Then it is
resumed, and must end with the state, the losses, the samples and the evaluations of a run that was never interrupted.
"""

import argparse
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from torch.utils.data import DataLoader
from workload import BATCH, Config, Report, Samples, append, differences, end_state, in_child, make, reports_warnings, warm_up

from trainhooks import hookimpl
from trainhooks_builtins import Signals

PHASES = ("setup", "step", "load", "evaluation", "load of an evaluation", "save", "after_train", "teardown")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STEPS, EVALUATE, HELD_AT = 18, 5, 9
LIMIT_S = 200


@dataclass(frozen=True)
class Case:
    """One run that is signalled.

    Args:
        phase: Where it is then; ``""`` for anywhere, ``delay_s`` after the first step.
        signum: The signal.
        group: Whether it is sent to all processes of the session, or to the main one.
        method: How the two workers of the loaders are started, or ``""`` for none.
        delay_s: See there.
    """

    phase: str
    signum: int
    group: bool = False
    method: str = ""
    delay_s: float = 0.0

    def __str__(self):
        where = self.phase or f"{self.delay_s:.3f} s"
        to = "the group" if self.group else "the process"
        return f"{signal.Signals(self.signum).name} to {to} in {where}, workers: {self.method or 'none'}"


class Held(Samples):
    """Says that a sample is being loaded, once, and takes long for it: in a worker for ever, else until the signal has arrived."""

    trainer = None

    def __init__(self, pipe, index, size=26):
        super().__init__(size=size)
        self.pipe, self.index = pipe, index

    def __getitem__(self, index):
        if index == self.index:
            mark = self.pipe.with_suffix(".held")
            if not mark.exists():
                mark.touch()
                append(self.pipe, "here\n")
                if self.trainer is None:
                    time.sleep(600)
                wait_for_signal(self.trainer)
        return super().__getitem__(index)


def wait_for_signal(trainer):
    """Wait until the signal has arrived, or should have."""
    deadline = time.monotonic() + LIMIT_S
    while trainer.interruption is None and time.monotonic() < deadline:
        time.sleep(0.002)


class Phase:
    """Says that a phase has come, and stays in it until the signal has arrived.

    A run that is signalled at a moment drawn at random does not end before that.
    """

    def __init__(self, where, pipe):
        self.where, self.pipe = where, pipe
        self.said = False

    def hold(self, trainer, where):
        if where != self.where or self.said:
            return
        self.said = True
        append(self.pipe, "here\n")
        wait_for_signal(trainer)

    @hookimpl
    def setup(self, trainer):
        self.hold(trainer, "setup")

    @hookimpl
    def before_step(self, trainer):
        if trainer.step == 1 and self.where == "":
            append(self.pipe, "here\n")
            self.where = "random"
        time.sleep(0.002)

    @hookimpl(wrapper=True)
    def train_step(self, trainer):
        output = yield
        if trainer.step == HELD_AT:  # in the middle of a window of accumulation
            self.hold(trainer, "step")
        return output

    @hookimpl
    def after_eval_step(self, trainer):
        if trainer.step >= EVALUATE:
            self.hold(trainer, "evaluation")

    @hookimpl
    def on_save(self, trainer):
        if trainer.step >= HELD_AT - 1:
            self.hold(trainer, "save")

    @hookimpl
    def after_train(self, trainer):
        self.hold(trainer, "after_train")
        if self.where == "random":
            wait_for_signal(trainer)

    @hookimpl
    def teardown(self, trainer):
        self.hold(trainer, "teardown")


def trainer_of(folder, report, case, pipe=None, **arguments):
    """Make the workload's trainer with this case's loaders, and with what holds it in its phase if there is a pipe."""
    config = Config(evaluate=EVALUATE, ema=True, accumulate=2)
    plugins = [Signals()] + ([Phase(case.phase, pipe)] if pipe else [])
    saves = {"checkpoint": {"every_steps": 4, "keep": 0}}
    trainer = make(config, folder / "run", report=report, plugins=plugins, max_steps=STEPS, **saves, **arguments)
    for split, size, batch, phase in (("train", 26, BATCH, "load"), ("val", 6, 3, "load of an evaluation")):
        held = 20 if phase == case.phase and split == "train" else 4 if phase == case.phase else -1
        data = Held(pipe, held, size) if pipe else Samples(size=size)
        if pipe and not case.method:
            data.trainer = trainer
        more = {"num_workers": 2, "multiprocessing_context": case.method} if case.method else {}
        trainer.loaders[split] = DataLoader(data, batch_size=batch, shuffle=True, **more)
    return trainer


def interrupted(case, folder):
    """Run in a session of its own until the signal ends it; return its pid, its exit code and how long that took."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setsid()
            for one in SIGNALS:  # a shell starts what it runs in the background with SIGINT ignored
                signal.signal(one, signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL)
            report = Report(folder / "first.jsonl")
            reports_warnings(report)
            trainer = trainer_of(folder, report, case, pipe)
            try:
                trainer.train()
                report("NEXT")
            finally:
                report("handlers", [signal.getsignal(one) in (signal.SIG_DFL, signal.default_int_handler) for one in SIGNALS])
                report("outcome", trainer.outcome.status, trainer.outcome.step)
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        except SystemExit as left:
            code = left.code
        except BaseException as error:
            Report(folder / "first.jsonl")("error", f"{type(error).__name__}: {error}")
            append(pipe, "failed\n")
        finally:
            os._exit(code)
    ready, _, _ = select.select([reader], [], [], LIMIT_S)
    if not ready:
        os.killpg(pid, signal.SIGKILL)
        raise RuntimeError(f"{case}: the run never came to its phase")
    time.sleep(case.delay_s)
    began = time.monotonic()
    (os.killpg if case.group else os.kill)(pid, case.signum)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(reader)
    return pid, code, time.monotonic() - began


def survivors(session):
    """Return the processes of a session that run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def orphans(session, within_s=2.0):
    """Return what is left of a session after a while, in which this process runs: one that is halted has all others halted, too."""
    for _ in range(round(within_s / 0.02)):
        if not survivors(session):
            break
        time.sleep(0.02)
    return survivors(session)


def resumed(case, folder, name, init=8):
    """Go on to the end in another process, whose model begins with other weights; return what it reported."""
    folder.mkdir(exist_ok=True)
    report = Report(folder / f"{name}.jsonl")

    def work():
        reports_warnings(report)
        trainer = trainer_of(folder, report, replace(case, phase="", method="fork" if case.method else ""), init=init)
        trainer.train(resume="auto")
        state = end_state(trainer)
        report("state", state)

    in_child(work, folder)
    return report.read()


def told(*parts):
    """Return the steps, evaluations and epochs of the parts of a run; the later of two that tell of the same counts."""
    found = {}
    for line in (line for part in parts for line in part):
        if line[0] in ("step", "eval", "epoch"):
            found[line[0], line[1]] = line[2]
    return found


def faults_of(case, folder, reference):
    """Signal a run, resume it, and return what is wrong with either."""
    folder.mkdir(parents=True)
    pid, code, took = interrupted(case, folder)
    found = [f"process {one} is left" for one in orphans(pid)]
    orphaned = len(found)
    for one in survivors(pid):
        os.kill(one, signal.SIGKILL)
    first = Report(folder / "first.jsonl").read()
    found += [f"{line[0]}: {line[1:]}" for line in first if line[0] in ("error", "NEXT")]
    if code != 128 + case.signum:
        found.append(f"exit code {code}")
    if ["handlers", [True] * len(SIGNALS)] not in first:
        found.append("the handlers are not as they were found")
    done = max([line[1] for line in first if line[0] == "step"], default=0)
    saves = [line[1] for line in first if line[0] == "saved"]
    if saves[-1:] != ([done] if done else []):
        found.append(f"{done} steps were done, saved were {saves}")
    if len(set(saves)) != len(saves):
        found.append(f"doubled saves: {saves}")
    found += [f"warning: {line[1]}" for line in first if line[0] == "warning" and "the training ends at step" not in line[1]]
    status = "completed" if case.phase in ("after_train", "teardown") else "interrupted"
    if case.phase and not any(line[:2] == ["outcome", status] for line in first):
        found.append(f"the outcome is {[line for line in first if line[0] == 'outcome']}")
    rest = resumed(case, folder, "second", init=8 if done else 3)  # with nothing saved it begins anew
    whole = told(reference)
    joined = told(first, rest)
    found += [
        f"{key}: {joined.get(key)} != {whole.get(key)}"
        for key in sorted(whole.keys() | joined.keys())
        if joined.get(key) != whole.get(key)
    ]
    state, wanted = (next(line[1] for line in lines if line[0] == "state") for lines in (rest, reference))
    found += differences(_comparable(state), _comparable(wanted))
    return found, orphaned, took


def _comparable(state):
    """Leave out what tells how often a run was begun and saved, not what it has become."""
    out = (
        "state['metrics']['latest']['time/",
        "state['plugin_lock']",
        "state['plugins/checkpoint']",
        "state['run']['records']",
    )
    return {place: value for place, value in state.items() if not place.startswith(out)}


def cases(scale):
    """Return the runs: every phase, signal and target without workers and with forked ones, some with the slow start methods."""
    found = []
    for method in ("", "fork"):
        for phase, signum, group in product(PHASES, SIGNALS, (False, True)):
            if phase == "load of an evaluation" and not method:
                continue  # it is the evaluation's next batch: as "evaluation"
            found.append(Case(phase, signum, group, method))
    drawn = random.Random(4)
    found += [
        Case("", drawn.choice(SIGNALS), True, drawn.choice(("", "fork")), drawn.uniform(0, 0.15))
        for _ in range(round(40 * scale))
    ]
    slow = [
        Case(phase, signum, True, method)
        for method in ("spawn", "forkserver")
        for phase, signum in zip(("step", "load", "evaluation"), SIGNALS, strict=True)
    ]
    if scale < 1:
        kept = max(round(len(found) * scale), 12)
        found = drawn.sample(found, min(kept, len(found)))
        slow = slow[: round(len(slow) * scale)]
    return found + slow


def run(scale=1.0):
    """Signal the runs; return how many, how many were missed, and how many processes were left."""
    warm_up()
    counts = Counter(signals=0, missed=0, orphans=0)
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="trainhooks-signalled-") as scratch:
        folder = Path(scratch)
        references = {}
        for number, case in enumerate(cases(scale)):
            workers = bool(case.method)
            if workers not in references:
                references[workers] = resumed(case, folder / f"reference-{workers}", "whole", init=3)
            found, orphaned, took = faults_of(case, folder / str(number), references[workers])
            counts["signals"] += 1
            counts["orphans"] += orphaned
            counts["missed"] += bool(found)
            slowest = max(slowest, took)
            for fault in found[:5]:
                print(f"{case}: {fault}", file=sys.stderr)
    print(f"signalled: {counts['signals']} runs, the slowest ended after {slowest:.1f} s", file=sys.stderr)
    return dict(counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    counts = run(parser.parse_args().scale)
    print(counts)
    sys.exit(1 if counts["missed"] or counts["orphans"] else 0)


if __name__ == "__main__":
    main()
