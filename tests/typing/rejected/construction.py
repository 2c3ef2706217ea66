"""Trainers that must not type-check."""

from torch import nn

from trainhooks import Trainer
from trainhooks_builtins import Checkpoint

Trainer(nn.Linear(1, 1), max_step=3)  # E: call-arg
Trainer(nn.Linear(1, 1), max_steps="3")  # E: arg-type
Trainer(nn.Linear(1, 1)).fit()  # E: attr-defined
Trainer("model")  # E: arg-type
Trainer(nn.Linear(1, 1), None)  # E: call-arg
Trainer(plugins=Checkpoint())  # E: arg-type
Trainer(options={"checkpoint": 3})  # E: dict-item
Checkpoint(keeps=3)  # E: call-arg
Checkpoint(mode="lowest")  # E: arg-type
