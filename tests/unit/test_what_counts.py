"""What counts as one number in what steps return, how it is kept, and by which weight."""

import gc
import math
import sys
import weakref
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from trainhooks import UsageError, hookimpl, metrics
from trainhooks.metrics import MetricBus
from trainhooks.run_info import flat
from trainhooks.series import Series, Totals, mean_of, total_of
from trainhooks_builtins import Console, Evaluation

BATCH = (torch.zeros(4),)


class Labelled(torch.Tensor):
    """A tensor of a class of its own."""


class Marker:
    """Something in a graph that a weak reference can be made to."""


class Marked(torch.autograd.Function):
    """The identity, with a marker in the graph."""

    @staticmethod
    def forward(ctx, x):
        ctx.marker = Marker()
        return x.clone()

    @staticmethod
    def backward(ctx, *grad_outputs):
        return grad_outputs[0]


class TestLoss:
    @pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
    def test_of_a_class_of_its_own_keeps_no_graph(self, shape):
        bus, found = MetricBus(), []
        for value in (1.0, 2.0, 6.0):
            loss = Marked.apply(torch.tensor(value, requires_grad=True))
            found.append(weakref.ref(loss.grad_fn.marker))
            bus.add_output({"loss": loss.as_subclass(Labelled).reshape(shape)}, BATCH)
            del loss
        gc.collect()
        assert [one() for one in found] == [None] * 3
        assert bus.flush() == {"train/loss": 3.0}

    @pytest.mark.parametrize("make", [torch.zeros, lambda *shape: torch.zeros(*shape).as_subclass(Labelled)])
    @pytest.mark.parametrize("shape", [(), (1,)])
    def test_that_its_step_fills_in_place_counts_as_it_was(self, make, shape):
        bus, buffer = MetricBus(), make(shape)
        for value in (1.0, 2.0, 6.0):
            buffer.fill_(value)
            bus.add_output({"loss": buffer, "other": buffer}, BATCH)
        assert bus.flush() == {"train/loss": 3.0, "train/other": 3.0}

    @pytest.mark.parametrize(
        "loss", [1, np.float32(1), np.array(1.0), np.array([1.0]), Decimal(1), Fraction(1), torch.tensor(1)]
    )
    def test_of_any_kind(self, loss):
        bus = MetricBus()
        bus.add_output({"loss": loss}, BATCH)
        assert bus.state_dict()["losses"] == [[1.0], [4]]
        assert bus.flush() == {"train/loss": 1.0}

    @pytest.mark.parametrize(
        "loss", ["1", None, 1j, torch.ones(2), torch.tensor(1j), torch.tensor([1j]), np.ones(2), np.array(1j)]
    )
    def test_that_is_no_number_is_passed_over(self, loss):
        bus = MetricBus()
        bus.add_output({"loss": loss}, BATCH)
        assert bus.outputs == 1
        assert bus.flush() == {}
        assert bus.outputs == 1


NUMBERS = [
    torch.tensor([0.5]),
    torch.tensor([[0.5]]),
    np.array(0.5),
    np.array([0.5]),
    np.float16(0.5),
    Decimal("0.5"),
    Fraction(1, 2),
]
OTHERS = [torch.tensor(0.5 + 1j), torch.tensor([0.5j]), np.array(0.5j), np.array("a"), torch.ones(2), "a", b"a", None, {1: 2}]


