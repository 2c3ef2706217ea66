"""``grad_norms`` on gradients whose norms are known: 3, 4 and 5."""

import math

import pytest
import torch
from torch import nn

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import GradNorms


class Two(nn.Module):
    """Modules ``a`` and ``b.inner``, weights of two elements each; the loss is linear, so the gradients are given."""

    def __init__(self, a=(1.0, 2.0), b=(6.0, 8.0), dtype=torch.float64):
        super().__init__()
        self.a = nn.Module()
        self.a.weight = nn.Parameter(torch.tensor(a, dtype=dtype))
        self.b = nn.Module()
        self.b.inner = nn.Module()
        self.b.inner.weight = nn.Parameter(torch.tensor(b, dtype=dtype))


class Linear:
    """Gives ``a`` the gradient (3, 0) and ``b`` (0, 4): norms 3 and 4, together 5."""

    def __init__(self, scale=1.0):
        self.scale = scale

    @hookimpl
    def compute_loss(self, trainer):
        return (3 * trainer.model.a.weight[0] + 4 * trainer.model.b.inner.weight[1]) * self.scale


def train(plugin, *others, model=None, lr=0.1, **arguments):
    model = model or Two()
    arguments.setdefault("max_updates", 1)
    trainer = Trainer(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        loaders={"train": [0] * 4},
        plugins=[plugin, *others] + ([] if any(hasattr(one, "compute_loss") for one in others) else [Linear()]),
        autoload=False,
        **arguments,
    )
    trainer.train()
    return {name: value for name, value in trainer.metrics.items() if not name.startswith("train/")}


def test_three_four_five():
    assert train(GradNorms(1)) == {"grad_norm/all": 5.0, "grad_norm/a": 3.0, "grad_norm/b": 4.0}


def test_depth():
    assert train(GradNorms(1, depth=0)) == {"grad_norm/all": 5.0}
    assert train(GradNorms(1, depth=2)) == {"grad_norm/all": 5.0, "grad_norm/a": 3.0, "grad_norm/b.inner": 4.0}
    assert train(GradNorms(1, depth=9)) == train(GradNorms(1, depth=2))


@pytest.mark.parametrize(("norm_type", "everything"), [(1, 7.0), ("inf", 4.0), (math.inf, 4.0)])
def test_other_norms(norm_type, everything):
    assert train(GradNorms(1, norm_type=norm_type)) == {"grad_norm/all": everything, "grad_norm/a": 3.0, "grad_norm/b": 4.0}


def test_weights_and_updates():
    """Weights (1, 2) and (6, 8): norms sqrt 5 and 10, together sqrt 105. SGD with rate 0.1 moves them by 0.3 and 0.4."""
    found = train(GradNorms(1, weights=True, updates=True))
    assert found == pytest.approx(
        {
            "grad_norm/all": 5.0,
            "grad_norm/a": 3.0,
            "grad_norm/b": 4.0,
            "weight_norm/all": math.sqrt(105),
            "weight_norm/a": math.sqrt(5),
            "weight_norm/b": 10.0,
            "update_ratio/all": 0.5 / math.sqrt(105),
            "update_ratio/a": 0.3 / math.sqrt(5),
            "update_ratio/b": 0.04,
        }
    )


def test_before_clipping():
    """Clipping to 1 moves by a fifth, so the update ratio of ``b`` is 0.04 / 5; the norms are those before it."""

    class Clips:
        phase = "bookkeeping"

        @hookimpl
        def clip_gradients(self, trainer):
            return nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)

    found = train(GradNorms(1, updates=True), Clips())
    assert found["grad_norm/all"] == 5.0
    assert found["update_ratio/b"] == pytest.approx(0.008, rel=1e-5)


def test_what_has_no_gradient_is_left_out():
    model = Two()
    model.a.weight.requires_grad_(False)
    assert train(GradNorms(1), model=model) == {"grad_norm/all": 4.0, "grad_norm/b": 4.0}


def test_no_gradient_at_all():
    class Steps:
        @hookimpl
        def train_step(self, trainer):
            trainer.update_parameters()
            return {"loss": 0.0}

    assert train(GradNorms(1, updates=True), Steps()).keys() == {"update_ratio/all", "update_ratio/a", "update_ratio/b"}


def test_every_second_update_means_those_updates():
    """Gradients grow by the step's number; of 4 updates the second and fourth are measured: (10 + 20) / 2."""

    class Grows:
        @hookimpl
        def compute_loss(self, trainer):
            return Linear(trainer.step + 1.0).compute_loss(trainer)

    assert train(GradNorms(2), Grows(), max_updates=4)["grad_norm/all"] == 15.0


