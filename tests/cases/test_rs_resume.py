"""RS: where a run goes on in its data, and with which moments. Numbers as the cases have them."""

import random
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from trainhooks import CheckpointError, Trainer, hookimpl
from trainhooks_builtins import Checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it


class Samples(Dataset):
    """Sample i is i plus noise of all three generators; notes what it is asked for, in this process."""

    def __init__(self, size, noise=True):
        self.size, self.noise, self.served = size, noise, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.served.append(index)
        noise = torch.rand(()) + random.random() + np.random.rand() if self.noise else 0
        return torch.tensor(float(index)), torch.as_tensor(noise, dtype=torch.float32)


class Reads(IterableDataset):
    """The same samples in their order, worker by worker."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.size, step):
            yield torch.tensor(float(index)), torch.rand(())


class Own(Reads):
    """Keeps its place itself; the loader of it has no workers."""

    def __init__(self, size):
        super().__init__(size)
        self.at, self.fetched = 0, 0

    def __iter__(self):
        while self.at < self.size:
            self.at += 1
            self.fetched += 1
            yield torch.tensor([float(self.at - 1)]), torch.rand(1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def drawn(noise):
    """Return a loader whose sampler draws each index when it is its turn."""

    class Sampler(torch.utils.data.Sampler):
        def __iter__(self):
            left = list(range(10))
            while left:
                yield left.pop(random.randrange(len(left)))

        def __len__(self):
            return 10

    return DataLoader(Samples(10, noise), 2, sampler=Sampler())


class Draws(torch.utils.data.Sampler):
    """Draws each order from a generator that goes on from epoch to epoch."""

    def __init__(self):
        self.source = torch.Generator().manual_seed(5)

    def __iter__(self):
        yield from torch.randperm(10, generator=self.source).tolist()

    def __len__(self):
        return 10


class Wraps(torch.utils.data.Sampler):
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        yield from self.sampler

    def __len__(self):
        return len(self.sampler)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x, noise):
        return nn.functional.mse_loss(nn.functional.dropout(self.w * (x + noise)), x)


class Notes:
    """Notes samples and loss of each step; stops after ``at`` steps."""

    name = "notes"

    def __init__(self, at=None):
        self.at, self.steps = at, []

    @hookimpl
    def after_step(self, trainer, batch, output):
        self.steps.append((trainer.step + 1, [int(x) for x in batch[0]], output["loss"].item()))
        if trainer.step + 1 == self.at:
            trainer.stop("the test says so")


def train(make, folder, *, at=None, resume=None, plugins=(), **limits):
    """Train as a new process would, with a loader that ``make`` makes; return the steps and the weight."""
    torch.manual_seed(0 if resume is None else 77)
    random.seed(0 if resume is None else 77)
    np.random.seed(0 if resume is None else 77)
    model, notes = Model(), Notes(at)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    trainer = Trainer(
        model, optimizer=optimizer, loaders={"train": make()}, plugins=[notes, *plugins, Checkpoint(every_steps=10**9)], autoload=False,
        device="cpu", work_dir=folder, **limits,
    )  # fmt: skip
    trainer.train(resume=resume)
    return notes.steps, model.w.item()


def cut_and_resumed(make, folder, at, **limits):
    """Return the steps of a run that was cut after ``at`` steps and of the one that went on, and the weight."""
    before, _ = train(make, folder, at=at, **limits)
    after, weight = train(make, folder, resume="auto", **limits)
    return before, after, weight


KINDS = {
    "map": lambda: DataLoader(Samples(10), 2, shuffle=True),
    "its own generator": lambda: DataLoader(Samples(10), 2, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "a generator of a wrapped sampler": lambda: DataLoader(Samples(10), 2, sampler=Wraps(Draws())),
    "with replacement": lambda: DataLoader(
        Samples(10), 2, sampler=torch.utils.data.RandomSampler(range(10), replacement=True, num_samples=10)
    ),
    "not batched": lambda: DataLoader(Samples(5), None, shuffle=True, collate_fn=lambda one: (one[0][None], one[1][None])),
    "iterable": lambda: DataLoader(Reads(10), 2),
    "its own state": lambda: Own(5),
    "torchdata": lambda: StatefulDataLoader(Samples(10), 2, shuffle=True),
    "torchdata, its own generator": lambda: StatefulDataLoader(
        Samples(10), 2, shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "a list": lambda: [(torch.full((2,), float(i)), torch.ones(2)) for i in range(5)],
}


class Stepwise(IterableDataset):
    """Seven samples, of which Python's generator draws a part, as nothing else does."""

    def __iter__(self):
        for index in range(7):
            yield torch.tensor(float(index)), torch.tensor(random.random())


