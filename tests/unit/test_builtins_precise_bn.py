"""``precise_bn`` against means and variances worked out from the batches."""

import pytest
import torch
from torch import nn

from trainhooks import OptionError, Trainer, hookimpl
from trainhooks_builtins import Accumulate, Checkpoint, Evaluation, PreciseBN
from trainhooks_builtins.checkpoint import read_checkpoint

VALUES = ([1.0, 3.0], [2.0, 6.0], [4.0, 4.0])
MEAN = (2 + 4 + 4) / 3
VARIANCE = (2 + 8 + 0) / 3  # of each batch, unbiased, and then the mean of them


class Net(nn.Module):
    """A batch normalization of the input, and a weight so that there is something to train."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1, dtype=torch.float64)

    def forward(self, x):
        return self.norm(x).sum() + self.norm.weight.sum()


class Asks:
    """Evaluates after each of these steps, and notes the statistics that the evaluation sees."""

    def __init__(self, *steps):
        self.steps, self.seen = steps, []

    @hookimpl
    def after_step(self, trainer):
        if trainer.step + 1 in self.steps:
            trainer.request_eval("val")

    @hookimpl
    def before_eval(self, trainer):
        norm = trainer.model.norm
        self.seen.append((norm.running_mean.item(), norm.running_var.item()))


def make(*plugins, lr=0.0, **arguments):
    model = Net()
    batches = [torch.tensor([[a], [b]], dtype=torch.float64) for a, b in VALUES]
    return Trainer(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        loaders={"train": batches, "val": batches[:1]},
        plugins=plugins,
        autoload=False,
        **{"max_epochs": 1, **arguments},
    )


def test_statistics_are_the_mean_over_all_batches():
    asks = Asks(3)
    trainer = make(asks, PreciseBN())
    trainer.train()
    assert asks.seen == [(pytest.approx(MEAN, rel=1e-12), pytest.approx(VARIANCE, rel=1e-12))]
    assert trainer.model.norm.momentum == 0.1
    assert trainer.model.training


def test_in_the_middle_of_an_epoch_and_with_some_batches_only():
    asks = Asks(1)
    make(asks, PreciseBN(batches=2)).train()
    assert asks.seen == [(pytest.approx(3.0), pytest.approx(5.0))]  # means 2 and 4, variances 2 and 8


def test_within_a_window_too_each_step_of_which_moves_the_running_statistics():
    asks = Asks(1, 2)
    make(asks, PreciseBN(), Accumulate(3)).train()
    assert asks.seen == [(pytest.approx(MEAN), pytest.approx(VARIANCE))] * 2


def test_training_is_the_same_with_and_without():
    trained = []
    for plugins in ([], [PreciseBN()]):
        trainer = make(Asks(1, 2), *plugins, max_epochs=2, lr=0.1)
        trainer.train()
        trained.append({name: value for name, value in trainer.model.state_dict().items() if "running" not in name})
    assert all(torch.equal(value, trained[1][name]) for name, value in trained[0].items() if "tracked" not in name)


def test_what_hooks_log_meanwhile_is_not_taken_for_training():
    class Logs:
        @hookimpl(wrapper=True)
        def compute_loss(self, trainer):
            if trainer.model.training:
                trainer.log("calls", 1.0, reduce="sum")
            return (yield)

        @hookimpl
        def after_epoch(self, metrics):
            self.calls = metrics["calls"]

    logs = Logs()
    make(Asks(2), logs, PreciseBN()).train()
    assert logs.calls == 3


def test_an_evaluation_outside_of_training_measures_nothing():
    trainer = make(PreciseBN())
    trainer.evaluate("val")
    assert trainer.model.norm.running_mean.item() == 0


def test_the_checkpoint_has_them(tmp_path):
    class Ends:
        @hookimpl
        def after_train_epoch(self, trainer):
            trainer.request_eval("val")

    trainer = make(Ends(), PreciseBN(), Checkpoint(), work_dir=tmp_path / "run")
    trainer.train()
    state = read_checkpoint(tmp_path / "run/checkpoints/step-00000003")
    assert state["model"]["norm.running_mean"].item() == pytest.approx(MEAN)


def test_a_loader_that_can_be_read_once_is_left_alone(messages):
    asks = Asks(1)
    trainer = make(asks, PreciseBN(), max_steps=2)
    trainer.loaders["train"] = iter(trainer.loaders["train"])
    trainer.train()
    assert asks.seen == [(pytest.approx(0.2), pytest.approx(1.1))]  # momentum 0.1 from mean 0 and variance 1
    assert [m for m in messages() if m.startswith("precise_bn")] == [
        "precise_bn: the statistics of batch normalization are not measured, since the train loader can be read once only"
    ]


def test_a_model_without_such_layers_needs_nothing(make_trainer):
    trainer = make_trainer([PreciseBN(), Evaluation(every_steps=1)], val=[1.0], max_steps=2)
    trainer.train()
    assert trainer.metrics["val/loss"] == -2.0


def test_options_are_checked():
    with pytest.raises(OptionError, match="batches = 0: must be at least 1"):
        PreciseBN(batches=0)
