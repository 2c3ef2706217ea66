"""The small training that the crash tests interrupt, processes that run it, and what is compared of it.

The training has what can break a resume: dropout and noise from two random number generators, an order that the loader draws,
momentum, an evaluation whose best value changes.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainhooks import Trainer, hookimpl

torch.set_num_threads(1)

#: Steps in an epoch.
EPOCH = 4
#: The value of each evaluation, by the step after which it is made.
SCORES = (0.0, 0.2, 0.5, 0.1, 0.3, 0.9, 0.4, 0.6, 0.8, 0.7)


class Model(nn.Module):
    """Computes the loss of a batch, with dropout and noise."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean squared error."""
        return ((self.layers(x) - y + random.gauss(0, 0.01)) ** 2).mean()


class Scores:
    """Makes the evaluations give ``SCORES``."""

    @hookimpl
    def eval_step(self, trainer: Trainer) -> dict[str, float]:
        """Return the value of this step."""
        return {"score": SCORES[trainer.step % len(SCORES)]}


def make_trainer(work_dir: Path, steps: int, plugins: list[Any], **arguments: Any) -> Trainer:
    """Return the trainer of the small training.

    Args:
        work_dir: Of the run.
        steps: How many it has.
        plugins: Besides the evaluation's scores.
        arguments: More for ``Trainer``; without ``autoload`` only ``plugins`` take part.
    """
    random.seed(3)
    torch.manual_seed(3)
    data = torch.Generator().manual_seed(2)
    x, y = torch.randn(2 * EPOCH, 6, generator=data), torch.randn(2 * EPOCH, 1, generator=data)
    model = Model()
    loaders = {"train": DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True), "val": [torch.zeros(1)]}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    arguments.setdefault("autoload", False)
    return Trainer(
        model,
        optimizer=optimizer,
        loaders=loaders,
        max_steps=steps,
        work_dir=work_dir,
        plugins=[Scores(), *plugins],
        **arguments,
    )


def digest(trainer: Trainer) -> str:
    """Return a digest of the model's weights and the optimizer's state, to the last bit."""
    sha = hashlib.sha256()
    for name, value in sorted(trainer.model.state_dict().items()):
        sha.update(name.encode() + value.contiguous().numpy().tobytes())
    for group in trainer.optimizer.param_groups:
        for parameter in group["params"]:
            momentum = trainer.optimizer.state[parameter].get("momentum_buffer")
            sha.update(b"-" if momentum is None else momentum.contiguous().numpy().tobytes())
    return sha.hexdigest()


class Warnings(logging.Handler):
    """Collects the warnings of trainhooks."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.texts.append(record.getMessage())


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect what trainhooks warns of, and show none of it."""
    logger, handler = logging.getLogger("trainhooks"), Warnings()
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    try:
        yield handler.texts
    finally:
        logger.handlers, logger.propagate = before


@dataclass
class Child:
    """How a forked process went.

    Attributes:
        signal: That killed it, or 0.
        messages: What it reported, in order.
    """

    signal: int
    messages: list[tuple[str, Any]] = field(default_factory=list)

    def all(self, kind: str) -> list[Any]:
        """Return every message of a kind."""
        return [value for name, value in self.messages if name == kind]

    def last(self, kind: str, default: Any = None) -> Any:
        """Return the last message of a kind."""
        return next(iter(self.all(kind)[::-1]), default)


Report = Callable[[str, Any], None]


def forked(work: Callable[[Report], None]) -> Child:
    """Do ``work`` in a fork of this process, which has torch imported; it reports through a pipe, whatever becomes of it.

    An exception that ``work`` raises is the message ``error``: type names, text, traceback.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:

        def report(kind: str, value: Any = None) -> None:
            os.write(writer, json.dumps([kind, value]).encode() + b"\n")

        code = 0
        try:
            os.close(reader)
            work(report)
        except BaseException as error:
            names = [one.__name__ for one in type(error).__mro__]
            report("error", [names, str(error), traceback.format_exc()[-3000:]])
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    lines = [line for line in data.split(b"\n") if line]
    return Child(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, [tuple(json.loads(line)) for line in lines])


def in_processes(work: Callable[[int, int], dict[str, Any]], count: int | None = None) -> list[dict[str, Any]]:
    """Call ``work(index, count)`` in that many forks at once and return their results.

    Raises:
        RuntimeError: One of them failed.
    """
    count = count or os.cpu_count() or 1
    running = []
    for index in range(count):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(reader)
                with os.fdopen(writer, "w") as pipe:
                    json.dump(work(index, count), pipe)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(writer)
        running.append((pid, reader))
    results, failed = [], 0
    for pid, reader in running:
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        failed += os.waitpid(pid, 0)[1] != 0
        results.append(json.loads(text) if text else {})
    if failed:
        message = f"{failed} of {count} processes failed; see above"
        raise RuntimeError(message)
    return results


def call(name: str) -> None:
    """Call a function ``module:function``, if one is named."""
    if name:
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder in memory, where syncing costs nothing, and remove it afterwards."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="trainhooks-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tree_of(folder: Path) -> dict[str, bytes | None]:
    """Return what is in a folder: the bytes of each file and ``None`` for each folder, by relative path."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() else None
    return found


def checkpoints_of(work_dir: Path) -> list[Path]:
    """Return every folder with the name of a checkpoint, whatever is in it, by step."""
    found = [path for path in (work_dir / "checkpoints").glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def left_over(work_dir: Path) -> list[str]:
    """Return hidden names in a run folder: what was half written, set aside or not quite removed."""
    return sorted(str(path.relative_to(work_dir)) for path in work_dir.rglob("*") if path.name.startswith("."))
