"""A run that was cut and resumed ends as one that was never cut: after every step, over a grid of configurations, in chains.

    python tests/reliability/cuts.py [--scale 1.0]

Each run is a process of its own. What resumes has other initial weights, so that what is not restored shows. Compared with a
tolerance of 0: the loss, rate and samples of each step, the metrics of each evaluation and epoch, what the loaders served, and
the whole state at the end: weights, optimizer, scheduler, average, scaler, generators, counters.
"""

import os
import shutil
import signal
import tempfile
from collections import Counter
from dataclasses import asdict
from itertools import combinations, product
from pathlib import Path

from workload import (
    BATCH,
    EPOCH,
    STEPS,
    Config,
    Report,
    differences,
    end_state,
    in_child,
    make,
    print_counts,
    reports_warnings,
    served_by,
    warm_up,
)

from trainhooks import Trainer, hookimpl

#: How a run is cut: it stops and saves; it fails, is killed or is interrupted when a checkpoint has been acknowledged.
WAYS = ("stop", "raise", "kill", "interrupt")

REASON = "cut"

FACTORS = {
    "workers": (0, 2),
    "lasting": (False, True),
    "shuffle": (True, False),
    "own_generator": (False, True),
    "accumulate": (1, 3),
    "amp": ("", "bfloat16", "float16"),
    "ema": (False, True),
    "evaluate": (0, 5),
    "schedule": ("", "cosine", "torch"),
    "adam": (False, True),
}


#: Batches of the sixth epoch that are left after step 40: workers may have loaded them.
AHEAD = -STEPS % EPOCH


class Failure(Exception):
    """What a cut run fails with."""


class Cut:
    """Ends a run after ``step`` steps."""

    def __init__(self, step, way):
        self.step, self.way = step, way

    @hookimpl(trylast=True)
    def after_step(self, trainer):
        if trainer.step + 1 != self.step:
            return
        if self.way == "stop":
            trainer.stop(REASON)
        elif self.way == "interrupt":
            trainer.interrupt(Failure(), REASON)
        else:
            trainer.request_checkpoint()

    @hookimpl(trylast=True)
    def after_save(self):
        if self.way == "raise":
            raise Failure
        if self.way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def ways():
    """Return the ways that this engine knows."""
    return [way for way in WAYS if way != "interrupt" or hasattr(Trainer, "interrupt")]


class Part:
    """One process of a run: what it reported and served."""

    def __init__(self, config, folder, number, *, cut=None, resume=False, chained=False):
        self.config = config
        folder.mkdir(parents=True, exist_ok=True)
        self.served = folder / f"served-{number}"
        self.served.mkdir()
        self.report = Report(folder / f"report-{number}.jsonl")
        in_child(lambda: self._train(config, folder / "run", cut, resume=resume, init=3 + number), folder)
        self.lines = self.report.read()
        if not cut and not any(line[0] == "state" for line in self.lines):
            raise RuntimeError(f"{folder}: the run did not end")

    def _train(self, config, run, cut, *, resume, init):
        reports_warnings(self.report)
        trainer = make(
            config,
            run,
            report=self.report,
            served=self.served,
            init=init,
            plugins=[Cut(*cut or (0, "never"))],
        )
        try:
            trainer.train(resume="auto" if resume else None)
        except Failure:
            return
        if not cut:
            self.report("state", end_state(trainer))

    def of(self, kind):
        return {line[1]: line[2] for line in self.lines if line[0] == kind}

    @property
    def state(self):
        return next(line[1] for line in self.lines if line[0] == "state")


def run_in_parts(config, folder, cuts):
    """Run a configuration in one process for each cut, and one more that ends it."""
    parts = [Part(config, folder, number, cut=cut, resume=number > 0) for number, cut in enumerate(cuts)]
    parts.append(Part(config, folder, len(cuts), resume=bool(cuts)))
    return parts


def compare(parts, wanted, cuts):
    """Return what differs between a run in parts and an uninterrupted one, each thing in one line."""
    found = []
    steps = [line for part in parts for line in part.lines if line[0] == "step"]
    if [line[1] for line in steps] != list(range(1, STEPS + 1)):
        found.append(f"trained steps {[line[1] for line in steps]}")
    for kind in ("step", "eval", "epoch"):
        joined = {key: value for part in parts for key, value in part.of(kind).items()}
        reference = wanted.of(kind)
        for key in sorted(joined.keys() | reference.keys()):
            if joined.get(key) != reference.get(key):
                found.append(f"{kind} {key}: {joined.get(key)} != {reference.get(key)}")
    resumed_at = 0
    for part, (step, _) in zip(parts, [*cuts, (STEPS, "")], strict=True):
        saves = [line[1] for line in part.lines if line[0] == "saved"]
        if saves[:1] == [resumed_at] and resumed_at in part.of("eval"):  # it was owed, and the checkpoint to know of it
            del saves[0]
        if saves != [step]:
            found.append(f"saved at {saves}, not once at {step}")
        resumed_at = step
    found += differences(parts[-1].state, wanted.state)
    warnings = [line[1] for part in parts for line in part.lines if line[0] == "warning"]
    found += [f"warned of {text}" for text in warnings if not text.startswith(f"{REASON}: the training ends")]
    found += served_wrongly(parts[-1], cuts[-1][0] if cuts else 0, wanted)
    return found


