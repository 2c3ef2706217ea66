"""``early_stopping``: what counts, when it stops, and which weights are there afterwards."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import EMA, Checkpoint, EarlyStopping, Evaluation
from trainhooks_builtins.checkpoint import read_checkpoint


class Measures:
    """Gives the k-th value in the evaluation after step k."""

    def __init__(self, *values, name="loss"):
        self.values, self.name = values, name

    @hookimpl
    def eval_step(self, trainer):
        return {self.name: self.values[trainer.step - 1]}


@pytest.fixture
def run(make_trainer):
    """Return a function that trains with one evaluation after each step and gives plugin, trainer and outcome."""

    def run(*values, plugins=(), **options):
        stopping = EarlyStopping(**options)
        everything = [Evaluation(every_steps=1), stopping, Measures(*values), *plugins]
        trainer = make_trainer(everything, val=(1.0,), max_steps=len(values))
        return stopping, trainer, trainer.train()

    return run


class TestImprovement:
    @pytest.mark.parametrize(
        ("mode", "values", "best", "bad"),
        [
            ("min", (1.0, 0.75), 1.0, 1),  # 0.25 is not more than 0.25
            ("min", (1.0, 0.75, 0.625), 0.625, 0),  # 0.375 is: small steps in the right direction add up
            ("min", (1.0, 0.5, 0.125), 0.125, 0),
            ("max", (1.0, 1.25), 1.0, 1),
            ("max", (1.0, 1.25, 1.375), 1.375, 0),
            ("max", (1.0, 0.5, 1.125), 1.0, 2),
        ],
    )
    def test_min_delta_must_be_exceeded(self, run, mode, values, best, bad):
        stopping, *_ = run(*values, mode=mode, min_delta=0.25)
        assert (stopping.rule.best, stopping.rule.bad) == (best, bad)

    def test_the_same_value_is_no_improvement(self, run):
        *_, outcome = run(1.0, 1.0, 1.0, 1.0, patience=2)
        assert outcome.step == 3

    @pytest.mark.parametrize(("name", "word"), [("loss", "lower"), ("accuracy", "higher"), ("perplexity", "lower")])
    def test_the_direction_is_inferred_and_said(self, make_trainer, messages, name, word):
        plugins = [Evaluation(every_steps=1), EarlyStopping(f"val/{name}", patience=1), Measures(0.1, 0.2, 0.3, name=name)]
        outcome = make_trainer(plugins, val=(1.0,), max_steps=3).train()
        assert any(f"'val/{name}', {word} is better (inferred from the name" in text for text in messages())
        assert outcome.step == (3 if word == "higher" else 2)

    def test_baseline(self, run):
        """Values that improve but stay above the baseline use the patience up; the best of them is still known."""
        stopping, _, outcome = run(0.9, 0.8, 0.7, 0.1, patience=3, baseline=0.5)
        assert (outcome.step, stopping.rule.best, stopping.rule.best_step) == (3, 0.7, 3)
        stopping, _, outcome = run(0.9, 0.4, 0.45, 0.44, patience=3, baseline=0.5)
        assert (outcome.step, stopping.rule.bad) == (4, 2)

    @given(
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, math.nan, math.inf, -math.inf]), max_size=12),
        st.integers(1, 4),
        st.sampled_from(["min", "max"]),
    )
    def test_against_the_definition(self, values, patience, mode):
        """Stops at the first evaluation that ends ``patience`` in a row without one better than all before."""
        trainer = Trainer(torch.nn.Identity(), loaders={"val": []}, autoload=False)
        stopping = EarlyStopping(mode=mode, patience=patience)
        stopped = None
        for step, value in enumerate(values, 1):
            trainer.step = step
            stopping._look(trainer, {"val/loss": value})
            if trainer.stop_reason is not None:
                stopped = step
                break
        sign = 1 if mode == "min" else -1
        good = [
            math.isfinite(value) and all(sign * value < sign * before for before in values[:index] if math.isfinite(before))
            for index, value in enumerate(values)
        ]
        ends = [n for n in range(patience, len(values) + 1) if not any(good[n - patience : n])]
        assert stopped == (ends[0] if ends else None)


class TestStart:
    @pytest.mark.parametrize("options", [{"start_evaluation": 2}, {"start_step": 3}])
    def test_what_came_before_does_not_count(self, run, options):
        stopping, _, outcome = run(0.1, 0.2, 0.5, 0.6, 0.7, 0.8, patience=2, **options)
        assert (stopping.rule.best, stopping.rule.best_step, outcome.step) == (0.5, 3, 5)

    def test_epochs(self, make_trainer):
        stopping = EarlyStopping("val/loss", patience=1, start_epoch=2)
        values = [None] * 40
        for epoch, value in enumerate((0.1, 0.2, 0.5, 0.6)):
            values[10 * epoch + 9] = value
        outcome = make_trainer([Evaluation(), stopping, Measures(*values)], val=(1.0,), max_epochs=4).train()
        assert (stopping.rule.best, stopping.rule.best_step, outcome.epoch) == (0.5, 30, 4)

    def test_thresholds_do_not_count_either(self, run):
        *_, outcome = run(0.0, 0.0, 0.0, start_step=3, stopping_threshold=0.5, patience=9)
        assert outcome.step == 3


class TestThresholds:
    @pytest.mark.parametrize(
        ("mode", "values", "step"),
        [("min", (0.6, 0.5, 0.4, 0.3), 3), ("max", (0.4, 0.5, 0.6, 0.7), 3), ("min", (-math.inf, math.nan, 0.5, 0.6), 4)],
    )
    def test_stopping(self, run, mode, values, step):
        """Strictly better than the threshold, as in Lightning; infinity reaches nothing."""
        *_, outcome = run(*values, mode=mode, stopping_threshold=0.5, patience=9)
        assert outcome.step == step

    @pytest.mark.parametrize(
        ("mode", "values", "step"),
        [("min", (0.4, 0.5, 0.6, 0.7), 3), ("max", (0.6, 0.5, 0.4, 0.3), 3), ("min", (math.nan, math.inf, 0.4), 2)],
    )
    def test_divergence(self, run, mode, values, step):
        *_, outcome = run(*values, mode=mode, divergence_threshold=0.5, patience=9)
        assert outcome.step == step
        assert "worse than divergence_threshold = 0.5" in outcome.reason

    def test_the_value_that_reaches_it_is_the_best(self, run):
        stopping, trainer, outcome = run(0.6, 0.4, 0.3, stopping_threshold=0.5, restore_best=True)
        assert outcome.reason == "early_stopping: val/loss is 0.4, better than stopping_threshold = 0.5"
        assert (stopping.rule.best_step, trainer.model.w.item()) == (2, -2.0)


class TestSources:
    def test_training_metrics_by_epoch(self, make_trainer):
        """w * x with w falling by 1 each step: the mean loss of epoch e (10 steps) is -(10 e + 4.5); higher never comes."""
        stopping = EarlyStopping("train/loss", mode="max", patience=2)
        outcome = make_trainer([stopping], max_epochs=9).train()
        assert (outcome.status, outcome.epoch, stopping.rule.best, stopping.rule.best_step) == ("stopped", 3, -4.5, 10)

    def test_a_name_without_a_slash_is_one_of_training(self, make_trainer):
        class Logs:
            @hookimpl
            def after_step(self, trainer):
                trainer.log("reward", 5.0 if trainer.epoch else 1.0)

        stopping = EarlyStopping("reward", mode="max", patience=2)
        outcome = make_trainer([stopping, Logs()], max_epochs=9).train()
        assert (outcome.epoch, stopping.rule.best, stopping.rule.best_step) == (4, 5.0, 20)

    def test_an_epoch_that_was_cut_short_does_not_count(self, make_trainer):
        stopping = EarlyStopping("train/loss")
        make_trainer([stopping], max_steps=15).train()
        assert (stopping.rule.best_step, stopping._measured) == (10, 1)

    def test_only_the_hooks_that_are_needed(self, make_trainer):
        assert make_trainer([EarlyStopping()], val=(1.0,)).hooks.after_epoch is None
        trainer = make_trainer([EarlyStopping("train/loss")])
        assert trainer.hooks.after_eval is None
        assert trainer.hooks.after_step is None

    def test_other_splits_and_evaluations_outside_of_training_do_not_count(self, make_trainer):
        stopping = EarlyStopping()
        trainer = make_trainer([Evaluation(splits=("dev",)), stopping], val=(1.0,))
        trainer.loaders["dev"] = trainer.loaders["val"]
        trainer.train()
        trainer.evaluate("val")
        assert stopping._measured == 0

    def test_a_split_that_nobody_gives(self, make_trainer):
        with pytest.raises(UsageError, match=r"there is no split 'vall' \(given: train, val\)"):
            make_trainer([EarlyStopping("vall/loss")], val=(1.0,)).train()

    def test_a_plugin_that_evaluates_in_its_own_way_needs_no_loader(self, make_trainer):
        class Plays:
            @hookimpl
            def evaluate(self, trainer, split):
                metrics = {f"{split}/score": 1.0}
                trainer.hooks.after_eval(trainer=trainer, split=split, metrics=metrics)
                return metrics

            @hookimpl
            def after_step(self, trainer):
                trainer.request_eval("game")

        outcome = make_trainer([EarlyStopping("game/score", patience=2), Plays()]).train()
        assert outcome.step == 3

    def test_the_same_step_counts_once(self, make_trainer):
        class Twice:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 1:
                    trainer.evaluate("val")
                trainer.request_eval("val")

        stopping = EarlyStopping(patience=3)
        make_trainer([stopping, Twice(), Measures(0.5, 0.6, 0.7, 0.8)], val=(1.0,), max_steps=3).train()
        assert stopping._measured == 3


class TestRestoreBest:
    def test_after_a_stop(self, run):
        _, trainer, outcome = run(0.5, 0.3, 0.4, 0.4, 0.4, 0.4, restore_best=True)
        assert (outcome.status, outcome.step, trainer.model.w.item()) == ("stopped", 5, -2.0)

    def test_the_final_evaluation_counts(self, make_trainer):
        stopping = EarlyStopping(restore_best=True)
        trainer = make_trainer([Evaluation(every_steps=2), stopping, Measures(9, 0.5, 9, 0.4, 0.3)], val=(1.0,), max_steps=5)
        assert trainer.train().status == "completed"
        assert (stopping.rule.best, stopping.rule.best_step) == (0.3, 5)
        assert trainer.stop_reason is None

    def test_not_after_a_failed_run(self, make_trainer):
        class Fails:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 3:
                    raise ValueError("at it 4")

        plugins = [Evaluation(every_steps=1), EarlyStopping(restore_best=True), Measures(0.1, 0.2, 0.3), Fails()]
        trainer = make_trainer(plugins, val=(1.0,))
        with pytest.raises(ValueError, match="at it 4"):
            trainer.train()
        assert trainer.model.w.item() == -4.0

    def test_in_place_with_buffers(self):
        model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
        parts = list(model.state_dict(keep_vars=True).values())
        states = []

        class Notes:
            @hookimpl
            def after_eval(self, trainer):
                states.append({name: value.clone() for name, value in trainer.model.state_dict().items()})

        trainer = Trainer(
            model,
            loss=torch.nn.functional.mse_loss,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loaders={"train": [(torch.rand(4, 1), torch.rand(4, 1))] * 4, "val": [(torch.rand(4, 1), torch.rand(4, 1))]},
            plugins=[Evaluation(every_steps=1), EarlyStopping(restore_best=True, patience=9), Measures(3, 1, 2, 2), Notes()],
            max_epochs=1,
            autoload=False,
        )
        trainer.train()
        assert all(torch.equal(value, states[1][name]) for name, value in model.state_dict().items())
        assert not torch.equal(states[3]["1.running_mean"], states[1]["1.running_mean"])
        assert all(one is other for one, other in zip(model.state_dict(keep_vars=True).values(), parts, strict=True))

    def test_they_are_those_that_were_evaluated(self, run):
        """A plugin that evaluates other weights, as an average is, gives those."""

        class Swaps:
            @hookimpl(wrapper=True)
            def evaluate(self, trainer):
                trainer.model.w.data += 0.25
                try:
                    return (yield)
                finally:
                    trainer.model.w.data -= 0.25

        _, trainer, _ = run(0.5, 0.3, 0.4, plugins=[Swaps()], restore_best=True)
        assert trainer.model.w.item() == -1.75

    def test_with_an_average(self, run):
        """Decay 0.5: 0, -0.5, -1.25, -2.125. The best evaluation measured the average after two updates."""
        _, trainer, _ = run(0.5, 0.3, 0.4, plugins=[EMA(decay=0.5)], restore_best=True)
        assert trainer.model.w.item() == -1.25

    def test_without_it_no_weights_are_kept(self, run):
        stopping, trainer, _ = run(0.5, 0.3, 0.4)
        assert stopping.state_dict()["weights"] is None
        assert trainer.model.w.item() == -3.0


class TestResume:
    VALUES = (0.5, 0.3, 0.4, 0.35, 0.45, 0.2)

    def trainer(self, make_trainer, folder, steps=6, values=VALUES, **options):
        stopping = EarlyStopping(**{"patience": 3, "restore_best": True, **options})
        plugins = [Evaluation(every_steps=1), stopping, Measures(*values), Checkpoint(every_steps=1)]
        return stopping, make_trainer(plugins, val=(1.0,), max_steps=steps, work_dir=folder)

    @pytest.mark.parametrize("cut", [1, 2, 3, 4])
    def test_is_exact(self, make_trainer, tmp_path, cut):
        _, whole = self.trainer(make_trainer, tmp_path / "whole")
        whole.train()
        _, first = self.trainer(make_trainer, tmp_path / "cut", steps=cut)
        first.train()
        stopping, second = self.trainer(make_trainer, tmp_path / "cut")
        outcome = second.train(resume="auto")
        assert (outcome.status, outcome.step, stopping.rule.best_step) == ("stopped", 5, 2)
        assert torch.equal(second.model.w, whole.model.w)
        assert second.model.w.item() == -2.0  # the best, which the resumed run never saw when cut >= 2
        states = [read_checkpoint(tmp_path / run / "checkpoints/step-00000005") for run in ("whole", "cut")]
        one, other = (state["plugins/early_stopping"] for state in states)
        assert one.pop("weights") == other.pop("weights") == {"w": torch.tensor(-2.0, dtype=torch.float64)}
        assert one == other
        assert states[0]["model"]["w"] == states[1]["model"]["w"] == -5.0

    def test_an_evaluation_that_is_still_owed_is_not_counted_twice(self, make_trainer, tmp_path):
        """Another plugin fails after ours has counted; the rescue checkpoint has the count and owes the evaluation."""

        class Fails:
            done = False

            @hookimpl(wrapper=True)
            def evaluate(self, trainer):
                metrics = yield
                if trainer.step == 3 and not self.done:
                    self.done = True
                    raise ValueError("after the evaluation")
                return metrics

        def train(fails, **arguments):
            stopping = EarlyStopping(patience=3)
            plugins = [Evaluation(every_steps=1), stopping, Measures(*self.VALUES), Checkpoint(every_steps=1), fails]
            trainer = make_trainer(plugins, val=(1.0,), max_steps=6, work_dir=tmp_path / "run")
            return stopping, trainer.train(**arguments)

        fails = Fails()
        with pytest.raises(ValueError, match="after the evaluation"):
            train(fails)
        stopping, outcome = train(fails, resume="auto")
        assert (outcome.step, stopping.rule.bad) == (5, 3)

    def test_another_metric_starts_anew(self, make_trainer, tmp_path, messages):
        _, first = self.trainer(make_trainer, tmp_path / "run", steps=3)
        first.train()
        stopping, second = self.trainer(make_trainer, tmp_path / "run", mode="max")
        second.train(resume="auto")
        assert "early_stopping: starting anew, the checkpoint watched val/loss (min)" in messages()
        assert (stopping.rule.best, stopping.rule.best_step) == (0.45, 5)

    def test_restore_best_that_was_off_before(self, make_trainer, tmp_path, messages):
        _, first = self.trainer(make_trainer, tmp_path / "run", steps=3, restore_best=False)
        first.train()
        _, second = self.trainer(make_trainer, tmp_path / "run")
        second.train(resume="auto")
        assert second.model.w.item() == -5.0
        assert any("at step 2, were not kept, since restore_best was off; the last weights stay" in text for text in messages())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 0}, "patience = 0: must be at least 1"),
        ({"min_delta": -0.1}, r"min_delta = -0.1: must be 0 or more"),
        ({"min_delta": math.nan}, "min_delta = nan"),
        ({"start_step": -1}, "start_step = -1: must be 0 or more"),
        ({"start_epoch": -1}, "start_epoch = -1"),
        ({"start_evaluation": -1}, "start_evaluation = -1"),
    ],
)
def test_options(options, message):
    with pytest.raises(OptionError, match=message):
        EarlyStopping(**options)
