"""``lr_monitor``: the rate that each update was made with."""

import pytest
import torch
from torch import nn

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import LR, Checkpoint, LRMonitor


class Reports:
    def __init__(self):
        self.values = []

    @hookimpl
    def report_metrics(self, records):
        self.values += [dict(record.values) for record in records]

    def of(self, name):
        return [values[name] for values in self.values if name in values]


class Skips:
    """Skips the second update, as loss scaling does."""

    @hookimpl
    def optimizer_step(self, trainer):
        return False if trainer.step == 1 else None


def train(plugins, optimizer, model, **arguments):
    class Sums:
        @hookimpl
        def compute_loss(self, trainer):
            return sum(p.sum() for p in trainer.model.parameters())

    arguments.setdefault("max_updates", 4)
    loaders = {"train": [0] * 4}
    every = [Sums(), *plugins]
    trainer = Trainer(
        model, optimizer=optimizer, loaders=loaders, plugins=every, autoload=False, log_every_steps=1, **arguments
    )
    trainer.train()
    return trainer


def groups(model, **extra):
    return [{"params": [model.weight], "lr": 0.5, **extra}, {"params": [model.bias], "lr": 0.25}]


def test_rates_of_a_schedule_are_those_in_force(make_trainer):
    """Linear to 0 over 4 updates from 0.8: 0.8, 0.6, 0.4, 0.2, whichever of the two plugins was named first."""
    for plugins in ([LR("linear"), LRMonitor()], [LRMonitor(), LR("linear")]):
        reports = Reports()
        make_trainer([*plugins, reports], lr=0.8, max_updates=4, log_every_steps=1).train()
        assert reports.of("lr/optimizer/0") == pytest.approx([0.8, 0.6, 0.4, 0.2], abs=1e-12)
        assert reports.of("lr") == reports.of("lr/optimizer/0")


def test_each_group_by_index_or_name():
    model = nn.Linear(1, 1)
    reports = Reports()
    train([LRMonitor(), reports], torch.optim.SGD(groups(model, name="weights")), model)
    assert reports.of("lr/optimizer/weights") == [0.5] * 4
    assert reports.of("lr/optimizer/1") == [0.25] * 4


def test_groups_of_one_name_are_told_apart():
    model = nn.Linear(1, 1)
    reports = Reports()
    both = groups(model, name="same")
    both[1]["name"] = "same"
    train([LRMonitor(), reports], torch.optim.SGD(both), model)
    assert (reports.of("lr/optimizer/same")[0], reports.of("lr/optimizer/same.1")[0]) == (0.5, 0.25)


def test_several_optimizers_momentum_and_decay():
    """SGD with momentum 0.9, AdamW with betas (0.8, 0.99): momentum is the first, beta2 the second."""
    model = nn.Linear(1, 1)
    reports = Reports()
    optimizers = {
        "sgd": torch.optim.SGD([model.weight], lr=0.5, momentum=0.9, weight_decay=0.01),
        "adam": torch.optim.AdamW([model.bias], lr=0.001, betas=(0.8, 0.99), weight_decay=0.1),
    }
    train([LRMonitor(momentum=True, weight_decay=True), reports], optimizers, model, max_updates=1)
    assert {name: value for name, value in reports.values[0].items() if name.endswith("/0")} == {
        "lr/sgd/0": 0.5,
        "momentum/sgd/0": 0.9,
        "weight_decay/sgd/0": 0.01,
        "lr/adam/0": 0.001,
        "momentum/adam/0": 0.8,
        "beta2/adam/0": 0.99,
        "weight_decay/adam/0": 0.1,
    }


def test_only_the_rate_without_being_asked():
    model = nn.Linear(1, 1)
    reports = Reports()
    train([LRMonitor(), reports], torch.optim.AdamW(model.parameters()), model, max_updates=1)
    assert not [name for name in reports.values[0] if name.startswith(("momentum", "beta2", "weight_decay"))]


def test_a_rate_that_is_a_tensor_is_logged_as_it_was():
    """torch allows tensors as rates; the schedule fills them in place, so what is kept must be a copy."""
    model = nn.Linear(1, 1)
    reports = Reports()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.8, dtype=torch.float64), capturable=False, foreach=False)
    train([LR("linear"), LRMonitor(), reports], optimizer, model)
    assert reports.of("lr/optimizer/0") == pytest.approx([0.8, 0.6, 0.4, 0.2], abs=1e-12)


def test_every_second_update_and_not_a_skipped_one(make_trainer):
    """5 steps, the second makes no update: updates 1 to 4 in steps 0, 2, 3, 4; the second and fourth in steps 2 and 4."""
    reports = Reports()
    make_trainer([LRMonitor(every_updates=2), Skips(), reports], values=(1.0,) * 5, log_every_steps=1).train()
    assert ["lr/optimizer/0" in values for values in reports.values] == [False, False, True, False, True]


def test_groups_that_come_later(make_trainer):
    class Adds:
        @hookimpl
        def before_epoch(self, trainer):
            trainer.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.125})

    trainer = make_trainer([LRMonitor(), Adds()])
    trainer.train()
    assert trainer.metrics["lr/optimizer/1"] == 0.125


def test_a_resumed_run_logs_the_same(make_trainer, tmp_path):
    def run(folder, resume=None, **limits):
        reports = Reports()
        plugins = [LR("linear", total_updates=6), LRMonitor(), Checkpoint(), reports]
        make_trainer(plugins, values=(1.0,) * 6, work_dir=tmp_path / folder, log_every_steps=1, **limits).train(resume=resume)
        return reports.of("lr/optimizer/0")

    whole = run("whole", max_updates=6)
    assert run("cut", max_updates=3) + run("cut", resume="auto", max_updates=6) == whole


def test_no_optimizer_is_an_error():
    class Steps:
        @hookimpl
        def train_step(self):
            return {"loss": 0.0}

    trainer = Trainer(plugins=[LRMonitor(), Steps()], max_steps=1, autoload=False)
    with pytest.raises(UsageError, match="lr_monitor' needs an optimizer"):
        trainer.train()


def test_wrong_options():
    with pytest.raises(OptionError, match="every_updates = 0"):
        LRMonitor(every_updates=0)
