"""What a failed run leaves: messages that stay readable, and a trainer that can go on."""

import contextlib
import gc
import multiprocessing
import sys
import weakref

import pytest
import torch
from torch.utils.data import DataLoader

from trainhooks import SkipEpoch, SkipStep, UsageError, hookimpl
from trainhooks_builtins import Accumulate

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


class FailsOnce:
    def __init__(self, hook, step):
        self.calls = []

        @hookimpl(specname=hook)
        def work(trainer):
            self.calls.append(trainer.step)
            if self.calls.count(step) == 1 and trainer.step == step:
                raise ValueError("once")

        self.work = work


@pytest.mark.parametrize(
    ("hook", "again"),
    # the batch of the step that failed is trained again only where it had not been used
    [("before_step", True), ("compute_loss", True), ("gradients_ready", True), ("after_update", False), ("after_step", False)],
)
def test_a_batch_is_used_once_whatever_fails(hook, again, make_trainer):
    """Each update takes the batch's value off the weight: 1 + 2 + 4 + 8 in all."""
    plugin = FailsOnce(hook, 2)
    trainer = make_trainer([plugin], values=(1.0, 2.0, 4.0, 8.0))
    with pytest.raises(ValueError, match="once"):
        trainer.train()
    assert trainer.step == 2
    outcome = trainer.train()
    assert (outcome.step, outcome.update, outcome.epoch) == (4, 4, 1)
    assert trainer.model.w.item() == -15.0
    assert plugin.calls == ([0, 1, 2, 2, 3] if again else [0, 1, 2, 3])


def test_a_micro_batch_is_used_once(make_trainer):
    """The means of the windows are 1.5 and 6."""
    trainer = make_trainer([Accumulate(2), FailsOnce("after_step", 2)], values=(1.0, 2.0, 4.0, 8.0))
    with pytest.raises(ValueError, match="once"):
        trainer.train()
    assert trainer.train().update == 2
    assert trainer.model.w.item() == -7.5


def test_the_update_of_a_step_that_a_skipped_epoch_ended_is_over(make_trainer):
    seen = []

    class Ends:
        @hookimpl
        def after_step(self, trainer):
            raise SkipEpoch("enough")

        @hookimpl
        def after_epoch(self, trainer):
            seen.append(trainer.every_n_updates(2))

    make_trainer([Ends()], max_epochs=3).train()
    assert seen == [True, False, True]  # whether what comes next works towards update 2, 3, 4


def test_errors_of_the_clean_up_are_attached_each_once(make_trainer):
    class Fails:
        @hookimpl
        def teardown(self):
            raise OSError("the disk is full")

        @hookimpl
        def after_train(self):
            raise LookupError("nothing") from KeyError("the cause")

    class Original:
        @hookimpl
        def before_step(self):
            raise ValueError("the original")

    with pytest.raises(ValueError, match="the original") as caught:
        make_trainer([Original(), *(Fails() for _ in range(12))]).train()
    text = "\n".join(caught.value.__notes__)
    assert text.count("OSError: the disk is full") == text.count("LookupError: nothing") == 12
    assert text.count("KeyError: 'the cause'") == 12
    assert "ValueError: the original" not in text  # it is what they are attached to


def test_an_exception_whose_message_fails_leaves_as_itself(make_trainer, tmp_path):
    class Bad(Exception):
        def __str__(self):
            raise RuntimeError("no message either")

    class Original:
        @hookimpl
        def after_step(self):
            raise Bad

    trainer = make_trainer([Original(), "crash_report"], work_dir=tmp_path / "run")
    with pytest.raises(Bad):
        trainer.train()
    assert trainer.outcome.reason == "Bad: (its __str__ fails with RuntimeError)"
    assert "its __str__ fails" in (tmp_path / "run/crash.json").read_text(encoding="utf-8")


def test_a_late_skip_counts_what_was_trained(make_trainer):
    class Late:
        done = False

        @hookimpl
        def after_step(self, trainer):
            if trainer.step == 1 and not self.done:
                self.done = True
                raise SkipStep("too late")

    trainer = make_trainer([Late()], values=(1.0, 2.0, 4.0))
    with pytest.raises(UsageError, match="when the step had been trained"):
        trainer.train()
    assert trainer.train().update == 3
    assert trainer.model.w.item() == -7.0


class FailsInCleanUp:
    def __init__(self, *hooks):
        self.hooks = hooks

    @hookimpl
    def before_step(self, trainer):
        self._fail("before_step")

    @hookimpl
    def after_train(self):
        self._fail("after_train")

    @hookimpl
    def on_exception(self):
        self._fail("on_exception")

    @hookimpl
    def teardown(self):
        self._fail("teardown")

    def _fail(self, hook):
        if hook in self.hooks:
            raise OSError(hook)


@pytest.mark.parametrize(
    "hooks",
    [
        [["teardown"]],
        [["after_train"]],
        [["before_step", "on_exception"]],
        [["before_step", "teardown"], ["after_train"]],
        [["teardown"], ["teardown"]],
    ],
)
def test_an_error_of_the_clean_up_keeps_no_trainer(hooks, make_trainer):
    trainer = make_trainer([FailsInCleanUp(*one) for one in hooks])
    ended = weakref.ref(trainer)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(OSError, ExceptionGroup):
            trainer.train()
        del trainer
        assert ended() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("hook", ["on_exception", "after_train", "teardown"])
