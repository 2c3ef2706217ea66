"""A tiny training with everything that can break a resume, and what is compared of it.

The dataset augments with torch's, Python's and NumPy's generators and logs the indices that it serves, process by process; the
model has dropout and BatchNorm; 26 samples in batches of 4 make epochs of 7 steps, the last of 2 samples, so that 40 steps end
within the sixth epoch.
"""

import argparse
import hashlib
import json
import logging
import os
import random
import select
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainhooks import Trainer, hookimpl
from trainhooks_builtins import AMP, EMA, LR, Accumulate, Checkpoint, Evaluation, MetricsLog

torch.set_num_threads(1)

SAMPLES, BATCH, FEATURES, CLASSES = 26, 4, 6, 3
EPOCH, STEPS, SEED = 7, 40, 7


@dataclass(frozen=True)
class Config:
    """What is varied."""

    workers: int = 0
    lasting: bool = False  # workers that last over epochs
    shuffle: bool = True
    own_generator: bool = False  # the loader draws its order from a generator of its own
    accumulate: int = 1
    amp: str = ""
    ema: bool = False
    evaluate: int = 0
    schedule: str = ""
    adam: bool = False

    def __str__(self):
        default = asdict(Config())
        return " ".join(f"{name}={value}" for name, value in asdict(self).items() if value != default[name]) or "default"


class Samples(Dataset):
    """Returns (features, class, index), the features with noise of three generators."""

    def __init__(self, folder=None, size=SAMPLES):
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(size, FEATURES, generator=generator)
        self.classes = torch.randint(0, CLASSES, (size,), generator=generator)
        self.folder = folder

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        if self.folder is not None:
            append(self.folder / f"served-{os.getpid()}", f"{index}\n")
        noise = 0.1 * torch.randn(FEATURES) + 0.1 * random.gauss(0, 1) + 0.1 * float(np.random.normal())  # noqa: NPY002 - the generator of datasets
        return self.features[index] + noise, self.classes[index], index


class Model(nn.Module):
    """Computes the loss of a batch."""

    def __init__(self, seed):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, CLASSES)
            )

    def forward(self, features, classes, index):
        return nn.functional.cross_entropy(self.layers(features), classes)


class Watch:
    """Reports each step, evaluation, epoch and checkpoint, floating-point numbers with all their bits."""

    def __init__(self, report):
        self.report = report

    @hookimpl
    def before_train(self, trainer):
        self.report("train", trainer.step)

    @hookimpl(trylast=True)
    def after_step(self, trainer, batch, output):
        rate = trainer.optimizer.param_groups[0]["lr"]
        self.report("step", trainer.step + 1, [output["loss"].item().hex(), float(rate).hex(), batch[2].tolist()])

    @hookimpl
    def after_eval(self, trainer, metrics):
        self.report("eval", trainer.step, hexed(metrics))

    @hookimpl
    def after_epoch(self, trainer, epoch, metrics):
        if trainer.every_n_epochs(1):  # not one that was cut
            self.report("epoch", epoch + 1, hexed(metrics))

    @hookimpl
    def on_save(self, trainer):
        self.report("saving", trainer.step)

    @hookimpl(trylast=True)
    def after_save(self, trainer, path, kind):
        self.report("saved", int(Path(path).name.rpartition("-")[2]), kind)

    @hookimpl
    def after_train(self, trainer):
        self.report("end", trainer.step)


def hexed(metrics):
    return {name: float(value).hex() for name, value in sorted(metrics.items())}


