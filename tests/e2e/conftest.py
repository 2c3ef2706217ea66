"""The command line in this process, and a project that trains in no time."""

import logging
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainhooks.cli import main

TINY = Path(__file__).parents[1] / "data/projects/tiny"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a copy of the tiny project, as the working directory."""
    folder = tmp_path / "project"
    shutil.copytree(TINY, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def first_optimizer():
    """Make one before any test does, since torch then loads its compiler, which sets an environment variable."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


@pytest.fixture
def cli(capsys, monkeypatch, first_optimizer):
    """Return a function that runs the command line in this process; ``expect`` is the exit code."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    logger = logging.getLogger("trainhooks")
    before = list(logger.handlers), logger.level, logger.propagate

    def run(*words, expect=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert left.value.code == expect, f"{words} exited with {left.value.code}:\n{out}\n{err}"
        return SimpleNamespace(out=out, err=err)

    yield run
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def tree(tmp_path):
    """Return a function that gives every path below the test's own folder, but for caches of byte code."""
    return lambda: sorted(str(path) for path in tmp_path.rglob("*") if "__pycache__" not in path.parts)
