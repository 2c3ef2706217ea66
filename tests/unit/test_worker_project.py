"""Classes of a project file in loader workers that are no forks."""

import sys

import pytest

from trainhooks.project import load_project, loaded_projects

PROJECT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from trainhooks import hookimpl

class Mine(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(4), torch.tensor(index)

def collate(samples):
    return torch.stack([inputs for inputs, _ in samples]), torch.stack([index for _, index in samples])

@hookimpl
def make_model():
    return nn.Linear(4, 1)

@hookimpl
def make_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters(), 0.1)

@hookimpl
def make_loader(split):
    if split == "train":
        return DataLoader(Mine(), 2, num_workers=1, multiprocessing_context="{method}", collate_fn=collate)

@hookimpl
def compute_loss(trainer, batch):
    print("served", batch[1].tolist())
    return trainer.model(batch[0]).mean()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("signals", ["signals", "no:signals"])
def test_a_dataset_of_the_project_file(cli, tmp_path, monkeypatch, method, signals):
    """The forkserver is Python's default from 3.14 on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainconf.py").write_text(PROJECT.replace("{method}", method), encoding="utf-8")
    run = cli("train", ".", "--set", "max_epochs=1", "-p", "no:progress", "-p", signals)
    assert [line for line in run.out.splitlines() if line.startswith("served")] == [
        f"served [{index}, {index + 1}]" for index in (0, 2, 4, 6)
    ]


def test_the_files_that_are_loaded(tmp_path, monkeypatch):
    path = tmp_path / "trainconf.py"
    path.write_text("x = 1\n", encoding="utf-8")
    module = load_project(path)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert loaded_projects()[module.__name__] == path
    path.unlink()  # as that of a former run in this process may be: workers cannot load it, nor do they need it
    assert module.__name__ not in loaded_projects()
