"""``find_batch_size`` with a model that runs out of memory above a known size."""

import copy
import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from trainhooks import OptionError, Trainer, TrainingError, UsageError, hookimpl
from trainhooks_builtins import LR, Checkpoint, FindBatchSize
from trainhooks_builtins.find_batch_size import is_out_of_memory, resized


class Limited(nn.Module):
    """Fits ``limit`` samples; with ``second`` only the second step shows it, as an optimizer's state would."""

    def __init__(self, limit, *, second=False, error=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))
        self.limit, self.second, self.error = limit, second, error
        self.sizes, self.updated = [], False

    def forward(self, x):
        self.sizes.append(len(x))
        stepped = self.w.item() != 0 or not self.second
        if len(x) > self.limit and stepped:
            raise self.error
        return (self.w - 1 + 0 * x).square().mean()


def search(finder, model, samples=1000, *, loader=None, train_first=(), **arguments):
    if loader is None:
        loader = DataLoader(TensorDataset(torch.ones(samples)), batch_size=3, shuffle=True)
    trainer = Trainer(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loaders={"train": loader},
        plugins=[*train_first, finder],
        autoload=False,
        device="cpu",
        **({"max_steps": 1, **arguments} if "max_epochs" not in arguments else arguments),
    )
    return trainer, trainer.train()


class TestTheSearch:
    def test_power(self):
        finder = FindBatchSize(margin=0.0)
        trainer, outcome = search(finder, Limited(100))
        assert finder.tried == [(2, True), (4, True), (8, True), (16, True), (32, True), (64, True), (128, False)]
        assert (finder.size, trainer.loaders["train"].batch_size, outcome.status) == (64, 64, "completed")

    def test_binsearch_is_exact(self):
        finder = FindBatchSize("binsearch", margin=0.0)
        search(finder, Limited(100))
        tried = [size for size, _ in finder.tried]
        assert tried == [2, 4, 8, 16, 32, 64, 128, 96, 112, 104, 100, 102, 101]
        assert finder.size == 100

    @settings(max_examples=15, deadline=None)
    @given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 50))
    def test_binsearch_always_finds_the_largest(self, limit, start, samples):
        finder = FindBatchSize("binsearch", start=start, margin=0.0, updates=1)
        search(finder, Limited(limit), samples)
        assert finder.size == min(limit, samples)
        assert len(dict(finder.tried)) == len(finder.tried)  # none twice

    @settings(max_examples=15, deadline=None)
    @given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 50))
    def test_power_finds_a_size_that_fits_and_twice_of_which_does_not(self, limit, start, samples):
        finder = FindBatchSize(start=start, margin=0.0, updates=1)
        search(finder, Limited(limit), samples)
        assert finder.size <= limit
        assert 2 * finder.size > limit or finder.size == samples or start > limit

    def test_the_dataset_and_max_size_are_the_limit(self):
        finder = FindBatchSize(margin=0.0)
        search(finder, Limited(10**6), samples=50)
        assert [size for size, _ in finder.tried] == [2, 4, 8, 16, 32, 50]
        finder = FindBatchSize("binsearch", margin=0.0, max_size=12)
        search(finder, Limited(10**6), samples=50)
        assert (finder.size, finder.tried[-1]) == (12, (12, True))

    def test_a_first_size_that_is_too_large_is_halved(self):
        finder = FindBatchSize(start=64, margin=0.0)
        search(finder, Limited(20))
        assert finder.tried == [(64, False), (32, False), (16, True)]
        finder = FindBatchSize("binsearch", start=64, margin=0.0)
        search(finder, Limited(20))
        assert finder.size == 20

    def test_nothing_fits(self):
        finder = FindBatchSize()
        with pytest.raises(TrainingError, match="not even a batch of one sample fits"):
            search(finder, Limited(0))
        assert finder.tried == [(2, False), (1, False)]

    def test_the_second_update_counts(self):
        finder = FindBatchSize("binsearch", margin=0.0)
        model = Limited(20, second=True)
        search(finder, model)
        assert finder.size == 20
        assert model.sizes[:4] == [2, 2, 4, 4]
        blind = FindBatchSize("binsearch", margin=0.0, updates=1, max_size=64, apply=False)
        search(blind, Limited(20, second=True))
        assert blind.size == 64

    def test_trials_have_full_batches(self):
        """50 samples in batches of 32: the rest of 18 would show less than there is."""
        model = Limited(10**6)
        search(FindBatchSize(margin=0.0, apply=False), model, samples=50)
        assert model.sizes == [2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 50, 50]

    def test_margin(self, messages):
        finder = FindBatchSize("binsearch", margin=0.1)
        trainer, _ = search(finder, Limited(100))
        assert finder.size == trainer.loaders["train"].batch_size == 90
        assert "find_batch_size: 100 fits (13 trials, at most 1000); less the margin: 90" in messages()

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (torch.OutOfMemoryError("x"), True),
            (MemoryError(), True),
            (RuntimeError("CUDA error: out of memory"), True),
            (RuntimeError("[enforce fail at alloc_cpu.cpp:115] DefaultCPUAllocator: can't allocate memory: you tried"), True),
            (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
            (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
            (ValueError("out of memory"), False),
        ],
    )
    def test_which_errors_mean_short_of_memory(self, error, expected):
        assert is_out_of_memory(error) is expected
        finder = FindBatchSize(margin=0.0)
        if expected:
            search(finder, Limited(5, error=error))
            assert finder.size == 4
        else:
            with pytest.raises(type(error)) as left:
                search(finder, Limited(5, error=error))
            assert left.value is error

    def test_a_real_error_of_the_host_allocator(self):
        with pytest.raises(RuntimeError) as left:
            torch.empty(2**46)
        assert is_out_of_memory(left.value)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"start": 0}, "start = 0"),
            ({"max_size": 0}, "max_size = 0"),
            ({"updates": 0}, "updates = 0"),
            ({"margin": 1.0}, "margin"),
        ],
    )
    def test_options(self, options, text):
        with pytest.raises(OptionError, match=text):
            FindBatchSize(**options)


