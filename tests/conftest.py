"""Fixtures that all tests share: a toy problem with values worked out by hand, and throw-away distributions."""

import importlib
import logging
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # the first optimizer of a process imports it, and it sets TORCHINDUCTOR_CACHE_DIR
from torch import nn

from trainhooks import Trainer, hookimpl
from trainhooks.cli import main

TINY = Path(__file__).parent / "data/projects/tiny"

torch.set_num_threads(1)


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
def messages(caplog):
    """Return a function that gives the messages trainhooks has logged."""
    caplog.set_level(logging.INFO, logger="trainhooks")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "trainhooks"]
