"""Prints what the engine costs per training step, as ratios to a hand-written loop in the same run.

    python tests/bench/step_time.py [--processes 6] [--rounds 5]

Workload: Linear(32, 64), ReLU, Linear(64, 10), cross entropy, SGD with momentum, batch 32, one thread, 1,000 batches made
beforehand. Each variant is measured in processes of its own, as a training has one, since where things come to lie in memory
differs from process to process, by up to half a percent, and stays so within it. There each run follows a run of the raw
loop, and the two are compared: a clock stamp every 20 batches gives the process's CPU time for each chunk, the tenth
percentile of a run's chunks is its time per step, so that start-up, garbage collection and the machine's other work drop out.
The middle ratio of a process's rounds is its ratio; the middle one of all processes is the figure, beside the lowest and the
highest. ``raw again`` is the same loop as ``raw``: its distance from 1.00 is the noise of this run. Every variant's final
weights are compared with the raw loop's: they must be the same bit for bit.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import nn

from trainhooks import Trainer, hookimpl

BATCHES, CHUNK = 1000, 20


class StampedBatches:
    """A loader over prebuilt batches that stamps the CPU clock every ``CHUNK`` batches."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1234)
        self.batches = [
            (torch.randn(32, 32, generator=generator), torch.randint(0, 10, (32,), generator=generator)) for _ in range(BATCHES)
        ]
        self.stamps = []

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.stamps = stamps = []
        for start in range(0, len(self.batches), CHUNK):
            stamps.append(time.process_time())
            yield from self.batches[start : start + CHUNK]


class Listener:
    """An empty begin and end of a step."""

    @hookimpl
    def before_step(self):
        pass

    @hookimpl
    def after_step(self):
        pass


class OwnStep:
    """A training step of the user's own."""

    @hookimpl
    def train_step(self, trainer, batch):
        x, y = batch
        trainer.optimizer.zero_grad()
        loss = trainer.loss(trainer.model(x), y)
        loss.backward()
        trainer.optimizer.step()
        return {"loss": loss}


def make_model():
    """Return the same model, optimizer and loss function each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), nn.CrossEntropyLoss()


def raw(data):
    """Train with the loop that everything is compared with."""
    model, optimizer, criterion = make_model()
    for x, y in data:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    return model


def engine(*plugins, count=0, autoload=False):
    """Return a function that trains through ``Trainer``."""

    def run(data):
        model, optimizer, criterion = make_model()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            trainer = Trainer(
                model,
                loss=criterion,
                optimizer=optimizer,
                loaders={"train": data},
                max_epochs=1,
                plugins=[*(plugin() for plugin in plugins), *(Listener() for _ in range(count))],
                autoload=autoload,
                work_dir=f"{folder}/run" if autoload else None,
            )
            trainer.train()
        return model

    return run


VARIANTS = {
    "raw again": (raw, None),
    "Trainer, bare": (engine(), 1.03),
    "ten listeners": (engine(count=10), 1.06),
    "all default plugins": (engine(autoload=True), 1.06),
    "own train_step": (engine(OwnStep), 1.02),
    "own train_step, ten listeners": (engine(OwnStep, count=10), 1.04),
}


def time_per_step(run, data, reference):
    """Train, and return the microseconds of CPU that a step takes."""
    model = run(data)
    assert all(torch.equal(a, b) for a, b in zip(reference, model.parameters(), strict=True))
    chunks = sorted((b - a) / CHUNK * 1e6 for a, b in zip(data.stamps, data.stamps[1:], strict=False))
    return chunks[len(chunks) // 10]


def measure(name, rounds):
    """Print the pairs of one process: what a step of the raw loop takes, and right after it a step of the variant."""
    torch.set_num_threads(1)
    logging.disable()
    data = StampedBatches()
    reference = [parameter.clone() for parameter in raw(data).parameters()]
    run, _ = VARIANTS[name]
    print(json.dumps([(time_per_step(raw, data, reference), time_per_step(run, data, reference)) for _ in range(rounds)]))


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=6, help="of each variant")
    parser.add_argument("--rounds", type=int, default=5, help="of each process")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.variant:
        measure(given.variant, given.rounds)
        return
    found = {name: [] for name in VARIANTS}
    for _ in range(given.processes):
        for name in random.sample(list(VARIANTS), len(VARIANTS)):
            command = [sys.executable, __file__, "--variant", name, "--rounds", str(given.rounds)]
            found[name].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    base = statistics.median(before for processes in found.values() for pairs in processes for before, _ in pairs)
    print(f"{given.processes} processes of {given.rounds} rounds of {BATCHES} steps; raw loop: {base:.0f} µs of CPU a step\n")
    print(f"{'':32}{'ratio':>7}{'processes':>16}{'+µs':>8}{'target':>9}")
    for name, (_, target) in VARIANTS.items():
        each = [statistics.median(after / before for before, after in pairs) for pairs in found[name]]
        more = statistics.median(after - before for pairs in found[name] for before, after in pairs)
        note = f"{target:9.2f}" if target else ""
        print(f"{name:32}{statistics.median(each):7.3f}{min(each):9.3f}-{max(each):.3f}{more:+8.1f}{note}")


if __name__ == "__main__":
    main()