class TestOthers:
    @pytest.mark.parametrize("value", NUMBERS)
    def test_numbers(self, make_trainer, value):
        bus = MetricBus()
        bus.add_output({"loss": 1.0, "other": value}, BATCH)
        assert bus.flush() == {"train/loss": 1.0, "train/other": 0.5}

    @pytest.mark.parametrize("value", OTHERS, ids=str)
    def test_what_is_none(self, value):
        bus = MetricBus()
        bus.add_output({"loss": 1.0, "other": value}, BATCH)
        assert bus.flush() == {"train/loss": 1.0}

    @pytest.mark.parametrize("value", [*NUMBERS, *OTHERS], ids=str)
    def test_evaluations_take_the_same(self, make_trainer, value):
        class Step:
            @hookimpl
            def eval_step(self):
                return {"loss": torch.ones(1), "other": value}

        trainer = make_trainer([Step()])
        trainer.loaders["val"] = [torch.ones(4)] * 2
        expected = {"val/other": 0.5} if any(value is one for one in NUMBERS) else {}
        assert trainer.evaluate("val") == {"val/loss": 1.0, **expected}

    def test_names_are_made_text(self):
        bus = MetricBus()
        output: Any = {"loss": 1.0, 0: 0.25, 1: 0.75}
        bus.add_output(output, BATCH)
        assert bus.flush() == {"train/0": 0.25, "train/1": 0.75, "train/loss": 1.0}

    def test_a_sum_of_losses_that_are_numbered(self, make_trainer):
        class Numbered:
            @hookimpl
            def compute_loss(self, trainer, batch):
                return {0: trainer.model(batch), 1: 2 * trainer.model(batch)}

        trainer = make_trainer([Numbered(), Evaluation(), Reports()], start=1.0, lr=0.0, values=(1.0,), val=(2.0,))
        found = trainer.train().metrics
        assert {name: found[f"train/{name}"] for name in ("0", "1", "loss")} == {"0": 1.0, "1": 2.0, "loss": 3.0}
        assert {name: found[f"val/{name}"] for name in ("0", "1", "loss")} == {"0": 2.0, "1": 4.0, "loss": 6.0}

    def test_the_output_for_a_batch_with_one_sample_is_no_metric(self, make_trainer):
        """A loader without ``drop_last``: the last batch has one sample, for which the model gives one number."""

        class Step:
            @hookimpl
            def eval_step(self, trainer, batch):
                return {"loss": batch.mean(), "logits": batch[:, None], "outputs": batch}

            @hookimpl
            def train_step(self, trainer, batch):
                return {"loss": batch.mean(), "logits": batch[:, None], "mean": batch.mean()[None]}

        trainer = make_trainer([Step(), Evaluation(), Reports()])
        for split in ("train", "val"):
            trainer.loaders[split] = [torch.tensor([1.0, 3.0]), torch.tensor([8.0])]
        trainer.train()
        assert trainer.metrics == {"train/mean": 4.0, "train/loss": 4.0, "val/loss": 4.0, "best/val/loss": 4.0}


class Reports:
    @hookimpl
    def report_metrics(self):
        pass


