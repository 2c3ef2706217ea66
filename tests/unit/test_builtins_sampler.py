"""``sampler``: what gets ``set_epoch``, with what, how often."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, Sampler


class Epochs:
    """Keeps what ``set_epoch`` was given."""

    def __init__(self, length=2):
        self.length = length
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(range(self.length))


class Numbers(Epochs, Dataset):
    def __getitem__(self, index):
        return torch.tensor(float(index), dtype=torch.float64)


class Shuffled(Epochs):
    """The permutation of an epoch is that of its number."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(self.length, generator=torch.Generator().manual_seed(self.epoch)).tolist())


class Order:
    def __init__(self):
        self.seen = []

    @hookimpl
    def before_step(self, batch):
        self.seen.append(int(batch[0]))


def train(make_trainer, loader, *plugins, resume=None, **arguments):
    trainer = make_trainer(plugins, device="cpu", **arguments)
    trainer.loaders["train"] = loader
    trainer.train(resume=resume)
    return trainer


def test_sampler_and_dataset(make_trainer):
    dataset, sampler = Numbers(), Epochs()
    train(make_trainer, DataLoader(dataset, sampler=sampler), Sampler(), max_epochs=3)
    assert (dataset.epochs, sampler.epochs) == ([0, 1, 2], [0, 1, 2])


def test_sampler_inside_a_batch_sampler_and_dataset_inside_a_subset(make_trainer):
    dataset, sampler = Numbers(), Epochs()
    loader = DataLoader(Subset(dataset, [0, 1]), batch_sampler=BatchSampler(sampler, 1, drop_last=False))
    train(make_trainer, loader, Sampler(), max_epochs=2)
    assert (dataset.epochs, sampler.epochs) == ([0, 1], [0, 1])


def test_the_loader_itself_and_each_object_once(make_trainer):
    """A loader that is its own sampler, whose sampler is its batch sampler, and whose parts refer to each other."""

    class Loader(Epochs):
        def __iter__(self):
            return iter([torch.ones(1, dtype=torch.float64)] * 2)

    loader, part = Loader(), Epochs()
    loader.sampler = loader.batch_sampler = part
    part.dataset, part.sampler = loader, part
    train(make_trainer, loader, Sampler(), max_epochs=2)
    assert (loader.epochs, part.epochs) == ([0, 1], [0, 1])


def test_seed_rule(make_trainer):
    sampler = Epochs()
    train(make_trainer, DataLoader(Numbers(), sampler=sampler), Sampler("seed+epoch"), max_epochs=3, seed=40)
    assert sampler.epochs == [40, 41, 42]


def test_seed_rule_needs_a_seed(make_trainer):
    with pytest.raises(UsageError, match="needs the seed of the run"):
        make_trainer([Sampler("seed+epoch")]).train()


def test_an_unknown_rule_is_refused():
    with pytest.raises(OptionError, match="seed_rule"):
        Trainer(autoload=False, plugins=["sampler"], options={"sampler": {"seed_rule": "rank"}})


@pytest.mark.parametrize("cut", range(1, 12))
def test_resumed_anywhere(make_trainer, tmp_path, cut):
    """3 epochs of 4 steps: the order and the weight of the uninterrupted run, bit for bit."""

    def run(**arguments):
        order = Order()
        loader = DataLoader(Numbers(4), sampler=Shuffled(4))
        trainer = train(
            make_trainer, loader, Sampler(), order, *arguments.pop("plugins", ()), max_epochs=3, lr=0.1, **arguments
        )
        return order.seen, trainer

    whole, trainer = run()
    expected = [torch.randperm(4, generator=torch.Generator().manual_seed(epoch)).tolist() for epoch in range(3)]
    assert whole == sum(expected, [])
    first, _ = run(max_steps=cut, work_dir=tmp_path / "run", plugins=[Checkpoint()])
    rest, resumed = run(resume="auto", work_dir=tmp_path / "run", plugins=[Checkpoint()])
    assert first + rest == whole
    assert torch.equal(resumed.model.w, trainer.model.w)


def test_what_it_cannot_do_is_said(make_trainer, messages):
    make_trainer([Sampler()]).train()
    assert "sampler: nothing in the train loader (list) has set_epoch" in messages()


def test_copies_of_the_dataset_in_lasting_workers(make_trainer, messages):
    """They do not hear of it, unless the epoch is in shared memory, where ``datasets`` has it."""
    dataset = Numbers()
    train(make_trainer, DataLoader(dataset, num_workers=1, persistent_workers=True), Sampler())
    (message,) = [message for message in messages() if message.startswith("sampler:")]
    assert "so set_epoch does not reach them" in message
    dataset._epoch = torch.tensor(0)
    train(make_trainer, DataLoader(dataset, num_workers=1, persistent_workers=True), Sampler())
    train(make_trainer, DataLoader(Numbers(), num_workers=1), Sampler())
    assert len([message for message in messages() if message.startswith("sampler:")]) == 1
