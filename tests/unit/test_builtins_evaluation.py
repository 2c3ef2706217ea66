"""``evaluation``: when, which splits, what is best. Its cases are ``tests/cases/test_ev.py``."""

import json
import math
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainhooks import DataError, MissingPartError, OptionError, Trainer, hookimpl
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


class TestStart:
    """As with an interval alone, but counted from the start: due there, then every n-th."""

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"every_steps": 3, "start_step": 5}, [5, 8, 11, 12]),
            ({"every_steps": 3, "start_step": 2}, [2, 5, 8, 11, 12]),  # a start below the interval
            ({"every_steps": 3, "start_step": 3}, [3, 6, 9, 12]),
            ({"every_steps": 3, "start_step": 20}, [12]),  # the last one does not ask for the start
            ({"every_steps": 3, "start_step": 20, "at_end": False}, []),
            ({"every_epochs": 2, "start_epoch": 1}, [4, 12]),
            ({"start_epoch": 2}, [8, 12]),
            ({"every_updates": 2, "start_update": 3}, [6, 10, 12]),
            ({"every_steps": 5, "every_epochs": 1, "start_step": 2, "start_epoch": 3}, [2, 7, 12]),
        ],
    )
    def test_due(self, make_trainer, recorder, options, expected):
        """3 epochs of 4 steps, an update every second step."""
        evals = recorder("after_eval")
        make_trainer([Evaluation(**options), evals, TwoStepsAnUpdate()], values=(1.0,) * 4, val=(1.0,), max_epochs=3).train()
        assert [step for _, step in evals.calls] == expected

    def test_accumulated_updates_are_counted_once_each(self, make_trainer, recorder):
        """``every_updates`` with a start, where only every second step makes an update: updates 1, 4 are steps 2, 8."""
        evals = recorder("after_eval")
        plugins = [Evaluation(every_updates=3, start_update=1, at_end=False), evals, TwoStepsAnUpdate()]
        make_trainer(plugins, values=(1.0,) * 10, val=(1.0,)).train()
        assert [step for _, step in evals.calls] == [2, 8]

    def test_an_update_that_was_skipped_is_not_counted(self, make_trainer, recorder):
        """As after a gradient that is not finite: the update of step 2 is left out, so updates 1, 2 are steps 1, 3."""

        class Skips:
            @hookimpl(wrapper=True)
            def optimizer_step(self, trainer):
                done = yield
                return done and trainer.step != 1

        evals = recorder("after_eval")
        plugins = [Evaluation(every_updates=1, start_update=1, at_end=False), evals, Skips()]
        make_trainer(plugins, values=(1.0,) * 3, val=(1.0,)).train()
        assert [step for _, step in evals.calls] == [1, 3]

    @given(every=st.integers(1, 7), start=st.integers(0, 12), cut=st.integers(0, 11))
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_resumed_run_evaluates_at_the_same_steps(self, make_trainer, recorder, tmp_path_factory, every, start, cut):
        """MMCV's rule: ``count >= start and (count - start) % every == 0``; the last step once, wherever the run was cut."""
        evals, folder = recorder("after_eval"), tmp_path_factory.mktemp("run") / "run"
        for limit in (cut, 12):
            plugins = [Evaluation(every_steps=every, start_step=start), Checkpoint(), evals]
            make_trainer(plugins, values=(1.0,) * 12, val=(1.0,), max_steps=limit, work_dir=folder).train(resume="auto")
        wanted = {n for n in range(1, 13) if n >= start and (n - start) % every == 0} | {cut, 12} - {0}
        assert [step for _, step in evals.calls] == sorted(wanted)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"start_step": -1, "every_steps": 1}, r"start_step = -1: must be 0"),
            ({"start_step": 5}, r"start_step = 5: needs every_steps"),
            ({"start_update": 5, "every_steps": 2}, r"start_update = 5: needs every_updates"),
            ({"start_epoch": 5, "every_steps": 2}, r"start_epoch = 5: needs every_epochs"),
            ({"splits": ()}, r"splits = \[\]: name one"),
        ],
    )
    def test_what_makes_no_sense(self, options, message):
        with pytest.raises(OptionError, match=message):
            Evaluation(**options)


