"""``lr`` against torch's own schedulers, update by update."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import LR, Checkpoint


class Rates:
    """Notes the rates in force when each update is applied."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def gradients_ready(self, trainer):
        groups = [group for optimizer in trainer.optimizers.values() for group in optimizer.param_groups]
        self.seen.append([float(group["lr"]) for group in groups])

    @property
    def first(self):
        return [rates[0] for rates in self.seen]


def train(plugin, *, bases=(1.0,), updates=None, batches=None, rates=None, model=None, optimizer=None, **arguments):
    """Train ``updates`` updates of batches of one value; return the rates of each."""
    rates = rates or Rates()
    parameters = [torch.nn.Parameter(torch.zeros(())) for _ in bases]
    model = model or torch.nn.ParameterList(parameters)
    optimizer = optimizer or torch.optim.SGD([{"params": [p], "lr": b} for p, b in zip(model.parameters(), bases)])

    class Sums:
        @hookimpl
        def compute_loss(self, trainer):
            return sum(p for p in trainer.model.parameters())

    limits = {"max_updates": updates} if updates is not None else {}
    trainer = Trainer(
        model,
        optimizer=optimizer,
        loaders={"train": batches if batches is not None else [0] * 5},
        plugins=[plugin, rates, Sums(), *arguments.pop("others", [])],
        autoload=False,
        **{**limits, **{k: v for k, v in arguments.items() if k != "resume"}},
    )
    trainer.train(resume=arguments.get("resume"))
    return rates


def torchs(bases, updates, warmup, start, main):
    """Return the rates of torch's schedulers: LinearLR for the warmup, then ``main(optimizer)``."""
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(()))], "lr": base} for base in bases])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR calls step() with an epoch, which torch itself deprecates
        schedule = main(optimizer)
        if warmup:
            first = LinearLR(optimizer, start_factor=start, end_factor=1.0, total_iters=warmup)
            schedule = SequentialLR(optimizer, [first, schedule], milestones=[warmup])
        seen = []
        for _ in range(updates):
            seen.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            schedule.step()
    return seen


class TestAgainstTorch:
    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(st.floats(1e-4, 10), min_size=1, max_size=3),
        st.integers(2, 30),
        st.data(),
    )
    def test_warmup_and_cosine(self, bases, updates, data):
        """Each group has its own base; torch's floor ``eta_min`` is the same for all, so the end is 0 for several."""
        warmup = data.draw(st.integers(0, updates - 1))
        start = data.draw(st.floats(1e-3, 1))
        end = data.draw(st.floats(0, 1)) if len(bases) == 1 else 0.0
        seen = train(LR(warmup_updates=warmup, warmup_start=start, end=end), bases=bases, updates=updates).seen
        length = updates - warmup
        expected = torchs(bases, updates, warmup, start, lambda o: CosineAnnealingLR(o, length, eta_min=end * bases[0]))
        for ours, theirs in zip(seen, expected, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-15 * max(bases) * updates)

    @settings(max_examples=25, deadline=None)
    @given(st.floats(1e-4, 10), st.integers(2, 30), st.data())
    def test_warmup_and_linear(self, base, updates, data):
        warmup = data.draw(st.integers(0, updates - 1))
        start, end = data.draw(st.floats(1e-3, 1)), data.draw(st.floats(0, 1))
        plugin = LR("linear", warmup_updates=warmup, warmup_start=start, end=end)
        seen = train(plugin, bases=[base], updates=updates).first
        length = updates - warmup
        expected = torchs([base], updates, warmup, start, lambda o: LinearLR(o, 1.0, end, total_iters=length))
        assert seen == pytest.approx([rates[0] for rates in expected], rel=1e-12, abs=1e-15 * base * updates)

    def test_warmup_and_constant(self):
        seen = train(LR("constant", warmup_updates=4, warmup_start=0.2), bases=[2.0, 0.5], updates=9).seen
        expected = torchs([2.0, 0.5], 9, 4, 0.2, lambda o: ConstantLR(o, 1.0, total_iters=1))
        assert [pytest.approx(rates, rel=1e-12) for rates in expected] == seen

    def test_by_hand(self):
        """Warmup 0, 0.5, then (1 + cos(pi i / 4)) / 2 for i = 0..3: 1, 0.8536, 0.5, 0.1464."""
        root = math.sqrt(0.5)
        assert train(LR(warmup_updates=2), updates=6).first == pytest.approx(
            [0, 0.5, 1, (1 + root) / 2, 0.5, (1 - root) / 2], abs=1e-12
        )


