"""The bus: what is kept, how it is reduced, what it costs."""

import gc
import json
import math
import multiprocessing
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from trainhooks import Trainer, UsageError, hookimpl
from trainhooks.metrics import MetricBus
from trainhooks.series import Series, to_host

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


class TestMedian:
    @pytest.mark.parametrize(
        ("values", "median"), [([3.0, 1.0, 100.0], 3.0), ([1.0, 2.0, 3.0, 100.0], 2.5), ([1.0, math.nan], math.nan)]
    )
    @pytest.mark.parametrize("tensors", [False, True])
    def test_of_the_interval(self, values, median, tensors):
        bus = MetricBus()
        for value in values:
            bus.add("x", torch.tensor(value) if tensors else value, reduce="median")
        assert bus.flush() == {"x": pytest.approx(median, nan_ok=True)}
        assert bus.flush() == {}

    def test_on_a_device_nothing_is_copied_for_it(self):
        series = Series("median")
        for value in (3.0, 1.0, 2.0, 10.0):
            series.values.append(torch.tensor(value))
            series.weights.append(1)
        result, _ = series.result()
        assert isinstance(result, torch.Tensor)
        assert result.item() == 2.5

    def test_of_a_long_interval_the_latest_thousand_count(self):
        bus = MetricBus()
        for value in range(10_000):
            bus.add("x", float(value), reduce="median")
            assert len(bus.series("x", "median").values) <= 2064
        assert bus.flush() == {"x": 9499.5}


class TestPending:
    """What has not been flushed is in a checkpoint, so that a save changes nothing of what is logged."""

    @staticmethod
    def add(bus, steps):
        for step in steps:
            bus.add_output({"loss": torch.tensor(0.1 * step), "other": 0.3 * step}, torch.zeros(step % 3 + 1))
            for reduce in ("mean", "last", "sum", "min", "max", "median"):
                bus.add(reduce, 0.7 * step, reduce=reduce)

    @pytest.mark.parametrize("cut", [1, 7, 63, 64, 65, 150])
    def test_cut_in_the_middle_of_an_interval(self, cut):
        """Values worked out by a bus that was never cut; equal to the last bit."""
        whole, first, second = MetricBus(), MetricBus(), MetricBus()
        self.add(whole, range(200))
        self.add(first, range(cut))
        state = json.loads(json.dumps(first.state_dict()))
        second.load_state_dict(state)
        self.add(first, range(cut, 200))  # the state was no flush
        self.add(second, range(cut, 200))
        values = whole.flush()
        assert first.flush() == values
        assert second.flush() == values
        assert whole.end_epoch() == first.end_epoch() == second.end_epoch()

    def test_peek_shows_what_a_flush_would_and_leaves_it(self):
        bus = MetricBus()
        self.add(bus, range(10))
        seen = bus.peek()
        assert bus.peek() == seen
        assert bus.flush() == seen

    def test_a_state_of_an_older_version_has_none(self):
        bus = MetricBus()
        bus.add("x", 1.0)
        bus.load_state_dict({"epoch": {}})
        assert bus.flush() == {}


class TestHowItIsLogged:
    def test_another_reduction_or_other_ranks_are_refused(self):
        bus = MetricBus()
        bus.add("x", 1.0, reduce="max")
        with pytest.raises(UsageError, match="reduce='mean'.*reduce='max' before"):
            bus.add("x", 1.0)
        with pytest.raises(UsageError, match="ranks='all'.*ranks='main' before"):
            bus.add("x", 1.0, reduce="max", ranks="all")
        with pytest.raises(UsageError, match=r"reduce='avg'\): must be one of mean, last, sum, min, max, median"):
            bus.add("y", 1.0, reduce="avg")
        with pytest.raises(UsageError, match=r"ranks='each'\): must be one of main, mean, all"):
            bus.add("y", 1.0, ranks="each")

    def test_smoothed_over_the_latest_flushes(self, make_trainer):
        """Losses 0, -1, ..., -9: the median of the last four is -7.5, their mean too; of all ten -4.5."""
        trainer = make_trainer([Reports()], log_every_steps=1)
        assert trainer.smoothed("train/loss") is None
        trainer.train()
        assert trainer.smoothed("train/loss", 4) == trainer.smoothed("train/loss", 4, "mean") == -7.5
        assert trainer.smoothed("train/loss") == -4.5
        for bad in ({"window": 0}, {"window": 21}, {"how": "max"}):
            with pytest.raises(UsageError, match="1 to 20 values are kept"):
                trainer.smoothed("train/loss", **bad)