class TestAtStart:
    def test_the_baseline_comes_before_the_first_step(self, make_trainer, recorder):
        listener = recorder("after_eval", "before_step")
        trainer = make_trainer([Evaluation(at_start=True), listener, Reports()], start=5.0, val=(1.0,), max_steps=2)
        trainer.train()
        assert listener.calls == [("after_eval", 0), ("before_step", 0), ("before_step", 1), ("after_eval", 2)]

    def test_its_value_is_that_of_the_model_as_it_was_given(self, make_trainer):
        plugin, reports = Evaluation(at_start=True, every_epochs=0), Reports()
        make_trainer([plugin, reports], start=5.0, val=(2.0,), max_steps=1).train()
        assert [values["val/loss"] for values in reports.values if "val/loss" in values] == [10.0]
        assert (plugin.best.value, plugin.best.step) == (10.0, 0)

    def test_not_again_after_a_resume_nor_for_a_second_training(self, make_trainer, recorder, tmp_path):
        listener = recorder("after_eval")

        def trainer(limit):
            plugins = [Evaluation(at_start=True, every_epochs=0), Checkpoint(), listener]
            return make_trainer(plugins, val=(1.0,), max_steps=limit, work_dir=tmp_path / "run")

        first = trainer(1)
        first.train()
        first.train(max_steps=2)
        trainer(3).train(resume="auto")
        assert listener.calls == [("after_eval", 0)]

    def test_the_baseline_may_be_the_best_checkpoint(self, make_trainer, tmp_path):
        """Trained on -1, w rises from 0 by 1 a step, and so does the loss of 1 * w: the model as given stays the best."""
        plugins = [Evaluation(at_start=True, every_steps=1, monitor="val/loss"), Checkpoint(best="val/loss", keep=1)]
        make_trainer(plugins, values=(-1.0,) * 3, val=(1.0,), work_dir=tmp_path / "run").train()
        assert (plugins[0].best.value, plugins[0].best.step) == (0.0, 0)
        saved = tmp_path / "run" / "checkpoints"
        assert sorted(path.name for path in saved.iterdir()) == ["step-00000000", "step-00000003"]
        again = make_trainer([Evaluation(), Checkpoint()], val=(1.0,), start=9.0)
        assert again.evaluate("val", checkpoint=saved / "step-00000000") == {"val/loss": 0.0}

    def test_a_run_with_nothing_to_do(self, make_trainer, recorder):
        listener = recorder("after_eval")
        make_trainer([Evaluation(at_start=True), listener], val=(1.0,), max_steps=0).train()
        assert listener.calls == [("after_eval", 0)]

    def test_one_that_fails_is_made_up_for(self, make_trainer, recorder, tmp_path):
        class Fails:
            armed = True

            @hookimpl
            def eval_step(self):
                if Fails.armed:
                    Fails.armed = False
                    raise OSError("no data")

        listener = recorder("after_eval", "before_step")

        def trainer():
            plugins = [Evaluation(at_start=True), Checkpoint(), Fails(), listener]
            return make_trainer(plugins, val=(1.0,), max_steps=1, work_dir=tmp_path / "run")

        with pytest.raises(OSError, match="no data"):
            trainer().train()
        trainer().train(resume="auto")
        assert listener.calls == [("after_eval", 0), ("before_step", 0), ("after_eval", 1)]


