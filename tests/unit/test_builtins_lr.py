"""``lr`` against torch's own schedulers, update by update."""

import math
import runpy
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CyclicLR,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import LR, Checkpoint
from trainhooks_builtins._schedule_options import SCHEDULES, compose, read_schedule
from trainhooks_builtins._schedules import warmup


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


class StopsAfter:
    def __init__(self, steps):
        self.steps = steps

    @hookimpl
    def after_step(self, trainer):
        if trainer.step + 1 == self.steps:
            trainer.stop("asked")


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
    @pytest.mark.parametrize("options", [{}, {"by": "step"}, {"by": "epoch"}])
    def test_registered_while_running(self, options):
        """It takes over from where the run is: after the update that has been made, or with the next step or epoch."""

        class Registers:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 4:
                    trainer.register(LR("linear", **options), name="lr")

        rates = Rates()
        train(Registers(), rates=rates, max_epochs=2)
        by_epoch = [0.5] * 5 if options == {"by": "epoch"} else None
        by_step = [1 - i / 10 for i in range(5, 10)]
        by_update = [1.0, *by_step[1:]]
        assert rates.first == [1.0] * 5 + (by_epoch or (by_step if options else by_update))

    def test_unknown(self):
        with pytest.raises(UsageError, match="must know where it ends: set max_steps or max_updates, or lr.total_updates"):
            train(LR(), batches=iter([0] * 3), max_epochs=1)
        with pytest.raises(UsageError, match="warmup_epochs needs a train loader with a length"):
            train(LR("constant", warmup_epochs=1), batches=iter([0] * 3), max_epochs=1)
        assert train(LR("constant"), batches=iter([0] * 3), max_epochs=1).first == [1.0] * 3

    def test_a_share_of_a_length_of_ones_own(self, messages):
        train(LR("linear", warmup_ratio=0.5, total_epochs=2), max_epochs=3)
        assert [text for text in messages() if "lr" in text] == [
            "lr: linear by update over 10 updates, warmup 5 updates",
            "lr: the schedule 'linear' ends after 10 updates and the run has 15: its last value stays",
        ]
        with pytest.raises(UsageError, match="lr.warmup_ratio needs a run whose length is known: set max_updates"):
            train(LR("constant", warmup_ratio=0.5), batches=iter([0] * 3), max_epochs=1)
        with pytest.raises(UsageError, match="lr.total_epochs needs a train loader with a length.*; give lr.total_updates"):
            train(LR("linear", total_epochs=2), batches=iter([0] * 3), max_epochs=1)

    def test_one_line_says_what_is_planned(self, messages):
        train(LR(warmup_updates=2), updates=6)
        train(LR(), updates=1)
        train(LR("constant"), batches=iter([0] * 3), max_epochs=1)
        train(LR("exp", args={"gamma": 0.9}, by="epoch", warmup_updates=1), max_epochs=3)
        assert [text for text in messages() if text.startswith("lr")] == [
            "lr: cosine by update over 6 updates, warmup 2 updates",
            "lr: cosine by update over 1 update",
            "lr: constant by update",
            "lr: exp (gamma 0.9) by epoch over 3 epochs, warmup 1 update",
        ]

    def test_by_step_until_a_limit_of_updates(self):
        """Where every step is an update, a limit of updates is one of steps too."""
        rates = train(LR("linear", by="step"), batches=iter([0] * 9), updates=4)
        assert rates.first == [1, 0.75, 0.5, 0.25]

    def test_beyond_an_end_that_was_not_foreseen(self, messages):
        parts = [{"name": "linear", "steps": 2, "end": 0.5}]
        assert train(LR(parts, by="step"), batches=iter([0] * 4), max_epochs=1).first == [1, 0.75, 0.5, 0.5]

        class Sometimes:
            @hookimpl
            def update_due(self, trainer):
                return trainer.end_of_epoch

        class Stops:
            @hookimpl
            def after_step(self, trainer):
                if trainer.update == 4:
                    trainer.stop("asked")

        plugin = LR("linear", by="epoch", total_epochs=2, end=0.5)
        assert train(plugin, updates=9, others=[Sometimes(), Stops()]).first == [1, 0.75, 0.5, 0.5]
        assert [text for text in messages() if "ended" in text] == [
            "lr: the schedule 'linear' has ended after 2 steps and the run goes on: its last value stays",
            "lr: the schedule 'linear' has ended after 2 epochs and the run goes on: its last value stays",
        ]

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


