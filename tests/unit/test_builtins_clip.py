"""Clipping against torch's own functions, and adaptive clipping against the formula of the paper, written with loops."""

import math

import pytest
import torch
from torch import nn

from trainhooks import OptionError, Trainer, hookimpl
from trainhooks_builtins import Clip


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2).double()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return 50 * (self.second(torch.tanh(self.first(x) * self.scale).double()) ** 2).sum()


class Look:
    """Keeps the gradients before and after clipping, and what the stage returned."""

    @hookimpl
    def gradients_ready(self, trainer):
        self.before = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}

    @hookimpl(wrapper=True)
    def clip_gradients(self, trainer):
        self.norm = yield
        self.after = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
        return self.norm


def run(clip, model=None, optimizer=None, batches=None):
    torch.manual_seed(1)
    model = model or Net()
    optimizer = optimizer(model) if optimizer else torch.optim.SGD(model.parameters(), lr=0.0)
    look = Look()
    batches = batches or [torch.randn(5, 3)]
    trainer = Trainer(
        model, optimizer=optimizer, loaders={"train": batches}, max_epochs=1, plugins=[look, clip], autoload=False
    )
    trainer.train()
    return look, trainer


def copies(gradients):
    parameters = {name: nn.Parameter(torch.zeros_like(gradient)) for name, gradient in gradients.items()}
    for name, parameter in parameters.items():
        parameter.grad = gradients[name].clone()
    return parameters


def assert_gradients(look, parameters):
    assert look.after.keys() == parameters.keys()
    for name, parameter in parameters.items():
        torch.testing.assert_close(look.after[name], parameter.grad, rtol=1e-6, atol=0)


class TestNorm:
    @pytest.mark.parametrize("norm_type", [1.0, 2.0, 3, "inf"])
    @pytest.mark.parametrize("max_norm", [0.1, 1.0, 1e6])
    def test_is_that_of_torch(self, max_norm, norm_type):
        look, trainer = run(Clip(max_norm, norm_type=norm_type))
        wanted = copies(look.before)
        norm = torch.nn.utils.clip_grad_norm_(wanted.values(), max_norm, float(norm_type))
        assert_gradients(look, wanted)
        assert look.norm.item() == pytest.approx(norm.item(), rel=1e-6)
        assert trainer.metrics["grad_norm"] == look.norm.item()
        assert isinstance(look.norm, torch.Tensor)

    def test_is_1_by_default(self):
        look, _ = run(Clip())
        wanted = copies(look.before)
        torch.nn.utils.clip_grad_norm_(wanted.values(), 1.0)
        assert look.norm > 1
        assert_gradients(look, wanted)

    def test_smaller_gradients_stay_as_they_are(self):
        look, _ = run(Clip(1e6))
        assert all(torch.equal(look.before[name], look.after[name]) for name in look.before)

    @pytest.mark.parametrize("value", [math.inf, math.nan])
    def test_gradients_that_are_not_finite_stay_so(self, make_trainer, value):
        trainer = make_trainer([Clip(1.0)], values=[value])
        trainer.train()
        assert not math.isfinite(trainer.metrics["grad_norm"])
        assert not math.isfinite(trainer.model.w.item())

    def test_without_gradients_there_is_no_norm(self):
        class Nothing(nn.Module):
            def __init__(self):
                super().__init__()
                self.w, self.v = nn.Parameter(torch.ones(())), torch.ones((), requires_grad=True)

            def forward(self, x):
                return (x * self.v).sum()

        look, trainer = run(Clip(), Nothing())
        assert look.norm is None
        assert "grad_norm" not in trainer.metrics

    def test_a_clip_of_the_user_takes_its_place(self, make_trainer):
        class Own:
            @hookimpl
            def clip_gradients(self, trainer):
                return torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 2.0)

        trainer = make_trainer([Own(), "clip"], values=[10.0])
        trainer.train()
        assert trainer.model.w.item() == pytest.approx(-2.0, rel=1e-6)


def two_optimizers(model):
    return {
        "a": torch.optim.SGD([{"params": model.first.parameters()}, {"params": [model.scale]}], lr=0.0),
        "b": torch.optim.SGD([*model.second.parameters(), model.unused, model.scale], lr=0.0),
    }


class TestPer:
    @pytest.mark.parametrize(
        ("per", "parts"),
        [
            ("optimizer", {"a": ["first.weight", "first.bias", "scale"], "b": ["second.weight", "second.bias"]}),
            ("group", {"a/0": ["first.weight", "first.bias"], "a/1": ["scale"], "b/0": ["second.weight", "second.bias"]}),
        ],
    )
    def test_each_part_is_clipped_for_itself_and_logged(self, per, parts):
        look, trainer = run(Clip(1.5, per=per), optimizer=two_optimizers)
        wanted = copies(look.before)
        norms = {}
        for part, names in parts.items():
            norms[part] = torch.nn.utils.clip_grad_norm_([wanted[name] for name in names], 1.5).item()
        assert_gradients(look, wanted)
        logged = {name.removeprefix("clip/"): value for name, value in trainer.metrics.items() if name.startswith("clip/")}
        assert logged == pytest.approx(norms, rel=1e-6)
        assert look.norm.item() == pytest.approx(math.hypot(*norms.values()), rel=1e-6)
        assert trainer.metrics["grad_norm"] == look.norm.item()

    def test_a_parameter_of_two_optimizers_is_clipped_once(self):
        look, _ = run(Clip(0.5), optimizer=two_optimizers)
        wanted = copies(look.before)
        torch.nn.utils.clip_grad_norm_(wanted.values(), 0.5)
        assert_gradients(look, wanted)


