"""Runs that are cut after each step, in more ways to feed and to step them: the resumed one equals the uninterrupted one, bit for bit."""

import itertools
import logging
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainhooks import CheckpointError, Trainer, hookimpl
from trainhooks.data import generators_of
from trainhooks_builtins import AMP, Accumulate, Checkpoint
from trainhooks_builtins._checkpoint_files import read_checkpoint, take_snapshot, write_checkpoint


class Cut(Exception):
    """What a cut run ends with."""


class Notes:
    """Notes batch and loss of each step; ends the run after ``at`` steps."""

    phase = "reporting"

    def __init__(self, at=None):
        self.at, self.steps = at, []

    @hookimpl(trylast=True)
    def after_step(self, trainer, batch, output):
        self.steps.append((trainer.step + 1, [part.tolist() for part in batch], output["loss"].item()))
        if trainer.step + 1 == self.at:
            trainer.interrupt(Cut(), "the test")


def run(folder, feed, plugins, seed, *, at=None, resume=None, **limits):
    """Train as a new process would; return what was noted, and the state."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    model, notes = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.3), nn.Linear(3, 1)), Notes(at)
    trainer = Trainer(
        model, loss=nn.functional.mse_loss, optimizer=torch.optim.Adam(model.parameters(), lr=0.01), loaders={"train": feed()},
        plugins=[*[make() for make in plugins], notes, Checkpoint(every_epochs=0)], autoload=False, device="cpu", work_dir=folder,
        **limits or {"max_epochs": 3},
    )  # fmt: skip
    try:
        trainer.train(resume=resume)
    except Cut:
        assert at is not None
    return notes.steps, {**model.state_dict(), **{f"rng {name}": one for name, one in trainer.rng.state_dict().items()}}


def exact(tmp_path, feed, *plugins, **limits):
    """Cut a run after each of its steps, resume each with other seeds, and compare."""
    steps, state = run(tmp_path / "whole", feed, plugins, 0, **limits)
    assert len(steps) > 6
    for at in range(1, len(steps)):
        folder = tmp_path / str(at)
        before, _ = run(folder, feed, plugins, 0, at=at, **limits)
        after, its = run(folder, feed, plugins, 70 + at, resume="auto", **limits)
        assert [*before, *after] == steps, at
        for name, one in state.items():
            assert torch.equal(its[name], one) if isinstance(one, torch.Tensor) else its[name] == one, (at, name)


class Numbers(Dataset):
    def __init__(self, size=10):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor([float(index), 1.0]), torch.ones(1)


class Noise(IterableDataset):
    """Draws in this process, and has no length."""

    def __iter__(self):
        for index in range(8):
            yield torch.rand(2) + index, torch.tensor([random.random()])


class Resets(IterableDataset):
    """Knows its length and its place, and begins anew after its last sample."""

    def __init__(self):
        self.at = 0

    def __len__(self):
        return 6

    def __iter__(self):
        while self.at < 6:
            self.at += 1
            yield torch.tensor([float(self.at), 1.0]), torch.ones(1)
        self.at = 0


class OwnPlace(Resets):
    """The same as a loader with a state."""

    def __iter__(self):
        for inputs, target in super().__iter__():
            yield inputs[None], target[None]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Pipeline:
    """A loader that is its own iterator, as those of NVIDIA's DALI are: it ends, and can be begun anew."""

    def __init__(self, sets_back=True):
        self.sets_back, self.source = sets_back, np.random.RandomState(3)
        self.reset()

    def reset(self):
        self.at, self.order = 0, self.source.permutation(5)

    def __len__(self):
        return 5

    def __iter__(self):
        if self.at:
            self.reset()
        return self

    def __next__(self):
        if self.at == 5:
            if self.sets_back:
                self.reset()
            raise StopIteration
        self.at += 1
        return torch.tensor([[float(self.order[self.at - 1]), 1.0]]), torch.ones(1, 1)


def shuffled(size, seed=None):
    generator = torch.Generator().manual_seed(seed) if seed is not None else None
    return DataLoader(Numbers(size), 2, shuffle=True, generator=generator)


