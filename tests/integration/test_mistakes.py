"""Mistakes that people make: each is refused, or said, with its value, its place and the remedy."""

import dataclasses
import enum
import functools
import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from trainhooks import DataError, MissingPartError, PluginValidationError, SkipEpoch, SkipStep, Trainer, UsageError, hookimpl
from trainhooks_builtins import Checkpoint


class Raises:
    """Raises ``error`` in one hook, at one step."""

    def __init__(self, hook, error, step=0):
        @hookimpl(specname=hook)
        def work(trainer):
            if trainer.step == step:
                raise error

        self.work = work


@pytest.mark.parametrize(
    ("hook", "request_", "step", "where"),
    [
        ("setup", SkipStep("no"), 0, "prepare_batch, before_step or a part of train_step"),
        ("before_train", SkipEpoch("no"), 0, "before_epoch or a hook of a step"),
        ("before_epoch", SkipStep("no"), 0, "prepare_batch, before_step or a part of train_step"),
        ("after_train_epoch", SkipStep("no"), 10, "prepare_batch, before_step or a part of train_step"),
        ("after_epoch", SkipEpoch("no"), 10, "before_epoch or a hook of a step"),
        ("after_train", SkipStep("no"), 10, "prepare_batch, before_step or a part of train_step"),
        ("teardown", SkipStep("no"), 10, "prepare_batch, before_step or a part of train_step"),
    ],
)
def test_a_request_to_skip_where_there_is_nothing_to_skip(hook, request_, step, where, make_trainer):
    trainer = make_trainer([Raises(hook, request_, step)])
    with pytest.raises(UsageError) as caught:
        trainer.train()
    assert str(caught.value).endswith(f"was raised where there is nothing to skip: raise it in {where}")
    assert f"{hook}() of plugin 'raises'" in caught.value.__notes__[0]
    assert trainer.outcome.status == "failed"


def test_a_request_of_an_inner_run_skips_nothing_of_the_outer_one(make_trainer):
    class Nested:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 1:
                make_trainer([Raises("after_epoch", SkipStep("inner"), 10)]).train()

    trainer = make_trainer([Nested()])
    with pytest.raises(UsageError, match="nothing to skip"):
        trainer.train()
    assert trainer.step == 1


def test_who_has_asked_for_it_in_an_evaluation_is_named(make_trainer):
    class Filter:
        @hookimpl(wrapper=True)
        def compute_loss(self, trainer):
            loss = yield
            if trainer.split == "val":
                raise SkipStep("no")
            return loss

    with pytest.raises(UsageError, match="steers training only") as caught:
        make_trainer([Filter(), "evaluation"], val=(1.0,)).train()
    assert caught.value.__notes__[0].startswith("raised in compute_loss() of plugin 'filter'")


def test_epochs_that_are_skipped_for_ever_are_said_once(make_trainer, caplog):
    class Skips:
        def __init__(self):
            self.epochs = 0

        @hookimpl
        def before_epoch(self, trainer):
            self.epochs += 1
            if self.epochs <= 5:
                raise SkipEpoch("not yet")

    with caplog.at_level(logging.WARNING, "trainhooks"):
        assert make_trainer([Skips()], max_steps=3).train().epoch == 5
    assert [one.message for one in caplog.records if "never end" in one.message] == [
        "an epoch has trained nothing: it was skipped, or every batch was dropped; without max_epochs this may never end"
    ]


@pytest.mark.parametrize("hook", ["before_step", "before_epoch"])
def test_a_training_that_trains_nothing_ends(hook, make_trainer):
    request = SkipStep if hook == "before_step" else SkipEpoch

    class Filter:
        @hookimpl(specname=hook)
        def filter(self):
            raise request("filter")

    trainer = make_trainer([Filter()], values=(1.0, 2.0), max_steps=3)
    why = ", the last one with 'filter'" if hook == "before_step" else ""
    with pytest.raises(DataError) as caught:
        trainer.train()
    assert str(caught.value) == (
        f"100 epochs in a row have trained nothing: hooks skipped them, or dropped all batches{why}; look at what raises SkipEpoch "
        "or SkipStep, or set max_epochs"
    )
    assert (trainer.epoch, trainer.outcome.status) == (100, "failed")