class TestWeight:
    def test_counts_in_training_as_in_evaluations(self, make_trainer):
        """(1 * 1 + 3 * 3) / 4 = 2.5."""

        class Weighs:
            @hookimpl
            def compute_loss(self, trainer, batch):
                return {"loss": trainer.model(batch), "half": batch.mean() / 2, "weight": batch.mean()}

        trainer = make_trainer([Weighs(), Evaluation(), Reports()], start=1.0, lr=0.0, values=(1.0, 3.0), val=(1.0, 3.0))
        names = {"loss": 2.5, "half": 1.25}
        expected = {f"{split}/{name}": value for split in ("train", "val") for name, value in names.items()}
        assert trainer.train().metrics == {**expected, "best/val/loss": 2.5}

    @pytest.mark.parametrize("weight", [3, 3.0, torch.tensor(3), torch.tensor([3.0]), np.array(3), Decimal(3)])
    def test_of_any_kind(self, weight):
        bus = MetricBus()
        bus.add_output({"loss": torch.tensor(2.0), "weight": weight}, BATCH)
        bus.add_output({"loss": torch.tensor(6.0), "weight": 1}, BATCH)
        assert bus.flush() == {"train/loss": 3.0}

    def test_none_of_it_counts_for_nothing(self):
        bus = MetricBus()
        bus.add_output({"loss": torch.tensor(torch.nan), "other": torch.nan, "weight": 0}, BATCH)
        assert bus.flush() == {}
        bus.add_output({"loss": torch.tensor(torch.nan), "other": torch.nan, "weight": 0}, BATCH)
        bus.add_output({"loss": torch.tensor(2.0), "other": 3.0, "weight": 5}, BATCH)
        assert bus.flush() == {"train/other": 3.0, "train/loss": 2.0}

    @pytest.mark.parametrize(
        ("weight", "shown"), [(-1, "-1"), (math.nan, "nan"), ("3", "'3'"), (torch.ones(2), r"a tensor of shape \(2,\)")]
    )
    def test_what_is_none(self, weight, shown):
        with pytest.raises(UsageError, match=f"train_step returned the weight {shown}: it says for how much the batch counts"):
            MetricBus().add_output({"loss": 1.0, "weight": weight}, BATCH)

    def test_of_a_device_stays_there(self):
        """As a series does it for one: (2 * 3 + 6 * 1) / 4 = 3; a NaN of weight 0 is left out; over a copy and a checkpoint."""
        series = Series("mean")
        series.add_weighted(torch.tensor(2.0), torch.tensor(3))
        copy = series.copy()
        series.add_weighted(torch.tensor([6.0]), torch.tensor([1.0]))
        series.add_weighted(math.nan, torch.tensor(0.0))
        value, weight = series.result()
        assert (type(value), float(value), float(weight)) == (torch.Tensor, 3.0, 4.0)
        assert tuple(map(float, copy.result())) == (2.0, 3.0)
        restored = Series("mean")
        restored.load_state_dict(series.state_dict())
        restored.add(13.0, 1)
        assert restored.result() == (5.0, 5.0)

    def test_of_a_device_in_a_bus(self, monkeypatch):
        """Tensors of the CPU stand for those of a device, which are not read: (2 * 3 + 6 * 1) / 4 = 3."""
        monkeypatch.setattr(metrics, "output_weight", lambda output, size, stage: output["weight"])
        bus = MetricBus()
        for loss, weight in ((2.0, torch.tensor(3)), (6.0, torch.tensor([1.0])), (math.nan, torch.tensor(0))):
            bus.add_output({"loss": torch.tensor(loss), "other": 2 * loss, "weight": weight}, BATCH)
        assert bus.outputs == 3
        other = MetricBus()
        other.load_state_dict(bus.state_dict())
        assert bus.peek() == bus.flush() == other.flush() == {"train/other": 6.0, "train/loss": 3.0}
        assert bus.end_epoch() == {"train/other": 6.0, "train/loss": 3.0}


class TestLargeNumbers:
    @pytest.mark.parametrize(
        ("values", "total", "mean"),
        [
            ([1.7e308] * 5, math.inf, 1.7e308),
            ([sys.float_info.max, -sys.float_info.max], 0.0, 0.0),
            ([-1e308] * 4, -math.inf, -1e308),
            ([math.inf, 1.0], math.inf, math.inf),
            ([math.inf, -math.inf], math.nan, math.nan),
            ([1e16, 1.0, -1e16], 1.0, 1 / 3),
            ([1.0, math.nan], math.nan, math.nan),
        ],
    )
    def test_sums_and_means(self, values, total, mean):
        assert total_of(values) == pytest.approx(total, nan_ok=True, rel=1e-15)
        assert mean_of(values) == pytest.approx(mean, nan_ok=True, rel=1e-15)

    @pytest.mark.parametrize("reduce", ["mean", "sum"])
    def test_do_not_end_a_training(self, make_trainer, reduce):
        class Logs:
            @hookimpl
            def train_step(self):
                return {"loss": torch.tensor(1e308, dtype=torch.float64)}

            @hookimpl
            def after_step(self, trainer):
                trainer.log("x", sys.float_info.max, reduce=reduce)

        trainer = make_trainer([Logs(), Reports()], log_every_steps=5)
        assert trainer.train().status == "completed"
        assert trainer.metrics == {"x": math.inf, "train/loss": math.inf}

    def test_smoothed_and_shown(self, make_trainer, capsys, messages):
        class Logs:
            @hookimpl
            def after_step(self, trainer):
                trainer.log("x", 1.5e308, reduce="last")

        trainer = make_trainer([Logs(), Console(every_s=0)], log_every_steps=1)
        trainer.train()
        assert trainer.smoothed("x", how="mean") == 1.5e308
        assert "mean 1.5e+308" in capsys.readouterr().out
        assert [text for text in messages() if "failed" in text] == []