class Combined:
    """Reads two loaders in step, from wherever ``keep`` puts them."""

    def __init__(self, keep):
        self.kept = keep([shuffled(6, 1), shuffled(8, 2)])

    def __len__(self):
        return 3

    def __iter__(self):
        one, other = self.kept.values() if isinstance(self.kept, dict) else self.kept
        for first, second in zip(one, other, strict=False):
            yield tuple(map(torch.cat, zip(first, second, strict=True)))


class Ahead:
    """Has its next batch before it gives one."""

    def __init__(self):
        self.loader = shuffled(8, 1)

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch, _ in itertools.pairwise([*self.loader, None]):
            yield batch


class TestLoaders:
    @pytest.mark.parametrize("sets_back", [True, False])
    @pytest.mark.parametrize("limits", [{"max_epochs": 3}, {"max_steps": 12}], ids=["epochs", "steps"])
    def test_a_loader_that_is_its_own_iterator_and_begins_anew(self, tmp_path, sets_back, limits):
        exact(tmp_path, lambda: Pipeline(sets_back), **limits)

    def test_with_accumulation(self, tmp_path):
        exact(tmp_path, Pipeline, lambda: Accumulate(2))

    @pytest.mark.parametrize("feed", [lambda: DataLoader(Resets(), 2), OwnPlace], ids=["dataset", "loader"])
    def test_one_with_a_length_that_sets_itself_back_after_its_last_batch(self, tmp_path, feed):
        exact(tmp_path, feed)

    @pytest.mark.parametrize("keep", [list, tuple, lambda both: dict(enumerate(both))], ids=["list", "tuple", "dict"])
    def test_generators_of_the_loaders_that_a_loader_reads(self, tmp_path, keep):
        exact(tmp_path, lambda: Combined(keep))

    def test_the_generator_of_the_loader_that_a_loader_wraps(self, tmp_path):
        exact(tmp_path, Ahead)

    def test_generators_of_a_plain_loader_are_found_in_the_order_of_before(self):
        loader = shuffled(6, 1)
        loader.sampler.generator, loader.own = torch.Generator(), torch.Generator()
        assert generators_of(loader) == [loader.generator, loader.own, loader.sampler.generator]

    def test_a_batch_that_was_fetched_ahead_has_the_random_numbers_of_then(self, tmp_path):
        exact(tmp_path, lambda: DataLoader(Noise(), 2), lambda: Accumulate(3))

    def test_likewise_of_a_generator(self, tmp_path):
        exact(
            tmp_path, lambda: (batch for _ in range(9) for batch in DataLoader(Noise(), 2)), lambda: Accumulate(3), max_steps=9
        )


class Advances(torch.utils.data.Sampler):
    """Counts its epochs itself, after its last index."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return 10

    def __iter__(self):
        yield from torch.randperm(10, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.epoch += 1


class TestOrder:
    @staticmethod
    def drawn(steps):
        return [int(one[0]) for _, (inputs, _), _ in steps for one in inputs]

    @pytest.mark.parametrize("batch_size", [2, 3])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_is_that_of_torch_where_the_loader_has_a_generator(self, tmp_path, batch_size, workers):
        def feed(workers=workers):
            generator = torch.Generator().manual_seed(3)
            return DataLoader(Numbers(), batch_size, shuffle=True, generator=generator, num_workers=workers)

        steps, _ = run(tmp_path, feed, [], 0)
        plain = feed(0)
        assert self.drawn(steps) == [int(one[0]) for _ in range(3) for inputs, _ in plain for one in inputs]

    @pytest.mark.parametrize(("first", "second"), [(0, 2), (2, 0)])
    @pytest.mark.parametrize("at", [2, 5, 6])
    def test_is_the_same_when_it_is_resumed_with_other_workers(self, tmp_path, first, second, at):
        def feed(workers):
            generator = torch.Generator().manual_seed(3)
            return lambda: DataLoader(Numbers(), 2, shuffle=True, generator=generator, num_workers=workers)

        steps, _ = run(tmp_path / "whole", feed(first), [], 0)
        before, _ = run(tmp_path / "cut", feed(first), [], 0, at=at)
        after, _ = run(tmp_path / "cut", feed(second), [], 1, resume="auto")
        assert [*before, *after] == steps

    def test_a_sampler_comes_to_its_end_in_each_epoch(self, tmp_path):
        steps, _ = run(tmp_path, lambda: DataLoader(Numbers(), 2, sampler=Advances()), [], 0)
        orders = [torch.randperm(10, generator=torch.Generator().manual_seed(epoch)).tolist() for epoch in range(3)]
        assert self.drawn(steps) == [index for order in orders for index in order]


class Window:
    """Accumulation as docs/the-loop.md has it."""

    @hookimpl
    def update_due(self, trainer):
        return trainer.every_n_steps(3) or trainer.end_of_epoch

    @hookimpl(wrapper=True)
    def scale_loss(self):
        return (yield) / 3


class Manual:
    """Steps by itself, after every third batch."""

    @hookimpl
    def train_step(self, trainer, batch):
        inputs, target = batch
        loss = nn.functional.mse_loss(trainer.model(inputs), target)
        (loss / 3).backward()
        if (trainer.step + 1) % 3 == 0:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
        return {"loss": loss.detach()}


class WhenDue:
    """A step of one's own that leaves it to others when an update is due."""

    @hookimpl
    def train_step(self, trainer, batch, update_due):
        inputs, target = batch
        loss = nn.functional.mse_loss(trainer.model(inputs), target)
        loss.backward()
        if update_due:
            trainer.update_parameters()
            trainer.optimizer.zero_grad()
        return {"loss": loss.detach()}