class TestUnits:
    def test_lr_03_epochs_and_updates_are_the_same_list(self):
        """5 updates in an epoch, 2 epochs of warmup from 0.1: 0.1 + 0.09 (i - 1), then 1."""
        expected = [0.1 + 0.09 * i for i in range(10)] + [1.0] * 5
        for options in ({"warmup_epochs": 2.0}, {"warmup_updates": 10}):
            rates = train(LR("constant", warmup_start=0.1, **options), max_epochs=3)
            assert rates.first == pytest.approx(expected, abs=1e-12)

    def test_base_is_for_every_group(self):
        assert train(LR("constant", base=0.25), bases=[1.0, 2.0], updates=2).seen == [[0.25, 0.25]] * 2

    def test_several_optimizers(self):
        model = torch.nn.ParameterList([torch.zeros(()), torch.zeros(())])
        optimizers = {"g": torch.optim.SGD([model[0]], 1.0), "d": torch.optim.Adam([model[1]], 0.1)}
        seen = train(LR("linear"), model=model, optimizer=optimizers, updates=4).seen
        assert seen == [pytest.approx([f, 0.1 * f]) for f in (1, 0.75, 0.5, 0.25)]

    @pytest.mark.parametrize("rate", [1, torch.tensor(1.0)])
    def test_a_rate_that_is_no_float(self, rate):
        """A tensor stays the object that a compiled optimizer holds; its base is not the tensor that is being changed."""
        model = torch.nn.ParameterList([torch.zeros(())])
        optimizer = torch.optim.SGD([model[0]], rate)
        rates = train(LR("linear"), model=model, optimizer=optimizer, updates=4)
        assert rates.first == pytest.approx([1, 0.75, 0.5, 0.25])
        if isinstance(rate, torch.Tensor):
            assert optimizer.param_groups[0]["lr"] is rate

    def test_a_group_that_comes_later_has_its_own_base(self):
        class Unfreezes:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 1:
                    trainer.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(()))], "lr": 4.0})

        rates = train(LR("linear"), updates=4, others=[Unfreezes()])
        assert rates.seen[:2] == [[1.0], [0.75]]
        assert rates.seen[3] == pytest.approx([0.25, 1.0])


class TestLength:
    def test_lr_02_a_warmup_longer_than_the_run(self, messages):
        rates = train(LR(warmup_updates=100, warmup_start=0.1), updates=10)
        assert rates.first == pytest.approx([0.1 + 0.009 * i for i in range(10)], abs=1e-12)
        warned = [text for text in messages() if "warmup" in text]
        assert warned == ["lr: the warmup takes 100 updates and the run has 10, so the schedule 'cosine' never starts"]

    def test_unknown(self):
        with pytest.raises(UsageError, match="must know where it ends: set max_steps or max_updates, or lr.total_updates"):
            train(LR(), batches=iter([0] * 3), max_epochs=1)
        with pytest.raises(UsageError, match="warmup_epochs needs a train loader with a length"):
            train(LR("constant", warmup_epochs=1), batches=iter([0] * 3), max_epochs=1)
        assert train(LR("constant"), batches=iter([0] * 3), max_epochs=1).first == [1.0] * 3

    def test_the_last_factor_stays_beyond_the_end(self):
        assert train(LR("linear", total_updates=2, end=0.5), updates=5).first == [1.0, 0.75, 0.5, 0.5, 0.5]

    @pytest.mark.parametrize(
        ("limits", "total"),
        [({"max_epochs": 2}, 10), ({"max_epochs": 2, "max_steps": 8}, 8), ({"max_steps": 30, "max_updates": 4}, 4)],
    )
    def test_is_that_of_the_run(self, limits, total):
        rates = train(LR("linear"), **limits)
        assert rates.first == pytest.approx([1 - i / total for i in range(total)], abs=1e-12)

    def test_no_optimizer(self):
        class Steps:
            @hookimpl
            def train_step(self):
                return {}

        with pytest.raises(UsageError, match="plugin 'lr' needs an optimizer"):
            Trainer(plugins=[LR(), Steps()], max_steps=1, autoload=False).train()


class TestResume:
    def test_lr_01_a_longer_run_follows_the_new_length(self, tmp_path):
        """Cosine, max 10, stopped after 5, resumed with max 20: the list of the case, and it never rises."""

        class Stops:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 4:
                    trainer.stop("asked")

        train(LR(), batches=[0] * 100, updates=10, others=[Stops(), Checkpoint()], work_dir=tmp_path / "run")
        rates = Rates()
        others = [Checkpoint()]
        train(LR(), batches=[0] * 100, updates=20, rates=rates, others=others, work_dir=tmp_path / "run", resume="auto")
        assert rates.first == pytest.approx(
            [
                *(0.8536, 0.7939, 0.7270, 0.6545, 0.5782, 0.5, 0.4218, 0.3455, 0.2730),
                *(0.2061, 0.1464, 0.0955, 0.0545, 0.0245, 0.0062),
            ],
            abs=5e-5,
        )
        assert rates.first == sorted(rates.first, reverse=True)

    @pytest.mark.parametrize("cut", range(1, 8))
    def test_goes_on_exactly_per_group(self, tmp_path, cut):
        class Stops:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step + 1 == cut:
                    trainer.stop("asked")

        whole = train(LR(warmup_updates=3), bases=(1.0, 0.1), updates=8).seen
        rates = Rates()
        arguments = {"bases": (1.0, 0.1), "updates": 8, "rates": rates, "work_dir": tmp_path / "run"}
        train(LR(warmup_updates=3), others=[Stops(), Checkpoint()], **arguments)
        assert len(rates.seen) == cut
        train(LR(warmup_updates=3), others=[Checkpoint()], resume="auto", **arguments)
        assert rates.seen == whole


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"warmup_start": 1.5}, "warmup_start = 1.5: must be between 0 and 1"),
        ({"end": -0.1}, "end = -0.1"),
        ({"end": math.nan}, "end = nan"),
        ({"base": -1.0}, "base = -1.0"),
        ({"base": math.nan}, "base = nan"),
        ({"base": math.inf}, "base = inf"),
        ({"warmup_updates": -1}, "warmup_updates or warmup_epochs"),
        ({"warmup_updates": 1, "warmup_epochs": 1.0}, "not both"),
        ({"total_updates": 0}, "total_updates = 0: must be at least 1"),
        ({"total_updates": -5}, "total_updates = -5"),
    ],
)
def test_options(options, said):
    with pytest.raises(OptionError, match=said):
        LR(**options)
