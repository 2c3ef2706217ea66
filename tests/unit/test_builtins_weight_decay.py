"""``weight_decay`` against formulas written down here."""

import math

import pytest
import torch

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import LR, Checkpoint, WeightDecay


class Notes:
    """Notes the weight decay of each group when an update is applied."""

    def __init__(self, stop=None):
        self.seen, self.stop = [], stop

    @hookimpl
    def compute_loss(self, trainer):
        return sum(p.sum() for p in trainer.model.parameters())

    @hookimpl
    def gradients_ready(self, trainer):
        self.seen.append([group["weight_decay"] for group in trainer.optimizer.param_groups])

    @hookimpl
    def after_step(self, trainer):
        if trainer.step + 1 == self.stop:
            trainer.stop("asked")


def adamw(*decays):
    groups = [{"params": [torch.nn.Parameter(torch.ones(()))], "weight_decay": decay} for decay in decays]
    return torch.optim.AdamW(groups, lr=0.1)


def train(plugins, optimizer, updates, resume=None, notes=None, **arguments):
    notes = notes or Notes()
    model = torch.nn.ParameterList([p for group in optimizer.param_groups for p in group["params"]])
    trainer = Trainer(
        model,
        optimizer=optimizer,
        loaders={"train": [0] * 5},
        plugins=[*plugins, notes],
        max_updates=updates,
        autoload=False,
        **arguments,
    )
    trainer.train(resume=resume)
    return notes.seen


def cosine(base, end, t, total):
    return end + (base - end) * (1 + math.cos(math.pi * t / total)) / 2


def test_rises_along_a_cosine():
    """From 0.04 to ten times that, as DINO (Caron et al. 2021) has it."""
    seen = train([WeightDecay(end=10.0)], adamw(0.04), 12)
    assert seen == [[pytest.approx(cosine(0.04, 0.4, t, 12), rel=1e-12)] for t in range(12)]


def test_a_group_without_decay_keeps_none():
    seen = train([WeightDecay(args={"end_value": 0.4})], adamw(0.04, 0.0), 6)
    assert seen == [[pytest.approx(cosine(0.04, 0.4, t, 6)), 0.0] for t in range(6)]


def test_a_base_in_place_of_the_optimizers():
    assert train([WeightDecay("linear", base=0.2, groups=[0])], adamw(0.04, 0.3), 2) == [[0.2, 0.3], [0.1, 0.3]]


def test_leaves_the_rate_to_lr():
    optimizer = adamw(0.04)
    train([WeightDecay("linear"), LR("linear")], optimizer, 4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    assert optimizer.param_groups[0]["weight_decay"] == pytest.approx(0.0)
    assert optimizer.param_groups[0]["initial_lr"] == 0.1
    assert optimizer.param_groups[0]["initial_weight_decay"] == 0.04


def test_by_epoch_and_warmup(messages):
    seen = train([WeightDecay("step", args={"every": 1}, by="epoch", warmup_updates=2)], adamw(0.1), 10)
    assert seen == [[pytest.approx(v)] for v in (0.0, 0.05, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 0.01)]
    assert "weight_decay: step (every 1) by epoch over 2 epochs, warmup 2 updates" in messages()


def test_faults():
    with pytest.raises(OptionError, match="weight_decay.schedule: there is no schedule 'cosines'"):
        WeightDecay("cosines")
    with pytest.raises(UsageError, match="plugin 'weight_decay': no parameter group"):
        train([WeightDecay()], torch.optim.Rprop([torch.nn.Parameter(torch.ones(()))]), 2)


@pytest.mark.parametrize("cut", [1, 4, 6])
def test_goes_on_exactly(tmp_path, cut):
    def plugins():
        return [WeightDecay(end=3.0, warmup_updates=2), Checkpoint()]

    whole = train(plugins(), adamw(0.04, 0.0), 8)
    begun = train(plugins(), adamw(0.04, 0.0), 8, notes=Notes(stop=cut), work_dir=tmp_path / "run")
    rest = train(plugins(), adamw(0.04, 0.0), 8, resume="auto", work_dir=tmp_path / "run")
    assert begun + rest == whole