class TestGroups:
    def named(self):
        model = torch.nn.ParameterList([torch.zeros(()), torch.zeros(()), torch.zeros(())])
        groups = [{"params": [p], "lr": base} for p, base in zip(model, (1.0, 2.0, 4.0))]
        groups[2]["name"] = "head"
        return model, torch.optim.SGD(groups)

    @pytest.mark.parametrize(
        ("groups", "factors"),
        [([0], (0.5, 1, 1)), (["head"], (1, 1, 0.5)), ([1, "head"], (1, 0.5, 0.5)), (None, (0.5,) * 3), ([], (1, 1, 1))],
    )
    def test_only_some(self, groups, factors):
        if groups == []:
            with pytest.raises(UsageError, match="plugin 'lr': no parameter group"):
                train(LR("linear", groups=groups), updates=2)
            return
        model, optimizer = self.named()
        seen = train(LR("linear", groups=groups), model=model, optimizer=optimizer, updates=2).seen
        assert seen == [[1.0, 2.0, 4.0], [base * factor for base, factor in zip((1.0, 2.0, 4.0), factors)]]

    def test_two_instances_for_two_groups(self):
        model, optimizer = self.named()
        others = [LR("exp", args={"gamma": 0.5}, groups=["head"])]
        seen = train(LR("linear", groups=[0, 1]), model=model, optimizer=optimizer, updates=4, others=others).seen
        assert seen == [pytest.approx([1 - i / 4, 2 - i / 2, 4 * 0.5**i]) for i in range(4)]

    @pytest.mark.parametrize("group", [3, -1, "heed", True])
    def test_there_is_none(self, group):
        model, optimizer = self.named()
        if group is True:  # counts as 1
            train(LR("linear", groups=[group]), model=model, optimizer=optimizer, updates=2)
            return
        with pytest.raises(
            UsageError, match=f"lr.groups: there is no parameter group {group!r}; there are 0 to 2, named: head"
        ):
            train(LR("linear", groups=[group]), model=model, optimizer=optimizer, updates=2)

    def test_absolute_values_are_the_same_for_all(self):
        """From each base to 0.1 in a straight line over 4."""
        seen = train(LR("linear", args={"end_value": 0.1}), bases=(1.0, 0.5), updates=5, others=[]).seen
        assert seen == [pytest.approx([1.0 - 0.9 * i / 5, 0.5 - 0.4 * i / 5]) for i in range(5)]

    def test_initial_lr_has_torchs_name_and_a_base_replaces_it(self):
        model = torch.nn.ParameterList([torch.zeros(())])
        optimizer = torch.optim.SGD(model, 3.0)
        train(LR("linear"), model=model, optimizer=optimizer, updates=2)
        assert optimizer.param_groups[0]["initial_lr"] == 3.0
        train(LR("linear", base=2.0), model=model, optimizer=optimizer, updates=2)
        assert optimizer.param_groups[0]["initial_lr"] == 2.0

    def test_lr_scale_multiplies(self):
        model = torch.nn.ParameterList([torch.zeros(())])
        optimizer = torch.optim.SGD(model, 1.0)
        optimizer.param_groups[0]["lr_scale"] = 0.5
        assert train(LR("linear"), model=model, optimizer=optimizer, updates=2).first == [0.5, 0.25]