def endless():
    """Return batches that torch's generator draws a part of."""
    index = 0
    while True:
        yield torch.tensor([float(index)]), torch.rand(1)
        index += 1


UNSIZED = {
    "iterator": lambda: ((x[None], noise[None]) for x, noise in Stepwise()),
    "iterable": lambda: DataLoader(Stepwise(), 1),
    "its own state": lambda: Own(7),
    "torchdata": lambda: StatefulDataLoader(Stepwise(), 1),
}


class AsksAtOdd:
    """Asks in every other step whether it is the last of the epoch, as accumulation does; draws nothing."""

    @hookimpl
    def before_step(self, trainer):
        if trainer.step % 2 == 0:
            assert trainer.end_of_epoch == (trainer.step == 6)


class TestRS01:
    """A resume inside an epoch skips or repeats data."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_rs_01_cut_after_each_step(self, tmp_path, kind):
        """10 samples in batches of 2, 2 epochs: 10 - k more updates, each sample once an epoch, the order and the weight the same."""
        whole, weight = train(KINDS[kind], tmp_path / "whole", max_epochs=2)
        assert len(whole) == 10
        assert train(KINDS[kind], tmp_path / "again", max_epochs=2) == (whole, weight)  # else the rest would say nothing
        for at in range(1, 10):
            before, after, its = cut_and_resumed(KINDS[kind], tmp_path / f"{at}", at, max_epochs=2)
            assert len(after) == 10 - at
            assert before + after == whole
            assert its == weight
            if kind not in ("with replacement", "a list"):
                for epoch in ((before + after)[:5], (before + after)[5:]):
                    samples = sorted(index for _, batch, _ in epoch for index in batch)
                    assert samples == list(range(len(samples)))

    @pytest.mark.parametrize("kind", ["iterator", "iterable", "its own state", "torchdata"])
    def test_rs_01_cut_where_the_next_batch_was_fetched_already(self, tmp_path, kind):
        """Whether a step is the last of a loader without length is known by fetching one more batch: it is trained once all the same."""
        make = UNSIZED[kind]
        whole, weight = train(make, tmp_path / "whole", max_epochs=1, plugins=[AsksAtOdd()])
        assert [batch for _, batch, _ in whole] == [[0], [1], [2], [3], [4], [5], [6]]
        for at in range(1, 7):
            before, after, its = cut_and_resumed(make, tmp_path / f"{at}", at, max_epochs=1, plugins=[AsksAtOdd()])
            assert before + after == whole, f"cut after step {at}"
            assert its == weight

    def test_rs_01_an_iterator_stopped_and_trained_on_in_one_process(self, tmp_path):
        """The batch that was fetched to see whether there is one is not lost to the next train()."""
        notes = Notes()
        model = Model()
        trainer = Trainer(
            model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), loaders={"train": UNSIZED["iterator"]()},
            plugins=[notes, AsksAtOdd()], autoload=False, device="cpu",
        )  # fmt: skip
        for limit in (1, 3, 7):
            trainer.train(max_steps=limit)
        assert [batch for _, batch, _ in notes.steps] == [[0], [1], [2], [3], [4], [5], [6]]

    def test_rs_01_an_iterator_at_the_beginning_of_an_epoch(self, tmp_path):
        """Reading over what was trained draws random numbers; the dropout of the next epoch is not to know."""
        whole, weight = train(endless, tmp_path / "whole", max_epochs=3, steps_per_epoch=3)
        for epochs in (1, 2):
            folder = tmp_path / f"{epochs}"
            before, _ = train(endless, folder, max_epochs=epochs, steps_per_epoch=3)
            after, its = train(endless, folder, resume="auto", max_epochs=3, steps_per_epoch=3)
            assert (before + after, its) == (whole, weight)

    @pytest.mark.parametrize("lasting", [False, True], ids=["new workers", "lasting workers"])
    @pytest.mark.parametrize("own", [False, True], ids=["global", "own generator"])
    def test_rs_01_with_workers_that_augment(self, tmp_path, lasting, own):
        def make():
            generator = torch.Generator().manual_seed(3) if own else None
            options = {"shuffle": True, "num_workers": 2, "persistent_workers": lasting, "generator": generator}
            return DataLoader(Samples(10), 2, **options)

        whole, weight = train(make, tmp_path / "whole", max_epochs=3)
        for at in (1, 5, 7, 13):
            before, after, its = cut_and_resumed(make, tmp_path / f"{at}", at, max_epochs=3)
            assert before + after == whole
            assert its == weight

    def test_rs_01_noise_in_workers_is_new_in_each_batch_and_epoch(self, tmp_path):
        seen = []

        class Noise:
            @hookimpl
            def after_step(self, batch):
                seen.extend(batch[1].tolist())

        loader = DataLoader(Samples(8), 2, num_workers=2, persistent_workers=True)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        Trainer(model, optimizer=optimizer, loaders={"train": loader}, plugins=[Noise()], autoload=False, max_epochs=3).train()
        assert len(seen) == len(set(seen)) == 24

    def test_rs_01_stopped_and_trained_on_in_one_process(self, tmp_path):
        def run(*stops):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            model, notes = Model(), Notes()
            loader = DataLoader(Samples(10), 2, shuffle=True)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            trainer = Trainer(
                model, optimizer=optimizer, loaders={"train": loader}, plugins=[notes], autoload=False, max_epochs=3
            )
            for stop in (*stops, None):
                notes.at = stop
                trainer.train()
            return notes.steps

        assert run(3, 4, 10) == run()

    @pytest.mark.parametrize(
        ("kind", "warned"), [("lazy", True), ("lazy, alone", False), ("map", False), ("with replacement", False)]
    )
    def test_rs_01_a_sampler_whose_order_cannot_be_drawn_again_is_said(self, tmp_path, caplog, kind, warned):
        """One that draws from Python's generator for each batch: inexact if the samples draw from it too, and said so."""
        make = {"lazy": lambda: drawn(noise=True), "lazy, alone": lambda: drawn(noise=False), **KINDS}[kind]
        whole, weight = train(make, tmp_path / "whole", max_epochs=1)
        caplog.clear()
        before, after, its = cut_and_resumed(make, tmp_path / "cut", 2, max_epochs=1)
        assert any("give the sampler a generator of its own" in text for text in caplog.messages) == warned
        assert ((before + after, its) == (whole, weight)) == (not warned)

    def test_rs_01_another_batch_size_goes_on_at_the_same_sample(self, tmp_path, caplog):
        train(lambda: DataLoader(Samples(12, noise=False), 2), tmp_path, at=3, max_epochs=1)
        after, _ = train(lambda: DataLoader(Samples(12, noise=False), 3), tmp_path, resume="auto", max_epochs=1)
        assert [batch for _, batch, _ in after] == [[6, 7, 8], [9, 10, 11]]
        assert (
            "3 batches of 2 into an epoch, the loader now has batches of 3: 0 of its samples are trained twice" in caplog.text
        )
        assert "batch_size saved 2, given 3, using 3" in caplog.text