@pytest.mark.parametrize("limits", [{"max_epochs": 120}, {"max_steps": 1}])
def test_but_not_one_that_has_an_end(limits, make_trainer):
    class Waits:
        @hookimpl
        def before_epoch(self, trainer):
            if "max_epochs" in limits or trainer.epoch < 99:
                raise SkipEpoch("not yet")

    trainer = make_trainer([Waits()], values=(1.0,), **limits)
    assert trainer.train().epoch == limits.get("max_epochs", 100)


class Callable:
    def __call__(self, trainer):
        raise AssertionError


def _with_static(decorator):
    class Plugin:
        @hookimpl
        @decorator
        def after_step(trainer):
            raise AssertionError

    return Plugin


def _with(value):
    return type("Plugin", (), {"after_step": hookimpl(value)})


@pytest.mark.parametrize(
    ("plugin", "fault"),
    [
        (
            _with_static(staticmethod),
            "after_step() in {file}:…: @hookimpl stands above @staticmethod, which hides it; write it below",
        ),
        (
            _with_static(classmethod),
            "after_step() in {file}:…: @hookimpl stands above @classmethod, which hides it; write it below",
        ),
        (
            _with(functools.partial(print, "never")),
            "after_step: is marked as a hook, but is a partial, which would never be called; write a function: def after_step(...)",
        ),
        (
            _with(Callable()),
            "after_step: is marked as a hook, but is a Callable, which would never be called; write a function: def after_step(...)",
        ),
    ],
)
def test_what_is_marked_but_would_never_be_called(plugin, fault):
    plugin.before_step = staticmethod(hookimpl(lambda: None))  # so that it has a hook that is right
    with pytest.raises(PluginValidationError) as caught:
        Trainer(plugins=[plugin], autoload=False, max_steps=1)
    (found,) = caught.value.faults
    before, _, after = fault.format(file=__file__).partition("…")
    assert found.startswith(before)
    assert found.endswith(after)


@pytest.mark.parametrize(
    ("plugins", "what"),
    [("ema", "'ema'"), (None, "None"), (Checkpoint(), "<trainhooks_builtins.checkpoint.Checkpoint object")],
)
def test_plugins_that_are_no_list(plugins, what):
    with pytest.raises(UsageError) as caught:
        Trainer(plugins=plugins, autoload=False, max_steps=1)
    assert str(caught.value).startswith(f"plugins must be a list such as [EMA(), 'lr'], not {what}")


def test_none_among_the_plugins():
    with pytest.raises(PluginValidationError, match="None is no plugin; give a module, a class or an instance") as caught:
        Trainer(plugins=[None], autoload=False, max_steps=1)
    assert "trainconf" not in str(caught.value)


@pytest.mark.parametrize(
    ("loader", "kind"),
    [(DataLoader, "the class DataLoader"), (lambda: [1], "function: <function"), (5, "int: 5"), ("abc", "str: 'abc'")],
)
def test_a_loader_that_is_none(loader, kind):
    with pytest.raises(UsageError) as caught:
        Trainer(nn.Linear(1, 1), loaders={"train": loader}, max_steps=1, autoload=False)
    assert str(caught.value).startswith(f"loaders['train'] is {kind}")
    assert str(caught.value).endswith("a loader is an iterable of batches, such as DataLoader(dataset, batch_size=32)")


def test_a_loader_of_make_loader_that_is_none():
    class Makes:
        @hookimpl
        def make_loader(self):
            return DataLoader

    trainer = Trainer(nn.Linear(1, 1), plugins=[Makes()], max_steps=1, autoload=False)
    trainer.take_optimizer(torch.optim.SGD(trainer.model.parameters()))
    with pytest.raises(UsageError, match=r"make_loader\('train'\) gave the class DataLoader"):
        trainer.train()


