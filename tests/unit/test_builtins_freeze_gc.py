"""``freeze_gc``: when garbage is collected, and that the collector is left as it was found."""

import gc

import pytest

from trainhooks import hookimpl
from trainhooks_builtins import FreezeGC


@pytest.fixture(autouse=True, scope="module")
def thawed():
    """Let the collector look through what all tests share, which ``conftest.py`` has frozen."""
    gc.unfreeze()
    gc.collect()
    yield
    gc.freeze()


@pytest.fixture(autouse=True)
def collector():
    """Begin with the collector on and nothing frozen, and check that both are so at the end."""
    gc.enable()
    gc.unfreeze()
    yield
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


class Watches:
    """Notes the collections with the step they happen at, and makes garbage that would trigger many."""

    def __init__(self, fails_at=None):
        self.fails_at = fails_at
        self.place = "before"
        self.automatic, self.asked = [], []
        self.state = None

    def __call__(self, phase, info):
        if phase == "stop":
            (self.automatic if gc.isenabled() else self.asked).append(self.place)

    @hookimpl
    def before_step(self, trainer):
        self.place = trainer.step
        self.state = gc.isenabled(), gc.get_freeze_count() > 0
        for _ in range(5000):
            loop = []
            loop.append(loop)
        if trainer.step == self.fails_at:
            raise ValueError("step")


@pytest.fixture
def watched(make_trainer):
    """Return a function that trains 2 epochs of 4 steps with the plugin and gives what the watcher saw."""

    def run(*plugins, fails_at=None):
        watches = Watches(fails_at)
        trainer = make_trainer([*plugins, watches], values=(1.0,) * 4, max_epochs=2)
        gc.callbacks.append(watches)
        try:
            trainer.train()
        finally:
            gc.callbacks.remove(watches)
        return watches

    return run


def test_without_it_steps_are_interrupted(watched):
    assert len(watched().automatic) > 8


def test_collections_at_the_end_of_each_epoch_only(watched):
    watches = watched(FreezeGC())
    assert watches.asked == [3, 7]
    assert watches.automatic[0] == "before"  # the one at the beginning
    assert set(watches.automatic) <= {"before", 7}  # and what Python does when it is on again
    assert watches.state == (False, True)


def test_collections_after_steps(watched):
    assert watched(FreezeGC(every_steps=3)).asked == [2, 5]
    assert watched(FreezeGC(every_updates=2, every_epochs=2)).asked == [1, 3, 5, 7, 7]
    assert watched(FreezeGC(every_epochs=0)).asked == []


def test_frozen_only(watched):
    watches = watched(FreezeGC(disable=False))
    assert watches.state == (True, True)
    assert len(watches.automatic) > 8


def test_off_only(watched):
    assert watched(FreezeGC(freeze=False)).state == (False, False)


def test_as_found_after_a_failure(watched):
    with pytest.raises(ValueError, match="step"):
        watched(FreezeGC(), fails_at=2)


def test_what_was_off_stays_off(watched):
    gc.disable()
    watched(FreezeGC())
    assert not gc.isenabled()
    gc.enable()


def test_what_somebody_else_froze_stays_frozen(watched, messages):
    gc.freeze()
    count = gc.get_freeze_count()
    watched(FreezeGC())
    assert 0.9 * count < gc.get_freeze_count() <= count  # some have been freed since
    assert any(message.startswith("freeze_gc: something is frozen already") for message in messages())
    gc.unfreeze()