class TestRS03:
    """A checkpoint at the last batch of an epoch skips the next epoch."""

    @pytest.mark.parametrize("kind", ["map", "torchdata", "iterable", "its own state"])
    @pytest.mark.parametrize(("at", "more"), [(5, 10), (10, 5)])
    def test_rs_03_a_whole_epoch_follows(self, tmp_path, kind, at, more):
        whole, _ = train(KINDS[kind], tmp_path / "whole", max_epochs=3)
        before, after, _ = cut_and_resumed(KINDS[kind], tmp_path / "cut", at, max_epochs=3)
        assert [number for number, _, _ in after] == list(range(at + 1, 16))
        assert len(after) == more
        assert before + after == whole


class TestRS05:
    """Batches that were fetched ahead count as trained."""

    @pytest.mark.parametrize("kind", ["map", "iterable"])
    def test_rs_05_the_next_one_is_number_eight(self, tmp_path, kind):
        def make():
            dataset = Samples(40) if kind == "map" else Reads(40)
            return DataLoader(dataset, 2, num_workers=2, prefetch_factor=2)

        whole, _ = train(make, tmp_path / "whole", max_epochs=1)
        before, after, _ = cut_and_resumed(make, tmp_path / "cut", 7, max_epochs=1)
        assert after[0][0] == 8
        assert before + after == whole
        assert len(whole) == 20

    def test_rs_05_a_loader_with_a_state_that_was_asked_whether_this_is_the_last_batch(self, tmp_path):
        """The loop looks ahead for it; the batch that it saw is not trained yet."""

        class Asks:
            @hookimpl
            def after_step(self, trainer):
                assert trainer.end_of_epoch in (True, False)

        def run(folder, at=None, resume=None):
            torch.manual_seed(0)
            model, notes = Model(), Notes(at)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            plugins = [Asks(), notes, Checkpoint(every_steps=10**9)]
            Trainer(
                model, optimizer=optimizer, loaders={"train": Own(6)}, plugins=plugins, autoload=False, max_epochs=1, work_dir=folder
            ).train(resume=resume)  # fmt: skip
            return [(number, batch) for number, batch, _ in notes.steps]

        whole = run(tmp_path / "whole")
        assert run(tmp_path / "cut", 3) + run(tmp_path / "cut", resume="auto") == whole == [(i + 1, [i]) for i in range(6)]


