"""A small run with everything that can be logged; see ``satellite_support``."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainhooks import Trainer, hookimpl

MEDIA_STEP = 5  #: Records of this step come with the media and artifacts.
IMAGE = torch.arange(3 * 8 * 10, dtype=torch.uint8).reshape(3, 8, 10)  # channels, height, width: no two are the same
TEXT = "first line\nsecond: é"
HISTOGRAM = torch.tensor([0.0, 1.0, 1.0, 4.0])
COLUMNS, ROWS = ["name", "score"], [["a", 1.5], ["b | c", 2]]
ARTIFACT = "what the artifact says\n"
HYPERPARAMETERS = {"model/width": 1, "note": "hello", "flag": True, "rate": 0.1, "nothing": None}
ODD_SCALARS = {
    "odd/nan": math.nan, "odd/inf": math.inf, "odd/minus inf": -math.inf, "with spaces": 1.0, "ünïcode/µ": 2.0,
    "a/b/c": 3.0, "50% (x): #1 = y?": 4.0, "huge": 1e300, "tiny": 1e-300,
}  # fmt: skip
ODD_HYPERPARAMETERS = {
    "long": "x" * 10_000, "ünïcode key": "ü", "lines": "a\nb\tc", "nan": math.nan, "inf": math.inf, "empty": "",
    "with spaces": 1, "big": 2**70,
}  # fmt: skip


class Falling(nn.Module):
    """One weight ``w``; the loss of a batch ``x`` is the mean of ``w * x``."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return (self.w * x).mean()


class Logs:
    """Logs in each step ``probe/double`` (twice the step's number) and ``scalars``; at ``MEDIA_STEP`` all else, from ``folder``."""

    def __init__(self, folder, scalars=None, hyperparameters=None, media=True):
        self.folder, self.scalars, self.media = Path(folder), dict(scalars or {}), media
        self.hyperparameters = HYPERPARAMETERS if hyperparameters is None else hyperparameters

    @hookimpl
    def configure(self, trainer):
        trainer.log_hyperparameters(self.hyperparameters)

    @hookimpl
    def after_step(self, trainer):
        step = trainer.step + 1
        trainer.log_dict({"probe/double": 2 * step, **self.scalars})
        if not self.media or step != MEDIA_STEP:
            return
        trainer.log_image("media/image", IMAGE)
        trainer.log_text("media/text", TEXT)
        trainer.log_histogram("media/histogram", HISTOGRAM)
        trainer.log_table("media/table", COLUMNS, ROWS)
        (self.folder / "bundle/inner").mkdir(parents=True, exist_ok=True)
        for name in ("notes.txt", "bundle/one.txt", "bundle/inner/two.txt"):
            (self.folder / name).write_text(ARTIFACT, encoding="utf-8")
        trainer.log_artifact(self.folder / "notes.txt", name="notes", kind="file")
        trainer.log_artifact(self.folder / "bundle", name="bundle", kind="dataset")


class Does:
    """Calls ``action`` before the step that follows ``after`` steps; ``settled``: when the reporters have all that was logged until then."""

    def __init__(self, after, action, *, settled=False):
        self.steps, self.action, self.settled = after, action, settled

    @hookimpl
    def before_step(self, trainer):
        if trainer.step == self.steps:
            while self.settled and any(lane.waiting for lane in trainer.reporter.lanes):  # until the time limit of the test
                trainer.reporter.catch_up(1.0)
            self.action()


class Opened:
    """Lets the training begin when the reporters were opened, or failed at that once: the engine itself waits 10 seconds for them."""

    @hookimpl
    def before_train(self, trainer):
        for lane in trainer.reporter.lanes:
            lane.tried_to_open.wait()  # until the time limit of the test


class Witness:
    """A reporter that keeps what it is told of the run: ``run`` and ``ended`` (an Outcome)."""

    phase = "reporting"

    def __init__(self, file=None):
        self.run, self.ended, self.file = None, None, file

    @hookimpl
    def report_start(self, run):
        self.run = run
        if self.file is not None:
            self.file.write_text(json.dumps({"id": run.id, "resumed_step": run.resumed_step}))

    @hookimpl
    def report_end(self, outcome):
        self.ended = outcome


@dataclass
class Ran:
    """``outcome`` is ``None`` and ``error`` the exception where the run raised; ``warnings`` are trainhooks' own, see ``Kept``."""

    outcome: Any
    error: BaseException | None
    run: Any
    work_dir: Path
    ended: Any = None
    warnings: list[str] = field(default_factory=list)


def make_trainer(plugins, work_dir, steps, **arguments):
    """A trainer on the toy model that flushes at each step, with ``plugins`` only."""
    model = Falling()
    arguments = {"autoload": False, "log_every_steps": 1, "report_timeout_s": 120, "seed": 1, **arguments}
    loaders = {"train": [torch.ones(1, dtype=torch.float64)] * 7}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Trainer(
        model, optimizer=optimizer, loaders=loaders, plugins=plugins, work_dir=work_dir, max_steps=steps, **arguments
    )


def run(
    tmp_path, plugin, steps=20, *, scalars=None, hyperparameters=None, media=True, plugins=(), fail_after=None,
    error=None, signal_after=None, resume=None, **arguments,
):  # fmt: skip
    """Train in this process in ``tmp_path/run``: ``error`` is raised after ``fail_after`` steps, SIGTERM sent after ``signal_after``."""
    work_dir, witness, kept = Path(tmp_path) / "run", Witness(), Kept()
    used = [plugin, witness, Opened(), Logs(tmp_path, scalars, hyperparameters, media), *plugins, "signals", "checkpoint"]

    def fails():
        raise error or RuntimeError("the model broke")

    used.append(Does(-1 if fail_after is None else fail_after, fails))  # always there, lest a resume is told of other plugins
    used.append(Does(-1 if signal_after is None else signal_after, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    logger, outcome, raised = logging.getLogger("trainhooks"), None, None
    logger.addHandler(kept)
    try:
        arguments = {"options": {"checkpoint": {"every_steps": 8}}, **arguments}
        outcome = make_trainer(used, work_dir, steps, **arguments).train(resume=resume)
    except BaseException as caught:
        if fail_after is None and signal_after is None:
            raise
        raised = caught
    finally:
        logger.removeHandler(kept)
    return Ran(outcome, raised, witness.run, work_dir, witness.ended, kept.messages)


class Kept(logging.Handler):
    """Keeps the messages, but the one that says no more than that the machine is slow: ``Opened`` waits on."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        if "has not opened after 10 s" not in record.getMessage():
            self.messages.append(record.getMessage())
