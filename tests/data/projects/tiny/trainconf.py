"""One weight w, loss w * mean(x), SGD with rate 1: with x = 1 each update takes 1 off, so w is -n after n updates."""

import torch
from torch import nn

from trainhooks import hookimpl

LOADERS = {"train": [1.0, 1.0, 1.0], "val": [2.0], "test": [1.0, 2.0]}


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.w * x.mean()


@hookimpl
def configure(trainer):
    if not trainer.limited:
        trainer.max_steps = 3


@hookimpl
def make_model():
    return Scalar()


@hookimpl
def make_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters(), lr=1.0)


@hookimpl
def make_loader(split):
    return [torch.tensor([x]) for x in LOADERS[split]]
