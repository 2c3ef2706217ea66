"""The ways to make a trainer."""

from pathlib import Path

import torch
from torch import nn

from trainhooks import Trainer
from trainhooks_builtins import LR, Checkpoint

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loaders = {"train": [(torch.ones(1, 2), torch.ones(1, 2))]}

Trainer(model, loss=nn.functional.mse_loss, optimizer=optimizer, loaders=loaders, max_epochs=3)
Trainer(model, optimizer={"g": optimizer, "d": optimizer}, loaders=loaders, max_updates=3, device="cpu", seed=1)
Trainer(conf="trainconf.py", config=Path("pyproject.toml"), work_dir="runs/a", autoload=["timer"])
Trainer(max_steps=1, plugins=[Checkpoint(keep=3), LR, "no:timer"], options={"checkpoint": {"keep": 3}})
