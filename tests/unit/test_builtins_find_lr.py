"""``find_lr`` on curves worked out by hand, and that nothing of it is left behind."""

import copy
import csv
import gc
import json
import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainhooks import DataError, OptionError, SkipStep, Trainer, TrainingError, UsageError, hookimpl
from trainhooks_builtins import AMP, EMA, LR, Accumulate, Checkpoint, Clip, Evaluation, FindLR, Mixup, NanGuard, Spike, Timer
from trainhooks_builtins._lr_curve import _longest_fall, _slopes, suggestions


class Noisy(nn.Module):
    """Everything that a test could leave a trace in: dropout, batch norm, a buffer that is not saved, extra state."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.seen = 0

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        return self.body(x)

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


class Follower:
    """Follows the training in every way that a plugin can."""

    name, phase = "follower", "measurement"

    def __init__(self):
        self.calls = []

    @hookimpl
    def before_step(self, trainer):
        self.calls.append(("before_step", trainer.step))

    @hookimpl
    def gradients_ready(self, trainer):
        self.calls.append(("gradients_ready", trainer.step))

    @hookimpl
    def after_update(self, trainer):
        self.calls.append(("after_update", trainer.update))

    @hookimpl(wrapper=True)
    def train_step(self, trainer):
        self.calls.append(("train_step", trainer.step))
        return (yield)

    @hookimpl
    def after_step(self, output):
        self.calls.append(("loss", output["loss"].item()))


class Part:
    """Has a part in the loss, and keeps state."""

    name = "part"

    def __init__(self):
        self.updates, self.count = [], 0

    @hookimpl(wrapper=True)
    def compute_loss(self, trainer):
        self.count += 1
        trainer.log("seen", self.count, reduce="last")
        return (yield)

    @hookimpl
    def after_update(self, trainer):
        self.updates.append(trainer.update)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Drawing(torch.utils.data.Dataset):
    """Draws its samples in the worker."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.randn(4), torch.rand(1)


def noisy(plugins=(), *, optimizer=torch.optim.AdamW, **arguments):
    torch.manual_seed(3)
    samples = TensorDataset(torch.randn(20, 4), torch.randn(20, 1) + 5)
    loader = DataLoader(samples, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))
    model = Noisy()
    groups = [{"params": [p], "lr": 0.01 * (i + 1)} for i, p in enumerate(model.parameters())]
    follower = Follower()
    arguments.setdefault("max_epochs", 2)
    trainer = Trainer(
        model,
        loss=nn.functional.mse_loss,
        optimizer=optimizer(groups),
        loaders={"train": loader},
        plugins=[follower, Part(), *plugins],
        autoload=False,
        device="cpu",
        **arguments,
    )
    return trainer, follower


def everything(trainer):
    """Return all that a test could change."""
    return copy.deepcopy(
        {
            "model": [*trainer.model.state_dict().items(), *trainer.model.named_buffers()],
            "grads": [p.grad for p in trainer.model.parameters()],
            "optimizers": [(o.state_dict()) for o in trainer.optimizers.values()],
            "counters": trainer.save_counters(),
            "plain": {
                k: v
                for k, v in vars(trainer).items()
                if (v is None or isinstance(v, (bool, int, float, str))) and k != "run_id"
            },
            "rng": trainer.rng.state_dict(),
            "generator": trainer.loaders["train"].generator.get_state(),
            "metrics": trainer.metrics,
        }
    )


def assert_same(one, other, path=""):
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert list(one) == list(other), path
        for key in one:
            assert_same(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for index, (a, b) in enumerate(zip(one, other)):
            assert_same(a, b, f"{path}/{index}")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other), path
    else:
        assert one == other, path


