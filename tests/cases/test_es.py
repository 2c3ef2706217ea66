"""ES: early stopping and metrics. One update is one step; ``it`` counts from 1, and evaluation ``k`` takes place after it ``k``."""

import math

import pytest
import torch

from trainhooks import DataError, hookimpl
from trainhooks_builtins import Checkpoint, EarlyStopping, Evaluation
from trainhooks_builtins.checkpoint import read_checkpoint


class Measures:
    """Gives the k-th value in the k-th evaluation, by step, so that a resumed run goes on with the right one; None for no metric."""

    def __init__(self, values, name="loss"):
        self.values, self.name = values, name

    @hookimpl
    def eval_step(self, trainer):
        value = self.values[trainer.step - 1]
        return {"other": 0.0} if value is None else {self.name: value, "other": 0.0}


def saved(folder, step):
    return read_checkpoint(folder / "checkpoints" / f"step-{step:08d}")


class TestES01:
    """Saved state lags by one evaluation."""

    VALUES = (1.0, 0.9, 0.95, 0.93, 0.92, 0.91)

    def trainer(self, make_trainer, folder, stopping, **limits):
        plugins = [Evaluation(every_steps=1), Checkpoint(every_steps=1, keep=0), stopping, Measures(self.VALUES)]
        return make_trainer(plugins, val=(1.0,), work_dir=folder, **(limits or {"max_steps": 6}))

    def test_es_01_counters_in_the_checkpoints(self, make_trainer, tmp_path):
        stopping = EarlyStopping(patience=3)
        outcome = self.trainer(make_trainer, tmp_path / "run", stopping).train()
        assert (outcome.status, outcome.step) == ("stopped", 5)
        assert outcome.reason == "early_stopping: val/loss has not improved in 3 evaluations; best 0.9 at step 2"
        states = [saved(tmp_path / "run", k)["plugins/early_stopping"] for k in (1, 2, 3, 4, 5)]
        assert [state["bad"] for state in states] == [0, 0, 1, 2, 3]
        assert [(state["best"], state["best_step"]) for state in states] == [(1.0, 1)] + [(0.9, 2)] * 4

    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    def test_es_01_resumed_after_each(self, make_trainer, tmp_path, k):
        self.trainer(make_trainer, tmp_path / "whole", EarlyStopping(patience=3)).train()
        stopping = EarlyStopping(patience=3)
        trainer = self.trainer(make_trainer, tmp_path / "again", stopping)
        outcome = trainer.train(resume=tmp_path / "whole" / "checkpoints" / f"step-{k:08d}")
        assert (outcome.status, outcome.step) == ("stopped", 5)
        assert (stopping.rule.best, stopping.rule.best_step, stopping.rule.bad) == (0.9, 2, 3)
        whole, again = saved(tmp_path / "whole", 5), saved(tmp_path / "again", 5)
        assert whole["plugins/early_stopping"] == again["plugins/early_stopping"]
        assert torch.equal(whole["model"]["w"], again["model"]["w"])

    def test_es_01_resumed_after_the_stop(self, make_trainer, tmp_path):
        """Nothing more is trained, unless there is more patience now."""
        self.trainer(make_trainer, tmp_path / "run", EarlyStopping(patience=3)).train()
        outcome = self.trainer(make_trainer, tmp_path / "run", EarlyStopping(patience=3)).train(resume="auto")
        assert (outcome.status, outcome.step) == ("stopped", 5)
        outcome = self.trainer(make_trainer, tmp_path / "run", EarlyStopping(patience=5)).train(resume="auto")
        assert (outcome.status, outcome.step) == ("completed", 6)


class TestES03:
    """NaN counts as improvement."""

    @pytest.mark.parametrize("mode", ["min", "max"])
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize(
        ("values", "stops_at", "best"), [((0.5, None, None, None, None), 4, (0.5, 1)), ((None,) * 5, 3, (None, None))]
    )
    def test_es_03_never_an_improvement(self, make_trainer, mode, bad, values, stops_at, best):
        stopping = EarlyStopping(patience=3, mode=mode)
        measures = Measures([bad if value is None else value for value in values])
        outcome = make_trainer([Evaluation(every_steps=1), stopping, measures], val=(1.0,), max_steps=5).train()
        assert (outcome.status, outcome.step) == ("stopped", stops_at)
        assert (stopping.rule.best, stopping.rule.best_step) == best

    @pytest.mark.parametrize("mode", ["min", "max"])
    @pytest.mark.parametrize("first", [math.nan, math.inf, -math.inf])
    def test_es_03_first_value(self, make_trainer, mode, first):
        """A bad first value is no best: the next finite one is."""
        stopping = EarlyStopping(patience=3, mode=mode)
        measures = Measures((first, 0.5, math.nan, math.nan, math.nan, 0.5))
        outcome = make_trainer([Evaluation(every_steps=1), stopping, measures], val=(1.0,), max_steps=6).train()
        assert (outcome.step, stopping.rule.best, stopping.rule.best_step) == (5, 0.5, 2)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_es_03_stop_at_once(self, make_trainer, bad):
        stopping = EarlyStopping(patience=3, nan="stop")
        plugins = [Evaluation(every_steps=1), stopping, Measures((0.5, bad, 0.4))]
        outcome = make_trainer(plugins, val=(1.0,), max_steps=3).train()
        assert (outcome.status, outcome.step, outcome.reason) == ("stopped", 2, f"early_stopping: val/loss is {bad}")


