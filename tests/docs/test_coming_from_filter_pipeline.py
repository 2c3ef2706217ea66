"""docs/examples/coming-from/filter_pipeline.py: hooks that decide whether a batch goes on."""

import math
from pathlib import Path

import pytest
import torch

from trainhooks import Trainer, hookimpl
from trainhooks.project import load_project
from trainhooks_builtins import Evaluation

example = load_project(Path(__file__).parents[2] / "docs" / "examples" / "coming-from" / "filter_pipeline.py")

NAN = math.nan


def make(pairs, *plugins, max_epochs=1, val=None):
    """A trainer whose weight goes half of the way to 2 with each batch (1, 2): (w - 2)² and rate 1/4."""
    loaders = {"train": pairs} if val is None else {"train": pairs, "val": val}
    tensors = {
        split: [tuple(torch.tensor([value], dtype=torch.float64) for value in pair) for pair in loader]
        for split, loader in loaders.items()
    }
    model = example.Slope()
    return Trainer(
        model,
        loss=torch.nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.25),
        loaders=tensors,
        plugins=plugins,
        max_epochs=max_epochs,
        autoload=False,
    )


def filters():
    return example.Filter("not finite", example.finite), example.Filter("no label", example.labelled)


class Seen:
    """Which batches of the epoch other hooks see, and which of them were trained."""

    def __init__(self):
        self.began, self.trained, self.skipped = [], [], []

    @hookimpl(tryfirst=True)
    def before_step(self, trainer):
        self.began.append(trainer.batch_index)

    @hookimpl
    def after_step(self, trainer):
        self.trained.append((trainer.batch_index, trainer.step))

    @hookimpl
    def after_skip(self, trainer, reason):
        self.skipped.append((trainer.batch_index, trainer.step, reason))


def test_a_dropped_batch_trains_nothing_and_is_counted_by_reason():
    pairs = [(1.0, 2.0), (NAN, 2.0), (1.0, -1.0), (1.0, 2.0), (NAN, 2.0)]
    dropped, seen = example.Dropped(), Seen()
    trainer = make(pairs, *filters(), dropped, seen)
    outcome = trainer.train()
    assert dropped.reasons == {"not finite": 2, "no label": 1}
    assert trainer.model.weight.item() == 2 * (1 - 2**-2)  # two batches went on
    assert (outcome.step, outcome.update, outcome.epoch) == (2, 2, 1)
    assert seen.began == [0, 1, 2, 3, 4]
    assert seen.trained == [(0, 0), (3, 1)]
    assert seen.skipped == [(1, 1, "not finite"), (2, 1, "no label"), (4, 2, "not finite")]


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_filter_in_the_order_gives_the_reason(first):
    both = filters()
    dropped = example.Dropped()
    make([(NAN, -1.0), (1.0, 2.0)], both[first], both[1 - first], dropped).train()
    assert dropped.reasons == {("not finite", "no label")[first]: 1}


def test_an_early_filter_is_in_front_of_everybody():
    pairs = [(NAN, 2.0), (1.0, 2.0), (NAN, 2.0)]
    early, seen, dropped = example.EarlyFilter(example.finite), Seen(), example.Dropped()
    trainer = make(pairs, dropped, seen, early)
    trainer.train()
    assert early.dropped == 2
    assert seen.began == [1]
    assert seen.trained == [(1, 0)]
    assert seen.skipped == []
    assert dropped.reasons == {}
    assert trainer.model.weight.item() == 1.0


def test_an_early_filter_leaves_an_evaluation_alone():
    # targets 2 and -1 for the weight 1 after one batch: losses 1 and 4, mean 5/2
    early = example.EarlyFilter(example.labelled)
    trainer = make([(1.0, 2.0), (1.0, -1.0)], early, Evaluation(), val=[(1.0, 2.0), (1.0, -1.0)])
    outcome = trainer.train()
    assert early.dropped == 1
    assert outcome.metrics["val/loss"] == 2.5


def test_without_filters_every_batch_goes_on():
    trainer = make([(1.0, 2.0)] * 3)
    assert trainer.hooks.before_step is None
    assert trainer.hooks.after_skip is None
    assert trainer.train().step == 3
    assert trainer.model.weight.item() == 2 * (1 - 2**-3)


def test_a_run_that_drops_everything_ends():
    dropped = example.Dropped()
    trainer = make([(NAN, 2.0)] * 3, *filters(), dropped, max_epochs=2)
    outcome = trainer.train()
    assert (outcome.status, outcome.step, outcome.epoch) == ("completed", 0, 2)
    assert dropped.reasons == {"not finite": 6}


def test_main_shows_it(capsys):
    example.main()
    assert capsys.readouterr().out.splitlines() == [
        "3 of 6 batches went on; the weight is 1.75",  # 2 (1 - 2^-3)
        "dropped: {'not finite': 1, 'no label': 1}, and 1 before anybody saw it",
    ]