class TestTheCurve:
    """One weight, loss w * x with x = 1 and SGD: the gradient is 1, so the losses are minus the sum of the rates before."""

    def test_exponential(self, make_trainer):
        finder = FindLR(min_lr=0.01, max_lr=1.0, updates=3, smoothing=0.0, skip=0.0, diverged=10)
        make_trainer([finder], start=5.0, max_updates=1).train()
        assert finder.rates == pytest.approx([0.01, 0.1, 1.0])
        assert finder.losses == pytest.approx([5, 4.99, 4.89])
        assert finder.smoothed == pytest.approx(finder.losses)
        # Over log(rate), ln 10 apart: -0.01, (4.89 - 5) / 2, -0.1 each divided by ln 10. The last is the steepest.
        assert finder.suggestions == pytest.approx({"steepest": 1.0, "valley": 0.1, "minimum": 0.1})

    def test_linear(self, make_trainer):
        finder = FindLR(min_lr=1.0, max_lr=3.0, updates=3, mode="linear", smoothing=0.0, skip=0.0, diverged=100)
        make_trainer([finder], start=5.0, max_updates=1).train()
        assert finder.rates == [1.0, 2.0, 3.0]
        assert finder.losses == [5.0, 4.0, 2.0]

    def test_smoothing_is_corrected_for_its_beginning(self, make_trainer):
        finder = FindLR(min_lr=1.0, max_lr=3.0, updates=3, mode="linear", smoothing=0.5, diverged=100)
        make_trainer([finder], start=5.0, max_updates=1).train()
        # a: 2.5, 3.25, 2.625; divided by 1/2, 3/4, 7/8.
        assert finder.smoothed == pytest.approx([5.0, 3.25 / 0.75, 2.625 / 0.875])

    def test_a_quadratic_diverges_where_theory_says(self):
        """w**2 / 2: each update multiplies w by 1 - rate; with rates 1.5, 2.5, 3.5, ... by -0.5, -1.5, -2.5, ..."""

        class Square(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

            def forward(self, _):
                return self.w**2 / 2

        model = Square()
        finder = FindLR(min_lr=0.5, max_lr=9.5, updates=10, mode="linear", smoothing=0.0, diverged=4, skip=0)
        trainer = Trainer(
            model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            loaders={"train": [0]},
            plugins=[finder],
            max_updates=1,
            autoload=False,
        )
        trainer.train()
        # rates 0.5, 1.5, 2.5, 3.5 give w = 0.5, -0.25, 0.375, -0.9375; the loss with the fifth rate is 0.439 > 4 * 0.03125.
        w = [1, 0.5, -0.25, 0.375, -0.9375]
        assert finder.losses == [x**2 / 2 for x in w]
        assert finder.rates == [0.5, 1.5, 2.5, 3.5, 4.5]
        assert finder.suggestions["minimum"] == 0.25
        assert model.w.item() == 1.0

    def test_negative_losses_are_no_divergence(self, make_trainer):
        """The loss goes from 5 to below 0; a factor times a negative best would be below every loss."""
        finder = FindLR(min_lr=1.0, max_lr=10.0, updates=10, mode="linear", smoothing=0.0, diverged=2.0)
        make_trainer([finder], start=5.0, max_updates=1).train()
        assert len(finder.rates) == 10
        assert finder.losses[-1] == 5 - 45

    def test_it_ends_with_a_loss_that_is_not_finite(self, make_trainer):
        finder = FindLR(min_lr=1.0, max_lr=10.0, updates=10, mode="linear", smoothing=0.0)
        make_trainer([finder], values=(1.0, 1.0, 1.0, math.nan, 1.0), start=5.0, max_updates=1).train()
        assert finder.rates == [1.0, 2.0, 3.0]

    def test_other_groups_keep_their_ratio(self):
        finder, seen = FindLR(min_lr=0.1, max_lr=0.4, updates=4, mode="linear"), []

        class Rates:
            @hookimpl(wrapper=True)
            def optimizer_step(self, trainer):
                seen.append([group["lr"] for group in trainer.optimizer.param_groups])
                return (yield)

        trainer, _ = noisy([finder, Rates()])
        trainer.train()
        assert [rates[0] for rates in seen] == pytest.approx([0.1, 0.2, 0.3, 0.4])
        assert [rates[4] / rates[0] for rates in seen] == pytest.approx([5] * 4)


class TestSuggestions:
    def test_by_hand(self):
        rates = [10.0**i for i in range(-6, 1)]
        losses = [10, 9.8, 9.9, 7, 5, 4.9, 8]
        # Slopes times ln 10: -0.2, -0.05, -1.4, -2.45, -1.05, 1.5, 3.1. Longest series down: 10, 9.8 (or 9.9), 7, 5, 4.9.
        assert suggestions(rates, losses) == {"steepest": 1e-3, "valley": 1e-3, "minimum": pytest.approx(1e-2)}

    def test_a_fall_after_the_lowest_loss_is_not_the_steepest(self):
        rates = [10.0**i for i in range(-6, 1)]
        assert suggestions(rates, [5, 4.5, 3, 2, 100, 50, 9])["steepest"] == 1e-4  # -1.25 there, -45.5 later

    @pytest.mark.parametrize("losses", [[], [1], [1, 1, 1], [1, 2, 3]])
    def test_nothing_where_the_loss_does_not_fall(self, losses):
        assert set(suggestions([1.0, 2.0, 3.0][: len(losses)], losses).values()) == {None}

    @settings(deadline=None)
    @given(st.lists(st.floats(-100, 100), min_size=3, max_size=12))
    def test_slopes_are_numpys_for_even_steps(self, losses):
        x = [0.5 * i for i in range(len(losses))]
        assert _slopes(x, losses) == pytest.approx(list(np.gradient(losses, 0.5)), abs=1e-9)

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
    def test_longest_fall_is_the_longest(self, losses):
        found = _longest_fall(losses)
        assert found == sorted(found)
        assert all(losses[a] > losses[b] for a, b in zip(found, found[1:]))
        longest = 0
        for chosen in range(2 ** len(losses)):
            picked = [loss for index, loss in enumerate(losses) if chosen >> index & 1]
            if all(a > b for a, b in zip(picked, picked[1:])):
                longest = max(longest, len(picked))
        assert len(found) == longest


class TestNothingIsLeft:
    @pytest.mark.parametrize("optimizer", [torch.optim.AdamW, lambda g: torch.optim.SGD(g, momentum=0.9)])
    def test_the_training_after_it_is_the_one_without_it(self, optimizer):
        finder = FindLR(min_lr=1e-4, max_lr=1.0, updates=13)
        tested, follower = noisy([finder], optimizer=optimizer)
        outcome = tested.train()
        assert (outcome.status, outcome.step, follower.calls) == ("stopped", 0, [])
        assert (tested.plugins["part"].updates, tested.plugins["part"].count) == ([], 0)
        tested.unregister("find_lr")
        tested.train()
        plain, other = noisy(optimizer=optimizer)
        plain.train()
        assert follower.calls == other.calls and len(other.calls) == 50
        assert_same(everything(tested), everything(plain))

    def test_with_every_plugin_that_has_a_part_in_the_steps(self, tmp_path):
        def plugins():
            return [AMP("float16"), Accumulate(2), Clip(1.0), EMA(), Mixup(), NanGuard(), Spike(), Timer(), LR(), Evaluation()]

        def run(*more, folder):
            trainer, follower = noisy([*plugins(), *more], work_dir=tmp_path / folder)
            trainer.train()
            return trainer, follower

        tested, follower = run(FindLR(min_lr=1e-4, max_lr=1.0, updates=13), folder="tested")
        tested.unregister("find_lr")
        tested.train()
        plain, other = run(folder="plain")
        assert follower.calls == other.calls and len(other.calls) > 30
        one, two = everything(tested), everything(plain)
        times = ("time/", "amp/")  # a stopped run has logged its loss scale
        for found in (one, two):
            found["metrics"] = {name: value for name, value in sorted(found["metrics"].items()) if not name.startswith(times)}
        assert_same(one, two)
        for name in ("amp", "ema", "spike", "accumulate", "nan_guard"):
            assert_same(tested.plugins[name].state_dict(), plain.plugins[name].state_dict(), name)

    def test_everything_is_as_it_was_found(self):
        trainer, _ = noisy([finder := FindLR(updates=7)])
        finds = []

        class Around:
            before, after = ("find_lr",), ()

            @hookimpl(wrapper=True)
            def train(self, trainer):
                torch.rand(3)
                finds.append(everything(trainer))
                return (yield)

        class Within:
            after = ("find_lr",)

            @hookimpl(wrapper=True)
            def train(self, trainer):
                finds.append(everything(trainer))
                return (yield)

        trainer.register(Around())
        trainer.register(Within())
        trainer.train()
        assert len(finder.rates) == 7
        finds[1]["plain"]["stop_reason"] = None  # it asks to stop
        finds[1]["plain"]["_attention_at"] = finds[0]["plain"]["_attention_at"]
        assert_same(finds[0], finds[1])

    def test_a_test_that_fails_leaves_nothing_either(self):
        class Breaks:
            calls = 0

            @hookimpl(wrapper=True)
            def compute_loss(self, trainer):
                self.calls += 1
                if self.calls == 5:
                    trainer.stop("gave up")
                    trainer.request_eval()
                    trainer.log("broken", 1.0)
                    raise ZeroDivisionError
                return (yield)

        trainer, follower = noisy([FindLR(updates=13), Breaks()])
        expected, plugins = everything(trainer), list(trainer.plugins)
        with pytest.raises(ZeroDivisionError):
            trainer.train()
        now = everything(trainer)
        now["plain"].update({"_configured": False, "stop_reason": None, "_attention_at": 0, "_flush_at": 0})
        expected["plain"].update({"_configured": False, "_attention_at": 0, "_flush_at": 0})
        for plain in (now["plain"], expected["plain"]):
            plain.pop("outcome", None)
            plain.pop("_epoch_length")
            plain.pop("between_steps")  # a failed run is not
        assert_same(expected, now)
        assert trainer.plugins["part"].count == 0
        assert list(trainer.plugins) == plugins
        assert trainer.hooks.after_update is not None
        assert "broken" not in trainer.metrics

    def test_a_request_to_stop_outlasts_it(self):
        """As a signal would make it, whose handler does not know of a test."""

        class Stops:
            calls = 0

            @hookimpl(wrapper=True)
            def compute_loss(self, trainer):
                self.calls += 1
                if self.calls == 3:
                    trainer.stop("a signal")
                return (yield)

        finder = FindLR(updates=9, apply=True)
        trainer, follower = noisy([finder, Stops()])
        outcome = trainer.train()
        assert (outcome.status, outcome.reason, outcome.step) == ("stopped", "a signal", 0)
        assert len(finder.rates) == 2
        assert follower.calls == []

    def test_workers_that_persist_begin_anew(self):
        """What they draw is that of a run without a test; they would go on from where it left them."""

        def run(plugins):
            torch.manual_seed(3)
            loader = DataLoader(Drawing(), batch_size=4, num_workers=1, persistent_workers=True)
            trainer, follower = noisy(plugins, max_epochs=1)
            trainer.loaders["train"] = loader
            trainer.train()
            if plugins:
                trainer.unregister("find_lr")
                trainer.train()
            return follower.calls

        assert run([FindLR(updates=7)]) == run([])

    def test_batches_of_a_generator_are_put_back(self, make_trainer):
        seen = []

        class Batches:
            @hookimpl
            def after_step(self, batch):
                seen.append(batch.item())

        finder = FindLR(min_lr=1.0, max_lr=3.0, updates=3, mode="linear", apply=True)
        trainer = make_trainer([finder, Batches()], start=5.0, max_steps=4)
        trainer.loaders["train"] = (torch.tensor([float(v)], dtype=torch.float64) for v in range(1, 10))
        trainer.train()
        assert seen == [1, 2, 3, 4]

    def test_a_generator_that_ends_ends_the_test(self, make_trainer):
        finder = FindLR(updates=10)
        trainer = make_trainer([finder], start=5.0, max_steps=4)
        trainer.loaders["train"] = (torch.ones(1, dtype=torch.float64) for _ in range(4))
        trainer.train()
        assert len(finder.rates) == 4

    def test_a_rate_that_is_a_tensor_stays_the_same_object(self):
        rate = torch.tensor(0.1)
        trainer, _ = noisy([FindLR(updates=5)], optimizer=lambda g: torch.optim.AdamW([{**g[0], "lr": rate}, *g[1:]]))
        trainer.train()
        assert trainer.optimizer.param_groups[0]["lr"] is rate
        assert rate.item() == pytest.approx(0.1)

    def test_logged_values_of_the_test_are_dropped(self):
        finder = FindLR(min_lr=1e-4, max_lr=1e-2, updates=5, apply=True, smoothing=0, skip=0)
        trainer, follower = noisy([finder], max_steps=3)
        trainer.train()
        assert trainer.metrics["seen"] == trainer.plugins["part"].count == 3


class TestApply:
    def test_the_rate_is_set_and_others_scaled(self, messages):
        finder = FindLR(min_lr=0.1, max_lr=0.4, updates=4, mode="linear", smoothing=0, skip=0, diverged=100, apply=True)
        trainer, follower = noisy([finder])
        outcome = trainer.train()
        assert outcome.status == "completed"
        rates = [group["lr"] for group in trainer.optimizer.param_groups]
        assert rates[0] == pytest.approx(finder.suggestion)
        assert [rate / rates[0] for rate in rates] == pytest.approx([1, 2, 3, 4, 5, 6])
        assert follower.calls[0] == ("before_step", 0)
        assert any("find_lr: 4 rates up to 0.4 tried, suggested (valley)" in message for message in messages())

    @pytest.mark.parametrize("order", [1, -1])
    def test_lr_takes_it_for_its_base(self, make_trainer, order):
        finder = FindLR(min_lr=0.01, max_lr=1.0, updates=3, smoothing=0, skip=0, diverged=10, suggest="valley", apply=True)
        rates = []

        class Rates:
            phase = "measurement"

            @hookimpl
            def gradients_ready(self, trainer):
                rates.append(trainer.optimizer.param_groups[0]["lr"])

        plugins = [finder, LR("linear", warmup_updates=2, warmup_start=0.5), Rates()]
        make_trainer(plugins[::order], start=5.0, lr=7.0, max_updates=4).train()
        assert finder.suggestion == pytest.approx(0.1)
        assert rates == pytest.approx([0.05, 0.075, 0.1, 0.05])

    @pytest.mark.parametrize("options", [{"base": 0.5}, {"torch_scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 2)}])
    def test_lr_with_a_rate_of_its_own_is_a_contradiction(self, make_trainer, options):
        with pytest.raises(
            UsageError, match=f"find_lr.apply sets the rate that lr starts from, but lr.{next(iter(options))} sets"
        ):
            make_trainer([FindLR(apply=True), LR(**options)]).train()
        outcome = make_trainer([FindLR(updates=5, min_lr=1e-3, skip=0), LR(**options)], start=5.0).train()
        assert outcome.status == "stopped"  # a test alone is fine

    def test_plugins_that_do_not_take_part_are_not_restored_either(self, make_trainer):
        """They have not changed, and a clock that runs on would be set."""

        class Clock:
            phase = "decision"

            @hookimpl
            def after_step(self):
                pass

            def state_dict(self):
                return {}

            def load_state_dict(self, state):
                raise AssertionError

        make_trainer([FindLR(updates=5), Clock()], start=5.0).train()

    def test_nothing_to_suggest(self, make_trainer, messages):
        flat = {"values": (0.0,) * 5, "max_updates": 2}
        assert make_trainer([FindLR(updates=5)], **flat).train().reason == "find_lr has nothing to suggest"
        assert any("the loss did not fall with 5 rates up to 10" in message for message in messages())
        with pytest.raises(TrainingError, match="the loss did not fall"):
            make_trainer([FindLR(updates=5, apply=True)], **flat).train()

    def test_a_run_that_goes_on_is_not_tested_again(self, make_trainer, messages):
        finder = FindLR(min_lr=0.1, max_lr=0.4, updates=4, apply=True)
        trainer = make_trainer([finder], start=5.0, max_updates=2)
        trainer.train()
        rate = trainer.optimizer.param_groups[0]["lr"]
        trainer.train(max_updates=4)
        assert trainer.optimizer.param_groups[0]["lr"] == rate
        assert "find_lr: no test, since the run goes on from update 2" in messages()

    def test_resume_goes_on_with_the_rate_and_without_a_test(self, tmp_path):
        def run(**arguments):
            finder = FindLR(min_lr=1e-3, max_lr=0.1, updates=5, smoothing=0, skip=0, apply=True)
            trainer, follower = noisy([finder, LR("linear", total_updates=10), Checkpoint()], **arguments)
            return trainer, follower, finder

        whole, _, finder = run(max_steps=8, work_dir=tmp_path / "whole")
        whole.train()
        run(max_steps=3, work_dir=tmp_path / "cut")[0].train()
        resumed, _, untested = run(max_steps=8, work_dir=tmp_path / "cut")
        resumed.train(resume="auto")
        assert finder.rates and not untested.rates
        one, other = everything(whole), everything(resumed)
        for found in (one, other):
            found.pop("plain")
            found["model"] = [item for item in found["model"] if item[0] != "calls"]  # a buffer that is not saved
        assert_same(one, other)


class TestSteps:
    def test_with_the_plugins_that_have_a_part_in_the_gradients(self, make_trainer):
        """Windows (1, 3), (5), (1, 3): losses are means of w * x, gradients means of x; clipped to 1, the updates are the rates."""
        finder = FindLR(min_lr=1.0, max_lr=3.0, updates=3, mode="linear", smoothing=0.0, diverged=100)
        others = [
            Accumulate(2),
            NanGuard(action="skip", gradients=True),
            Spike(action="raise", warmup_steps=1, window=1),
            EMA(),
        ]
        trainer = make_trainer([finder, *others], values=(1.0, 3.0, 5.0), start=10.0, max_updates=1)
        trainer.train()
        assert finder.losses == [10 * 2, 8 * 5, (8 - 2 * 5) * 2]
        finder = FindLR(min_lr=1.0, max_lr=3.0, updates=3, mode="linear", smoothing=0.0, diverged=100)
        trainer = make_trainer([finder, Accumulate(2), Clip(1.0)], values=(1.0, 3.0, 5.0), start=10.0, max_updates=1)
        trainer.train()
        assert finder.losses == pytest.approx([10 * 2, 9 * 5, 7 * 2])
        assert list(trainer.plugins) == ["find_lr", "accumulate", "clip"]

    def test_a_plugin_that_fails_in_a_trial_stays_out(self, make_trainer, messages):
        class Breaks:
            on_error, calls = "disable", 0

            @hookimpl(wrapper=True)
            def compute_loss(self, trainer):
                self.calls += 1
                if self.calls == 2:
                    raise ZeroDivisionError
                return (yield)

        finder = FindLR(min_lr=1.0, max_lr=3.0, updates=3, mode="linear", smoothing=0.0)
        trainer = make_trainer([finder, Breaks()], start=10.0, max_updates=1)
        trainer.train()
        assert finder.losses == [10, 9, 7]
        assert list(trainer.plugins) == ["find_lr"]

    def test_accumulated_steps_make_one_update(self, make_trainer):
        class Accumulates:
            @hookimpl
            def update_due(self, trainer):
                return (trainer.batch_index + 1) % 2 == 0 or trainer.end_of_epoch

            @hookimpl(wrapper=True)
            def scale_loss(self, loss):
                return (yield) / 2

        finder = FindLR(min_lr=1.0, max_lr=3.0, updates=3, mode="linear", smoothing=0.0, diverged=100)
        trainer = make_trainer([finder, Accumulates()], values=(1.0, 3.0, 5.0), start=10.0, max_updates=1)
        trainer.train()
        # Windows (1, 3), (5), (1, 3): losses are means of w * x; gradients 2, 2.5, 2.
        assert finder.losses == [10 * 2, 8 * 5, 3 * 2]

    def test_dropped_batches_are_passed_over(self, make_trainer):
        class Filter:
            @hookimpl(wrapper=True)
            def prepare_batch(self):
                batch = yield
                if batch.item() < 0:
                    raise SkipStep("negative")
                return batch

        finder = FindLR(min_lr=1.0, max_lr=3.0, updates=3, mode="linear", smoothing=0.0)
        make_trainer([finder, Filter()], values=(1.0, -9.0), start=10.0, max_updates=1).train()
        assert finder.losses == [10, 9, 7]
        with pytest.raises(DataError, match="find_lr: all of the 2 batches were dropped"):
            make_trainer([FindLR(), Filter()], values=(-1.0, -9.0), max_updates=1).train()
        with pytest.raises(DataError, match="find_lr: no batches"):
            make_trainer([FindLR()], values=(), max_updates=1).train()

    def test_files(self, make_trainer, tmp_path):
        finder = FindLR(min_lr=0.01, max_lr=1.0, updates=3, smoothing=0.0, skip=0.0, diverged=10)
        make_trainer([finder], start=5.0, max_updates=1, work_dir=tmp_path / "run").train()
        with (tmp_path / "run/find_lr.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [float(row["lr"]) for row in rows] == finder.rates
        assert [float(row["loss"]) for row in rows] == finder.losses
        assert json.loads((tmp_path / "run/find_lr.json").read_text()) == {"suggest": "valley", **finder.suggestions}

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"min_lr": 0.0}, "must be above 0 and rising"),
            ({"min_lr": 1.0, "max_lr": 0.1}, "must be above 0 and rising"),
            ({"updates": 2}, "updates = 2"),
            ({"smoothing": 1.0}, "smoothing = 1.0"),
            ({"skip": -0.1}, "skip = -0.1"),
            ({"diverged": 1.0}, "diverged = 1.0"),
        ],
    )
    def test_options(self, options, text):
        with pytest.raises(OptionError, match=text):
            FindLR(**options)

    def test_one_optimizer_with_a_rate(self, make_trainer, scalar_model):
        with pytest.raises(UsageError, match="which is 0.0: give it one above 0"):
            make_trainer([FindLR()], lr=0.0).train()
        models = [scalar_model(), scalar_model()]
        optimizers = {str(i): torch.optim.SGD(model.parameters(), lr=1.0) for i, model in enumerate(models)}
        with pytest.raises(UsageError, match="this training has 2"):
            Trainer(
                nn.ModuleList(models),
                optimizer=optimizers,
                loaders={"train": [0]},
                max_steps=1,
                plugins=[FindLR()],
                autoload=False,
            ).train()


@pytest.mark.parametrize("apply", [True, False])
def test_nothing_is_kept_in_a_cycle(make_trainer, apply):
    """A trainer goes with its last reference, and with it the workers of the loader."""
    gc.disable()
    try:
        trainer = make_trainer([FindLR(updates=5, apply=apply)], max_steps=2)
        trainer.train()
        left = weakref.ref(trainer), weakref.ref(trainer.model)
        del trainer
        assert [one() for one in left] == [None, None]
    finally:
        gc.enable()
