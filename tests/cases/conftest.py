"""The command line in this process, with a project that trains the toy model."""

import logging
import sys

import pytest

from trainhooks.cli import main

TRAINCONF = """
import torch
from torch import nn
from trainhooks import hookimpl

class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))
    def forward(self, x):
        return (self.w * x).mean()

@hookimpl
def make_model():
    return Scalar()

@hookimpl
def make_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters(), lr=1.0)

@hookimpl
def make_loader():
    return [torch.ones(1)] * 5
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command line here and gives exit code, stdout and stderr.

    It runs in ``command.folder``, whose project file has one loader of five batches and SGD with rate 1.
    """
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments, conf=TRAINCONF):
        if conf is not None:
            (folder / "trainconf.py").write_text(conf, encoding="utf-8")
        logging.getLogger("trainhooks").handlers = []
        with pytest.raises(SystemExit) as left:
            main([str(one) for one in arguments])
        out, err = capsys.readouterr()
        return left.value.code, out, err

    run.folder, run.conf = folder, TRAINCONF
    return run
