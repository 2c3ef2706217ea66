"""``swa`` against values by hand and torch's own ``AveragedModel``, ``update_bn`` and ``SWALR``; resuming."""

import warnings

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import LR, SWA, Checkpoint, Evaluation, Freeze, Plateau
from trainhooks_builtins.checkpoint import read_checkpoint

UP = (-1.0,) * 2  # with start 1 the weight is 3, 5, 7, 9 after the epochs


def close(value):
    return pytest.approx(value, abs=1e-12)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Tanh(), nn.Linear(4, 1))


def dataset(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(30, 3, generator=generator), torch.randn(30, 1, generator=generator))


def shuffled(generator=True):
    own = torch.Generator().manual_seed(5) if generator else None
    return DataLoader(dataset(), batch_size=5, shuffle=True, generator=own)


def network_trainer(plugins, model=None, train=None, **arguments):
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    arguments.setdefault("max_epochs", 4)
    loaders = {"train": train if train is not None else shuffled(), "val": DataLoader(dataset(2), batch_size=10)}
    loss = nn.functional.mse_loss
    return Trainer(model, loss=loss, optimizer=optimizer, loaders=loaders, plugins=plugins, autoload=False, **arguments)


class Rates:
    """Notes the rate of each update, and what ``note`` gives after each epoch."""

    def __init__(self, note=lambda trainer: None):
        self.seen, self.noted, self.note = [], [], note

    @hookimpl
    def gradients_ready(self, trainer):
        self.seen.append([float(group["lr"]) for group in trainer.optimizer.param_groups])

    @hookimpl
    def after_epoch(self, trainer):
        self.noted.append(self.note(trainer))


