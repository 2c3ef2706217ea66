"""LR: schedules and warmup. An iteration of a case is an update; the rate is the one in force when it is applied."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from trainhooks import Trainer, UsageError, hookimpl
from trainhooks_builtins import LR, Checkpoint


class Rates:
    """Notes the rate of each update."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def gradients_ready(self, trainer):
        self.seen.append(trainer.optimizer.param_groups[0]["lr"])


class StopsAfter:
    """Stops the run after some steps."""

    def __init__(self, steps):
        self.steps = steps

    @hookimpl
    def after_step(self, trainer):
        if trainer.step + 1 == self.steps:
            trainer.stop("asked")


class Accumulates:
    """An update for every ``n`` batches of an epoch, and for what is left at its end."""

    def __init__(self, n):
        self.n = n

    @hookimpl
    def update_due(self, trainer):
        return (trainer.batch_index + 1) % self.n == 0 or trainer.end_of_epoch

    @hookimpl
    def count_updates(self, steps):
        return -(-steps // self.n)


class TestLR01:
    """A longer run at resume: the rate climbs back."""

    LONGER = (
        *(0.8536, 0.7939, 0.7270, 0.6545, 0.5782, 0.5, 0.4218, 0.3455, 0.2730),
        *(0.2061, 0.1464, 0.0955, 0.0545, 0.0245, 0.0062),
    )

    def resumed(self, make_trainer, folder, plugin, longer, **limits):
        """Run 5 of 10 updates with one plugin, then go on to 20 with the other; return the rates after the resume."""
        values = (1.0,) * 100
        make_trainer([plugin, Checkpoint(), StopsAfter(5)], values=values, max_updates=10, work_dir=folder).train()
        rates = Rates()
        trainer = make_trainer([longer, Checkpoint(), rates], values=values, max_updates=20, work_dir=folder)
        trainer.train(resume="auto")
        return rates.seen

    def test_lr_01_follows_the_new_length(self, make_trainer, tmp_path):
        seen = self.resumed(make_trainer, tmp_path / "run", LR(), LR())
        assert seen == pytest.approx(self.LONGER, abs=5e-5)
        assert seen == sorted(seen, reverse=True)

    @pytest.mark.parametrize("name", ["linear", "poly", "flat_cosine", "wsd", "cosine"])
    def test_lr_01_no_schedule_rises(self, make_trainer, tmp_path, name):
        seen = self.resumed(make_trainer, tmp_path / "run", LR(name), LR(name))
        assert len(seen) == 15
        assert seen == sorted(seen, reverse=True)

    def test_lr_01_an_explicit_horizon_is_kept(self, make_trainer, tmp_path, messages):
        """The old cosine of 10 to its end, then 0, with one warning."""
        seen = self.resumed(make_trainer, tmp_path / "run", LR(total_updates=10), LR(total_updates=10))
        wanted = [(1 + math.cos(math.pi * i / 10)) / 2 for i in range(5, 10)] + [0.0] * 10
        assert seen == pytest.approx(wanted, abs=1e-12)
        assert [text for text in messages() if "its last value stays" in text] == [
            "lr: the schedule 'cosine' ends after 10 updates and the run has 20: its last value stays"
        ]


class TestAnotherBatchSize:
    """40 samples for 4 epochs: two of 10 batches, stopped and resumed with two of 5, so that there are 30 updates."""

    def rates(self, make_trainer, folder, options, *sizes, stop=20):
        for size in sizes:
            rates = Rates()
            plugins = [LR("linear", **options), Checkpoint(), rates, StopsAfter(stop)]
            trainer = make_trainer(plugins, max_epochs=4, work_dir=folder)
            trainer.loaders["train"] = DataLoader(torch.ones(40, 1, dtype=torch.float64), batch_size=size)
            trainer.train(resume="auto")
        return rates.seen

    @pytest.mark.parametrize("by", ["update", "step"])
    def test_the_schedule_ends_with_the_run(self, make_trainer, tmp_path, messages, by):
        seen = self.rates(make_trainer, tmp_path / "run", {"by": by}, 4, 8)
        assert seen == pytest.approx([1 - update / 30 for update in range(20, 30)])
        assert not [text for text in messages() if "its last value stays" in text]

    def test_smaller_batches(self, make_trainer, tmp_path):
        seen = self.rates(make_trainer, tmp_path / "run", {}, 8, 4, stop=10)
        assert seen == pytest.approx([1 - update / 30 for update in range(10, 30)])

    def test_by_epochs_nothing_changes(self, make_trainer, tmp_path):
        assert self.rates(make_trainer, tmp_path / "run", {"by": "epoch"}, 4, 8) == [0.5] * 5 + [0.25] * 5

    def test_a_warmup_that_was_over_keeps_its_length(self, make_trainer, tmp_path):
        """An epoch of 10 updates, then the schedule over the other 20 of 30."""
        seen = self.rates(make_trainer, tmp_path / "run", {"warmup_epochs": 1.0}, 4, 8)
        assert seen == pytest.approx([1 - (update - 10) / 20 for update in range(20, 30)])


class TestLR02:
    """A warmup longer than the run."""

    def test_lr_02_says_so_once_with_both_numbers(self, make_trainer, messages):
        rates = Rates()
        make_trainer([LR(warmup_updates=100, warmup_start=0.1), rates], max_updates=10).train()
        assert rates.seen == pytest.approx([0.1 + 0.009 * i for i in range(10)], abs=1e-12)
        assert [text for text in messages() if "takes" in text] == [
            "lr: the warmup takes 100 updates and the run has 10, so the schedule 'cosine' never starts"
        ]

    @pytest.mark.parametrize("options", [{"warmup_overlaps": True}, {"by": "epoch"}])
    def test_lr_02_overlapping(self, make_trainer, messages, options):
        make_trainer([LR("constant", warmup_updates=100, warmup_start=0.1, **options)], max_updates=10).train()
        assert [text for text in messages() if "takes" in text] == [
            "lr: the warmup takes 100 updates and the run has 10, so it is never over"
        ]

    @pytest.mark.parametrize("options", [{"total_updates": 1000}, {"total_epochs": 100}])
    def test_lr_02_whatever_length_the_schedule_is_given(self, make_trainer, messages, options):
        rates = Rates()
        make_trainer([LR(warmup_updates=100, warmup_start=0.1, **options), rates], max_updates=10).train()
        assert rates.seen == pytest.approx([0.1 + 0.009 * i for i in range(10)], abs=1e-12)
        assert [text for text in messages() if "takes" in text] == [
            "lr: the warmup takes 100 updates and the run has 10, so the schedule 'cosine' never starts"
        ]

    def test_lr_02_longer_than_the_schedule(self, make_trainer, messages):
        make_trainer([LR(warmup_updates=6, total_updates=4)], max_updates=10).train()
        assert [text for text in messages() if "takes" in text] == [
            "lr: the warmup takes 6 updates and the schedule has 4, so the schedule 'cosine' is over when it begins"
        ]

    def test_lr_02_a_part_of_a_schedule_longer_than_the_run(self, make_trainer, messages):
        parts = [{"name": "linear", "updates": 100}, {"name": "cosine"}]
        make_trainer([LR(parts)], max_updates=10).train()
        assert messages()[1:2] == ["lr: the run has 10 updates, so cosine never starts"]


class TestLR03:
    """Units of the warmup; it does not restart with each epoch."""

    @pytest.mark.parametrize(
        "options",
        [{"warmup_updates": 10}, {"warmup_epochs": 2.0}, {"warmup_ratio": 2 / 3}, {"warmup_epochs": 2, "by": "epoch"}],
    )
    def test_lr_03_every_spelling_is_the_same_list(self, make_trainer, options):
        rates = Rates()
        make_trainer([LR("constant", warmup_start=0.1, **options), rates], values=(1.0,) * 5, max_epochs=3).train()
        assert rates.seen == pytest.approx([0.1 + 0.09 * i for i in range(10)] + [1.0] * 5, abs=1e-12)
        assert [rates.seen[i - 1] for i in (5, 6, 10)] == pytest.approx([0.46, 0.55, 0.91], abs=1e-12)

    def test_lr_03_with_accumulation(self, make_trainer):
        """7 batches in windows of 3 are 3 updates: 2 epochs of warmup are 6 updates, not 14."""
        rates = Rates()
        plugins = [LR("constant", warmup_epochs=2, warmup_start=0.1), Accumulates(3), rates]
        make_trainer(plugins, values=(1.0,) * 7, max_epochs=3).train()
        assert rates.seen == pytest.approx([0.1 + 0.15 * i for i in range(6)] + [1.0] * 3, abs=1e-12)


class TestLR06:
    """A one-cycle schedule runs past its end."""

    def test_lr_06_the_total_counts_updates(self, make_trainer, messages):
        """7 batches, accumulation 3, 2 epochs: 6 updates, torch's OneCycleLR over 6."""
        rates = Rates()
        trainer = make_trainer([LR("one_cycle"), Accumulates(3), rates], values=(1.0,) * 7, max_epochs=2)
        outcome = trainer.train()
        assert (outcome.step, outcome.update) == (14, 6)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], 1.0)
        scheduler = OneCycleLR(optimizer, 1.0, 6, cycle_momentum=False)
        wanted = []
        for _ in range(6):
            wanted.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if len(wanted) < 6:
                scheduler.step()
        assert rates.seen == pytest.approx(wanted, rel=1e-12)
        assert "lr: one_cycle by update over 6 updates" in messages()

    def test_lr_06_cosine_over_accumulated_updates(self, make_trainer):
        rates = Rates()
        make_trainer([LR(), Accumulates(3), rates], values=(1.0,) * 7, max_epochs=2).train()
        assert rates.seen == pytest.approx([1, 0.933013, 0.75, 0.5, 0.25, 0.066987], abs=1e-6)

    def test_lr_06_drop_last(self, messages):
        """10 samples in batches of 4 are 2 batches with drop_last, so 3 epochs are 6 updates."""
        data = DataLoader(TensorDataset(torch.ones(10, 1)), batch_size=4, drop_last=True)
        model = torch.nn.Linear(1, 1)

        class Loss:
            @hookimpl
            def compute_loss(self, trainer, batch):
                return trainer.model(batch[0]).mean()

        rates = Rates()
        trainer = Trainer(
            model,
            optimizer=torch.optim.SGD(model.parameters(), 1.0),
            loaders={"train": data},
            plugins=[LR("linear"), Loss(), rates],
            max_epochs=3,
            autoload=False,
        )
        trainer.train()
        assert rates.seen == pytest.approx([1 - i / 6 for i in range(6)], abs=1e-12)
        assert "lr: linear by update over 6 updates" in messages()

    def test_lr_06_a_resume_with_more_updates(self, make_trainer, tmp_path, messages):
        """The explicit total stays; further updates have the final rate, with one warning, and nothing is raised."""

        def plugin():
            return LR("one_cycle", total_updates=6)

        make_trainer([plugin(), Checkpoint()], max_updates=6, work_dir=tmp_path / "run").train()
        assert not [text for text in messages() if "its last value stays" in text]
        rates = Rates()
        make_trainer([plugin(), Checkpoint(), rates], max_updates=9, work_dir=tmp_path / "run").train(resume="auto")
        assert rates.seen == pytest.approx([1 / 25 / 1e4] * 3, rel=1e-12)
        assert len([text for text in messages() if "its last value stays" in text]) == 1

    def test_lr_06_more_updates_than_could_be_foreseen(self, make_trainer, messages):
        """A loader without length and a total of one's own: the warning comes when the schedule has ended, once."""
        rates = Rates()
        trainer = make_trainer([LR("linear", total_updates=3, end=0.25), rates], max_epochs=1)
        trainer.loaders["train"] = (torch.ones(1, dtype=torch.float64) for _ in range(6))
        trainer.train()
        assert rates.seen == [1.0, 0.75, 0.5, 0.25, 0.25, 0.25]
        assert [text for text in messages() if "its last value stays" in text] == [
            "lr: the schedule 'linear' has ended after 3 updates and the run goes on: its last value stays"
        ]

    @pytest.mark.parametrize(
        "schedule", ["one_cycle", "cosine", [{"name": "constant", "ratio": 0.5}, {"name": "exp", "gamma": 0.9}]]
    )
    def test_lr_06_without_length_the_start_asks_for_one(self, make_trainer, schedule):
        trainer = make_trainer([LR(schedule)], max_epochs=1)
        trainer.loaders["train"] = (torch.ones(1, dtype=torch.float64) for _ in range(6))
        with pytest.raises(UsageError, match="must know where it ends: set max_steps or max_updates, or lr.total_updates"):
            trainer.train()
        assert trainer.step == 0

    def test_lr_06_an_accumulation_that_nobody_can_plan(self, make_trainer):
        class Sometimes:
            @hookimpl
            def update_due(self, trainer):
                return trainer.step % 3 == 2

        with pytest.raises(UsageError, match="since the length of the run is not known in updates"):
            make_trainer([LR(), Sometimes()], max_epochs=1).train()