def test_a_split_that_is_none_is_not_there():
    trainer = Trainer(nn.Linear(1, 1), loaders={"train": [], "val": None}, max_steps=1, autoload=False)
    assert list(trainer.loaders) == ["train"]
    with pytest.raises(MissingPartError, match=r"no loader for split 'val' \(given: train\)"):
        trainer.evaluate("val")


@pytest.mark.parametrize(
    ("result", "what"),
    [
        ({}, "an empty mapping"),
        ({"logits": torch.ones(2, 3)}, "a mapping of logits (a tensor of shape (2, 3))"),
        ({"a": torch.ones(()), "b": "text"}, "a mapping of a (a tensor of shape ()), b (str)"),
        ({"loss": 3.0}, "a mapping of loss (float)"),
        (torch.ones(4), "a tensor of shape (4,)"),
        ((torch.ones(()), 1), "tuple"),
    ],
)
def test_what_is_no_loss_is_described(result, what, make_trainer):
    class Gives:
        @hookimpl
        def compute_loss(self):
            return result

    with pytest.raises(UsageError) as caught:
        make_trainer([Gives()]).train()
    assert str(caught.value).startswith(f"compute_loss gave {what}; it must be a scalar tensor")


def test_a_loss_without_gradients_says_why(make_trainer):
    class Detaches:
        @hookimpl(wrapper=True)
        def compute_loss(self):
            return (yield).detach()

    with pytest.raises(RuntimeError, match="does not require grad") as caught:
        make_trainer([Detaches()]).train()
    assert "the loss depends on nothing that is trained: compute_loss gave one that was detached" in caught.value.__notes__[0]
    trainer = make_trainer()
    trainer.model.requires_grad_(False)
    with pytest.raises(RuntimeError, match="does not require grad") as caught:
        trainer.train()
    assert "the loss depends on nothing that is trained: all parameters of the model are frozen" in caught.value.__notes__


class Kind(str, enum.Enum):
    NEW = "new"


class Configured:
    def __init__(self, kind: Kind = Kind.NEW, level: int = 0) -> None: ...

    @hookimpl
    def before_step(self): ...


def test_an_option_that_is_a_member_of_an_enumeration_stops_no_checkpoint(make_trainer, tmp_path):
    options = {"configured": {"kind": "new"}}
    make_trainer([Configured, Checkpoint()], options=options, work_dir=tmp_path / "run").train()
    trainer = make_trainer([Configured, Checkpoint()], options=options, work_dir=tmp_path / "run", max_epochs=2)
    assert trainer.train(resume="auto").step == 20


@pytest.mark.parametrize("batch_size", [np.int64(2), torch.tensor(2), np.float32(2), "2", {"a": object()}])
def test_a_loader_may_call_anything_its_batch_size(batch_size, tmp_path):
    class Loader(list):
        pass

    loader = Loader([torch.ones(2, 1)] * 3)
    loader.batch_size = batch_size

    def trainer(epochs):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        plugins, arguments = [Loss(), Checkpoint()], {"work_dir": tmp_path / "run", "autoload": False}
        return Trainer(model, optimizer=optimizer, loaders={"train": loader}, plugins=plugins, max_epochs=epochs, **arguments)

    trainer(1).train()
    assert trainer(2).train(resume="auto").step == 6


class Loss:
    @hookimpl
    def compute_loss(self, trainer, batch):
        return trainer.model(batch).sum()


def test_one_object_with_slots_or_frozen_in_two_trainers(make_trainer):
    class Slots:
        __slots__ = ("count",)

        def __init__(self):
            self.count = 0

        @hookimpl
        def after_step(self):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        number: int = 0

        @hookimpl
        def setup(self): ...

    for plugin in (Slots(), Frozen()):
        first = make_trainer([plugin])
        first.train()
        assert first.train().step == 10  # one trainer may train again and again
        with pytest.raises(UsageError, match="already served another Trainer"):
            make_trainer([plugin])