class TestComposition:
    def test_each_begins_where_the_one_before_ends(self):
        """Up in 4 updates from 0.2, level for 2, then half a cosine over what is left, 4, to 0.5."""
        parts = [
            {"name": "linear", "updates": 4, "start": 0.2, "end": 1.0},
            {"name": "constant", "updates": 2},
            {"name": "cosine", "end": 0.5},
        ]
        root = math.sqrt(0.5)
        wanted = [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 0.75 + root / 4, 0.75, 0.75 - root / 4]
        assert train(LR(parts), updates=10).first == pytest.approx(wanted, rel=1e-12)

    @pytest.mark.parametrize("length", [{"updates": 5}, {"epochs": 1}, {"epochs": 1.0}, {"ratio": 0.25}])
    def test_lengths(self, length):
        """5 batches in an epoch, 4 epochs: a quarter is one epoch is 5 updates."""
        parts = [{"name": "constant", "factor": 0.5, **length}, {"name": "linear"}]
        wanted = [0.5] * 5 + [1 - i / 15 for i in range(15)]
        assert train(LR(parts), max_epochs=4).first == pytest.approx(wanted, rel=1e-12)

    def test_by_epoch(self):
        parts = [{"name": "constant", "factor": 0.5, "epochs": 1}, {"name": "linear"}]
        wanted = [0.5] * 5 + [1.0] * 5 + [2 / 3] * 5 + [1 / 3] * 5
        assert train(LR(parts, by="epoch"), max_epochs=4).first == pytest.approx(wanted, rel=1e-12)

    def test_a_closed_end_stays_there(self, messages):
        parts = [{"name": "linear", "updates": 2, "end": 0.5}, {"name": "linear", "start": 0.5, "end": 0.25, "updates": 2}]
        assert train(LR(parts), updates=6).first == pytest.approx([1, 0.75, 0.5, 0.375, 0.25, 0.25])
        assert [text for text in messages() if "lr" in text] == [
            "lr: linear, linear by update over 4 updates",
            "lr: the schedule 'linear, linear' ends after 4 updates and the run has 6: its last value stays",
        ]

    def test_after_a_warmup(self):
        parts = [{"name": "constant", "updates": 2}, {"name": "linear"}]
        wanted = [0, 0.5, 1, 1, 1, 0.75, 0.5, 0.25]
        assert train(LR(parts, warmup_updates=2), updates=8).first == pytest.approx(wanted)

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 40), st.integers(0, 60))
    def test_a_part_knows_nothing_of_the_others(self, lengths, last, progress):
        parts = [{"name": "linear", "updates": n, "start": i + 1, "end": i + 2} for i, n in enumerate(lengths)]
        plan = read_schedule([*parts, {"name": "cosine"}], None, 0.0, "update", SCHEDULES, "lr")
        total = sum(lengths) + last
        whole, own, starts = compose(plan, total, int)
        assert own is None and whole.relative and whole.bounded
        start = 0
        for index, n in enumerate(lengths):
            if progress < start + n:
                assert whole.value(progress, total, 1.0) == pytest.approx(index + 1 + (progress - start) / n, rel=1e-12)
                return
            start += n
        x = min((progress - start) / last, 1)
        assert whole.value(progress, total, 1.0) == pytest.approx((1 + math.cos(math.pi * x)) / 2, abs=1e-12)


class TestFunctions:
    def test_of_progress_and_total(self):
        assert train(LR(lambda progress, total: progress / total), updates=4).first == [0, 0.25, 0.5, 0.75]

    def test_of_progress_needs_no_length(self):
        rates = train(LR(lambda progress: 0.5**progress), batches=iter([0] * 3), max_epochs=1)
        assert rates.first == [1, 0.5, 0.25]
        with pytest.raises(UsageError, match="must know where it ends"):
            train(LR(lambda progress, total: 1.0), batches=iter([0] * 3), max_epochs=1)

    def test_by_epoch_and_a_name(self, messages):
        def halves(epoch, epochs):
            return 0.5**epoch

        assert train(LR(halves, by="epoch"), max_epochs=2).first == [1.0] * 5 + [0.5] * 5
        assert "lr: halves by epoch over 2 epochs" in messages()

    def test_an_object(self):
        class Falls:
            def __call__(self, progress):
                return 1 / (1 + progress)

        assert train(LR(Falls()), updates=3).first == pytest.approx([1, 1 / 2, 1 / 3])

    @pytest.mark.parametrize(
        ("schedule", "value"),
        [
            (lambda t: [1.0, math.nan][t], "nan"),
            (lambda t: 1.0 - 2 * t, "-1"),
            (lambda t: math.inf if t else 1.0, "inf"),
            ([{"name": "linear", "end_value": -1.0, "updates": 1}], "-1"),
        ],
    )
    def test_a_value_that_is_no_rate(self, schedule, value):
        with pytest.raises(UsageError, match=rf"lr.schedule gives {value} at update 1, which is not in \[0, inf\)"):
            train(LR(schedule), updates=2)

    def test_rounding_below_0_is_none(self):
        assert train(LR([1.0, 0.1 + 0.2 - 0.3 - 6e-17].__getitem__), updates=2).first == [1.0, pytest.approx(0, abs=1e-15)]

    def test_is_not_asked_for_what_lies_beyond_the_end(self):
        assert train(LR([0.5, 0.25].__getitem__), updates=2).first == [0.5, 0.25]
        assert train(LR({0: 0.5, 1: 0.25}.get, by="epoch"), max_epochs=2).first == [0.5] * 5 + [0.25] * 5
        assert train(LR([0.5, 0.25].__getitem__, total_updates=2), updates=3).first == [0.5, 0.25, 0.25]