def test_a_skipped_update_has_no_ratio():
    class Skips:
        @hookimpl
        def optimizer_step(self, trainer):
            return False

    found = train(GradNorms(1, updates=True), Skips(), max_steps=2, max_updates=None)
    assert found == {"grad_norm/all": 5.0, "grad_norm/a": 3.0, "grad_norm/b": 4.0}


def test_sparse_gradients():
    """Row 1 is used three times: its gradient is 3 in each of 4 columns, so the norm is 6."""
    model = nn.Embedding(5, 4, sparse=True)

    class Looks:
        @hookimpl
        def compute_loss(self, trainer):
            return trainer.model(torch.tensor([1, 1, 1])).sum()

    assert train(GradNorms(1), Looks(), model=model) == {"grad_norm/all": 6.0, "grad_norm/weight": 6.0}


def test_half_precision_does_not_overflow():
    """300 values of 30000 in float16, whose largest is 65504: the norm is 30000 * sqrt 300, about 519615."""
    model = nn.Module()
    model.part = nn.Module()
    model.part.weight = nn.Parameter(torch.zeros(300, dtype=torch.float16))

    class Large:
        @hookimpl
        def compute_loss(self, trainer):
            return (trainer.model.part.weight * torch.tensor(30000.0, dtype=torch.float16)).sum()

    found = train(GradNorms(1), Large(), model=model, lr=0.0)
    assert found["grad_norm/part"] == found["grad_norm/all"] == pytest.approx(30000 * math.sqrt(300), rel=1e-3)


def test_a_shared_parameter_counts_once():
    model = Two()
    model.c = nn.Module()
    model.c.weight = model.a.weight
    assert train(GradNorms(1), model=model) == {"grad_norm/all": 5.0, "grad_norm/a": 3.0, "grad_norm/b": 4.0}


def test_a_module_called_all():
    model = Two()
    model.all = nn.Module()
    model.all.weight = model.b.inner.weight
    del model.b
    model.b = nn.Module()
    model.b.inner = model.all
    assert train(GradNorms(1), model=model) == {"grad_norm/all": 5.0, "grad_norm/a": 3.0, "grad_norm/module.all": 4.0}


def test_what_compile_adds_to_names_is_left_out():
    model = Two()
    wrapped = nn.Module()
    wrapped._orig_mod = model
    model.a, inner = nn.Module(), model.a
    model.a._orig_mod = inner

    class Inside:
        @hookimpl
        def compute_loss(self, trainer):
            return 3 * inner.weight[0] + 4 * model.b.inner.weight[1]

    assert train(GradNorms(1, depth=2), Inside(), model=wrapped) == {
        "grad_norm/all": 5.0,
        "grad_norm/a": 3.0,
        "grad_norm/b.inner": 4.0,
    }


def test_no_model_is_an_error():
    class Steps:
        @hookimpl
        def train_step(self):
            return {"loss": 0.0}

    with pytest.raises(UsageError, match="grad_norms' needs a model"):
        Trainer(plugins=[GradNorms(), Steps()], max_steps=1, autoload=False).train()


def test_the_gradients_and_weights_are_left_alone():
    def weights(plugins):
        model = Two()
        train(plugins[0], *plugins[1:], model=model, max_updates=4)
        return [p.detach().clone() for p in model.parameters()]

    class Nothing:
        @hookimpl
        def before_train(self):
            pass

    measured, plain = weights([GradNorms(1, weights=True, updates=True)]), weights([Nothing()])
    assert all(torch.equal(a, b) for a, b in zip(measured, plain))


def test_nothing_is_read_from_the_device(monkeypatch):
    """What is logged is a tensor; in the hooks no value is asked for. On the CPU the bus itself takes the number."""
    logged = []
    plugin = GradNorms(1, weights=True, updates=True)

    class FakeTrainer:
        model = Two()

        def every_n_updates(self, n):
            return True

        def log(self, name, value):
            logged.append(value)

    trainer = FakeTrainer()
    for p in trainer.model.parameters():
        p.grad = torch.ones_like(p)
    for name in ("item", "tolist", "__bool__", "__float__", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, lambda *a, **k: pytest.fail("synchronizes"))
    plugin.gradients_ready(trainer)
    plugin.after_update(trainer)
    monkeypatch.undo()
    assert len(logged) == 9 and all(isinstance(value, torch.Tensor) for value in logged)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_updates": 0}, "every_updates = 0"),
        ({"depth": -1}, "depth = -1"),
        ({"norm_type": 0}, "norm_type = 0"),
        ({"norm_type": "two"}, "norm_type = 'two'"),
        ({"norm_type": math.nan}, "norm_type = nan"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(OptionError, match=message):
        GradNorms(**options)