class TestRS07:
    """The number of the step is off by one after a resume."""

    def test_rs_07_labels(self, tmp_path):
        before, weight = train(KINDS["map"], tmp_path, max_steps=5)
        assert train(KINDS["map"], tmp_path, resume="auto", max_steps=5) == ([], weight)
        after, _ = train(KINDS["map"], tmp_path, resume="auto", max_steps=8)
        assert [number for number, _, _ in after] == [6, 7, 8]
        assert [number for number, _, _ in before + after] == list(range(1, 9))


class TestRS13:
    """The data begin anew, or what was trained is loaded once more to be thrown away."""

    def test_rs_13_what_was_trained_is_not_loaded(self, tmp_path):
        """50 batches of 4; from step 40 on 10 batches, so 40 samples, are loaded."""

        class Slow(Samples):
            def __getitem__(self, index):
                time.sleep(0.001)
                return super().__getitem__(index)

        train(lambda: DataLoader(Slow(200), 4, shuffle=True), tmp_path, at=40, max_steps=50)
        dataset = Slow(200)
        after, _ = train(lambda: DataLoader(dataset, 4, shuffle=True), tmp_path, resume="auto", max_steps=50)
        assert len(dataset.served) == 40
        assert len(after) == 10

    def test_rs_13_an_iterator_is_read_over_in_all_epochs(self, tmp_path, caplog):
        """A generator that is made anew begins with its first batch; 13 of 20 batches were trained, over two epochs of 10."""
        caplog.set_level("INFO", "trainhooks")

        def batches():
            return ((torch.tensor([float(i)]), torch.rand(1)) for i in range(100))

        limits = {"max_steps": 20, "steps_per_epoch": 10}
        whole, _ = train(batches, tmp_path / "whole", **limits)
        before, after, _ = cut_and_resumed(batches, tmp_path / "cut", 13, **limits)
        assert [batch for _, batch, _ in before + after] == [[i] for i in range(20)] == [batch for _, batch, _ in whole]
        assert "the train loader is an iterator: reading over the 13 batches that were trained" in caplog.text

    def test_rs_13_a_loader_that_cannot_begin_in_the_middle_says_so(self, tmp_path, caplog):
        caplog.set_level("INFO", "trainhooks")
        cut_and_resumed(KINDS["iterable"], tmp_path, 3, max_epochs=1)
        assert "DataLoader cannot begin in the middle of an epoch: reading over the 3 batches that were trained" in caplog.text

    def test_a_loader_is_left_as_it_was(self, tmp_path):
        loader = KINDS["map"]()
        sampler = loader.batch_sampler
        train(lambda: loader, tmp_path, at=3, max_epochs=2)
        train(lambda: loader, tmp_path, resume="auto", max_epochs=2)
        assert loader.batch_sampler is sampler
        assert len(list(loader)) == 5

    def test_the_indices_of_the_running_batch(self, tmp_path):
        class Compare:
            seen = 0

            @hookimpl
            def after_step(self, trainer, batch):
                before = torch.get_rng_state()
                assert trainer.batch_indices() == [int(x) for x in batch[0]]
                assert torch.equal(torch.get_rng_state(), before)
                self.seen += 1

        for workers in (0, 2):
            compare, model = Compare(), Model()
            loader = DataLoader(Samples(10), 2, shuffle=True, num_workers=workers)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            Trainer(
                model, optimizer=optimizer, loaders={"train": loader}, plugins=[compare], autoload=False, max_epochs=2
            ).train()
            assert compare.seen == 10


class Two(nn.Module):
    """Two weights of one shape; the gradient of ``a`` is 1, that of ``b`` 10."""

    def __init__(self, names=("a", "b")):
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.zeros(())))

    def forward(self, x):
        return sum(weight * scale for weight, scale in zip(self.parameters(), (1.0, 10.0, 100.0), strict=False))


def steps(model, optimizer, folder, *, to, resume=None, plugins=()):
    loader = [torch.ones(1)] * 10
    Trainer(
        model, optimizer=optimizer, loaders={"train": loader}, plugins=[*plugins, Checkpoint(every_steps=10**9)], autoload=False,
        device="cpu", work_dir=folder, max_steps=to,
    ).train(resume=resume)  # fmt: skip