def append(path, text):
    """Append to a file in one write, which another process that appends or a kill does not tear."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class Report:
    """Appends what it is called with to a file, a line of JSON each, at once: a kill costs none."""

    def __init__(self, path):
        self.path = Path(path)

    def __call__(self, *words):
        append(self.path, json.dumps(words) + "\n")

    def read(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []


def warmup_then_cosine(optimizer):
    """A scheduler of torch, which keeps a state of its own."""
    schedulers = torch.optim.lr_scheduler
    parts = [schedulers.LinearLR(optimizer, 0.1, total_iters=5), schedulers.CosineAnnealingLR(optimizer, 35)]
    return schedulers.SequentialLR(optimizer, parts, milestones=[5])


def make(config, run, *, report=None, served=None, plugins=(), seed=SEED, init=3, checkpoint=None, **arguments):
    """Make a trainer of the workload.

    Args:
        config: What is varied.
        run: The run folder.
        report: Gets what ``Watch`` sees.
        served: A folder for what the dataset logs.
        plugins: More of them.
        seed: Of the run.
        init: Seed of the weights: another one shows what is not restored.
        checkpoint: Options of the plugin; by default it saves at the end only.
        arguments: Of ``Trainer``.
    """
    model = Model(init)
    generator = torch.Generator().manual_seed(5) if config.own_generator else None
    train = DataLoader(
        Samples(served),
        batch_size=BATCH,
        shuffle=config.shuffle,
        num_workers=config.workers,
        persistent_workers=config.lasting and config.workers > 0,
        generator=generator,
    )
    val = DataLoader(Samples(size=6), batch_size=3, shuffle=True)
    make_optimizer = torch.optim.Adam if config.adam else torch.optim.SGD
    optimizer = make_optimizer(model.parameters(), lr=0.05, **({} if config.adam else {"momentum": 0.9}))
    parts = [Checkpoint(**{"every_epochs": 0, **(checkpoint or {})}), MetricsLog()]
    if config.accumulate > 1:
        parts.append(Accumulate(config.accumulate))
    if config.amp:
        parts.append(AMP(config.amp, **({"growth_interval": 3} if config.amp == "float16" else {})))
    if config.ema:
        parts.append(EMA(0.9))
    if config.evaluate:
        parts.append(Evaluation(every_steps=config.evaluate, at_end=False))
    if config.schedule == "cosine":
        parts.append(LR("cosine", warmup_updates=5))
    elif config.schedule == "torch":
        parts.append(LR(torch_scheduler=warmup_then_cosine))
    if report is not None:
        parts.append(Watch(report))
    return Trainer(
        model,
        optimizer=optimizer,
        loaders={"train": train, "val": val},
        plugins=[*parts, *plugins],
        work_dir=run,
        seed=seed,
        device="cpu",
        autoload=False,
        log_every_steps=1,
        **{"max_steps": STEPS, **arguments},
    )


def canonical(value, path="state"):
    """Return what there is at each place of a state tree: dtype, shape and a digest of the bytes, or type and value."""
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {path: f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()}"}
    if isinstance(value, dict):
        places = {path: f"{{{', '.join(sorted(map(repr, value)))}}}"}
        for key, item in value.items():
            places |= canonical(item, f"{path}[{key!r}]")
        return places
    if isinstance(value, list | tuple):
        if len(value) > 100 and all(type(item) is int for item in value):  # the words of a generator
            return {path: f"{type(value).__name__} {hashlib.sha256(repr(value).encode()).hexdigest()}"}
        places = {path: f"{type(value).__name__} of {len(value)}"}
        for index, item in enumerate(value):
            places |= canonical(item, f"{path}[{index}]")
        return places
    return {path: f"{type(value).__name__} {value.hex() if isinstance(value, float) else repr(value)}"}


def end_state(trainer):
    """Return the whole state in memory after a run, with the gradients where the next step would add to them."""
    named = trainer.model.named_parameters()
    gradients = None if trainer.gradients_spent else {name: one.grad for name, one in named}
    return canonical({**trainer.state_dict(), "gradients": gradients})


def differences(found, wanted):
    """Return the places in which two canonical states differ, with both values."""
    places = sorted(found.keys() | wanted.keys())
    return [f"{place}: {found.get(place)} != {wanted.get(place)}" for place in places if found.get(place) != wanted.get(place)]


class Warnings(logging.Handler):
    """Reports what the run warns of."""

    def __init__(self, report):
        super().__init__(logging.WARNING)
        self.report = report

    def emit(self, record):
        self.report("warning", record.getMessage())


def reports_warnings(report):
    """Report every warning of trainhooks in this process, instead of printing it."""
    logger = logging.getLogger("trainhooks")
    logger.handlers, logger.propagate = [Warnings(report)], False


def warm_up():
    """Import in this process what a run imports late, so that its children need not."""
    with tempfile.TemporaryDirectory() as folder:
        everything = Config(accumulate=3, amp="float16", ema=True, evaluate=5, schedule="torch")
        for resume in (None, "auto"):
            make(everything, Path(folder) / "run", max_steps=8).train(resume=resume)
        list(DataLoader([1, 2], num_workers=1))


def fork(function, errors):
    """Start a child that calls ``function`` and ends with 0, or 1 and its traceback appended to ``errors``; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), 2)  # also of what is killed with its parent
        os.dup2(2, 1)
        function()
        code = 0
    except BaseException:
        append(errors, traceback.format_exc())
    finally:
        os._exit(code)
    raise AssertionError  # not reached


def wait_for(pid):
    """Wait for a child and return its exit code, negative for a signal; none of its own children is left.

    A loader worker whose parent is killed before it has looked who that is takes the process that adopts it for its parent, and
    waits for ever. That is torch's; workers that are shielded from signals look at the pipe from their parent, too.
    """
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return code


def in_child(function, folder, limit_s=300):
    """Call a function in a child.

    Raises:
        RuntimeError: It failed, with its traceback, or did not end.
    """
    errors = Path(folder) / "errors.txt"
    pid = fork(function, errors)
    descriptor = os.pidfd_open(pid)
    ended, _, _ = select.select([descriptor], [], [], limit_s)
    os.close(descriptor)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        wait_for(pid)
        raise RuntimeError(f"a child did not end within {limit_s} s")
    code = wait_for(pid)
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a child ended with {code}:\n{errors.read_text() if errors.exists() else ''}")
    return code


def served_by(folder):
    """Return what the dataset served, process by process."""
    return {path.name: [int(word) for word in path.read_text().split()] for path in sorted(Path(folder).glob("served-*"))}


def print_counts(run, about):
    """Be the ``main`` of a script that counts differences: print the counters, and exit with 1 if ``diff`` is not 0."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--scale", type=float, default=1.0)
    counts = run(parser.parse_args().scale)
    print(" ".join(f"{name}={value}" for name, value in counts.items()))
    sys.exit(counts["diff"] > 0)
