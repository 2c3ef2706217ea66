"""The engine clears gradients as ``zero_grad`` does, and calls it wherever somebody could tell the difference."""

import contextlib

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from trainhooks.optimizers import clear_gradients


@pytest.fixture
def parameters():
    """Return two parameters with gradients."""
    two = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    for one in two:
        one.grad = torch.ones(2)
    return two


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.LBFGS])
def test_all_are_none(parameters, kind):
    clear_gradients(kind(parameters, lr=0.1))
    assert [one.grad for one in parameters] == [None, None]


def test_all_groups(parameters):
    clear_gradients(torch.optim.SGD([{"params": [one]} for one in parameters], lr=0.1))
    assert [one.grad for one in parameters] == [None, None]


class KeepsZeros(torch.optim.SGD):
    def zero_grad(self, set_to_none=False):
        super().zero_grad(set_to_none=set_to_none)


def test_its_own_way(parameters):
    clear_gradients(KeepsZeros(parameters, lr=0.1))
    assert [one.grad.tolist() for one in parameters] == [[0.0, 0.0]] * 2


def test_the_method_of_one_was_replaced(parameters):
    optimizer, called = torch.optim.SGD(parameters, lr=0.1), []
    optimizer.zero_grad = lambda: called.append(True)
    clear_gradients(optimizer)
    assert called == [True]


def test_the_method_of_all_was_replaced(parameters, monkeypatch):
    called = []
    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", lambda _: called.append(True))
    clear_gradients(torch.optim.SGD(parameters, lr=0.1))
    assert called == [True]


def test_no_optimizer_of_torch(parameters):
    class Wraps:
        """What libraries put around an optimizer."""

        def __init__(self, inner):
            self.inner, self.param_groups = inner, inner.param_groups

        def zero_grad(self):
            self.inner.zero_grad(set_to_none=False)

    clear_gradients(Wraps(torch.optim.SGD(parameters, lr=0.1)))
    assert [one.grad.tolist() for one in parameters] == [[0.0, 0.0]] * 2


def test_no_label_is_opened_without_a_profiler(parameters, monkeypatch):
    """This is what the engine saves: torch's own opens one each time."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    opened = []

    def label(name):
        opened.append(name)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.autograd.profiler, "record_function", label)
    clear_gradients(optimizer)
    assert opened == []
    optimizer.zero_grad()
    assert opened == ["Optimizer.zero_grad#SGD.zero_grad"]


def test_it_has_its_place_in_a_profile(parameters):
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        clear_gradients(torch.optim.SGD(parameters, lr=0.1))
    assert "Optimizer.zero_grad#SGD.zero_grad" in {event.key for event in seen.key_averages()}
    assert [one.grad for one in parameters] == [None, None]


def test_the_loop_uses_it(make_trainer, monkeypatch):
    """The gradient of one step is not added to that of the next."""
    trainer = make_trainer(values=(1.0, 2.0, 3.0))
    trainer.optimizer = KeepsZeros(trainer.model.parameters(), lr=1.0)
    trainer.train()
    assert trainer.model.w.item() == -6.0