class Reports:
    @hookimpl
    def report_metrics(self):
        pass


def rank_values(rank, results):
    """Log other values on each of two ranks, which are processes of gloo."""
    bus = MetricBus()
    bus.add("own", 10.0 * (rank + 1))
    for value, weight in [((1.0, 1), (2.0, 3)), ((4.0, 2),)][rank]:
        bus.add("mean", value, weight, ranks="mean")
    bus.add("max", [3.0, 5.0][rank], reduce="max", ranks="mean")
    bus.add("all", [7.0, 8.0][rank], ranks="all")
    if rank == 1:
        bus.add("second", 6.0, ranks="mean")
    own = bus.flush(2, collective=False) if rank == 0 else {}  # for a save, on the main rank alone
    results[rank] = {**own, **bus.flush(2)}


def test_two_ranks(tmp_path):
    """``mean``: (1·1 + 2·3 + 4·2) / 6 = 2.5; of maxima the mean 4; ``main`` stays what each has itself.

    A flush of the main rank alone before waits for nobody and loses nothing that is to be exchanged.
    """
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        results = manager.dict()

        def work(rank):
            torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=rank, world_size=2)
            try:
                rank_values(rank, results)
            finally:
                torch.distributed.destroy_process_group()

        processes = [context.Process(target=work, args=(rank,)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            assert process.exitcode == 0
        shared = {"mean": 2.5, "max": 4.0, "all/rank0": 7.0, "all/rank1": 8.0, "second": 6.0}
        assert results[0] == {"own": 10.0, **shared}
        assert results[1] == {"own": 20.0, **shared}


@pytest.mark.parametrize(
    "value",
    [
        *("3.5", b"3", None, [1.0], {}, 1j, 10**400, np.complex64(1j), np.array([1.0, 2.0])),
        *(torch.tensor([1 + 0j]), torch.ones(1).to_sparse(), torch.ones((), device="meta")),
    ],
    ids=lambda value: f"{type(value).__name__}-{value!r:.30}",
)
def test_what_is_no_number_is_refused_where_it_is_logged(value):
    bus = MetricBus()
    with pytest.raises(UsageError, match=r"log\('x'\): "):
        bus.add("x", value)
    assert bus.flush() == {}


@pytest.mark.parametrize(
    "value", [np.array(2.5), np.array([2.5]), np.float32(2.5), torch.tensor([[2.5]]), torch.tensor(2.5).bfloat16()]
)
def test_one_number_in_an_array_or_tensor_is_one(value):
    bus = MetricBus()
    bus.add("x", value)
    assert bus.flush() == {"x": 2.5}


@pytest.mark.parametrize("name", [3, None, b"x", ("a", 1)])
def test_names_are_text(name):
    with pytest.raises(UsageError, match="a name is text, such as"):
        MetricBus().add(name, 1.0)


def test_values_logged_on_other_threads_are_all_counted():
    """Two threads log 20,000 ones each, under 200 names that come one by one, while this one flushes."""
    bus, total, errors = MetricBus(), 0.0, []

    def log():
        try:
            for number in range(20_000):
                bus.add(f"name {number // 100}", 1.0, reduce="sum")
        except Exception as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=log) for _ in range(2)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            total += sum(bus.flush().values())
            bus.peek()
            bus.state_dict()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    assert total + sum(bus.flush().values()) == 40_000