class TestTorchSchedulers:
    def test_a_scheduler_object(self):
        model = torch.nn.ParameterList([torch.zeros(())])
        optimizer = torch.optim.SGD(model, 1.0)
        plugin = LR(torch_scheduler=ExponentialLR(optimizer, 0.5))
        assert train(plugin, model=model, optimizer=optimizer, updates=4).first == [1, 0.5, 0.25, 0.125]

    def test_a_function_serves_each_optimizer(self):
        model = torch.nn.ParameterList([torch.zeros(()), torch.zeros(())])
        optimizers = {"g": torch.optim.SGD([model[0]], 1.0), "d": torch.optim.SGD([model[1]], 4.0)}
        plugin = LR(torch_scheduler=lambda optimizer: ExponentialLR(optimizer, 0.5))
        assert train(plugin, model=model, optimizer=optimizers, updates=3).seen == [[1, 4], [0.5, 2], [0.25, 1]]

    def test_a_rate_that_is_a_tensor_stays_the_object(self):
        model = torch.nn.ParameterList([torch.zeros(())])
        rate = torch.tensor(1.0)
        optimizer = torch.optim.SGD(model, rate)
        plugin = LR(torch_scheduler=lambda optimizer: ExponentialLR(optimizer, 0.5))
        assert train(plugin, model=model, optimizer=optimizer, updates=3).first == [1, 0.5, 0.25]
        assert optimizer.param_groups[0]["lr"] is rate

    @pytest.mark.parametrize("by", ["update", "epoch"])
    def test_says_once_what_it_does(self, messages, by):
        train(LR(torch_scheduler=lambda optimizer: ExponentialLR(optimizer, 0.5), by=by), max_epochs=2)
        assert [text for text in messages() if "lr" in text] == [f"lr: ExponentialLR of torch by {by}"]

    def test_of_another_optimizer(self):
        other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], 1.0)
        with pytest.raises(UsageError, match="lr.torch_scheduler was made for another optimizer"):
            train(LR(torch_scheduler=ExponentialLR(other, 0.5)), updates=1)

    @pytest.mark.parametrize(
        ("make", "options"),
        [
            (lambda o: OneCycleLR(o, 1.0, 12), {}),
            (lambda o: MultiStepLR(o, [2, 5]), {}),
            (lambda o: CosineAnnealingLR(o, 4, eta_min=0.1), {"by": "epoch"}),
            (lambda o: ChainedScheduler([ConstantLR(o, 0.1, 4), ExponentialLR(o, 0.9)]), {}),
        ],
    )
    @pytest.mark.parametrize("cut", [1, 3, 4, 7])
    def test_its_state_is_saved(self, tmp_path, make, options, cut):
        whole = train(LR(torch_scheduler=make, **options), updates=12, batches=[0] * 3).seen
        rates = Rates()
        arguments = {"updates": 12, "batches": [0] * 3, "rates": rates, "work_dir": tmp_path / "run"}
        train(LR(torch_scheduler=make, **options), others=[StopsAfter(cut), Checkpoint()], **arguments)
        train(LR(torch_scheduler=make, **options), others=[Checkpoint()], resume="auto", **arguments)
        assert rates.seen == whole

    def test_resumed_after_another_schedule_it_goes_on_as_if_it_had_always_been_there(self, tmp_path):
        def rates(plugin, updates):
            return train(plugin, updates=updates, others=[Checkpoint()], resume="auto", work_dir=tmp_path).first

        def torchs_own():
            return LR(torch_scheduler=lambda optimizer: ExponentialLR(optimizer, 0.5))

        assert rates(torchs_own(), 2) == [1, 0.5]
        assert rates(LR("linear"), 4) == [0.5, 0.25]
        assert rates(torchs_own(), 6) == [0.0625, 0.03125]

    def test_beyond_the_end_of_one_cycle_its_last_rate_stays(self, messages):
        def rates(updates):
            return train(LR(torch_scheduler=lambda optimizer: OneCycleLR(optimizer, 1.0, 6)), updates=updates).first

        whole = rates(6)
        assert not [text for text in messages() if "ended" in text]
        assert rates(9) == whole + [whole[-1]] * 3
        assert [text for text in messages() if "ended" in text] == [
            "lr: OneCycleLR has ended after 6 steps and the run goes on: its last rate stays"
        ]

    def test_lr_scale_does_not_add_up(self):
        """A recursive scheduler works on the unscaled rate: scaled by 0.5 from the third update on, once."""

        class Scales:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 1:
                    trainer.optimizer.param_groups[0]["lr_scale"] = 0.5
                    trainer.request_eval()

            @hookimpl
            def evaluate(self, trainer):
                trainer.hooks.after_eval(trainer=trainer, split="val", metrics={})
                return {}

        plugin = LR(torch_scheduler=lambda optimizer: ExponentialLR(optimizer, 0.8))
        rates = train(plugin, updates=5, others=[Scales()], batches=[0] * 5)
        assert rates.first == pytest.approx([1, 0.8, 0.32, 0.256, 0.2048])

    def test_trains_twice(self):
        model = torch.nn.ParameterList([torch.zeros(())])
        optimizer = torch.optim.SGD(model, 1.0)
        rates = Rates()
        plugin = LR(torch_scheduler=lambda optimizer: ExponentialLR(optimizer, 0.5))

        class Sums:
            @hookimpl
            def compute_loss(self, trainer):
                return sum(p for p in trainer.model.parameters())

        plugins = [plugin, rates, Sums()]
        trainer = Trainer(
            model, optimizer=optimizer, loaders={"train": [0] * 5}, plugins=plugins, max_updates=2, autoload=False
        )
        trainer.train()
        trainer.train(max_updates=4)
        assert rates.first == [1, 0.5, 0.25, 0.125]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"warmup": "exp"}, "goes with no other option than by"),
            ({"base": 0.0}, "goes with no other option than by"),
            ({"warmup_start": 0.1}, "goes with no other option than by"),
            ({"warmup_overlaps": True}, "goes with no other option than by"),
            ({"by": "step"}, "torch_scheduler: it is stepped by 'update' or 'epoch'"),
            ({"end": 0.5}, "goes with no other option"),
            ({"warmup_updates": 3}, "goes with no other option"),
            ({"schedule": "linear"}, "goes with no other option"),
        ],
    )
    def test_options(self, options, said):
        with pytest.raises(OptionError, match=said):
            LR(torch_scheduler=lambda optimizer: ExponentialLR(optimizer, 0.5), **options)

    def test_no_scheduler(self):
        with pytest.raises(OptionError, match="lr.torch_scheduler = 3: must be a scheduler"):
            LR(torch_scheduler=3)
        with pytest.raises(OptionError, match="lr.torch_scheduler = 3: must be a scheduler"):
            train(LR(torch_scheduler=lambda optimizer: 3), updates=1)
        with pytest.raises(OptionError, match="it follows a metric; use the plugin 'plateau'"):
            train(LR(torch_scheduler=ReduceLROnPlateau), updates=1)

    def test_an_evaluation_needs_no_optimizer(self):
        class Evaluates:
            @hookimpl
            def eval_step(self):
                return {"loss": 1.0}

        plugins = [LR(torch_scheduler=lambda optimizer: ExponentialLR(optimizer, 0.5)), Evaluates()]
        trainer = Trainer(torch.nn.Linear(1, 1), loaders={"val": [torch.ones(1)]}, plugins=plugins, autoload=False)
        assert trainer.evaluate("val") == {"val/loss": 1.0}


