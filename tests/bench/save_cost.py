"""Prints what saving costs a training loop: at once, in the background, and with plain ``torch.save``, in one run.

    python tests/bench/save_cost.py [--megabytes 50] [--rounds 5]

Workload: linear layers of 512 x 512 with Adam, whose weights and moments together have the size that is asked for, one thread, a
save after every 10th of 50 steps. Each round runs every variant once, one after the other. ``blocked`` is the time between the step
before a save and the step after it, in which the loop does nothing else; ``slower`` is the time by which a variant's loop, from its
first step to its last, takes longer than that of ``no save`` in the same round, for each save: with few cores what is written in
the background competes with the steps. Both are the middle values of all rounds. ``torch.save`` writes the same state to one file,
neither synced nor renamed nor with a digest. Ratios, not times, are what may be compared between machines.
"""

import argparse
import logging
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import nn

from trainhooks import Trainer, hookimpl
from trainhooks_builtins import Checkpoint

WIDTH, STEPS, EVERY = 512, 50, 10
SAVES = STEPS // EVERY


class Clock:
    """Notes when the loop begins and ends, and how long it is between steps."""

    name = "clock"

    def __init__(self):
        self.left, self.gaps = None, {}

    @hookimpl(tryfirst=True)
    def before_train(self):
        self.begin = time.perf_counter()

    @hookimpl(tryfirst=True)
    def before_step(self, trainer):
        if self.left is not None:
            self.gaps[trainer.step] = time.perf_counter() - self.left

    @hookimpl(tryfirst=True)
    def after_step(self):
        self.left = time.perf_counter()

    @hookimpl(tryfirst=True)
    def after_train(self):
        self.end = time.perf_counter()

    @property
    def blocked(self):
        return statistics.median(gap for step, gap in self.gaps.items() if step % EVERY == 0)


class TorchSave:
    """Writes the whole state with ``torch.save``."""

    name = "torch_save"

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    @hookimpl
    def after_step(self, trainer):
        if trainer.every_n_steps(EVERY):
            torch.save(trainer.state_dict(), self.folder / f"{trainer.step}.pt")


def saving(**options):
    return lambda folder: [Checkpoint(every_epochs=0, every_steps=EVERY, at_end=False, keep=0, **options)]


VARIANTS = {
    "no save": lambda folder: [],
    "torch.save": lambda folder: [TorchSave(folder / "plain")],
    "at once": saving(),
    "background": saving(async_save=True),
}


def measure(make_plugins, layers, folder):
    """Train once; return the seconds of the loop, of the whole run and of a save, and the bytes of the largest file."""
    folder.mkdir()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    batch = torch.randn(64, WIDTH), torch.randn(64, WIDTH)
    clock = Clock()
    trainer = Trainer(
        model,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-4),
        loaders={"train": [batch] * STEPS},
        max_steps=STEPS,
        plugins=[clock, *make_plugins(folder)],
        work_dir=folder / "run",
        device="cpu",
        autoload=False,
    )
    trainer.train()
    whole = time.perf_counter() - clock.begin
    size = max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)
    shutil.rmtree(folder)
    os.sync()  # what one variant leaves to be written must not cost the next one
    return clock.end - clock.begin, whole, clock.blocked, size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=50, help="size of weights and moments")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; the system's folder for temporary files by default")
    given = parser.parse_args()
    logging.getLogger("trainhooks").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    layers = max(1, round(given.megabytes * 1e6 / (3 * 4 * (WIDTH * WIDTH + WIDTH))))
    measured = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for number in range(given.rounds + 1):
            for name, make_plugins in VARIANTS.items():
                measured[name].append(measure(make_plugins, layers, Path(folder) / str(number)))
    rounds = {
        name: list(zip(*values[1:], strict=True)) for name, values in measured.items()
    }  # but for the first: imports, caches
    size = max(rounds["at once"][3])
    print(f"{size / 1e6:.0f} MB, {SAVES} saves in {STEPS} steps, middle of {given.rounds} rounds")
    print(f"{'':12}{'loop':>9}{'run':>9}{'blocked':>12}{'of torch.save':>15}{'of at once':>12}{'slower':>12}")
    blocked = {name: statistics.median(columns[2]) for name, columns in rounds.items()}
    for name, (loops, wholes, _, _) in rounds.items():
        row = f"{name:12}{statistics.median(loops):8.2f}s{statistics.median(wholes):8.2f}s"
        if name != "no save":
            slower = statistics.median(a - b for a, b in zip(loops, rounds["no save"][0], strict=True)) / SAVES
            row += f"{1000 * blocked[name]:9.0f} ms{blocked[name] / blocked['torch.save']:15.2f}"
            row += f"{blocked[name] / blocked['at once']:12.2f}{1000 * slower:9.0f} ms"
        print(row)


if __name__ == "__main__":
    main()