class TestGradients:
    @pytest.mark.parametrize(
        "plugins",
        [
            [Window],
            [Manual],
            [WhenDue, lambda: Accumulate(3)],
            [Window, lambda: AMP("float16", init_scale=4, growth_interval=2)],
        ],
        ids=["update_due", "own step", "own step and accumulate", "update_due and amp"],
    )
    def test_what_was_accumulated_is_there(self, tmp_path, plugins):
        exact(tmp_path, lambda: shuffled(10), *plugins)

    def test_there_are_none_where_every_step_is_an_update(self, tmp_path):
        run(tmp_path, lambda: shuffled(10), [], 0, at=2)
        assert not [name for name in read_checkpoint(tmp_path / "checkpoints/step-00000002") if "gradients" in name]

    def test_they_are_given_up_where_every_step_is_an_update_now(self, tmp_path, caplog):
        run(tmp_path, lambda: shuffled(10), [Window], 0, at=2)
        steps, _ = run(tmp_path, lambda: shuffled(10), [], 1, resume="auto")
        lost = "the gradients that had been accumulated when the checkpoint was saved are lost: every step is an update now"
        assert (steps[0][0], [one for one in caplog.messages if "are lost" in one]) == (3, [lost])

    def test_a_state_of_them_that_is_none_is_refused(self, tmp_path, caplog):
        caplog.set_level(logging.ERROR)
        run(tmp_path, lambda: shuffled(10), [Window], 0, at=2)
        path = tmp_path / "checkpoints/step-00000002"
        state = read_checkpoint(path) | {"checkpoint/gradients": {"gradients": [1]}}
        write_checkpoint(tmp_path / "edited", take_snapshot(state), {"step": 2})
        with pytest.raises(CheckpointError, match=r"'checkpoint/gradients' does not fit: it is no dict of tensors"):
            run(tmp_path / "other", lambda: shuffled(10), [Window], 1, resume=tmp_path / "edited")


class TestTensors:
    @pytest.mark.parametrize(
        "empty",
        [
            torch.zeros(0, 3).t(),
            torch.zeros(0)[::2],
            torch.zeros(0, 3, 4, 4).to(memory_format=torch.channels_last),
            torch.zeros(0, 3, dtype=torch.complex64).t(),
        ],
        ids=["transposed", "sliced", "channels_last", "complex"],
    )
    def test_one_without_elements_is_read_again_whatever_its_strides(self, tmp_path, empty):
        write_checkpoint(tmp_path / "step-00000001", take_snapshot({"x": empty}), {"step": 1})
        found = read_checkpoint(tmp_path / "step-00000001")["x"]
        assert (found.shape, found.dtype) == (empty.shape, empty.dtype)

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_a_nested_one_is_refused_with_its_place(self):
        with pytest.raises(CheckpointError, match="x is a nested tensor"):
            take_snapshot({"x": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])})