class TestES04:
    """Metric not there yet, or misspelt."""

    def test_es_04_no_check_before_the_first_evaluation(self, make_trainer):
        """The first evaluation is at it 100; every earlier step passes."""
        stopping = EarlyStopping(patience=1)
        plugins = [Evaluation(every_steps=100), stopping]
        outcome = make_trainer(plugins, values=(1.0,) * 200, val=(-1.0,), max_steps=200).train()
        assert (outcome.status, outcome.step) == ("stopped", 200)  # w falls, so -w rises: 100 is best, 200 is not better
        assert (stopping.rule.best, stopping.rule.best_step) == (100.0, 100)

    def test_es_04_misspelt(self, make_trainer, tmp_path):
        plugins = [Evaluation(every_steps=100), EarlyStopping("val/los"), Checkpoint()]
        trainer = make_trainer(plugins, values=(1.0,) * 200, val=(1.0,), max_steps=200, work_dir=tmp_path / "run")
        with pytest.raises(DataError, match=r"'val/los' is not among the metrics val/loss; did you mean 'val/loss'\?"):
            trainer.train()
        assert trainer.outcome.status == "failed"
        assert saved(tmp_path / "run", 100)["run"]["step"] == 100

    def test_es_04_misspelt_with_an_evaluation_at_the_end_only(self, make_trainer, tmp_path):
        plugins = [Evaluation(every_steps=100), EarlyStopping("val/los"), Checkpoint()]
        trainer = make_trainer(plugins, val=(1.0,), max_steps=10, work_dir=tmp_path / "run")
        with pytest.raises(DataError, match="is not among the metrics val/loss"):
            trainer.train()
        assert saved(tmp_path / "run", 10)["run"]["step"] == 10

    def test_es_04_misspelt_in_training(self, make_trainer, tmp_path):
        plugins = [EarlyStopping("train/los"), Checkpoint()]
        trainer = make_trainer(plugins, max_epochs=3, work_dir=tmp_path / "run")
        with pytest.raises(DataError, match="'train/los' is not among the metrics train/loss; did you mean 'train/loss'"):
            trainer.train()
        assert (trainer.outcome.status, trainer.step) == ("failed", 10)
        assert saved(tmp_path / "run", 10)["run"]["epoch"] == 1

    def test_es_04_missing_once(self, make_trainer, messages):
        """In every second evaluation only: those without are skipped and change nothing."""
        stopping = EarlyStopping(patience=2)
        values = (0.5, None, 0.6, None, 0.7, None, 0.1)
        outcome = make_trainer([Evaluation(every_steps=1), stopping, Measures(values)], val=(1.0,), max_steps=7).train()
        assert (outcome.step, stopping.rule.bad, stopping.rule.best) == (5, 2, 0.5)
        skipped = [text for text in messages() if "was not measured" in text]
        assert skipped == [f"early_stopping: 'val/loss' was not measured at step {step}; skipped" for step in (2, 4)]


class TestES06:
    """Restore-best does not happen, or crashes."""

    def train(self, make_trainer, folder, *plugins, **options):
        stopping = EarlyStopping(patience=5, restore_best=True, **options)
        everything = [Checkpoint(every_steps=1, keep=0), stopping, *plugins]
        trainer = make_trainer(everything, val=(1.0,), max_steps=3, work_dir=folder)
        return trainer, trainer.train()

    @pytest.mark.parametrize("keep_on", ["host", "device"])
    def test_es_06_at_the_limit(self, make_trainer, tmp_path, keep_on):
        plugins = [Evaluation(every_steps=1), Measures((0.5, 0.3, 0.4))]
        trainer, outcome = self.train(make_trainer, tmp_path / "run", *plugins, keep_on=keep_on)
        assert (outcome.status, outcome.step) == ("completed", 3)
        assert trainer.model.w.item() == -2.0
        assert torch.equal(trainer.model.w.detach(), saved(tmp_path / "run", 2)["model"]["w"])
        assert saved(tmp_path / "run", 3)["model"]["w"].item() == -3.0  # the run's own, for a resume

    def test_es_06_all_nan(self, make_trainer, tmp_path, messages):
        plugins = [Evaluation(every_steps=1), Measures((math.nan,) * 3)]
        trainer, outcome = self.train(make_trainer, tmp_path / "run", *plugins)
        assert (outcome.status, trainer.model.w.item()) == ("completed", -3.0)
        assert [text for text in messages() if "weights" in text] == [
            "early_stopping: 'val/loss' had no finite value in an evaluation that counts, so none was best; the last weights stay"
        ]

    @pytest.mark.parametrize("plugins", [[], [Evaluation(every_epochs=0)]])
    def test_es_06_no_evaluation(self, make_trainer, tmp_path, messages, plugins):
        trainer, outcome = self.train(make_trainer, tmp_path / "run", *plugins)
        assert (outcome.status, trainer.model.w.item()) == ("completed", -3.0)
        assert [text for text in messages() if "weights" in text] == [
            "early_stopping: 'val/loss' was never measured, so it could not stop the run; the last weights stay"
        ]
