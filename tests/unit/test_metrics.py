"""The bus: what is kept, how it is reduced, what it costs."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from trainhooks import Trainer, UsageError, hookimpl
from trainhooks.metrics import MetricBus, Series, to_host

numbers = st.floats(-1e6, 1e6)


def by_hand(values, weights, reduce):
    """Reduce in one go and in double precision, without folds."""
    if reduce == "mean":
        return math.fsum(v * w for v, w in zip(values, weights)) / math.fsum(weights)
    if reduce == "last":
        return values[-1]
    return {"sum": math.fsum, "min": min, "max": max}[reduce](values)


class TestReduction:
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.tuples(numbers, st.integers(1, 64), st.booleans()), min_size=1, max_size=300),
        st.sampled_from(["mean", "last", "sum", "min", "max"]),
    )
    def test_over_folds_equals_one_go(self, items, reduce):
        """Up to 300 values, numbers and tensors mixed as they come, are several folds of 64."""
        series = Series(reduce)
        for value, weight, as_tensor in items:
            series.add(torch.tensor(value, dtype=torch.float64) if as_tensor else value, weight)
        values, weights = [value for value, _, _ in items], [weight for _, weight, _ in items]
        scale = max(map(abs, values)) * (len(values) if reduce == "sum" else 1)
        assert float(series.result()[0]) == pytest.approx(by_hand(values, weights, reduce), rel=1e-12, abs=scale * 1e-13)

    def test_a_mean_of_many_float32_losses_is_taken_in_double_precision(self):
        """10,000 times 0.1 in float32 adds up to 1000.0 plus rounding that shows in the third digit; in float64 it does not."""
        bus = MetricBus()
        value = torch.tensor(0.1)
        for _ in range(10_000):
            bus.add_output({"loss": value}, (torch.zeros(32),))
        assert bus.flush()["train/loss"] == pytest.approx(float(value), rel=1e-13)

    def test_weighted_mean(self):
        """Batches of 4, 4 and 2 with means 1, 1 and 4: (4 + 4 + 8) / 10 = 1.6."""
        for wrap in (float, torch.tensor):
            bus = MetricBus()
            for size, loss in ((4, 1.0), (4, 1.0), (2, 4.0)):
                bus.add_output({"loss": wrap(loss), "accuracy": wrap(loss)}, (torch.zeros(size),))
            assert bus.flush() == pytest.approx({"train/loss": 1.6, "train/accuracy": 1.6})

    @pytest.mark.parametrize("reduce", ["mean", "sum", "min", "max"])
    @pytest.mark.parametrize("position", [0, 63, 64, 100, 149])
    @pytest.mark.parametrize("kind", ["numbers", "tensors", "mixed"])
    def test_nan_is_never_lost(self, reduce, position, kind):
        series = Series(reduce)
        for index in range(150):
            value = math.nan if index == position else float(index)
            as_tensor = kind == "tensors" or (kind == "mixed" and index % 2)
            series.add(torch.tensor(value) if as_tensor else value)
        assert math.isnan(float(series.result()[0]))

    def test_infinities(self):
        series = Series("mean")
        series.add(math.inf)
        series.add(-math.inf)  # math.fsum raises here
        assert math.isnan(series.result()[0])
        series = Series("sum")
        series.add(math.inf)
        series.add(1.0)
        assert series.result()[0] == math.inf

    def test_types_are_mixed_as_they_come(self):
        bus = MetricBus()
        for value in (
            torch.tensor(1.0),
            torch.tensor(2, dtype=torch.int64),
            torch.tensor([[3.0]], dtype=torch.bfloat16),
            4,
            5.0,
        ):
            bus.add("m", value)
        bus.add("m", np.float32(6))
        bus.add("m", torch.tensor(True))
        assert bus.flush() == {"m": 22 / 7}

    def test_devices_are_mixed_as_they_come(self):
        """The meta device has no values, but it refuses what a second device refuses."""
        series = Series("mean")
        series.add(torch.tensor(1.0))
        series.add(torch.tensor(1.0, device="meta"))
        assert series.result()[0].device.type == "meta"

    @pytest.mark.parametrize("value", [torch.ones(2), torch.ones(0)])
    def test_a_tensor_of_several_values_is_refused(self, value):
        with pytest.raises(UsageError, match=r"log\('x'\): a tensor of shape .*mean\(\)"):
            MetricBus().add("x", value)

    @pytest.mark.parametrize("value", ["high", None, [1, 2]])
    def test_no_number(self, value):
        with pytest.raises(UsageError, match=r"log\('x'\).*is no number"):
            MetricBus().add("x", value)


class TestEpoch:
    @pytest.mark.parametrize("every", [1, 3, 10])
    def test_values_do_not_depend_on_when_it_was_flushed(self, every):
        values = [3.0, 1.0, 2.0, 9.0, 5.0, 4.0, 8.0, 0.0, 7.0, 6.0]
        bus = MetricBus()
        for index, value in enumerate(values):
            for reduce in ("mean", "sum", "min", "max", "last"):
                bus.add(reduce, value, reduce=reduce)
            if (index + 1) % every == 0:
                bus.flush()
        bus.flush()
        assert bus.end_epoch() == pytest.approx({"mean": 4.5, "sum": 45.0, "min": 0.0, "max": 9.0, "last": 6.0})
        assert bus.end_epoch() == {}

    def test_a_restored_epoch_goes_on(self):
        whole, first, second = MetricBus(), MetricBus(), MetricBus()
        for bus, values in ((whole, [1.0, 2.0, 6.0]), (first, [1.0, 2.0])):
            for value in values:
                bus.add_output({"loss": value}, (torch.zeros(2),))
                bus.add("top", value, reduce="max")
            bus.flush()
        second.load_state_dict(first.state_dict())
        second.add_output({"loss": 6.0}, (torch.zeros(2),))
        second.add("top", 6.0, reduce="max")
        second.flush()
        assert second.end_epoch() == whole.end_epoch() == {"train/loss": 3.0, "top": 6.0}

    def test_restoring_forgets_what_was_not_flushed(self):
        bus = MetricBus()
        bus.add_output({"loss": 100.0})
        bus.add("x", 100.0)
        bus.load_state_dict({"epoch": {}})
        assert bus.flush() == {}
        assert bus.flush() == {}


class Marker:
    """Something in a graph that a weak reference can be made to."""


class Marked(torch.autograd.Function):
    """Six times x, with a marker in the graph."""

    @staticmethod
    def forward(ctx, x):
        ctx.marker = Marker()
        return x * 6

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 6


class TestOwnership:
    def test_a_tensor_that_its_owner_goes_on_to_change(self):
        """A running total that is logged at 1, 2 and 3: the mean is 2, not 3."""
        bus = MetricBus()
        total = torch.zeros(())
        for _ in range(3):
            total += 1
            bus.add("total", total)
        assert bus.flush() == {"total": 2.0}

    def test_the_graph_of_a_logged_loss_is_not_kept(self):
        bus = MetricBus()
        loss = Marked.apply(torch.ones((), requires_grad=True))
        alive = weakref.ref(loss.grad_fn.marker)
        bus.add("a", loss)
        bus.add_output({"loss": loss.detach(), "b": loss})
        gc.disable()
        try:
            del loss
            assert alive() is None
        finally:
            gc.enable()
        assert bus.flush() == {"a": 6.0, "train/b": 6.0, "train/loss": 6.0}

    def test_memory_is_bounded(self):
        bus = MetricBus()
        refs = []
        for _ in range(1000):
            value = torch.ones(())
            refs.append(weakref.ref(value))
            bus.add_output({"loss": value})
            bus.add("own", value)
            del value
        assert sum(ref() is not None for ref in refs) <= 2 * 64
        assert len(bus.series("own").values) <= 64


class Copies(TorchDispatchMode):
    """Counts what brings a value to the host."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class Logs:
    """Logs a tensor in each step."""

    @hookimpl
    def after_step(self, trainer, output):
        trainer.log("own", output["loss"] * 2)