def test_the_original_is_not_attached_to_itself(hook, make_trainer):
    original = ValueError("the original")

    class Raises:
        @hookimpl
        def compute_loss(self):
            raise original

    class Again:
        pass

    def again():
        raise original

    plugins = [Again() for _ in range(4)]
    for plugin in plugins:
        setattr(plugin, hook, hookimpl(again))
    with pytest.raises(ValueError, match="the original") as caught:
        make_trainer([Raises(), *plugins]).train()
    assert caught.value is original
    assert len(original.__notes__) == 1  # who raised it


def test_no_worker_outlives_a_training_that_failed(make_trainer):
    trainer = make_trainer([FailsInCleanUp("before_step")])
    trainer.loaders["train"] = DataLoader([torch.ones(1, dtype=torch.float64)] * 4, batch_size=None, num_workers=1)
    with pytest.raises(OSError, match="before_step"):
        trainer.train()
    assert not multiprocessing.active_children()  # which ends nobody


class Asks:
    """Raises a request in a wrapper of one hook, when what is inside of it is done."""

    def __init__(self, hook, request, index=1):
        @hookimpl(wrapper=True, specname=hook)
        def late(trainer):
            result = yield
            if trainer.batch_index == index and trainer.epoch == 0:
                raise request("enough")
            return result

        self.late = late


class Counts:
    def __init__(self):
        self.skipped, self.updates = [], []

    @hookimpl
    def after_update(self, trainer):
        self.updates.append(trainer.update + 1)

    @hookimpl
    def after_skip(self, trainer):
        self.skipped.append(trainer.batch_index)


@pytest.mark.parametrize("hook", ["optimizer_step", "train_step", "after_update"])
def test_an_epoch_that_ends_after_an_update_counts_it(hook, make_trainer):
    """Epoch 0 ends with its second of three batches, so it is 1 + 2 and then 1 + 2 + 4 that comes off the weight."""
    counts = Counts()
    trainer = make_trainer([counts, Asks(hook, SkipEpoch)], values=(1.0, 2.0, 4.0), max_epochs=2)
    outcome = trainer.train()
    assert trainer.model.w.item() == -10.0
    assert (outcome.step, outcome.update, outcome.epoch) == (5, 5, 2)
    assert counts.updates == [1, 2, 3, 4, 5]


def test_an_epoch_that_ends_before_the_update_counts_nothing(make_trainer):
    counts = Counts()
    trainer = make_trainer([counts, Asks("clip_gradients", SkipEpoch)], values=(1.0, 2.0, 4.0), max_epochs=2)
    outcome = trainer.train()
    assert trainer.model.w.item() == -8.0
    assert (outcome.step, outcome.update, counts.updates) == (4, 4, [1, 2, 3, 4])


@pytest.mark.parametrize("hook", ["optimizer_step", "train_step"])
def test_a_batch_that_has_been_trained_cannot_be_dropped(hook, make_trainer):
    counts = Counts()
    trainer = make_trainer([counts, Asks(hook, SkipStep)], values=(1.0, 2.0, 4.0))
    with pytest.raises(UsageError, match="when the step had been trained"):
        trainer.train()
    assert not counts.skipped
    assert trainer.dropped == 0
    trainer.unregister("asks")
    outcome = trainer.train()  # goes on with the third batch
    assert (outcome.step, outcome.update, trainer.model.w.item()) == (3, 3, -7.0)


def test_neither_can_one_whose_window_the_end_of_the_epoch_closes(make_trainer):
    class DropsLast:
        @hookimpl
        def before_step(self, trainer):
            if trainer.batch_index == 2:
                raise SkipStep("not this one")

    trainer = make_trainer([Accumulate(3), DropsLast(), Asks("optimizer_step", SkipStep, index=3)], values=(1.0, 3.0, 5.0))
    with pytest.raises(UsageError, match="when the step had been trained"):
        trainer.train()
    assert trainer.model.w.item() == -2.0  # the update has been made


def test_a_batch_may_be_dropped_in_optimizer_step_before_the_update(make_trainer):
    class Early:
        @hookimpl(wrapper=True)
        def optimizer_step(self, trainer):
            if trainer.batch_index == 1:
                raise SkipStep("not this one")
            return (yield)

    trainer = make_trainer([Early()], values=(1.0, 2.0, 4.0))
    outcome = trainer.train()
    assert (outcome.step, outcome.update, trainer.dropped, trainer.model.w.item()) == (2, 2, 1, -5.0)


def test_an_update_is_counted_though_a_wrapper_of_it_failed(make_trainer):
    class Fails:
        @hookimpl(wrapper=True)
        def optimizer_step(self, trainer):
            updated = yield
            if trainer.step == 1:
                raise ValueError("late")
            return updated

    trainer = make_trainer([Fails()], values=(1.0, 2.0, 4.0))
    with pytest.raises(ValueError, match="late"):
        trainer.train()
    trainer.unregister("fails")
    outcome = trainer.train()
    assert (outcome.step, outcome.update, trainer.model.w.item()) == (3, 3, -7.0)