class TestSmoothed:
    def smoothed(self, make_trainer, values, **how):
        class Logs:
            @hookimpl
            def after_step(self, trainer):
                trainer.log("x", values[trainer.step])

        trainer = make_trainer([Logs(), Reports()], values=(1.0,) * len(values), log_every_steps=1)
        trainer.train()
        return trainer.smoothed("x", **how)

    @pytest.mark.parametrize("other", [math.nan, math.inf, -math.inf])
    def test_values_that_are_not_finite_are_left_out(self, make_trainer, other):
        values = [5.0, other, 1.0, 2.0, 3.0]
        assert self.smoothed(make_trainer, values) == 2.5
        assert self.smoothed(make_trainer, values, how="mean") == 2.75
        assert self.smoothed(make_trainer, values, window=4) == 2.0

    @pytest.mark.parametrize("how", ["median", "mean"])
    def test_where_there_are_no_others(self, make_trainer, how):
        assert math.isnan(self.smoothed(make_trainer, [math.nan, math.inf, -math.inf], how=how))


class TestMedianOfAnEpoch:
    @pytest.mark.parametrize("tensors", [False, True])
    @pytest.mark.parametrize("every", [1, 4, 100])
    def test_does_not_depend_on_when_it_was_flushed(self, every, tensors):
        bus = MetricBus()
        for index in range(10):
            bus.add("x", torch.tensor(float(index)) if tensors else float(index), reduce="median")
            if (index + 1) % every == 0:
                bus.flush()
        bus.flush()
        assert bus.end_epoch() == {"x": 4.5}
        bus.add("x", 7.0, reduce="median")
        bus.flush()
        assert bus.end_epoch() == {"x": 7.0}

    def test_of_the_latest_thousand(self):
        """Of 0 to 2,999, flushed every 300: the median of 2,000 to 2,999."""
        bus = MetricBus()
        for index in range(3000):
            bus.add("x", float(index), reduce="median")
            if index % 300 == 299:
                bus.flush()
        assert len(bus.state_dict()["medians"][0]["x"]) == 1000
        assert bus.end_epoch() == {"x": 2499.5}

    def test_over_a_resume(self):
        first, second = MetricBus(), MetricBus()
        for value in (1.0, 2.0, 100.0):
            first.add("x", value, reduce="median")
        first.flush()
        first.add("x", 3.0, reduce="median")
        second.load_state_dict(first.state_dict())
        second.add("x", 200.0, reduce="median")
        second.flush()
        assert second.end_epoch() == {"x": 3.0}

    def test_of_a_checkpoint_that_has_the_medians_alone(self):
        totals = Totals()
        totals.load_state_dict({"x": ["median", 5.0, 1.0]}, {})
        assert totals.result() == {"x": 5.0}
        totals.add("x", "median", 2.0, 1, [1.0, 2.0, 3.0])
        assert totals.result() == {"x": 2.0}


def test_hyperparameters_of_any_kind_are_plain_values():
    given = {
        "float": np.float64(0.1),
        "int": np.int64(3),
        "bool": np.bool_(True),
        "array": np.array(2),
        "tensor": torch.tensor(0.5),
        "none": torch.zeros((), device="meta"),
        "complex": np.array(1j),
        "view": MappingProxyType({"x": np.float32(0.25), "y": {"z": None}}),
        "list": [np.float64(1.0), np.int32(2), "a"],
        "several": np.array([1, 2]),
    }
    found = flat(given)
    assert found == {
        "float": 0.1,
        "int": 3,
        "bool": True,
        "array": 2,
        "tensor": 0.5,
        "none": str(torch.zeros((), device="meta")),
        "complex": "1j",
        "view/x": 0.25,
        "view/y/z": None,
        "list": '[1.0, 2, "a"]',
        "several": "[1 2]",
    }
    assert [type(found[name]) for name in ("float", "int", "bool", "array", "tensor")] == [float, int, bool, int, float]