class Counts:
    """Notes how many copies had been made at the beginning of each step."""

    def __init__(self, copies):
        self.copies, self.at = copies, []

    @hookimpl
    def before_step(self):
        self.at.append(self.copies.count)


class Takes:
    def __init__(self):
        self.records = []

    @hookimpl
    def report_metrics(self, records):
        self.records += records


def test_a_step_that_does_not_flush_copies_nothing_to_the_host(scalar_model):
    """200 steps of float32 batches of 8, flushed every 100: no copy in between, though 64 values are folded there."""
    model = scalar_model().float()
    copies = Copies()
    counts, takes = Counts(copies), Takes()
    trainer = Trainer(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.001, foreach=False),
        loaders={"train": [torch.ones(8)] * 200},
        max_epochs=1,
        plugins=[Logs(), counts, takes],
        log_every_steps=100,
        autoload=False,
    )
    with copies:
        trainer.train()
    assert len(counts.at) == 200
    assert [step for step in range(1, 200) if counts.at[step] != counts.at[step - 1]] in ([], [100])
    # The weight of step i (from 0) is -0.001 i, and so is its loss: the means over steps 0..99 and 100..199.
    assert [record.step for record in takes.records] == [100, 200]
    assert [record.values["train/loss"] for record in takes.records] == pytest.approx([-0.0495, -0.1495], rel=1e-5)
    assert [record.values["own"] for record in takes.records] == pytest.approx([-0.099, -0.299], rel=1e-5)


def test_to_host_keeps_order_and_values():
    values = {
        "a": torch.tensor(1.5, dtype=torch.bfloat16),
        "b": 2,
        "c": torch.tensor(3),
        "d": torch.tensor([0.1], dtype=torch.float64),
    }
    host = to_host(values)
    assert list(host.items()) == [("a", 1.5), ("b", 2.0), ("c", 3.0), ("d", 0.1)]
    assert all(type(value) is float for value in host.values())
