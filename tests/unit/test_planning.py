"""How many updates a run will make, counted in advance and, in the same test, by running it."""

import pytest

from trainhooks import hookimpl


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
        self.total = trainer.total_updates
        self.until = trainer.updates_until


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
