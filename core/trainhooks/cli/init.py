"""``trainhooks init``: from an empty folder to a run in two commands."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from trainhooks.errors import UsageError
from trainhooks.project import PROJECT_FILE

STARTER = '''"""A training run. Start it with: trainhooks train

Every function marked @hookimpl is a hook; `trainhooks hooks` shows the loop and where each of them is called.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainhooks import hookimpl


def spirals(n, seed):
    """Make two interleaved spirals: n points in the plane with their labels. Put your own data here."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(n) % 2
    radius = torch.rand(n, generator=generator).sqrt()
    angle = 6 * radius + torch.pi * label
    noise = 0.02 * torch.randn(n, 2, generator=generator)
    points = radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1) + noise
    return TensorDataset(points, label)


@hookimpl
def configure(trainer):
    if not trainer.limited:  # unless --set max_epochs=... or a file says otherwise
        trainer.max_epochs = 20


@hookimpl
def make_model():
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


@hookimpl
def make_optimizer(trainer):
    return torch.optim.AdamW(trainer.model.parameters(), lr=5e-3)


@hookimpl
def make_loader(split):
    data = {"train": spirals(2000, seed=0), "val": spirals(500, seed=1), "test": spirals(500, seed=2)}
    if split in data:
        return DataLoader(data[split], batch_size=64, shuffle=split == "train")


@hookimpl
def compute_loss(trainer, batch):
    points, labels = batch
    return nn.functional.cross_entropy(trainer.model(points), labels)


@hookimpl
def eval_step(trainer, batch):
    points, labels = batch
    logits = trainer.model(points)
    right = logits.argmax(1) == labels
    return {"loss": nn.functional.cross_entropy(logits, labels), "accuracy": right.float().mean()}


@hookimpl
def predict_step(trainer, batch):
    points, _ = batch
    return trainer.model(points).argmax(1)
'''


@click.command()
@click.argument("directory", default=".", type=click.Path(path_type=Path, file_okay=False))
def init(directory: Path) -> None:
    """Write a starter trainconf.py into DIRECTORY (default: this one) that trains at once."""
    file = directory / PROJECT_FILE
    if file.exists() or file.is_symlink():
        message = f"{file} exists and is left as it is; name another directory, or move it away"
        raise UsageError(message)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:  # never over a file or link that has come to be there
            stream.write(STARTER)
    except OSError as error:
        message = f"cannot write {file}: {error.strerror}"
        raise UsageError(message) from None
    where = "" if directory == Path() else f" {shlex.quote(str(directory))}"
    click.echo(f"wrote {file}\nnow run: trainhooks train{where}")