class TestSeveralSets:
    """A second instance has an interval of its own."""

    def project(self, make_trainer, plugins, **arguments):
        seen = []

        class Watches:
            @hookimpl
            def after_eval(self, trainer, split):
                seen.append((split, trainer.step))

        trainer = make_trainer([*plugins, Watches()], values=(1.0,) * 4, val=(1.0,), max_epochs=4, **arguments)
        trainer.loaders.update(test_clean=trainer.loaders["val"], test_other=[torch.tensor([3.0])])
        trainer.train()
        return seen, trainer

    def test_one_instance_with_several(self, make_trainer):
        seen, _ = self.project(make_trainer, [Evaluation(every_epochs=2, splits=("val", "test_clean"))])
        assert seen == [("val", 8), ("test_clean", 8), ("val", 16), ("test_clean", 16)]

    def test_two_instances(self, make_trainer):
        """Epochs of 4 steps: one each epoch, the other after 3 epochs and at the end, which both share."""
        plugins = [
            Evaluation(monitor="val/loss"),
            Evaluation(every_epochs=3, splits=("test_clean", "test_other"), monitor="test_other/loss", mode="max"),
        ]
        seen, trainer = self.project(make_trainer, plugins)
        others = ["test_clean", "test_other"]
        assert seen == [
            *(("val", 4), ("val", 8), ("val", 12)),
            *((split, 12) for split in others),
            ("val", 16),
            *((split, 16) for split in others),
        ]
        # w is -12 and -16: the lowest loss of 1 * w is the last, the highest of 3 * w the first.
        assert (plugins[0].best.value, plugins[0].best.step) == (-16.0, 16)
        assert (plugins[1].best.value, plugins[1].best.step) == (-36.0, 12)
        assert trainer.metrics["best/test_other/loss"] == -36.0

    def test_two_instances_for_one_split_evaluate_it_once(self, make_trainer):
        seen, _ = self.project(make_trainer, [Evaluation(every_steps=3), Evaluation(every_steps=4)])
        assert seen == [("val", step) for step in (3, 4, 6, 8, 9, 12, 15, 16)]

    def test_from_a_file_and_from_the_command_line(self, cli, project):
        (project / "trainhooks.toml").write_text(
            '[plugins.evaluation]\nevery_steps = 1\n\n[plugins."evaluation@test"]\nsplits = ["test"]\nevery_steps = 2\n'
        )
        cli("train", "--set", "work_dir=out", "-p", "no:progress", "-o", "evaluation@test.start_step=3")
        lines = (project / "out" / "metrics.jsonl").read_text().splitlines()
        steps = {split: [json.loads(line)["step"] for line in lines if f'"{split}/loss"' in line] for split in ("val", "test")}
        assert steps == {"val": [1, 2, 3], "test": [3]}


class TestDirection:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"monitor": "val/accuracy"}, "evaluation: best val/accuracy, higher is better (inferred from the name)"),
            ({"monitor": "val/wer"}, "evaluation: best val/wer, lower is better (inferred from the name)"),
            ({"monitor": "val/wer", "mode": "max"}, "evaluation: best val/wer, higher is better (mode = 'max')"),
        ],
    )
    def test_is_said_before_it_matters(self, make_trainer, messages, options, said):
        metric = options["monitor"].partition("/")[2]
        make_trainer([Evaluation(**options), Measures(0.5, metric=metric)], val=(1.0,)).train()
        assert said in messages()

    def test_one_that_was_never_measured(self, make_trainer, messages):
        class MakesLoaders:
            @hookimpl
            def make_loader(self, split):
                return [torch.ones(1)] if split == "val" else None

        make_trainer([Evaluation(monitor="valid/loss"), MakesLoaders()]).train()
        why = "its split was never evaluated, or it was NaN; did you mean 'val/loss'?"
        assert f"evaluation.monitor = 'valid/loss' was never measured as a finite number: {why}" in messages()

    @pytest.mark.parametrize("metric", ["val_loss", "loss", "valid/loss"])
    def test_one_that_no_evaluation_can_give_ends_the_run_at_the_first(self, make_trainer, metric):
        trainer = make_trainer([Evaluation(every_steps=1, monitor=metric)], val=(1.0,))
        wanted = f"evaluation.monitor = '{metric}' is not among the metrics val/loss; did you mean 'val/loss'?"
        with pytest.raises(DataError, match=re.escape(wanted)):
            trainer.train()
        assert trainer.step == 1


