"""How many updates a run will make, counted in advance and, in the same test, by running it."""

import pytest
import torch
from torch.utils.data import DataLoader

from trainhooks import SkipEpoch, SkipStep, hookimpl
from trainhooks_builtins import Checkpoint


class Windows:
    """Updates after every ``steps`` steps of an epoch, and at its end; ``steps`` may be a list of one number for each epoch."""

    def __init__(self, steps):
        self.steps = steps

    def window(self, epoch):
        return self.steps[epoch] if isinstance(self.steps, list) else self.steps

    @hookimpl
    def count_updates(self, epoch, steps):
        return -(-steps // self.window(epoch))

    @hookimpl
    def update_due(self, trainer):
        window = self.window(trainer.epoch)
        return (trainer.batch_index + 1) % window == 0 or trainer.end_of_epoch or trainer.is_last_step


class Undeclared:
    """Updates when it likes to."""

    @hookimpl
    def update_due(self, trainer):
        return trainer.step % 3 == 2


class Planned:
    """Notes what is known when training begins."""

    @hookimpl
    def before_train(self, trainer):
        self.total, self.steps, self.total_steps = trainer.total_updates, trainer._planned_steps, trainer.total_steps
        self.until = trainer.updates_until
        self.until_epochs = [trainer.updates_until(epoch) for epoch in range((trainer.max_epochs or 0) + 1)]


@pytest.mark.parametrize(
    ("batches", "plugins", "limits", "total"),
    [
        (7, [], {"max_epochs": 2}, 14),
        (7, [], {"max_epochs": 2, "max_steps": 10}, 10),
        (7, [Windows(3)], {"max_epochs": 2}, 6),
        (7, [Windows(3)], {"max_epochs": 2, "max_updates": 4}, 4),
        (7, [Windows(3)], {"max_steps": 9}, 4),  # 3 + 3 + 1, then 2 of the second epoch
        (7, [Windows(3)], {"max_steps": 11}, 5),
        (7, [Windows([1, 3, 10])], {"max_epochs": 3}, 11),  # 7 + 3 + 1
        (2, [Windows(4)], {"max_epochs": 3}, 3),
    ],
)
def test_total_updates_are_those_that_are_made(make_trainer, batches, plugins, limits, total):
    planned = Planned()
    trainer = make_trainer([planned, *plugins], values=[1.0] * batches, **limits)
    trainer.train()
    assert planned.total == trainer.update == total


def test_nothing_is_said_that_is_not_known(make_trainer):
    trainer = make_trainer([Undeclared()], max_epochs=2)
    assert trainer.total_updates is None
    assert trainer.updates_until(1) is None
    trainer = make_trainer([Undeclared()], max_epochs=2, max_updates=5)
    assert trainer.total_updates == 5
    trainer = make_trainer([Windows(3)], max_steps=9)
    trainer.loaders["train"] = iter(trainer.loaders["train"])
    assert trainer.total_updates is None  # where an epoch ends, and so a window, is not known
    assert trainer.updates_until(1) is None


def test_updates_until_an_epoch(make_trainer):
    trainer = make_trainer([Windows([1, 3, 10])], values=[1.0] * 7, max_epochs=3)
    assert [trainer.updates_until(epoch) for epoch in (0, 1, 1.5, 2, 3)] == [0, 7, 9, 10, 11]  # 1.5 of 3 windows is 2
    trainer = make_trainer(values=[1.0] * 7, max_epochs=3)
    assert [trainer.updates_until(epoch) for epoch in (0, 0.5, 2)] == [0, 4, 14]  # 3.5 rounds to the even 4


class Drops:
    """Drops some batches, by their index in an epoch, or what is left of it."""

    def __init__(self, *indices, request=SkipStep):
        self.indices, self.request = indices, request

    @hookimpl
    def before_step(self, trainer):
        if trainer.batch_index in self.indices:
            raise self.request("not wanted")


class SkipsUpdates:
    """Skips every third update."""

    @hookimpl
    def optimizer_step(self, trainer):
        return False if trainer.step % 3 == 2 else None


class TestAfterAResume:
    """40 samples, at first 10 batches of 4 in an epoch, then 5 of 8; 4 epochs."""

    @pytest.fixture
    def run(self, make_trainer, tmp_path):
        def go(size, *plugins, stop_at=None, max_epochs=4, **limits):
            class Stops:
                @hookimpl
                def after_step(self, trainer):
                    if trainer.step + 1 == stop_at:
                        trainer.stop("asked")

            planned = Planned()
            given = [planned, Checkpoint(), Stops(), *plugins]
            trainer = make_trainer(given, max_epochs=max_epochs, work_dir=tmp_path / "run", log_every_steps=1000, **limits)
            trainer.loaders["train"] = DataLoader(torch.ones(40, 1, dtype=torch.float64), batch_size=size)
            trainer.train(resume="auto")
            return trainer, planned

        return go

    @pytest.mark.parametrize(
        ("stop_at", "total"),
        [
            (20, 30),  # two epochs of 10, two of 5
            (5, 23),  # 20 samples are two whole batches of 8, so 3 are left of that epoch, then three epochs of 5
            (14, 27),  # 16 samples: again 3 are left, then two epochs
        ],
    )
    def test_another_batch_size(self, run, stop_at, total):
        run(4, stop_at=stop_at)
        trainer, planned = run(8)
        assert planned.total == planned.steps == planned.total_steps == trainer.step == trainer.total_steps == total

    def test_smaller_batches(self, run):
        run(8, stop_at=10)
        trainer, planned = run(4)
        assert planned.total == planned.total_steps == trainer.step == 10 + 2 * 10

    def test_three_batch_sizes(self, run):
        run(4, stop_at=20)
        run(8, stop_at=25)
        trainer, planned = run(2)
        assert planned.total == planned.total_steps == trainer.step == 20 + 5 + 20

    def test_updates_of_several_steps(self, run):
        """4 updates in an epoch and the first of the next one; of that 3 batches are left, in two updates; then two epochs of 2."""
        run(4, Windows(3), stop_at=15)
        trainer, planned = run(8, Windows(3))
        assert planned.total == trainer.update == 5 + 2 + 2 * 2

    @pytest.mark.parametrize(("before", "now", "total"), [(1, 5, 20 + 2 * 2), (5, 1, 4 + 2 * 10), (4, 3, 6 + 2 * 4)])
    def test_updates_of_another_number_of_steps(self, run, before, now, total):
        run(4, Windows(before), stop_at=20)
        trainer, planned = run(4, Windows(now))
        assert planned.total == trainer.update == total

    def test_a_limit_of_steps(self, run):
        run(4, Windows(3), stop_at=20)
        trainer, planned = run(8, Windows(3), max_steps=26)
        assert (planned.total, planned.total_steps) == (trainer.update, trainer.step) == (8 + 2 + 1, 26)

    def test_updates_until_an_epoch(self, run):
        """Of the epochs that were trained with other settings their share of what was made."""
        run(4, stop_at=20)
        assert run(8)[1].until_epochs == [0, 10, 20, 25, 30]

    @pytest.mark.parametrize(
        ("plugins", "steps", "updates"),
        [
            ([Drops(1, 4)], 32, 40),
            ([Drops(6, request=SkipEpoch)], 24, 40),
            ([SkipsUpdates()], 40, 40),
            ([Windows(3), Drops(4)], 36, 16),
        ],
    )
    @pytest.mark.parametrize("stop_at", [5, 12, 16, 21])
    def test_what_hooks_drop_changes_no_plan(self, run, plugins, steps, updates, stop_at):
        _, first = run(4, *plugins, stop_at=stop_at)
        trainer, planned = run(4, *plugins)
        assert trainer.step == trainer.total_steps == steps
        assert planned.total == first.total == updates
        assert planned.steps == first.steps == 40
        assert planned.until_epochs == first.until_epochs


def test_steps_that_hooks_drop_are_not_among_those_of_the_run(make_trainer):
    seen = []

    class Looks:
        @hookimpl
        def after_step(self, trainer):
            seen.append((trainer.step, trainer.total_steps))

    trainer = make_trainer([Drops(1, 3), Looks()], values=[1.0] * 4, max_epochs=2)
    trainer.train()
    assert seen == [(0, 8), (1, 7), (2, 6), (3, 5)]  # a batch counts until it is dropped
    assert trainer.total_steps == trainer.step == 4


def test_a_limit_below_what_was_done(make_trainer):
    trainer = make_trainer(values=[1.0] * 4, max_epochs=2)
    trainer.train()
    trainer.max_epochs = 1
    assert trainer.total_steps == trainer.step == 8


@pytest.mark.parametrize("limit", [{"max_steps": 3}, {"max_updates": 3}, {"max_epochs": 1}])
def test_the_last_step_is_known_from_its_beginning(make_trainer, limit):
    seen = []

    class Looks:
        @hookimpl
        def before_step(self, trainer):
            seen.append(trainer.is_last_step)

    make_trainer([Looks()], values=(1.0,) * 3, **limit).train()
    assert seen == [False, False, True]
