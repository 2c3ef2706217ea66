"""``spike``: which losses are spikes by the formula, when they are noticed, and what is kept."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainhooks import OptionError, TrainingError, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, Spike
from trainhooks_builtins._step_values import Place
from trainhooks_builtins.spike import center_and_spread

NAN, INF = math.nan, math.inf


class Gives:
    """Gives the k-th value as the loss of step k, without touching the weights."""

    def __init__(self, values):
        self.values = values

    @hookimpl
    def train_step(self, trainer):
        return {"loss": torch.tensor(self.values[trainer.step], dtype=torch.float64)}


@pytest.fixture
def run(make_trainer):
    """Return a function that trains with the given losses and gives plugin, trainer and outcome."""

    def run(values, steps=None, resume=None, work_dir=None, plugins=(), **options):
        spike = Spike(**{"warmup_steps": 4, "every_steps": 3, **options})
        trainer = make_trainer(
            [spike, Gives(values), *plugins], values=(1.0,) * len(values), max_steps=steps or len(values), work_dir=work_dir
        )
        return spike, trainer, trainer.train(resume=resume)

    return run


def steps_of(spike):
    return [one["step"] for one in spike.state_dict()["spikes"]]


class TestFormula:
    @given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
    def test_center_and_spread(self, values):
        median = float(np.median(values))
        expected = median, 1.4826 * float(np.median(np.abs(np.array(values) - median)))
        assert center_and_spread(values, "median") == pytest.approx(expected, abs=1e-9)
        assert center_and_spread(values, "mean") == pytest.approx((np.mean(values), np.std(values)), abs=1e-6)

    def test_the_factor_makes_it_the_modified_z_score(self):
        """Iglewicz and Hoaglin: 0.6745 (x - median) / MAD, here compared with 3.5 as they recommend."""
        values, x = [2.0, 3.0, 4.0, 6.0, 9.0], 13.0
        center, spread = center_and_spread(values, "median")
        score = 0.6745 * (x - 4.0) / 2.0  # |x - 4| is 2 1 0 2 5: median 2
        assert (center, (x - center) / spread) == (4.0, pytest.approx(score, rel=1e-4))

    @pytest.mark.parametrize(("last", "found"), [(12.8, []), (12.9, [5])])
    def test_median(self, run, last, found):
        """Median 4, MAD 2: with threshold 3 the limit is 4 + 3 * 1.4826 * 2 = 12.8956."""
        spike, *_ = run([2.0, 3.0, 4.0, 6.0, 9.0, last], threshold=3.0, warmup_steps=5)
        assert steps_of(spike) == found

    @pytest.mark.parametrize(("last", "found"), [(7.8, []), (7.9, [4])])
    def test_mean(self, run, last, found):
        """2, 4, 4, 6: mean 4, standard deviation sqrt(2) = 1.41421; with threshold 2.75 the limit is 7.8891."""
        spike, *_ = run([2.0, 4.0, 4.0, 6.0, last], threshold=2.75, method="mean")
        assert steps_of(spike) == found

    @pytest.mark.parametrize(("last", "found"), [(1.05, []), (1.11, [6]), (0.0, [])])
    def test_a_constant_loss_needs_a_rise(self, run, last, found):
        """The spread is 0: without min_rise every change upwards would be a spike."""
        spike, *_ = run([1.0] * 6 + [last])
        assert steps_of(spike) == found

    def test_a_loss_below_zero(self, run):
        spike, *_ = run([-10.0] * 6 + [-9.5, -8.9])
        assert steps_of(spike) == [7]

    def test_only_upwards(self, run):
        assert steps_of(run([5.0, 5.1, 4.9, 5.0, 5.1, -100.0])[0]) == []

    def test_the_window(self, run):
        """A new level is a spike until half of the window is of it."""
        spike, *_ = run([1.0] * 10 + [2.0] * 10, window=6)
        assert steps_of(spike) == [10, 11, 12]

    def test_the_warmup(self, run):
        assert steps_of(run([1.0, 9.0, 1.0, 1.0, 1.0, 9.0])[0]) == [5]
        assert steps_of(run([1.0, 9.0, 1.0, 1.0, 1.0, 9.0], warmup_steps=6)[0]) == []

    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    def test_nan_and_infinity_always_are_and_stay_out_of_the_window(self, run, bad):
        spike, *_ = run([bad, 1.0, 1.0, bad, 1.0, 1.0, 1.0, 9.0])
        assert steps_of(spike) == [0, 3, 7]
        assert spike.state_dict()["window"] == [1.0] * 5 + [9.0]


class TestActions:
    VALUES = [1.0] * 7 + [9.0, 1.0, 8.0] + [1.0] * 10

    def test_warn(self, run, messages):
        spike, trainer, outcome = run(self.VALUES)
        assert (outcome.status, spike.count) == ("completed", 2)
        assert trainer.metrics["spike/count"] == 2
        assert [text for text in messages() if text.startswith("spike:")] == [
            "spike: loss 9 at step 7, around 1 before",
            "spike: loss 8 at step 9, around 1 before",
        ]

    def test_several_are_one_warning(self, run, messages):
        run(self.VALUES, every_steps=20)
        assert [text for text in messages() if text.startswith("spike:")] == [
            "spike: loss 9 at step 7, around 1 before, and 1 more"
        ]

    @pytest.mark.parametrize(("every_steps", "step"), [(1, 8), (3, 9), (5, 10)])
    def test_stop(self, run, every_steps, step):
        _, _, outcome = run(self.VALUES, action="stop", every_steps=every_steps)
        assert (outcome.status, outcome.step) == ("stopped", step)
        assert outcome.reason.startswith("spike: loss 9 at step 7, around 1 before")

    def test_stop_comes_too_late_for_a_run_that_is_complete(self, run):
        spike, _, outcome = run(self.VALUES, action="stop", every_steps=50)
        assert (outcome.status, spike.count) == ("completed", 2)

    @pytest.mark.parametrize("every_steps", [3, 50])
    def test_raise(self, make_trainer, every_steps):
        spike = Spike(action="raise", warmup_steps=4, every_steps=every_steps)
        trainer = make_trainer([spike, Gives(self.VALUES)], values=(1.0,) * 20)
        with pytest.raises(TrainingError, match="spike: loss 9 at step 7, around 1 before"):
            trainer.train()
        assert trainer.outcome.status == "failed"

    def test_file(self, run, tmp_path, messages):
        run([*self.VALUES[:9], NAN], work_dir=tmp_path / "run")
        file = json.loads((tmp_path / "run" / "spike.json").read_text())
        place = {"update": 7, "epoch": 0, "batch_index": 7}
        assert file["count"] == 2
        assert file["spikes"][0] == {"step": 7, **place, "value": 9.0, "center": 1.0, "spread": 0.0}
        assert (file["spikes"][1]["step"], file["spikes"][1]["value"]) == (9, "nan")
        assert any(text.endswith(f"all are in {tmp_path / 'run' / 'spike.json'}") for text in messages())

    def test_a_value_that_is_not_there(self, run):
        with pytest.raises(
            UsageError, match="spike.metric = 'g_loss' is no scalar of what train_step returned, which has loss"
        ):
            run([1.0] * 5, metric="g_loss")


class TestResume:
    VALUES = [1.0, 1.1, 0.9, 1.0, 1.2, 0.8, 9.0, 1.0, NAN, 1.1, 7.0, 1.0]

    @pytest.mark.parametrize(("cut", "every_steps"), [(2, 4), (5, 4), (7, 1), (9, 50), (11, 4)])
    def test_equals_a_run_that_was_not_cut(self, run, tmp_path, cut, every_steps):
        """Cut between two looks by a failure, so that losses wait in the checkpoint: the end of a run would look."""

        class Fails:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == cut:
                    raise ValueError("cut")

        options = {"every_steps": every_steps, "window": 6}
        whole, *_ = run(self.VALUES, work_dir=tmp_path / "whole", **options)
        with pytest.raises(ValueError, match="cut"):
            run(self.VALUES, work_dir=tmp_path / "cut", plugins=[Checkpoint(every_steps=cut), Fails()], **options)
        again, *_ = run(self.VALUES, work_dir=tmp_path / "cut", resume="auto", plugins=[Checkpoint(at_end=False)], **options)
        assert again.state_dict() == whole.state_dict()
        assert steps_of(again) == [6, 8, 10]
        files = [(tmp_path / name / "spike.json").read_text() for name in ("whole", "cut")]
        assert files[0] == files[1]

    def test_a_save_forgets_nothing(self):
        spike = Spike(warmup_steps=1)
        spike._values.add(Place(0, 0, 0, 0), "loss", torch.tensor(2.0))
        assert spike.state_dict() == spike.state_dict()
        assert spike.state_dict()["waiting"] == [[[0, 0, 0, 0], 2.0]]


class TestCost:
    @pytest.mark.parametrize("on_device", [False, True])
    def test_a_step_that_does_not_look_does_not_synchronize(self, make_trainer, monkeypatch, on_device):
        from torch.utils._python_dispatch import TorchDispatchMode

        class Syncs(TorchDispatchMode):
            count = 0

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "is_nonzero", "equal", "_to_copy")
                return func(*args, **(kwargs or {}))

        class Counts:
            phase = "reporting"
            steps = ()

            @hookimpl(wrapper=True)
            def train_epoch(self):
                with Syncs() as self.mode:
                    return (yield)

            @hookimpl
            def after_step(self):
                self.steps = (*self.steps, self.mode.count)
                self.mode.count = 0

        if on_device:  # what a loss on an accelerator goes through
            monkeypatch.setattr("trainhooks_builtins._step_values.kept", lambda value: value.detach().clone())
        counts = Counts()
        make_trainer([Spike(every_steps=5), counts]).train()
        assert [n for index, n in enumerate(counts.steps) if (index + 1) % 5] == [0] * 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window = 0: must be at least 1"),
        ({"warmup_steps": 0}, "warmup_steps = 0: must be at least 1"),
        ({"every_steps": 0}, "every_steps = 0: must be at least 1"),
        ({"window": 10}, "warmup_steps = 20: must not be more than window = 10"),
        ({"threshold": -1.0}, "threshold = -1.0: must be 0 or more"),
        ({"min_rise": NAN}, "min_rise = nan"),
    ],
)
def test_options(options, message):
    with pytest.raises(OptionError, match=message):
        Spike(**options)