class TestValue:
    def test_is_that_of_torch(self):
        look, trainer = run(Clip(max_value=0.3))
        wanted = copies(look.before)
        torch.nn.utils.clip_grad_value_(wanted.values(), 0.3)
        assert_gradients(look, wanted)
        assert look.norm.item() == pytest.approx(torch.nn.utils.get_total_norm(look.before.values()).item(), rel=1e-6)
        assert trainer.metrics["grad_norm"] == look.norm.item()


def adaptively_clipped(weight, gradient, ratio, eps):
    """Brock et al. 2021, equation 3, row by row."""
    rows = [(weight, gradient)] if weight.ndim <= 1 else list(zip(weight, gradient, strict=True))
    clipped = []
    for w, g in rows:
        norm_w = max(math.sqrt(sum(x * x for x in w.flatten().tolist())), eps)
        norm_g = math.sqrt(sum(x * x for x in g.flatten().tolist()))
        clipped.append(g * (ratio * norm_w / norm_g) if norm_g / norm_w > ratio else g)
    return clipped[0] if weight.ndim <= 1 else torch.stack(clipped)


class TestAdaptive:
    @pytest.mark.parametrize("ratio", [0.01, 0.5, 4.0])
    def test_is_that_of_the_paper(self, ratio):
        class Convolution(nn.Module):
            def __init__(self):
                super().__init__()
                self.convolution = nn.Conv1d(3, 4, 2)
                self.linear = nn.Linear(4, 2)
                self.scale = nn.Parameter(torch.tensor(0.5))
                nn.init.zeros_(self.linear.bias)
                with torch.no_grad():
                    self.linear.weight[0] = 0

            def forward(self, x):
                return self.scale * (self.linear(self.convolution(x).mean(-1)) - 1).square().sum()

        look, trainer = run(Clip(adaptive=ratio, eps=0.02), Convolution(), batches=[torch.randn(5, 3, 6)])
        changed = 0
        for name, parameter in trainer.model.named_parameters():
            wanted = adaptively_clipped(parameter.detach(), look.before[name], ratio, 0.02)
            torch.testing.assert_close(look.after[name], wanted, rtol=1e-5, atol=1e-8)
            changed += not torch.equal(look.after[name], look.before[name])
        assert changed

    def test_a_gradient_of_zero_stays_zero(self, make_trainer):
        trainer = make_trainer([Clip(adaptive=0.01)], values=[0.0])
        trainer.train()
        assert trainer.model.w.item() == 0


class Words(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.embedding = nn.Embedding(6, 3, sparse=sparse)
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return 30 * self.linear(self.embedding(x)).square().sum()


class TestSparseGradients:
    @pytest.mark.parametrize(
        "options", [{"max_norm": 0.5}, {"max_norm": 0.5, "norm_type": 1.0}, {"max_value": 0.2}, {"adaptive": 0.1}]
    )
    def test_are_clipped_as_dense_ones(self, options):
        batches = [torch.tensor([1, 4, 1, 2, 1])]  # a row that occurs several times counts as their sum
        found = []
        for sparse in (False, True):
            look, _ = run(Clip(**options), Words(sparse), batches=batches)
            assert look.after["embedding.weight"].is_sparse is sparse
            found.append((look.after["embedding.weight"].to_dense(), look.after["linear.weight"], look.norm))
        for dense, sparse in zip(*found, strict=True):
            torch.testing.assert_close(dense, sparse, rtol=1e-6, atol=1e-8)


class TestOptions:
    def test_only_one_kind(self):
        with pytest.raises(OptionError, match="give one of max_norm, max_value and adaptive, not max_norm and adaptive"):
            Clip(1.0, adaptive=0.1)

    @pytest.mark.parametrize("name", ["max_norm", "max_value", "adaptive", "norm_type", "eps"])
    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
    def test_limits_are_above_0(self, name, value):
        with pytest.raises(OptionError, match=f"{name} = .*: must be above 0"):
            Clip(**{name: value})

    @pytest.mark.parametrize("options", [{"per": "module"}, {"per": "group", "max_value": 1.0}])
    def test_parts_are_known_and_of_norms(self, options):
        with pytest.raises(OptionError, match=r"per = .*: 'all', or with max_norm 'optimizer' or 'group'"):
            Clip(**options)

    def test_options_of_a_file_fit(self, make_trainer):
        trainer = make_trainer(["clip"], options={"clip": {"max_norm": 2, "norm_type": "inf"}})
        assert trainer.plugins["clip"].norm_type == math.inf
