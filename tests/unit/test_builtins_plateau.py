"""``plateau`` against torch's ReduceLROnPlateau, and together with ``lr``."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from trainhooks import DataError, OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import LR, Checkpoint, Evaluation, Plateau


class Measures:
    """Evaluates after every step, with the next of some values; notes the rates after it and when an update is applied."""

    def __init__(self, values, name="val/loss", stop=None):
        self.values, self.name, self.stop = list(values), name, stop
        self.after, self.applied = [], []

    @hookimpl
    def compute_loss(self, trainer):
        return sum(p.sum() for p in trainer.model.parameters())

    @hookimpl
    def gradients_ready(self, trainer):
        self.applied.append([group["lr"] for group in trainer.optimizer.param_groups])

    @hookimpl
    def after_step(self, trainer):
        trainer.request_eval()
        if trainer.step + 1 == self.stop:
            trainer.stop("asked")

    @hookimpl
    def evaluate(self, trainer):
        metrics = {self.name: self.values[trainer.step - 1]}
        trainer.hooks.after_eval(trainer=trainer, split="val", metrics=metrics)
        self.after.append([group["lr"] for group in trainer.optimizer.param_groups])
        return metrics


def sgd(*rates):
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(()))], "lr": rate} for rate in rates])


def train(plugins, values, rates=(1.0,), resume=None, optimizer=None, measures=None, **arguments):
    measures = measures or Measures(values)
    optimizer = optimizer or sgd(*rates)
    model = torch.nn.ParameterList([p for group in optimizer.param_groups for p in group["params"]])
    trainer = Trainer(
        model,
        optimizer=optimizer,
        loaders={"train": [0] * 4, "val": [0]},
        plugins=[*plugins, measures],
        max_updates=len(values),
        autoload=False,
        **arguments,
    )
    trainer.train(resume=resume)
    return measures


OURS_TO_THEIRS = {"min_delta": "threshold", "delta_mode": "threshold_mode"}


@pytest.mark.parametrize("sign", [1, -1])
@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.one_of(st.floats(0, 2), st.sampled_from([0.5, 0.4999, math.nan])), min_size=1, max_size=40),
    options=st.fixed_dictionaries(
        {
            "mode": st.sampled_from(["min", "max"]),
            "factor": st.floats(0.05, 0.99),
            "patience": st.integers(0, 4),
            "min_delta": st.sampled_from([0.0, 1e-4, 0.1]),
            "delta_mode": st.sampled_from(["rel", "abs"]),
            "cooldown": st.integers(0, 3),
            "min_lr": st.sampled_from([0.0, 0.01, 0.7]),
            "eps": st.sampled_from([0.0, 1e-8, 0.05]),
        }
    ),
)
def test_is_torchs_value_for_value(values, options, sign):
    """With negative values it is that of the opposite mode for the positive ones: torch takes slightly worse ones for better."""
    mode = options["mode"] if sign == 1 else {"min": "max", "max": "min"}[options["mode"]]
    seen = train([Plateau(**{**options, "mode": mode})], [sign * value for value in values], rates=(1.0, 0.3)).after
    optimizer = sgd(1.0, 0.3)
    theirs = ReduceLROnPlateau(optimizer, **{OURS_TO_THEIRS.get(name, name): value for name, value in options.items()})
    wanted = []
    for value in values:
        theirs.step(value)
        wanted.append([group["lr"] for group in optimizer.param_groups])
    assert seen == wanted


def test_a_negative_loss_that_stays_as_it_is_is_no_improvement():
    assert train([Plateau(patience=1, factor=0.5)], [-1.0, -1.0, -1.0, -1.00001]).after == [[1.0], [1.0], [0.5], [0.5]]


def test_by_hand(messages):
    """Patience 1: the second bad evaluation in a row halves the rate."""
    measures = train([Plateau(patience=1, factor=0.5)], [3.0, 2.0, 2.0, 2.5, 2.4, 1.0, 1.5, 1.5])
    assert [rates[0] for rates in measures.after] == [1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25]
    assert [text for text in messages() if text.startswith("plateau")] == [
        "plateau: val/loss has not improved for 2 evaluations at step 4: rates times 0.5, now 0.5",
        "plateau: val/loss has not improved for 2 evaluations at step 8: rates times 0.5, now 0.25",
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_not_finite_is_no_improvement(bad, first):
    """At first it is not taken for the best; later it counts as bad."""
    plugin = Plateau(patience=1, factor=0.5)
    values = [bad, bad, 2.0, 1.0] if first else [2.0, bad, bad, 1.0]
    measures = train([plugin], values)
    assert [rates[0] for rates in measures.after] == ([1, 0.5, 0.5, 0.5] if first else [1, 1, 0.5, 0.5])
    assert plugin.best == 1.0


def test_the_direction_comes_from_the_name():
    plugin = Plateau("val/accuracy", patience=0, factor=0.5)
    assert plugin.mode == "max"
    measures = Measures([0.1, 0.2, 0.3, 0.3], name="val/accuracy")
    train([plugin], measures.values, measures=measures)
    assert [rates[0] for rates in measures.after] == [1, 1, 1, 0.5]


class TestWithASchedule:
    def test_multiplies_the_scheduled_rate(self):
        """Linear from 1 over 8; halved by the second and the fourth evaluation, so from the third and fifth update on."""
        plugins = [LR("linear"), Plateau(patience=0, factor=0.5)]
        measures = train(plugins, [1.0, 1.0, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1])
        scales = [1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
        assert [rates[0] for rates in measures.applied] == [(1 - i / 8) * scale for i, scale in enumerate(scales)]
        # what the evaluation leaves behind is what the next update takes
        assert [rates[0] for rates in measures.after[:-1]] == [rates[0] for rates in measures.applied[1:]]

    def test_the_order_of_the_list_does_not_matter(self):
        values = [1.0, 1.0, 0.5, 0.5, 0.4]
        runs = [
            train(plugins, values).applied
            for plugins in (
                [LR("linear"), Plateau(patience=0, factor=0.5)],
                [Plateau(patience=0, factor=0.5), LR("linear")],
            )
        ]
        assert runs[0] == runs[1]

    def test_by_epoch_it_acts_at_once(self):
        plugins = [LR("step", args={"every": 1, "gamma": 0.5}, by="epoch"), Plateau(patience=0, factor=0.1)]
        measures = train(plugins, [1.0, 1.0, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05])
        assert [rates[0] for rates in measures.applied] == pytest.approx([1, 1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05])

    def test_a_floor_is_one_of_base_times_scale(self):
        plugins = [LR("constant"), Plateau(patience=0, factor=0.1, min_lr=0.05)]
        measures = train(plugins, [1.0] * 4, rates=(1.0, 0.2))
        assert measures.applied == [pytest.approx(rates) for rates in ([1, 0.2], [1, 0.2], [0.1, 0.05], [0.05, 0.05])]

    def test_a_schedule_for_some_groups(self):
        plugins = [LR("linear", groups=[0]), Plateau(patience=0, factor=0.5)]
        measures = train(plugins, [1.0, 1.0, 1.0, 0.5], rates=(1.0, 4.0))
        assert measures.applied == [[1, 4], [0.75, 4], [0.25, 2], [0.0625, 1]]

    def test_with_torchs_scheduler(self):
        plugins = [LR(torch_scheduler=lambda optimizer: ExponentialLR(optimizer, 0.5)), Plateau(patience=0, factor=0.1)]
        measures = train(plugins, [1.0, 1.0, 0.5, 0.4])
        assert [rates[0] for rates in measures.applied] == pytest.approx([1, 0.5, 0.025, 0.0125])


@pytest.mark.parametrize(
    "schedule", [None, LR, lambda: LR(torch_scheduler=lambda o: ExponentialLR(o, 0.9)), lambda: LR(by="epoch")]
)
@pytest.mark.parametrize("cut", [1, 3, 4, 5, 7])
def test_goes_on_exactly(tmp_path, schedule, cut):
    values = [3.0, 3.0, 2.0, 2.0, math.nan, 2.1, 1.0, 1.0, 1.0]

    def plugins():
        return [Plateau(patience=1, factor=0.7, cooldown=1), Checkpoint(), *([schedule()] if schedule else [])]

    whole = train(plugins(), values, rates=(1.0, 0.1))
    begun = train(plugins(), values, rates=(1.0, 0.1), measures=Measures(values, stop=cut), work_dir=tmp_path / "run")
    rest = train(plugins(), values, rates=(1.0, 0.1), resume="auto", work_dir=tmp_path / "run")
    assert begun.applied + rest.applied == whole.applied
    assert (begun.after + rest.after)[-1] == whole.after[-1]


def test_a_rate_that_is_a_tensor_stays_the_object():
    rate = torch.tensor(1.0)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=rate)
    train([Plateau(patience=0, factor=0.5)], [1.0, 1.0], optimizer=optimizer)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.5


def test_an_evaluation_outside_of_training_changes_nothing(make_trainer):
    """Nor does the training that follows know of it: the evaluations of the two trainings are 1 and 2."""
    trainer = make_trainer([Evaluation(), Plateau(patience=1, mode="max", factor=0.5)], values=[1.0], val=[1.0], start=9.0)
    trainer.train()
    for _ in range(3):
        trainer.evaluate()
    assert (trainer.optimizer.param_groups[0]["lr"], trainer.plugins["plateau"].bad) == (1.0, 0)
    trainer.train(max_epochs=3)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.5


class TestFaults:
    def test_a_metric_that_is_not_measured(self):
        with pytest.raises(DataError, match="plateau.monitor = 'val/accuracy' is not among the metrics val/loss"):
            train([Plateau("val/accuracy")], [1.0])

    @pytest.mark.parametrize("metric", ["val_loss", "loss"])
    def test_a_metric_that_no_evaluation_can_give(self, metric):
        wanted = f"plateau.monitor = '{metric}' is not among the metrics val/loss; did you mean 'val/loss'?"
        with pytest.raises(DataError, match=re.escape(wanted)):
            train([Plateau(metric)], [1.0])

    def test_a_split_that_is_never_evaluated(self, messages):
        train([Plateau("test/loss")], [1.0, 1.0])
        why = "was not measured in this run, so no rate was changed"
        assert f"plateau: 'test/loss' {why}; did you mean 'train/loss'?" in messages()

    def test_no_optimizer(self):
        class Steps:
            @hookimpl
            def train_step(self):
                return {}

        with pytest.raises(UsageError, match="plugin 'plateau' needs an optimizer"):
            Trainer(plugins=[Plateau(), Steps()], max_steps=1, autoload=False).train()

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"factor": 1.0}, "factor = 1.0: must be above 0 and below 1"),
            ({"factor": 0.0}, "factor = 0.0"),
            ({"factor": math.nan}, "factor = nan"),
            ({"patience": -1}, "patience = -1: must be 0 or more"),
            ({"min_delta": -0.1}, "min_delta = -0.1: must be 0 or more"),
            ({"min_lr": math.nan}, "min_lr = nan"),
            ({"cooldown": -1}, "cooldown = -1"),
            ({"eps": -1.0}, "eps = -1.0"),
            ({"delta_mode": "absolute"}, "delta_mode = 'absolute', mode = 'auto': must be rel or abs"),
            ({"mode": "minimum"}, "mode = 'minimum': must be rel or abs, and auto, min or max"),
        ],
    )
    def test_options(self, options, said):
        with pytest.raises(OptionError, match=said):
            Plateau(**options)
