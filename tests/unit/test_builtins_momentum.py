"""``momentum``: SGD's and Adam's, against formulas; the table of test_builtins_lr has torch's classes and MMCV's formulas."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import OneCycleLR

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import LR, Checkpoint, Momentum


class Notes:
    """Notes rate and momentum of each group when an update is applied."""

    def __init__(self, stop=None):
        self.rates, self.momenta, self.stop = [], [], stop

    @hookimpl
    def compute_loss(self, trainer):
        return sum(p.sum() for p in trainer.model.parameters())

    @hookimpl
    def gradients_ready(self, trainer):
        groups = [group for optimizer in trainer.optimizers.values() for group in optimizer.param_groups]
        self.rates.append([group["lr"] for group in groups])
        self.momenta.append([group["momentum"] if "momentum" in group else group["betas"][0] for group in groups])

    @hookimpl
    def after_step(self, trainer):
        if trainer.step + 1 == self.stop:
            trainer.stop("asked")


def sgd(*momenta):
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(()))], "momentum": m} for m in momenta], lr=0.1)


def adam(beta=0.9):
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(()))], lr=0.1, betas=(beta, 0.995))


def train(plugins, optimizer, updates, resume=None, notes=None, batches=5, **arguments):
    notes = notes or Notes()
    model = torch.nn.ParameterList([p for group in optimizer.param_groups for p in group["params"]])
    trainer = Trainer(
        model,
        optimizer=optimizer,
        loaders={"train": [0] * batches},
        plugins=[*plugins, notes],
        max_updates=updates,
        autoload=False,
        **arguments,
    )
    trainer.train(resume=resume)
    return notes


@pytest.mark.parametrize("make", [lambda: sgd(0.9), adam])
@pytest.mark.parametrize("three_phase", [False, True])
def test_runs_against_the_rate_of_one_cycle_as_in_torch(make, three_phase):
    args = {"three_phase": three_phase}
    notes = train([LR("one_cycle", args=args), Momentum(args=args)], make(), 30)
    optimizer = make()
    theirs = OneCycleLR(optimizer, 0.1, 30, three_phase=three_phase)
    for update in range(30):
        group = optimizer.param_groups[0]
        momentum = group["momentum"] if "momentum" in group else group["betas"][0]
        assert notes.momenta[update] == [pytest.approx(momentum, rel=1e-12)]
        assert notes.rates[update] == [pytest.approx(group["lr"], rel=1e-12)]
        optimizer.step()
        if update < 29:
            theirs.step()


def test_other_betas_stay():
    optimizer = adam()
    train([Momentum("linear", end=0.5)], optimizer, 4)
    assert optimizer.param_groups[0]["betas"] == (pytest.approx(0.9 * 0.5), 0.995)


def test_each_group_has_its_own_base():
    notes = train([Momentum("linear", end=0.5)], sgd(0.8, 0.4), 4)
    assert notes.momenta == [pytest.approx([0.8 * f, 0.4 * f]) for f in (1, 0.875, 0.75, 0.625)]


def test_the_warmup_divides():
    """From 0.6 / 0.75 = 0.8 down to 0.6 in 4 updates: divisors 0.75, 0.8125, 0.875, 0.9375."""
    notes = train([Momentum("constant", warmup_updates=4, warmup_start=0.75)], sgd(0.6), 6)
    assert notes.momenta == [[pytest.approx(0.6 / f)] for f in (0.75, 0.8125, 0.875, 0.9375, 1, 1)]


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 0.5), st.floats(0.6, 1), st.integers(1, 8), st.sampled_from(["linear", "constant", "exp"]))
def test_any_warmup_falls_to_the_base(base, start, length, kind):
    notes = train([Momentum("constant", warmup=kind, warmup_updates=length, warmup_start=start)], sgd(base), length + 2)
    seen = [momenta[0] for momenta in notes.momenta]
    assert seen[0] == pytest.approx(base / start, rel=1e-12)
    assert seen == sorted(seen, reverse=True)
    assert seen[length:] == [base, base]


def test_step_and_cyclic_have_mmcvs_defaults():
    notes = train([Momentum("step", args={"every": 2})], sgd(0.8), 5)
    assert [one[0] for one in notes.momenta] == pytest.approx([0.8, 0.8, 0.4, 0.4, 0.2])
    notes = train([Momentum("cyclic")], sgd(0.95), 10)
    assert notes.momenta[4] == [pytest.approx(0.85)]


def test_by_epoch():
    notes = train([Momentum("linear", by="epoch", end=0.5)], sgd(0.8), 10)
    assert notes.momenta == [[0.8]] * 5 + [[pytest.approx(0.6)]] * 5


def test_no_momentum_to_set():
    optimizer = torch.optim.Adagrad([torch.nn.Parameter(torch.zeros(()))], lr=0.1)
    with pytest.raises(UsageError, match="plugin 'momentum': no parameter group of the optimizer has such a value"):
        train([Momentum()], optimizer, 2)


@pytest.mark.parametrize(
    ("options", "value"),
    [({"schedule": "constant", "warmup_updates": 2, "warmup_start": 0.5}, "1.6"), ({"schedule": "linear", "end": 2.0}, "1")],
)
def test_not_below_1(options, value):
    with pytest.raises(UsageError, match=f"momentum.schedule gives {value}.*not in .0, 1."):
        train([Momentum(**options)], sgd(0.8), 9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"warmup_start": 0.0, "warmup_updates": 2}, "momentum.warmup = 'linear', which divides by it"),
        ({"schedule": "one_cicle"}, "momentum.schedule: there is no schedule 'one_cicle'; did you mean 'one_cycle'"),
        ({"args": {"div_factor": 3}}, "momentum.schedule 'one_cycle': unknown option 'div_factor' in momentum.args"),
        ({"end": 0.5}, "momentum.end = 0.5: the schedule 'one_cycle' has no end"),
    ],
)
def test_options(options, said):
    with pytest.raises(OptionError, match=said):
        Momentum(**options)


@pytest.mark.parametrize("make", [lambda: sgd(0.9, 0.5), adam])
@pytest.mark.parametrize("cut", [1, 4, 6])
def test_goes_on_exactly(tmp_path, make, cut):
    def plugins():
        return [Momentum("cosine", end=0.25, warmup_updates=3), Checkpoint()]

    whole = train(plugins(), make(), 8).momenta
    notes = Notes(stop=cut)
    train(plugins(), make(), 8, notes=notes, work_dir=tmp_path / "run")
    rest = train(plugins(), make(), 8, resume="auto", work_dir=tmp_path / "run")
    assert notes.momenta + rest.momenta == whole