class TestRS14:
    """The moments of the optimizer are silently reset."""

    def test_rs_14_momentum_goes_on(self, tmp_path):
        """SGD, rate 1, momentum 0.9, gradient 1: the weight after step 3 is -5.61; -3.9 without the momentum of before."""
        for to, resume in ((2, None), (3, "auto")):
            model = Two(("a",))
            steps(model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9), tmp_path, to=to, resume=resume)
        assert model.a.item() == pytest.approx(-5.61, abs=1e-6)

    @pytest.mark.parametrize("kind", ["adam", "two groups", "adam by name"])
    def test_rs_14_the_same_as_without_a_resume(self, tmp_path, kind):
        def make():
            model = Two()
            if kind == "two groups":
                groups = [{"params": [model.a], "lr": 1.0}, {"params": [model.b], "lr": 0.5}]
                return model, torch.optim.SGD(groups, momentum=0.9)
            return model, torch.optim.Adam(model.named_parameters() if kind == "adam by name" else model.parameters(), lr=0.1)

        whole, optimizer = make()
        steps(whole, optimizer, tmp_path / "whole", to=3)
        for to, resume in ((2, None), (3, "auto")):
            model, optimizer = make()
            steps(model, optimizer, tmp_path / "cut", to=to, resume=resume)
        assert (model.a.item(), model.b.item()) == (whole.a.item(), whole.b.item())


class TestRS16:
    """Model or parameter groups are not those of the checkpoint."""

    @staticmethod
    def sgd(groups):
        return torch.optim.SGD(groups, lr=1.0, momentum=0.9)

    @pytest.fixture
    def saved(self, tmp_path):
        model = Two()
        steps(model, self.sgd([{"params": [model.a]}, {"params": [model.b]}]), tmp_path, to=2)
        return tmp_path

    @pytest.mark.parametrize(("names", "missing"), [(("a", "b", "c"), "c"), (("a", "z"), "z")])
    def test_rs_16_other_layers_are_named(self, saved, names, missing):
        model = Two(names)
        with pytest.raises(CheckpointError, match=rf'Missing key.*"{missing}"'):
            steps(model, self.sgd([{"params": [one]} for one in model.parameters()]), saved, to=3, resume="auto")

    def test_rs_16_an_optimizer_of_other_parameters_names_them(self, tmp_path):
        model = Two()
        steps(model, self.sgd(model.parameters()), tmp_path, to=2)
        model = Two()
        with pytest.raises(CheckpointError, match="optimizer has other parameters: unexpected b"):
            steps(model, self.sgd([model.a]), tmp_path, to=3, resume="auto")

    def test_rs_16_parameters_that_are_grouped_in_another_way(self, saved):
        model = Two()
        with pytest.raises(CheckpointError, match="a, b were not one group; give it the same groups"):
            steps(model, self.sgd(model.parameters()), saved, to=3, resume="auto")

    def test_rs_16_swapped_groups_keep_their_moments(self, saved):
        """Moments follow names: a has gradient 1 (-5.61 after three steps), b 10."""
        model = Two()
        steps(model, self.sgd([{"params": [model.b]}, {"params": [model.a]}]), saved, to=3, resume="auto")
        assert model.a.item() == pytest.approx(-5.61, abs=1e-6)
        assert model.b.item() == pytest.approx(-56.1, abs=1e-5)

    def test_rs_16_a_group_that_was_added_while_training_is_added_again(self, tmp_path):
        class Unfreeze:
            name = "unfreeze"

            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 1:
                    trainer.optimizer.add_param_group({"params": [trainer.model.b], "lr": 0.5})

        def run(folder, *targets):
            for number, to in enumerate(targets):
                model = Two()
                optimizer = self.sgd([{"params": [model.a]}])
                steps(model, optimizer, folder, to=to, resume="auto" if number else None, plugins=[Unfreeze()])
            return model.a.item(), model.b.item(), [group["lr"] for group in optimizer.param_groups]

        assert run(tmp_path / "cut", 3, 5) == run(tmp_path / "whole", 5)

    def test_options_of_groups_that_are_given_anew_are_said(self, saved, caplog):
        model = Two()
        optimizer = torch.optim.SGD([{"params": [model.a]}, {"params": [model.b]}], lr=0.05, momentum=0.9)
        steps(model, optimizer, saved, to=3, resume="auto")
        assert "optimizer: lr saved 1, given 0.05, using 1" in caplog.text
        assert model.a.item() == pytest.approx(-5.61, abs=1e-6)