def test_the_table_of_schedules_and_their_sources(capsys):
    """Every schedule, update by update, against MMCV's formula or torch's class."""
    script = Path(__file__).parents[1] / "bench" / "schedule_table.py"
    with capsys.disabled():
        worst = runpy.run_path(str(script))["main"]()
    assert worst <= 1e-12


class TestAnyParameters:
    """Random parameters against formulas that are written down here once more."""

    positive = st.floats(1e-3, 10)

    @settings(max_examples=100, deadline=None)
    @given(positive, st.integers(1, 60), st.floats(0.1, 4), st.floats(0, 1))
    def test_poly(self, base, total, power, end):
        value = SCHEDULES["poly"](power=power, end_value=end * base).value
        for t in range(total):
            low = end * base
            assert value(t, total, base) == pytest.approx((base - low) * (1 - t / total) ** power + low, rel=1e-12)
        assert value(total, total, base) == value(total + 5, total, base) == low

    @settings(max_examples=100, deadline=None)
    @given(positive, st.floats(0.1, 0.99), st.sets(st.integers(1, 50)), st.integers(0, 60))
    def test_step(self, base, gamma, milestones, t):
        milestones = sorted(milestones)
        passed = sum(t >= one for one in milestones)
        for name in ("step", "multi_step"):
            seen = SCHEDULES[name](milestones=milestones, gamma=gamma).value(t, 0, base)
            assert seen == pytest.approx(base * gamma**passed, rel=1e-12)
        seen = SCHEDULES["step"](every=7, gamma=gamma, floor=base / 4).value(t, 0, base)
        assert seen == pytest.approx(max(base * gamma ** (t // 7), base / 4), rel=1e-12)

    @settings(max_examples=60, deadline=None)
    @given(positive, st.integers(20, 80), st.floats(0.1, 0.45), st.sampled_from(["cos", "linear"]), st.booleans(), st.data())
    def test_one_cycle_is_torchs(self, base, total, pct, anneal, three_phase, data):
        div, final = data.draw(st.floats(1, 30)), data.draw(st.floats(1, 30))
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], 1.0)
        theirs = OneCycleLR(optimizer, base, total, None, None, pct, anneal, False, 0.85, 0.95, div, final, three_phase)
        value = SCHEDULES["one_cycle"](pct, anneal, div, final, three_phase).value
        for t in range(total):
            assert value(t, total, base) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
            if t < total - 1:
                optimizer.step()
                theirs.step()
        assert value(total, total, base) == value(total + 9, total, base) == pytest.approx(base / div / final, rel=1e-12)

    @settings(max_examples=60, deadline=None)
    @given(positive, st.integers(1, 20), st.integers(1, 20), st.floats(1.5, 9), st.integers(1, 4))
    def test_cyclic_is_torchs_triangular(self, base, up, down, top, times):
        share = up / (up + down)
        assume(int(share * (up + down)) == up)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], 1.0)
        theirs = CyclicLR(optimizer, base, base * top, up, down, cycle_momentum=False)
        value = SCHEDULES["cyclic"]((top, 1.0), times, share, "linear").value
        total = times * (up + down)
        for t in range(total):
            assert value(t, total, base) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
            optimizer.step()
            theirs.step()
        assert value(total, total, base) == value(total - 1, total, base)  # no new cycle begins

    @settings(max_examples=60, deadline=None)
    @given(positive, st.lists(st.tuples(st.integers(1, 12), st.floats(0, 2)), min_size=1, max_size=5), st.floats(0, 1))
    def test_cosine_restart(self, base, periods, end):
        lengths, weights = [list(one) for one in zip(*periods)]
        value = SCHEDULES["cosine_restart"](lengths, weights, end=end).value
        t = 0
        for length, weight in periods:
            for i in range(length):
                wanted = end * base + weight / 2 * (base - end * base) * (1 + math.cos(math.pi * i / length))
                assert value(t, 0, base) == pytest.approx(wanted, rel=1e-12, abs=1e-15)
                t += 1
        assert value(t, 0, base) == value(t + 100, 0, base) == pytest.approx(end * base)

    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from(sorted(set(SCHEDULES) - {"cyclic", "one_cycle"})), st.integers(1, 50), st.floats(0.1, 10), st.data())
    def test_relative_schedules_scale_with_the_base(self, name, total, base, data):
        needed = {"step": {"every": 5}, "multi_step": {"milestones": [3, 9]}, "exp": {"gamma": 0.9}, "inv": {"gamma": 0.1}}
        schedule = SCHEDULES[name](**needed.get(name, {"periods": [9, 20]} if name == "cosine_restart" else {}))
        t = data.draw(st.integers(0, 60))
        assert schedule.relative
        assert schedule.value(t, total, base) == pytest.approx(base * schedule.value(t, total, 1.0), rel=1e-12, abs=1e-15)

    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from(["linear", "constant", "exp"]), st.floats(0.01, 1), st.integers(1, 40))
    def test_warmup_ends_at_1(self, kind, start, length):
        factors = [warmup(kind, start, t, length) for t in range(length + 2)]
        assert factors[0] == pytest.approx(start) and factors[length:] == [1.0, 1.0]
        assert factors == sorted(factors)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"warmup_start": 1.5}, "warmup_start = 1.5: must be between 0 and 1"),
        ({"end": -0.1}, "end = -0.1"),
        ({"end": math.nan}, "end = nan"),
        ({"base": -1.0}, "base = -1.0"),
        ({"base": math.nan}, "base = nan"),
        ({"base": math.inf}, "base = inf"),
        ({"warmup_updates": -1}, "give one of warmup_updates, warmup_epochs and warmup_ratio, 0 or more"),
        ({"warmup_updates": 1, "warmup_epochs": 1.0}, "give one of warmup_updates"),
        ({"warmup_ratio": 1.5}, "the ratio at most 1"),
        ({"warmup_epochs": math.inf}, "give one of"),
        ({"warmup": "exp", "warmup_updates": 3}, "warmup_start = 0: must be above 0 for lr.warmup = 'exp', which is a power"),
        ({"total_epochs": 0}, "total_epochs = 0: must be at least 1"),
        (
            {"total_epochs": 2, "total_updates": 2},
            "by = 'update' the length is given by total_updates or total_epochs, not both",
        ),
        ({"by": "epoch", "total_updates": 2}, "by = 'epoch' the length is given by total_epochs"),
        ({"by": "step", "total_epochs": 2}, "by = 'step' the length is given by max_steps"),
        ({"by": "updates"}, "lr.by = 'updates': must be one of update, step, epoch"),
        ({"warmup": "quadratic"}, "lr.warmup = 'quadratic': must be one of linear, constant, exp"),
        ({"schedule": {"name": "cosine"}}, "there is no schedule {'name': 'cosine'}"),
        ({"schedule": "cosin"}, "lr.schedule: there is no schedule 'cosin'; did you mean 'cosine'"),
        ({"schedule": "zigzag"}, "there is no schedule 'zigzag'; there are constant, fixed, step"),
        ({"schedule": 3}, "there is no schedule 3; there are"),
        ({"schedule": "step"}, "lr.schedule 'step': every = None, milestones = None: give one of them"),
        ({"schedule": "exp"}, "lr.schedule 'exp': option 'gamma' is missing"),
        ({"schedule": "step", "args": {"milestone": [3]}}, "unknown option 'milestone' in lr.args; did you mean 'milestones'"),
        ({"schedule": "step", "args": {"every": "two"}}, "option 'every' in lr.args: .*not 'two'"),
        ({"schedule": "step", "args": {"every": 0}}, "lr.schedule 'step': every = 0: must be at least 1"),
        ({"schedule": "step", "args": {"milestones": [5, 3]}}, "must be in increasing order"),
        ({"schedule": "step", "args": {"every": 3}, "end": 0.5}, "lr.end = 0.5: the schedule 'step' has no end"),
        ({"args": {"end": 0.1}, "end": 0.5}, "lr.end = 0.5: it is in args too"),
        ({"args": {"end_value": 0.1}, "end": 0.5}, "end = 0.5 and end_value = 0.1: give one"),
        ({"schedule": "linear", "args": {"end_value": 0.1}, "end": 0.5}, "end = 0.5 and end_value = 0.1: give one"),
        ({"args": {"end_value": math.nan}}, "option 'end_value'"),
        ({"schedule": "exp", "args": {"gamma": -0.5}}, "gamma = -0.5: must be 0 or more"),
        ({"schedule": "inv", "args": {"gamma": -1}}, "gamma = -1.0: must be 0 or more"),
        (
            {"schedule": [{"name": "constant", "ratio": 0.9}, {"name": "linear", "ratio": 0.2}]},
            "ratios .* more than 1 together",
        ),
        ({"schedule": "wsd", "args": {"shape": "square"}}, "option 'shape' in lr.args"),
        ({"schedule": "cosine_restart", "args": {"periods": [2, 3], "weights": [1]}}, "must be as many as periods .2."),
        ({"schedule": []}, "give at least one table"),
        ({"schedule": [{"name": "cosine"}], "end": 0.5}, "lr.args and lr.end do not apply"),
        ({"schedule": lambda t: 1.0, "end": 0.5}, "lr.schedule is a function: lr.args and lr.end do not apply"),
        ({"schedule": ["cosine"]}, "'cosine' must be a table with the name of a schedule"),
        ({"schedule": [{"name": "cosine"}, {"name": "cosine"}]}, "'cosine' needs a length, only the last may go on"),
        ({"schedule": [{"name": "cosine", "updates": 2, "ratio": 0.5}]}, "has updates and ratio: its length is one of"),
        (
            {"schedule": [{"name": "cosine", "updates": 2}], "by": "epoch"},
            "its length is one of epochs, ratio with by = 'epoch'",
        ),
        ({"schedule": [{"name": "cosine", "updates": 2.5}]}, "updates = 2.5: must be a whole number above 0"),
        ({"schedule": [{"name": "cosine", "epochs": 0}]}, "epochs = 0: must be a number above 0"),
        ({"schedule": [{"name": "cosine", "endd": 0}]}, "unknown option 'endd' in lr.schedule; did you mean 'end'"),
        ({"total_updates": 0}, "total_updates = 0: must be at least 1"),
        ({"total_updates": -5}, "total_updates = -5"),
    ],
)
def test_options(options, said):
    with pytest.raises(OptionError, match=said):
        LR(**options)


