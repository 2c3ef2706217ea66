"""``evaluation``: when, which splits, what is best. Its cases are ``tests/cases/test_ev.py``."""

import math

import pytest

from trainhooks import DataError, MissingPartError, OptionError, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation


class Measures:
    """Gives these values in turn."""

    def __init__(self, *values, metric="score"):
        self.values, self.metric = list(values), metric

    @hookimpl
    def eval_step(self):
        return {self.metric: self.values.pop(0)}


class Reports:
    def __init__(self):
        self.values = []

    @hookimpl
    def report_metrics(self, records):
        self.values += [dict(record.values) for record in records]


class TwoStepsAnUpdate:
    @hookimpl
    def update_due(self, trainer):
        return trainer.step % 2 == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every_steps": 3}, [3, 6, 8]),
        ({"every_updates": 3}, [6, 8]),
        ({"every_epochs": 1}, [4, 8]),
        ({}, [4, 8]),
        ({"every_epochs": 2}, [8]),
        ({"every_epochs": 1, "every_steps": 3}, [3, 4, 6, 8]),
        ({"every_steps": 3, "at_end": False}, [3, 6]),
        ({"every_epochs": 0}, []),
        ({"every_steps": 100}, [8]),
    ],
)
def test_intervals(make_trainer, recorder, options, expected):
    """2 epochs of 4 steps, an update every second step."""
    evals = recorder("after_eval")
    make_trainer([Evaluation(**options), evals, TwoStepsAnUpdate()], values=(1.0,) * 4, val=(1.0,), max_epochs=2).train()
    assert [step for _, step in evals.calls] == expected


class TestSplits:
    def splits(self, make_trainer, evaluation, extra=()):
        seen = []

        class Watches:
            @hookimpl
            def after_eval(self, split):
                seen.append(split)

        trainer = make_trainer([evaluation, Watches(), *extra], val=(1.0,), max_epochs=1)
        trainer.loaders["test"] = trainer.loaders["val"]
        trainer.train()
        return seen, trainer

    def test_several_in_their_order(self, make_trainer):
        seen, trainer = self.splits(make_trainer, Evaluation(splits=("test", "val")))
        assert seen == ["test", "val"]
        assert trainer.metrics["test/loss"] == trainer.metrics["val/loss"] == -10.0

    def test_one_that_is_named_must_be_there(self, make_trainer):
        with pytest.raises(MissingPartError, match="no loader for split 'dev'"):
            self.splits(make_trainer, Evaluation(splits=("val", "dev")))

    def test_nothing_is_evaluated_where_make_loader_declines(self, make_trainer):
        class Makes:
            @hookimpl
            def make_loader(self):
                return None

        trainer = make_trainer([Evaluation(), Makes()])
        assert trainer.train().status == "completed"

    def test_one_that_make_loader_makes(self, make_trainer):
        class Makes:
            @hookimpl
            def make_loader(self, trainer, split):
                return trainer.loaders["val"] if split == "dev" else None

        assert self.splits(make_trainer, Evaluation(splits=("val", "dev")), [Makes()])[0] == ["val", "dev"]


class TestBest:
    @pytest.mark.parametrize(
        ("metric", "values", "best"),
        [
            ("loss", [0.5, math.nan, 0.3, 0.4], (0.3, 3)),
            ("accuracy", [0.5, 0.7, math.nan, 0.6], (0.7, 2)),
            ("loss", [math.nan] * 4, (None, None)),
        ],
    )
    def test_nan_is_never_best(self, make_trainer, metric, values, best):
        plugin = Evaluation(every_steps=1, monitor=f"val/{metric}")
        trainer = make_trainer([plugin, Measures(*values, metric=metric)], val=(1.0,), max_steps=4)
        trainer.train()
        assert (plugin.best.value, plugin.best.step) == best
        assert trainer.metrics.get(f"best/val/{metric}") == best[0]

    def test_is_reported_with_the_evaluation_that_gave_it(self, make_trainer):
        reports = Reports()
        plugins = [Evaluation(every_steps=1, monitor="val/score"), Measures(0.5, 0.7, 0.6), reports]
        make_trainer(plugins, val=(1.0,), max_steps=3).train()
        seen = [(values["val/score"], values.get("best/val/score")) for values in reports.values if "val/score" in values]
        assert seen == [(0.5, 0.5), (0.7, 0.7), (0.6, None)]

    def test_goes_on_after_a_resume(self, make_trainer, tmp_path):
        def train(steps, *values):
            plugin = Evaluation(every_steps=1, monitor="val/score")
            parts = [plugin, Measures(*values), Checkpoint(every_steps=1)]
            make_trainer(parts, val=(1.0,), max_steps=steps, work_dir=tmp_path / "run").train(resume="auto")
            return plugin.best.value, plugin.best.step

        assert train(2, 0.5, 0.9) == (0.9, 2)
        assert train(4, 0.6, 0.8) == (0.9, 2)
        assert train(5, 1.0) == (1.0, 5)

    def test_a_metric_that_is_not_measured(self, make_trainer):
        plugins = [Evaluation(monitor="val/acc"), Measures(0.5)]
        with pytest.raises(DataError, match=r"evaluation.monitor = 'val/acc' is not among the metrics val/score"):
            make_trainer(plugins, val=(1.0,)).train()


def test_numbers_of_every_kind_are_averaged(make_trainer):
    """NumPy's and booleans included; what is no scalar is left to the hooks."""
    import numpy as np
    import torch

    class Gives:
        def __init__(self):
            self.outputs = iter([1, 3])

        @hookimpl
        def eval_step(self):
            n = next(self.outputs)
            one = {"int": n, "numpy": np.float32(n), "tensor": torch.tensor(n), "flag": n == 3}
            return {**one, "logits": torch.ones(2), "text": "x"}

    metrics = make_trainer([Gives()], val=(1.0, 1.0)).evaluate("val")
    assert metrics == {"val/int": 2.0, "val/numpy": 2.0, "val/tensor": 2.0, "val/flag": 0.5}


@pytest.mark.parametrize("name", ["every_epochs", "every_steps", "every_updates"])
def test_options(name):
    with pytest.raises(OptionError, match=f"{name} = -1"):
        Evaluation(**{name: -1})