class TestAverage:
    def averages(self, make_trainer, epochs=4, values=UP, **options):
        swa = SWA(**options)
        rates = Rates(lambda trainer: swa.average["w"].item() if swa.average else None)
        make_trainer([swa, rates], values=values, start=1.0, max_epochs=epochs).train()
        return rates.noted

    def test_of_the_last_epochs_by_hand(self, make_trainer):
        assert self.averages(make_trainer, start=0.5) == [None, None, 7.0, close((7 + 9) / 2)]
        assert self.averages(make_trainer, start=0.0) == [3.0, close(4.0), close(5.0), close(6.0)]
        assert self.averages(make_trainer) == [None, None, None, 9.0]

    def test_from_an_epoch(self, make_trainer):
        assert self.averages(make_trainer, start_epoch=1) == [None, 5.0, close(6.0), close(7.0)]

    def test_every_second_epoch(self, make_trainer):
        assert self.averages(make_trainer, start=0.0, every_epochs=2) == [None, 5.0, 5.0, close(7.0)]

    def test_every_update(self, make_trainer):
        # the last part has the updates 4 to 7, after which the weight is 6, 7, 8, 9
        assert self.averages(make_trainer, start=0.5, every_updates=1) == [None, None, close(6.5), close(7.5)]

    def test_both_intervals(self, make_trainer):
        # after update 6 and 8 of the run the weight is 7 and 9; the same again at the ends of the epochs
        assert self.averages(make_trainer, start=0.5, every_updates=2, every_epochs=1) == [None, None, 7.0, close(8.0)]

    def test_a_start_within_an_epoch(self, make_trainer):
        # 3 epochs of 4 updates, the last part begins with update 6
        assert self.averages(make_trainer, epochs=3, values=(-1.0,) * 4, start=0.5) == [None, 9.0, close(11.0)]

    def test_an_epoch_that_is_cut_short_is_not_averaged(self, make_trainer):
        swa = SWA(start_epoch=0)
        make_trainer([swa], values=(-1.0,) * 4, start=1.0, max_steps=6, max_epochs=2).train()
        assert swa.average["w"].item() == 5.0

    def test_updates_are_counted_not_steps(self, make_trainer):
        class EveryThird:
            @hookimpl
            def update_due(self, trainer):
                return trainer.every_n_steps(3) or trainer.end_of_epoch

            @hookimpl
            def count_updates(self, steps):
                return -(-steps // 3)

        swa = SWA(start=0.5, every_updates=1)
        make_trainer([swa, EveryThird()], values=(-1.0,) * 7, start=1.0, max_epochs=2).train()
        assert swa.averaged_weights == 3  # 6 updates, the last 3 are averaged

    def test_equals_torchs_averaged_model(self):
        model = network()
        theirs = AveragedModel(model)

        class Theirs:
            @hookimpl
            def after_train_epoch(self, trainer, epoch):
                if epoch >= 3:
                    theirs.update_parameters(trainer.model)

        swa = SWA(start=0.5)
        network_trainer([swa, Theirs()], model, max_epochs=6).train()
        assert swa.averaged_weights == 3  # of 36 updates the last 18, so the epochs 3, 4 and 5
        wanted = dict(theirs.module.named_parameters())
        assert swa.average.keys() == wanted.keys()
        for name, one in swa.average.items():
            assert torch.allclose(one, wanted[name], rtol=1e-5, atol=1e-7), name

    def test_nothing_averaged_is_said(self, make_trainer, messages):
        make_trainer([SWA(start_epoch=7)], values=UP, max_epochs=2).train()
        assert "swa: no weights were averaged: the run ended after 4 updates, before the first were due" in messages()


class TestEvaluation:
    def test_with_the_average_from_its_start(self, make_trainer):
        swa = SWA(start=0.5)
        rates = Rates(lambda trainer: trainer.metrics["val/loss"])
        make_trainer([swa, rates, Evaluation()], values=UP, start=1.0, val=(1.0,), max_epochs=4).train()
        assert rates.noted == [3.0, 5.0, 7.0, close(8.0)]

    def test_checkpoints_have_the_weights(self, make_trainer, tmp_path):
        swa, checkpoint = SWA(start=0.5), Checkpoint(best="val/loss", mode="max")
        plugins = [swa, Evaluation(), checkpoint]
        trainer = make_trainer(plugins, values=UP, start=1.0, val=(1.0,), max_epochs=4, work_dir=tmp_path / "run")
        trainer.train()
        state = read_checkpoint(checkpoint.path)
        assert state["model"]["w"].item() == trainer.model.w.item() == 9.0
        assert state["plugins/swa"]["average"]["w"].item() == close(8.0)

    def test_left_in_the_model_at_the_end(self, make_trainer, tmp_path):
        checkpoint = Checkpoint()
        trainer = make_trainer(
            [SWA(start=0.5, apply_at_end=True), checkpoint], values=UP, start=1.0, max_epochs=4, work_dir=tmp_path / "run"
        )
        trainer.train()
        assert trainer.model.w.item() == close(8.0)
        assert read_checkpoint(checkpoint.path)["model"]["w"].item() == 9.0

    def test_not_used_where_it_is_not_wanted(self, make_trainer):
        trainer = make_trainer([SWA(start=0.5, evaluate=False)], values=UP, start=1.0, val=(1.0,), max_epochs=4)
        trainer.train()
        assert trainer.evaluate("val")["val/loss"] == 9.0


class TestStatistics:
    def theirs(self, swa, model, loader, most):
        """Return a model with the average, and the statistics that torch measures for it."""
        other = network()
        other.load_state_dict(model.state_dict())
        other.load_state_dict(swa.average, strict=False)
        other[2].p = 0.0
        with torch.no_grad():
            update_bn([x for x, _ in list(loader)[:most]], other)
        return other

    @pytest.mark.parametrize("most", [100, 2])
    def test_those_of_torch(self, most):
        model = network()
        model[2].p = 0.0
        data = DataLoader(dataset(), batch_size=5)
        swa = SWA(start=0.5, bn_batches=most)
        trainer = network_trainer([swa], model, data)
        trainer.train()
        own = {name: one.clone() for name, one in model.named_buffers()}
        with swa.averaged(trainer):
            wanted = self.theirs(swa, model, data, most)
            for name, buffer in model.named_buffers():
                assert torch.allclose(buffer, dict(wanted.named_buffers())[name], rtol=1e-6), name
            assert model[1].num_batches_tracked.item() == min(most, 6)
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, own[name])
        assert model[1].momentum == 0.1
        assert model.training

    def test_none_are_measured_if_not_wanted(self):
        swa = SWA(start=0.5, bn_batches=0)
        trainer = network_trainer([swa])
        trainer.train()
        own = trainer.model[1].running_mean.clone()
        with swa.averaged(trainer):
            assert torch.equal(trainer.model[1].running_mean, own)

    def test_left_in_the_model_at_the_end(self):
        model = network()
        model[2].p = 0.0
        data = DataLoader(dataset(), batch_size=5)
        swa = SWA(start=0.5, apply_at_end=True)
        network_trainer([swa], model, data).train()
        wanted = self.theirs(swa, model, data, 100)
        assert torch.allclose(model[1].running_mean, wanted[1].running_mean, rtol=1e-6)
        assert torch.allclose(model[1].running_var, wanted[1].running_var, rtol=1e-6)

    def test_measured_once_for_each_average(self):
        swa = SWA(start=0.5)
        counted = []

        class Count:
            @hookimpl
            def compute_loss(self, trainer):
                counted.append(trainer.model.training and not torch.is_grad_enabled())

        trainer = network_trainer([Count(), swa, Evaluation()])
        trainer.train()
        trainer.evaluate("val")
        trainer.evaluate("val")
        assert sum(counted) == 2 * 6  # after each of the two averaged epochs, 6 batches

    @pytest.mark.parametrize("generator", [True, False])
    def test_training_is_the_same_as_without(self, generator):
        results = []
        for plugins in ([], [SWA(start=0.25, every_updates=1)]):
            torch.manual_seed(3)
            model = network()
            trainer = network_trainer([*plugins, Evaluation(every_steps=4)], model, shuffled(generator))
            torch.manual_seed(4)
            trainer.train()
            results.append({name: one.clone() for name, one in model.state_dict().items()})
        for name, one in results[0].items():
            assert torch.equal(one, results[1][name]), name

    def test_a_loader_that_can_be_read_once_is_left_alone(self, messages):
        batches = iter([batch for _ in range(4) for batch in DataLoader(dataset(), batch_size=5)])
        swa = SWA(start=0.5)
        trainer = network_trainer([swa, Evaluation()], train=batches, steps_per_epoch=6)
        trainer.train()
        assert swa.averaged_weights == 2
        said = [one for one in messages() if "can be read once only" in one]
        assert said == [
            "swa: the average is evaluated with the statistics of the last weights, since the train loader can be read once only"
        ]

    def test_persistent_workers_are_not_disturbed(self):
        results = []
        for plugins in ([], [SWA(start=0.25, every_updates=1, bn_batches=2), Evaluation(every_steps=4)]):
            data = DataLoader(
                dataset(),
                batch_size=5,
                shuffle=True,
                num_workers=1,
                persistent_workers=True,
                generator=torch.Generator().manual_seed(5),
                multiprocessing_context="fork",
            )
            torch.manual_seed(4)
            trainer = network_trainer(plugins, train=data, max_epochs=2)
            trainer.train()
            results.append(trainer.model.state_dict())
        for name, one in results[0].items():
            assert torch.equal(one, results[1][name]), name

    def test_layers_that_are_frozen_keep_theirs(self):
        model = network()
        model[1].running_mean.fill_(0.25)
        swa = SWA(start=0.5)
        trainer = network_trainer([swa, Freeze(("1.*",))], model)
        trainer.train()
        assert torch.equal(model[1].running_mean, torch.full((4,), 0.25))
        with swa.averaged(trainer):
            assert torch.equal(model[1].running_mean, torch.full((4,), 0.25))

    def test_a_failure_while_measuring_leaves_everything_as_it_was(self):
        model = network()
        swa = SWA(start=0.5)

        class Broken:
            @hookimpl
            def compute_loss(self, trainer):
                if not torch.is_grad_enabled() and trainer.model.training:
                    raise ValueError("broken")

        trainer = network_trainer([Broken(), swa], model)
        own = {}

        class Keep:
            @hookimpl
            def after_train_epoch(self, trainer):
                own.update({name: one.clone() for name, one in trainer.model.state_dict().items()})

        trainer.register(Keep())
        with pytest.raises(ValueError, match="broken"):
            trainer.train()
        assert model[1].momentum == 0.1
        for name, one in model.state_dict().items():
            assert torch.equal(one, own[name]), name