def test_a_limit_that_is_raised_while_it_trains_is_said(caplog):
    """A cosine over 4 updates, then 3 more at its end."""

    class Raises:
        @hookimpl
        def after_step(self, trainer):
            trainer.max_updates = 7

    with caplog.at_level("WARNING", "trainhooks"):
        rates = train(LR(), updates=4, others=[Raises()])
    assert rates.first == pytest.approx([1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0, 0.0], abs=1e-6)
    assert [one.message for one in caplog.records] == [
        "lr: the schedule 'cosine' has ended after 4 updates and the run goes on: its last value stays"
    ]


def test_two_schedules_of_one_group_are_refused():
    with pytest.raises(UsageError, match="plugins 'lr' and 'lr@2' both set 'lr' of the same parameter group"):
        train(LR(), updates=2, others=[LR("linear")])
    rates = train(LR(groups=[0]), bases=(1.0, 1.0), updates=2, others=[LR("linear", groups=[1])])
    assert rates.seen == [[1.0, 1.0], [pytest.approx(0.5), pytest.approx(0.5)]]


def test_by_steps_a_late_update_has_the_rate_of_its_step_also_when_resumed(tmp_path):
    """The window of two steps is closed when the second batch has been dropped: at the rate of the first, 1.0 and not 0.5."""
    from trainhooks import SkipStep
    from trainhooks_builtins import Accumulate, Checkpoint

    class DropsSecond:
        @hookimpl(wrapper=True)
        def prepare_batch(self, trainer):
            batch = yield
            if trainer.batch_index == 1:
                raise SkipStep("second")
            return batch

    class Interrupts:
        @hookimpl
        def after_step(self, trainer):
            trainer.interrupt(KeyboardInterrupt(), "asked")

    def run(*more, **arguments):
        others = [Accumulate(2), DropsSecond(), Checkpoint(), *more]
        schedule = LR("exp", args={"gamma": 0.5}, by="step")
        return train(schedule, batches=[0, 0], max_epochs=2, work_dir=tmp_path / "run", others=others, **arguments)

    with pytest.raises(KeyboardInterrupt):
        run(Interrupts())
    assert run(resume="auto").first == [1.0, 0.5]