class Order:
    """Notes the samples of each step, the loss, and what it is told of the training."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def after_step(self, batch, output):
        self.seen.append(([float(x) for x in batch[0]], output["loss"].item()))

    @hookimpl
    def after_update(self, trainer):
        self.seen.append(trainer.update)


class Drop(nn.Module):
    def __init__(self, limit=7):
        super().__init__()
        torch.manual_seed(1)
        self.limit = limit
        self.body = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))

    def forward(self, x):
        if len(x) > self.limit:
            raise torch.OutOfMemoryError
        return self.body(x[:, None]).square().mean()


def train(plugins, size, *, resume=None, **arguments):
    torch.manual_seed(2)
    model, order = Drop(), Order()
    trainer = Trainer(
        model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        loaders={"train": DataLoader(TensorDataset(torch.arange(40.0)), batch_size=size, shuffle=True)},
        plugins=[order, *plugins],
        autoload=False,
        device="cpu",
        **{"max_epochs": 2, **arguments},
    )
    trainer.train(resume=resume)
    return order.seen, copy.deepcopy(model.state_dict()), trainer


class TestWhatIsLeft:
    def test_the_training_is_the_one_with_that_size_from_the_start(self):
        found, weights, trainer = train([FindBatchSize("binsearch", margin=0.0)], 1)
        assert trainer.loaders["train"].batch_size == 7
        expected, others, _ = train([], 7)
        assert found == expected
        assert all(torch.equal(weights[name], others[name]) for name in others)

    def test_without_apply_it_stops_and_leaves_the_loader(self):
        loader = DataLoader(TensorDataset(torch.ones(50)), batch_size=3)
        trainer, outcome = search(FindBatchSize(margin=0.0, apply=False), Limited(20), loader=loader)
        assert trainer.loaders["train"] is loader
        assert (outcome.status, outcome.step) == ("stopped", 0)
        assert outcome.reason == "find_batch_size found 16; find_batch_size.apply = true trains with it"

    def test_a_request_to_stop_ends_the_search(self):
        class Stops:
            @hookimpl(wrapper=True)
            def compute_loss(self, trainer, batch):
                if len(batch[0]) == 8:
                    trainer.stop("a signal")
                return (yield)

        finder = FindBatchSize()
        trainer, outcome = search(finder, Limited(20), train_first=[Stops()])
        assert (outcome.status, outcome.reason, outcome.step) == ("stopped", "a signal", 0)
        assert [size for size, _ in finder.tried] == [2, 4, 8]
        assert (finder.size, trainer.loaders["train"].batch_size) == (None, 3)

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_schedule_knows_the_new_length(self, order):
        """40 samples, 7 in a batch: 6 updates in an epoch, so the linear schedule over two epochs falls by 1/12."""
        rates = []

        class Rates:
            phase = "measurement"

            @hookimpl
            def gradients_ready(self, trainer):
                rates.append(trainer.optimizer.param_groups[0]["lr"])

        train([LR("linear"), FindBatchSize("binsearch", margin=0.0)][::order] + [Rates()], 1)
        assert rates == pytest.approx([0.01 * (1 - update / 12) for update in range(12)])

    def test_a_resumed_run_takes_the_size_and_searches_nothing(self, tmp_path):
        def plugins():
            return [FindBatchSize("binsearch", margin=0.0), Checkpoint()]

        whole, weights, _ = train(plugins(), 1, work_dir=tmp_path / "whole")
        first, _, _ = train(plugins(), 1, work_dir=tmp_path / "cut", max_steps=8)
        second, others, trainer = train(plugins(), 1, work_dir=tmp_path / "cut", resume="auto")
        assert trainer.plugins["find_batch_size"].tried == []
        assert first + second == whole
        assert all(torch.equal(weights[name], others[name]) for name in weights)

    def test_a_run_that_began_without_it_keeps_its_loader(self, tmp_path, messages):
        train([Checkpoint()], 4, work_dir=tmp_path, max_steps=3)
        _, _, trainer = train([FindBatchSize(), Checkpoint()], 4, work_dir=tmp_path, resume="auto")
        assert trainer.loaders["train"].batch_size == 4
        assert "find_batch_size: no search, since the run goes on from step 3" in messages()


class TestLoaders:
    def test_every_argument_is_kept(self):
        generator = torch.Generator()
        given = {
            "num_workers": 1,
            "collate_fn": list,
            "pin_memory": False,
            "timeout": 7,
            "worker_init_fn": print,
            "multiprocessing_context": "spawn",
            "generator": generator,
            "prefetch_factor": 3,
            "persistent_workers": True,
        }
        loader = DataLoader(range(9), batch_size=2, sampler=SubsetRandomSampler([1, 2, 3]), drop_last=True, **given)
        twin = resized(loader, 3, drop_last=True)
        for name in (*given, "dataset", "sampler", "drop_last", "in_order"):
            if name != "multiprocessing_context":
                assert getattr(twin, name) is getattr(loader, name), name
        assert twin.multiprocessing_context.get_start_method() == "spawn"
        assert (twin.batch_size, len(twin)) == (3, 1)

    def test_a_sampler_of_fewer_samples_is_the_limit(self):
        loader = DataLoader(TensorDataset(torch.ones(50)), batch_size=2, sampler=SubsetRandomSampler(range(5)))
        finder = FindBatchSize(margin=0.0)
        search(finder, Limited(100), loader=loader)
        assert [size for size, _ in finder.tried] == [2, 4, 5]

    @pytest.mark.parametrize("kind", ["list", "iterable", "batches", "subclass", "none"])
    def test_loaders_that_cannot_be_built_anew(self, kind):
        class Endless(IterableDataset):
            def __iter__(self):
                yield from torch.ones(3)

        class Own(DataLoader):
            pass

        samples = TensorDataset(torch.ones(6))
        loader, text = {
            "list": ([torch.ones(2)], "it is a list"),
            "iterable": (DataLoader(Endless(), batch_size=2), "its dataset, a Endless, has no length"),
            "batches": (DataLoader(samples, batch_sampler=[[0, 1], [2]]), "it makes its batches in its own way"),
            "subclass": (Own(samples, batch_size=2), "it is a Own"),
            "none": (DataLoader(samples, batch_size=None), "it makes its batches in its own way"),
        }[kind]
        with pytest.raises(UsageError, match=text):
            search(FindBatchSize(), Limited(10), loader=loader)

    def test_no_samples(self):
        loader = DataLoader(TensorDataset(torch.ones(0)), batch_size=2)
        with pytest.raises(UsageError, match="the train loader has no samples"):
            search(FindBatchSize(), Limited(10), loader=loader)


@pytest.mark.parametrize("apply", [True, False])
def test_nothing_is_kept_in_a_cycle(apply):
    """A trainer goes with its last reference, and with it the workers of the loader."""

    class Raises(Limited):
        def forward(self, x):
            if len(x) > self.limit:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(x)

    gc.disable()
    try:
        trainer, _ = search(FindBatchSize(apply=apply), Raises(8), 20)
        left = weakref.ref(trainer), weakref.ref(trainer.model)
        del trainer
        assert [one() for one in left] == [None, None]
    finally:
        gc.enable()
