"""Fixtures that all tests share: a toy problem with values worked out by hand, and throw-away distributions."""

import gc
import importlib
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # the first optimizer of a process imports it, and it sets TORCHINDUCTOR_CACHE_DIR
from hypothesis import HealthCheck, settings
from torch import nn

from trainhooks import Trainer, hookimpl, lane, reporter
from trainhooks.cli import main

TINY = Path(__file__).parent / "data/projects/tiny"

torch.set_num_threads(1)

# The same examples each time, however long one takes: a run of all fails for a reason, or not at all.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# What a program prints must not depend on where the tests run: a CI service, a dumb terminal, a narrow one.
for name in ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
os.environ["TERM"] = "xterm-256color"

# A job in the background, or under nohup, begins with some signals ignored, and hands that on to what it starts.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# Runs sync what they write: on a disk tests would wait for that about as long as they compute. A run of all takes 0.2 GB.
MEMORY = Path("/dev/shm")
_runs_programs = MEMORY.is_dir() and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
if _runs_programs and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2e9:  # that of a container may be small
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Take modules and tests out of sight of the garbage collector, which else goes through a million objects each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    """Give slow tests the time that they take on a machine that does other work, too."""
    for item in items:
        if item.get_closest_marker("slow") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(autouse=True)
def stable_environment(monkeypatch):
    """Fail a test that changes the environment, the working directory or sys.path behind monkeypatch's back."""
    monkeypatch.delenv("TRAINHOOKS_PLUGINS", raising=False)
    monkeypatch.delenv("TRAINHOOKS_DISABLE_AUTOLOAD", raising=False)
    before = dict(os.environ), Path.cwd(), list(sys.path)
    yield
    monkeypatch.undo()
    after = dict(os.environ), Path.cwd(), list(sys.path)
    clean = (
        {k: v for k, v in d.items() if k not in ("PYTEST_CURRENT_TEST", "TRAINHOOKS_PLUGINS")} for d in (before[0], after[0])
    )
    assert next(clean) == next(clean)
    assert before[1] == after[1]


@pytest.fixture(autouse=True)
def own_log():
    """Let no test leave a handler behind: the command line installs one that writes to the stderr of its own process."""
    logger = logging.getLogger("trainhooks")

    def clean():
        logger.handlers, logger.propagate = [], True
        logger.setLevel(logging.NOTSET)

    clean()  # a fixture of a module may have left one
    yield
    clean()


@pytest.fixture
def cli(capsys, monkeypatch):
    """Return a function that runs the command line in this process; ``expect`` is the exit code."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*words, expect=0):
        capsys.readouterr()
        logging.getLogger("trainhooks").handlers = []
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert left.value.code == expect, f"{words} exited with {left.value.code}:\n{out}\n{err}"
        return SimpleNamespace(out=out, err=err)

    return run


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a copy of the tiny project, as the working directory."""
    folder = tmp_path / "project"
    shutil.copytree(TINY, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def impatient(monkeypatch):
    """Make a tenth of the pauses between attempts to reach a service that is away, and of the time it is waited for at the end."""
    monkeypatch.setattr(lane, "_FIRST_PAUSE_S", lane._FIRST_PAUSE_S / 10)
    monkeypatch.setattr(lane, "_LEAST_PATIENCE_S", lane._LEAST_PATIENCE_S / 10)


@pytest.fixture
def fork():
    """Return a function that starts work in a forked child, which finds everything imported; ``said`` reads what it prints.

    It prints to ``stdout`` if that is given, the number of an open file.
    """
    started = []

    def start(work, stdout=None):
        reading, writing = (None, stdout) if stdout is not None else os.pipe()

        def child():
            for stream in (1, 2):
                os.dup2(writing, stream)
            sys.stdout, sys.stderr = (open(stream, "w", closefd=False) for stream in (1, 2))
            work()

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        started.append(process)
        if reading is not None:
            os.close(writing)
            process.said = open(reading)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()
        if hasattr(process, "said"):
            process.said.close()


class Scalar(nn.Module):
    """One weight ``w``; the loss of a batch ``x`` is the mean of ``w * x``."""

    def __init__(self, start=0.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(float(start), dtype=torch.float64))

    def forward(self, x):
        return (self.w * x).mean()


@pytest.fixture
def scalar_model():
    """Return the class of the toy model."""
    return Scalar


@pytest.fixture
def make_trainer():
    """Return a function that makes a bare trainer on the toy model: SGD with rate 1, batches of one value each.

    With all values 1 the weight after n updates is ``start - n``.
    """

    def make(plugins=(), *, values=(1.0,) * 10, start=0.0, lr=1.0, val=None, **arguments):
        model = Scalar(start)
        loaders = {"train": [torch.tensor([v], dtype=torch.float64) for v in values]}
        if val is not None:
            loaders["val"] = [torch.tensor([v], dtype=torch.float64) for v in val]
        arguments.setdefault("autoload", False)
        if not any(name in arguments for name in ("max_epochs", "max_steps", "max_updates", "config")):
            arguments["max_epochs"] = 1
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        return Trainer(model, optimizer=optimizer, loaders=loaders, plugins=plugins, **arguments)

    return make


class Recorder:
    """Records the calls of the hooks that it is asked for, as (hook, step) pairs."""

    def __init__(self, *hooks, name="recorder"):
        self.name = name
        self.calls = []
        for hook in hooks:
            setattr(self, hook, self._make(hook))

    def _make(self, hook):
        @hookimpl(specname=hook)
        def record(trainer):
            self.calls.append((hook, trainer.step))

        return record


@pytest.fixture
def recorder():
    """Return the class of the recorder."""
    return Recorder


@pytest.fixture
def fake_distribution(tmp_path, monkeypatch):
    """Return a function that puts a throw-away distribution on sys.path: no pip, real entry-point discovery."""
    made = []

    def make(name, entry_points, modules, version="1.0", group="trainhooks", folder=None):
        place = tmp_path / (folder or f"site-{name}")
        info = place / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = "".join(f"{key} = {value}\n" for key, value in entry_points.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
        for module, source in modules.items():
            (place / f"{module}.py").write_text(source)
            made.append(module)
        monkeypatch.syspath_prepend(place)
        importlib.invalidate_caches()
        return place

    yield make
    for module in made:
        sys.modules.pop(module, None)


@pytest.fixture
def quiet():
    """Wait until what former tests have left behind is gone, which would else end, and close files, at any time."""
    gc.collect()  # loaders and their workers, which exceptions had kept
    for thread in threading.enumerate():
        if thread.name.startswith(("QueueFeederThread", "trainhooks-")):
            thread.join(60)


@pytest.fixture
def messages(caplog, monkeypatch):
    """Return a function that gives the messages trainhooks has logged, but for one that says what takes long."""
    monkeypatch.setattr(reporter, "_SILENCE_S", 3600.0)
    caplog.set_level(logging.INFO, logger="trainhooks")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "trainhooks"]