class TestRate:
    def torchs(self, before, lr, epochs, anneal_epochs, strategy):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=before)
        schedule = SWALR(optimizer, swa_lr=lr, anneal_epochs=anneal_epochs, anneal_strategy=strategy)
        rates = []
        for _ in range(epochs):
            rates.append(optimizer.param_groups[0]["lr"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                schedule.step()
        return rates

    @pytest.mark.parametrize("anneal_epochs", [0, 1, 3, 10])
    @pytest.mark.parametrize("anneal", ["cosine", "linear"])
    def test_that_of_torch(self, make_trainer, anneal, anneal_epochs):
        rates = Rates()
        swa = SWA(start_epoch=2, lr=0.05, anneal_epochs=anneal_epochs, anneal=anneal)
        make_trainer([swa, rates], values=UP, lr=0.5, max_epochs=8).train()
        seen = [one[0] for one in rates.seen]
        assert seen[:4] == [0.5] * 4
        assert seen[4::2] == pytest.approx(
            self.torchs(0.5, 0.05, 6, anneal_epochs, "cos" if anneal == "cosine" else "linear"), rel=1e-9
        )
        assert seen[4::2] == seen[5::2]  # the same within an epoch

    @pytest.mark.parametrize("order", [1, -1])
    def test_after_the_plugin_lr(self, make_trainer, order):
        rates = Rates()
        plugins = [LR("linear"), SWA(start=0.5, lr=0.05, anneal_epochs=2, anneal="linear")][::order]
        make_trainer([*plugins, rates], values=UP, lr=0.8, max_epochs=4).train()
        # linear over 8 updates: 0.8, 0.7, 0.6, 0.5, and 0.4 when the last part begins; then 0.4, half way, 0.05
        assert [one[0] for one in rates.seen] == close([0.8, 0.7, 0.6, 0.5, 0.4, 0.4, 0.225, 0.225])

    @pytest.mark.parametrize("by", ["update", "step", "epoch"])
    def test_whatever_lr_counts_and_plateau_does(self, make_trainer, by):
        rates = Rates()
        lr = LR("constant", {"factor": 0.5}, by=by)
        plateau = Plateau(mode="max", patience=0, factor=0.5)
        swa = SWA(start_epoch=2, lr=0.05, anneal_epochs=0)
        plugins = [lr, plateau, swa, Evaluation(every_steps=1), rates]
        make_trainer(plugins, values=UP, val=UP, lr=0.8, max_epochs=4).train()
        assert [one[0] for one in rates.seen][4:] == [0.05] * 4

    def test_each_group_from_its_own_and_tensors_in_place(self):
        first, second = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        rate = torch.tensor(0.4)
        optimizer = torch.optim.SGD([{"params": [first], "lr": rate}, {"params": [second], "lr": 0.2}])
        rates = Rates()

        class Sum:
            @hookimpl
            def compute_loss(self, trainer):
                return sum(trainer.model.parameters())

        swa = SWA(start_epoch=1, lr=0.1, anneal_epochs=2, anneal="linear")
        model = nn.ParameterList([first, second])
        Trainer(
            model, optimizer=optimizer, loaders={"train": [0]}, plugins=[swa, rates, Sum()], max_epochs=4, autoload=False
        ).train()
        assert [one[0] for one in rates.seen] == pytest.approx([0.4, 0.4, 0.25, 0.1])
        assert [one[1] for one in rates.seen] == pytest.approx([0.2, 0.2, 0.15, 0.1])
        assert optimizer.param_groups[0]["lr"] is rate


class TestResume:
    @pytest.mark.parametrize("cut", [6, 13, 18, 20, 24])
    @pytest.mark.parametrize("options", [{"start": 0.5}, {"start_epoch": 2, "every_updates": 2}])
    def test_equals_the_uninterrupted_run_bit_for_bit(self, tmp_path, cut, options):
        class Cut:
            def __init__(self, step):
                self.step = step

            @hookimpl
            def after_step(self, trainer):
                if trainer.step + 1 == self.step:
                    trainer.stop("cut")

        def make(name, step=0):
            plugins = [SWA(lr=0.01, anneal_epochs=2, **options), LR(), Evaluation(), Checkpoint(every_epochs=0), Cut(step)]
            return network_trainer(plugins, work_dir=tmp_path / name, seed=7)

        def same(mine, theirs, where):
            if isinstance(mine, dict):
                assert mine.keys() == theirs.keys(), where
                for key in mine:
                    same(mine[key], theirs[key], f"{where}/{key}")
            elif isinstance(mine, torch.Tensor):
                assert torch.equal(mine, theirs), where
            else:
                assert mine == theirs, where

        whole = make("whole")
        whole.train()
        first = make("cut", cut)
        first.train()
        assert first.step == cut
        second = make("cut")
        second.train(resume="auto")
        mine, theirs = second.state_dict(), whole.state_dict()
        for part in ("model", "plugins/swa", "optimizers/optimizer"):
            same(mine[part], theirs[part], part)
        assert second.evaluate("val") == whole.evaluate("val")

    def test_an_evaluation_from_a_checkpoint_has_average_and_statistics(self, tmp_path):
        checkpoint = Checkpoint(every_epochs=0)
        trainer = network_trainer([SWA(start=0.5), checkpoint], work_dir=tmp_path / "run")
        trainer.train()
        other = network_trainer([SWA(start=0.5), Checkpoint()], network(9), train=iter(()))
        assert other.evaluate("val", checkpoint=checkpoint.path) == trainer.evaluate("val")

    def test_a_run_that_is_made_longer_stays_in_its_last_part(self, make_trainer):
        swa = SWA(start=0.5)
        trainer = make_trainer([swa], values=UP, start=1.0, max_epochs=4)
        trainer.train()
        trainer.train(max_epochs=10)
        assert swa.averaged_weights == 8


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"start": 1.0}, "start = 1.0: must be at least 0 and below 1"),
            ({"start": -0.1}, "start = -0.1"),
            ({"start_epoch": -1}, "start_epoch = -1: must be 0 or more"),
            ({"anneal_epochs": -1}, "anneal_epochs = -1: must be 0 or more"),
            ({"bn_batches": -1}, "bn_batches = -1: must be 0 or more"),
            ({"lr": -0.1}, "lr = -0.1: must be 0 or more"),
            ({"lr": float("inf")}, "lr = inf: must be 0 or more"),
            ({"anneal": "cos"}, "anneal = 'cos': must be 'cosine' or 'linear'"),
            ({"every_epochs": 0}, "every_epochs = 0 and every_updates = 0: one of them must be above 0"),
            ({"every_updates": -1}, "every_updates = -1"),
        ],
    )
    def test_wrong_ones(self, options, message):
        with pytest.raises(OptionError) as error:
            SWA(**options)
        assert message in str(error.value)

    def test_a_share_of_a_run_whose_length_is_not_known(self, make_trainer):
        trainer = make_trainer([SWA()], max_epochs=2)
        trainer.loaders["train"] = (one for one in trainer.loaders["train"])
        with pytest.raises(UsageError, match="give swa.start_epoch"):
            trainer.train()

    def test_a_rate_without_an_optimizer(self):
        class Step:
            @hookimpl
            def train_step(self):
                return {}

        trainer = Trainer(nn.Linear(1, 1), plugins=[SWA(lr=0.1), Step()], max_steps=1, autoload=False)
        with pytest.raises(UsageError, match="leave out swa.lr"):
            trainer.train()

    def test_by_name(self, make_trainer):
        trainer = make_trainer(["swa"], options={"swa": {"start": "0.5"}}, values=UP, start=1.0, max_epochs=4)
        trainer.train()
        assert trainer.plugins["swa"].average["w"].item() == close(8.0)


def test_it_says_when_averaging_begins(make_trainer, messages):
    make_trainer([SWA(start=0.5)], max_epochs=2).train()
    assert "swa: the weights are averaged from update 10 on, which evaluations and predictions then use" in messages()
