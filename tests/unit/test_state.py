"""Counters, limits and requests without a trainer; the registry of stateful objects and the random states."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainhooks import CheckpointError, OptionError, UsageError, hookimpl
from trainhooks.best import Best, direction
from trainhooks.state import RunState
from trainhooks.stateful import RandomState, StatefulRegistry
from trainhooks_builtins import Checkpoint


class TestLimits:
    @pytest.mark.parametrize("name", ["max_epochs", "max_steps", "max_updates"])
    @pytest.mark.parametrize("value", [-1, 1.5, "3", True])
    def test_what_is_no_limit_is_refused(self, name, value):
        with pytest.raises(UsageError, match=f"{name} = {value!r}: must be a whole number"):
            RunState(**{name: value})

    @pytest.mark.parametrize("value", [0, -3])
    def test_an_epoch_has_a_step(self, value):
        with pytest.raises(UsageError, match=f"steps_per_epoch = {value}: must be at least 1"):
            RunState(steps_per_epoch=value)

    @pytest.mark.parametrize(
        ("limits", "limited", "reached"),
        [
            ({}, False, False),
            ({"max_steps": 0}, True, True),
            ({"max_epochs": 0}, True, True),
            ({"max_updates": 0}, True, True),
            ({"max_steps": 1}, True, False),
            ({"max_steps": 1, "max_epochs": 0}, True, True),
        ],
    )
    def test_first_reached_counts(self, limits, limited, reached):
        state = RunState(**limits)
        assert (state.limited, state.limit_reached) == (limited, reached)

    def test_a_limit_can_be_lifted(self):
        state = RunState(max_steps=3)
        state.max_steps = None
        assert (state.max_steps, state.limited) == (None, False)

    @pytest.mark.parametrize(
        ("steps", "epochs", "per_epoch", "total"),
        [(None, 3, 4, 12), (10, 3, 4, 10), (20, 3, 4, 12), (20, 3, None, 20), (None, 3, None, None), (None, None, 4, None)],
    )
    def test_total_steps(self, steps, epochs, per_epoch, total):
        assert RunState(max_steps=steps, max_epochs=epochs, steps_per_epoch=per_epoch).total_steps == total


class TestWhereWeAre:
    @given(st.integers(0, 200), st.integers(1, 50))
    def test_every_n_steps_is_true_in_the_nth_2nth_step(self, step, n):
        state = RunState()
        state.step = step
        assert state.every_n_steps(n) is ((step + 1) % n == 0)

    @pytest.mark.parametrize("n", [0, -1])
    def test_never_below_one(self, n):
        state = RunState()
        assert not (state.every_n_steps(n) or state.every_n_updates(n) or state.every_n_epochs(n))

    def test_every_n_updates_means_the_same_before_and_after_the_update_is_counted(self):
        state = RunState()
        state.update, state._due = 2, True
        before = state.every_n_updates(3)
        state.update, state._updated = 3, True
        assert before is state.every_n_updates(3) is True
        state._due = False
        assert not state.every_n_updates(3)

    def test_an_epoch_cut_short_is_no_nth_epoch(self):
        state = RunState()
        assert state.every_n_epochs(1)
        state._epoch_is_cut = True
        assert not state.every_n_epochs(1)

    @pytest.mark.parametrize(
        ("limits", "step", "epoch", "batch", "expected"),
        [
            ({"max_steps": 10}, 9, 2, 1, True),
            ({"max_steps": 10}, 8, 2, 0, False),
            ({"max_epochs": 3}, 11, 2, 3, True),
            ({"max_epochs": 3}, 10, 2, 2, False),
            ({"max_epochs": 4}, 11, 2, 3, False),
        ],
    )
    def test_last_step(self, limits, step, epoch, batch, expected):
        state = RunState(**limits, steps_per_epoch=4)
        state.step, state.epoch, state.batch_index = step, epoch, batch
        assert state.is_last_step is expected

    @pytest.mark.parametrize(
        ("limits", "step", "expected"),
        [
            ({"max_epochs": 3}, 8, True),
            ({"max_epochs": 4}, 8, False),
            ({"max_steps": 12}, 8, True),
            ({"max_steps": 13}, 8, False),
        ],
    )
    def test_last_epoch(self, limits, step, expected):
        state = RunState(**limits, steps_per_epoch=4)
        state.step, state.epoch = step, step // 4
        assert state.is_last_epoch is expected


class TestRequests:
    def test_the_first_reason_stays(self):
        state = RunState()
        state.stop("first")
        state.stop("second")
        assert state.stop_reason == "first"

    def test_a_typo_does_not_become_a_request(self):
        state = RunState()
        with pytest.raises(UsageError, match=r"stop\(at='epcoh'\)"):
            state.stop("why", at="epcoh")
        assert state.stop_reason is None

    def test_counters_and_owed_evaluations_round_trip(self):
        state = RunState()
        state.step, state.update, state.epoch, state.batch_index = 7, 3, 2, 1
        state.request_eval("val")
        other = RunState()
        other.load_counters(state.save_counters())
        assert (other.step, other.update, other.epoch, other.batch_index) == (7, 3, 2, 1)
        assert other.save_counters() == state.save_counters()


class Counter:
    def __init__(self, value=0):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Second(Counter):
    state_version = 2

    def migrate_state(self, state, from_version):
        return {"value": state["value"] * 10 + from_version}


class TestRegistry:
    def test_restores_in_place_and_names_what_is_missing(self):
        saved = StatefulRegistry(a=Counter(1), b=Counter(2)).state_dict()
        a, c = Counter(), Counter(5)
        assert StatefulRegistry(a=a, c=c).load_state_dict(saved) == ["c"]
        assert (a.value, c.value) == (1, 5)

    def test_versions(self):
        thing = Second(3)
        assert StatefulRegistry(x=thing).state_dict() == {"x": {"state_version": 2, "state": {"value": 3}}}
        fresh = Second()
        StatefulRegistry(x=fresh).load_state_dict({"x": {"state_version": 2, "state": {"value": 3}}})
        assert fresh.value == 3
        StatefulRegistry(x=fresh).load_state_dict({"x": {"state_version": 1, "state": {"value": 4}}})
        assert fresh.value == 41
        StatefulRegistry(x=fresh).load_state_dict({"x": {"value": 6}})  # saved before it had versions
        assert fresh.value == 60

    def test_a_version_that_cannot_be_migrated_names_object_and_versions(self):
        class Stuck(Counter):
            state_version = 3

        with pytest.raises(CheckpointError, match="'plugins/x' does not fit: its state has version 1, this release needs 3"):
            StatefulRegistry({"plugins/x": Stuck()}).load_state_dict({"plugins/x": {"state_version": 1, "state": {}}})

    def test_a_refused_state_names_the_object_and_keeps_the_cause(self):
        registry = StatefulRegistry(model=torch.nn.Linear(2, 3))
        with pytest.raises(CheckpointError, match=r"(?s)'model' does not fit.*size mismatch") as caught:
            registry.load_state_dict({"model": torch.nn.Linear(2, 4).state_dict()})
        assert isinstance(caught.value.__cause__, RuntimeError)


def draws():
    """Draw from the global generators: they are what is saved."""
    from_numpy = [float(np.random.rand()), float(np.random.randn())]  # noqa: NPY002
    return [torch.rand(1).item(), random.random(), random.gauss(0, 1), *from_numpy]


class TestRandomState:
    def test_every_generator_goes_on_where_it_was(self):
        draws()  # two of them keep a second value back
        state = RandomState().state_dict()
        first = draws()
        RandomState().load_state_dict(state)
        assert draws() == first

    def test_preserved_also_after_an_error(self):
        rng = RandomState()
        state = rng.state_dict()
        expected = draws()
        rng.load_state_dict(state)
        with pytest.raises(KeyError), rng.preserved():
            draws()
            raise KeyError
        assert draws() == expected

    def test_is_plain_enough_for_safe_loading(self, tmp_path):
        state = RandomState().state_dict()
        torch.save(state, tmp_path / "rng.pt")
        RandomState().load_state_dict(torch.load(tmp_path / "rng.pt", weights_only=True))
        assert torch.equal(torch.get_rng_state(), state["torch"])


class TestBest:
    def test_a_mode_that_there_is_not(self):
        with pytest.raises(OptionError, match="mode = 'lower': must be 'auto', 'min' or 'max'"):
            direction("val/loss", "lower")

    @pytest.mark.parametrize(
        ("name", "mode"),
        [
            ("val/accuracy", "max"),
            ("val/acc@5", "max"),
            ("val/F1", "max"),
            ("val/mAP", "max"),
            ("val/loss", "min"),
            ("val/f1_loss", "min"),
            ("val/error", "min"),
            ("val/perplexity", "min"),
            ("accuracy/wer", "min"),  # the split's name says nothing
            *(
                (f"val/{name}", "max")
                for name in ("top1", "AP50", "mIoU", "mDice", "hit@10", "ndcg@10", "val_acc", "r2", "AUC")
            ),
            *((f"val/{name}", "max") for name in ("BinaryAccuracy", "MulticlassF1Score", "BinaryAUROC", "f1_macro", "mAP_50")),
            *((f"val/{name}", "min") for name in ("mape", "brier_score", "fid_score", "layer2_mse", "heatmap_mse")),
            *((f"val/{name}", "min") for name in ("accumulated_cost", "mapping_distance", "MeanSquaredError", "x", "")),
        ],
    )
    def test_direction(self, name, mode):
        assert direction(name) == mode
        assert direction(name, "max") == "max"
        assert direction(name, "min") == "min"

    @given(st.lists(st.floats(), max_size=20), st.sampled_from(["min", "max"]))
    def test_is_the_first_of_the_best_finite_values(self, values, mode):
        best = Best("m", mode)
        for step, value in enumerate(values):
            best.update(value, step)
        finite = [value for value in values if abs(value) < float("inf")]
        if finite:
            expected = min(finite) if mode == "min" else max(finite)
            assert (best.value, best.step) == (expected, values.index(expected))
        else:
            assert (best.value, best.step) == (None, None)

    def test_is_not_restored_for_another_metric(self):
        best = Best("val/loss")
        best.update(0.5, 3)
        other = Best("val/accuracy")
        other.load_state_dict(best.state_dict())
        assert other.value is None
        same = Best("val/loss")
        same.load_state_dict(best.state_dict())
        assert (same.value, same.step) == (0.5, 3)


def test_every_n_updates_through_a_step_that_is_skipped(make_trainer):
    """4 steps, the optimizer skips the second: updates 1, 2, 3 are made by steps 1, 3, 4, so every 2nd update is step 3's."""

    class Skips:
        def __init__(self):
            self.seen = {"before_step": [], "after_update": [], "after_step": []}

        @hookimpl(wrapper=True)
        def optimizer_step(self, trainer):
            return (yield) and trainer.step != 1

        @hookimpl
        def before_step(self, trainer):
            self.seen["before_step"].append(trainer.every_n_updates(2))

        @hookimpl
        def after_update(self, trainer):
            self.seen["after_update"].append(trainer.every_n_updates(2))

        @hookimpl
        def after_step(self, trainer):
            self.seen["after_step"].append(trainer.every_n_updates(2))

    plugin = Skips()
    trainer = make_trainer([plugin], max_steps=4)
    trainer.train()
    assert trainer.update == 3
    assert plugin.seen["before_step"] == [False, True, True, False]  # steps 2 and 3 work towards the second update
    assert plugin.seen["after_update"] == [False, True, False]
    assert plugin.seen["after_step"] == [False, False, True, False]


class Count:
    """Something that a hook makes and registers."""

    def __init__(self):
        self.n = 0

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


@pytest.mark.parametrize("hook", ["setup", "before_train", "before_epoch"])
@pytest.mark.parametrize("way", ["setdefault", "[]"])
def test_rs_09_an_object_that_comes_after_the_checkpoint_was_read_is_restored(make_trainer, tmp_path, hook, way):
    class Counts:
        def __init__(self):
            self.count = None

        def register(self, trainer):
            if self.count is None:
                self.count = Count()
                if way == "[]":
                    trainer.stateful["count"] = self.count
                else:
                    assert trainer.stateful.setdefault("count", self.count) is self.count

        @hookimpl
        def after_step(self):
            self.count.n += 1

    def run(steps):
        counts = Counts()
        setattr(Counts, hook, hookimpl(lambda self, trainer: self.register(trainer)))
        trainer = make_trainer([counts, Checkpoint(every_steps=1)], max_steps=steps, work_dir=tmp_path / "run")
        trainer.train(resume="auto")
        assert trainer.stateful.waiting == {}
        return counts.count.n

    assert [run(3), run(5)] == [3, 5]