class Averaged:
    """Evaluates with the mean of the weights after each update, as a moving average does."""

    name = "averaged"

    def __init__(self):
        self.total, self.count = torch.zeros((), dtype=torch.float64), 0

    @hookimpl
    def after_update(self, trainer):
        self.total = self.total + trainer.model.w.detach()
        self.count += 1

    @hookimpl(wrapper=True)
    def evaluate(self, trainer):
        w = trainer.model.w
        own = w.detach().clone()
        try:
            with torch.no_grad():
                w.copy_(self.total / self.count)
            return (yield)
        finally:
            with torch.no_grad():
                w.copy_(own)

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


def test_evaluation_of_a_checkpoint_through_a_wrapper_gives_the_logged_value(make_trainer, tmp_path):
    """w is -1, -2, -3: its mean is -2, and the loss of 5 is -10, not -15."""
    plugins = [Evaluation(), Checkpoint(), Averaged()]
    outcome = make_trainer(plugins, val=(5.0,), max_steps=3, work_dir=tmp_path / "run").train()
    assert outcome.metrics["val/loss"] == -10.0
    again = make_trainer([Evaluation(), Checkpoint(), Averaged()], val=(5.0,), start=7.0)
    assert again.evaluate("val", checkpoint=tmp_path / "run") == {"val/loss": -10.0}
    assert again.model.w.item() == -3.0  # the checkpoint's own weights are what stays


def test_an_evaluation_outside_of_the_training_is_none_of_its_best(make_trainer):
    """As for early_stopping and checkpoint: what counts is what the run measured; w is 0, then -1, -2, and the loss of 1 is w."""
    evaluation = Evaluation(every_steps=1, mode="max")
    trainer = make_trainer([evaluation], values=(1.0, 1.0), val=(1.0,))
    assert trainer.evaluate("val") == {"val/loss": 0.0}
    outcome = trainer.train()
    trainer.evaluate("val")
    assert (evaluation.best.value, evaluation.best.step) == (-1.0, 1)
    assert outcome.metrics["best/val/loss"] == -1.0


class CountsModes(torch.nn.Module):
    """A loss that notes whether it was called while it trains."""

    def __init__(self):
        super().__init__()
        self.trained = []

    def forward(self, output, target):
        self.trained.append(self.training)
        return (output - target).square().mean()


def test_ev_02_a_loss_that_is_a_module_is_in_evaluation_mode_too():
    model, loss = torch.nn.Linear(1, 1), CountsModes()
    batch = (torch.ones(2, 1), torch.ones(2, 1))
    trainer = Trainer(
        model,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loaders={"train": [batch] * 2, "val": [batch] * 2},
        max_epochs=1,
        plugins=[Evaluation()],
        autoload=False,
    )
    trainer.train()
    assert loss.trained == [True, True, False, False]
    assert loss.training


class Short:
    """A loader that promises five batches and gives three."""

    def __len__(self):
        return 5

    def __iter__(self):
        return iter([torch.ones(1, dtype=torch.float64)] * 3)


def test_mx_03_an_evaluation_or_prediction_of_a_part_of_the_data_is_said(make_trainer, messages):
    class Predicts:
        @hookimpl
        def predict_step(self):
            return 0

    trainer = make_trainer([Predicts()], start=2.0)
    trainer.loaders["val"] = Short()
    assert trainer.evaluate() == {"val/loss": 2.0}
    assert trainer.predict("val") == [0, 0, 0]
    assert [one for one in messages() if "ended after" in one] == [
        "evaluation of 'val': its loader ended after 3 of 5 batches",
        "prediction of 'val': its loader ended after 3 of 5 batches",
    ]