class TestLR08:
    """A schedule by epochs, stepped per update, or the other way round."""

    def test_lr_08_by_epoch(self, make_trainer, messages):
        """StepLR(2, 0.1) per epoch, 4 updates per epoch, 3 epochs."""
        rates = Rates()
        plugin = LR("step", args={"every": 2}, by="epoch")
        make_trainer([plugin, rates], values=(1.0,) * 4, max_epochs=3).train()
        assert rates.seen == pytest.approx([1.0] * 8 + [0.1] * 4, rel=1e-12)
        assert "lr: step (every 2) by epoch over 3 epochs" in messages()

    def test_lr_08_by_update_is_another_list(self, make_trainer, messages):
        rates = Rates()
        make_trainer([LR("step", args={"every": 2}), rates], values=(1.0,) * 4, max_epochs=3).train()
        assert rates.seen == pytest.approx([0.1 ** (i // 2) for i in range(12)], rel=1e-12)
        assert "lr: step (every 2) by update over 12 updates" in messages()

    def test_lr_08_by_step(self, make_trainer, messages):
        """Windows of 3 in 7 batches: the updates are in steps 2, 5, 6, 9, 12, 13 (from 0), whose rates they take."""
        rates = Rates()
        plugins = [LR("step", args={"every": 2}, by="step"), Accumulates(3), rates]
        make_trainer(plugins, values=(1.0,) * 7, max_epochs=2).train()
        assert rates.seen == pytest.approx([0.1 ** (s // 2) for s in (2, 5, 6, 9, 12, 13)], rel=1e-12)
        assert "lr: step (every 2) by step over 14 steps" in messages()

    @pytest.mark.parametrize("name", ["cosine", "linear", "one_cycle"])
    def test_lr_08_by_epoch_the_rate_is_one_in_an_epoch(self, make_trainer, name):
        rates = Rates()
        make_trainer([LR(name, by="epoch"), rates], values=(1.0,) * 4, max_epochs=5).train()
        epochs = [rates.seen[i : i + 4] for i in range(0, 20, 4)]
        assert [len(set(epoch)) for epoch in epochs] == [1] * 5
        assert len({epoch[0] for epoch in epochs}) == 5

    def test_lr_08_epochs_of_a_run_that_is_limited_in_updates(self, make_trainer, messages):
        """10 updates of 4 in an epoch are in 3 epochs."""
        rates = Rates()
        make_trainer([LR("linear", by="epoch"), rates], values=(1.0,) * 4, max_updates=10).train()
        assert rates.seen == pytest.approx([1.0] * 4 + [2 / 3] * 4 + [1 / 3] * 2, rel=1e-12)
        assert "lr: linear by epoch over 3 epochs" in messages()

    def test_lr_08_torchs_own_class(self, make_trainer, messages):
        rates = Rates()
        plugin = LR(torch_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1), by="epoch")
        make_trainer([plugin, rates], values=(1.0,) * 4, max_epochs=3).train()
        assert rates.seen == pytest.approx([1.0] * 8 + [0.1] * 4, rel=1e-12)
        assert "lr: StepLR of torch by epoch" in messages()