def served_wrongly(part, first, wanted):
    """Return what a resumed run loaded that it did not train: only batches prefetched at the end may be left over."""
    trained = [value[2] for step, value in sorted(wanted.of("step").items()) if step > first]
    samples = [index for batch in trained for index in batch]
    served = list(served_by(part.served).values())
    if not part.config.workers:
        return [] if served == [samples] * bool(samples) else [f"served {served} for {samples}"]
    everything = Counter(index for indices in served for index in indices)
    missing, extra = Counter(samples) - everything, everything - Counter(samples)
    rest = AHEAD * BATCH
    return [] if not missing and extra.total() <= rest else [f"served {everything.total()}, missing {missing}, extra {extra}"]


def grid():
    """Return configurations in which every pair of values of two factors occurs, chosen greedily."""
    names = list(FACTORS)
    every = [dict(zip(names, values, strict=True)) for values in product(*FACTORS.values())]
    every = [one for one in reversed(every) if one["workers"] or not one["lasting"]]  # the fullest first
    open_pairs = {pair for one in every for pair in pairs_of(one)}
    chosen = []
    while open_pairs:
        best = max(every, key=lambda one: len(pairs_of(one) & open_pairs))
        open_pairs -= pairs_of(best)
        chosen.append(Config(**best))
    return chosen


def pairs_of(values):
    """Return the pairs of values of a configuration."""
    items = list((asdict(values) if isinstance(values, Config) else values).items())
    return set(combinations(items, 2))


def reference(config, folder):
    """Return an uninterrupted run, which a second one equals.

    Raises:
        RuntimeError: It does not: then nothing can be compared with it.
    """
    (one,) = run_in_parts(config, folder / "reference", [])
    (two,) = run_in_parts(config, folder / "reference-again", [])
    unequal = compare([two], one, [])
    if unequal:
        raise RuntimeError(f"{config}: two uninterrupted runs differ: {unequal[:3]}")
    return one


def cut_everywhere(config, folder, steps=range(1, STEPS), offset=0):
    """Cut a configuration after each of ``steps``; return the number of cuts and a line for each that differs."""
    wanted, known, different = reference(config, folder), ways(), []
    for step in steps:
        way = known[(step + offset) % len(known)]
        place = folder / f"cut-{step}"
        try:
            found = compare(run_in_parts(config, place, [(step, way)]), wanted, [(step, way)])
        except RuntimeError as error:
            found = [str(error)]
        if found:
            different.append(f"{config}, {way} after step {step}: {len(found)} differences: {found[0]}")
        shutil.rmtree(place)
    return len(steps), different


def chain(folder, every=4, total=STEPS):
    """RS-11: interrupt a run after every 4th step and before its last, with everything on; return the resumes and what differs."""
    config = Config(workers=2, accumulate=2, amp="float16", ema=True, evaluate=5, schedule="torch")
    wanted, known = reference(config, folder), ways()
    cuts = [(step, known[number % len(known)]) for number, step in enumerate([*range(every, total, every), total - 1])]
    return len(cuts), compare(run_in_parts(config, folder / "chain", cuts), wanted, cuts)


def run(scale=1.0):
    """Cut the whole grid; with a smaller scale fewer steps of each configuration.

    Returns:
        ``cuts`` and ``diff``, the cuts after which anything differed.
    """
    warm_up()
    stride = max(1, round(1 / scale))
    cuts, different = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for number, config in enumerate(grid()):
            steps = range(1 + number % stride, STEPS, stride)
            done, found = cut_everywhere(config, Path(folder) / str(number), steps, offset=number)
            cuts, different = cuts + done, different + found
        resumes, found = chain(Path(folder) / "chain")
        cuts, different = cuts + resumes, different + [f"chain: {line}" for line in found[:1]]
    for line in different:
        print(line)
    return {"cuts": cuts, "diff": len(different)}


if __name__ == "__main__":
    print_counts(run, __doc__)
