"""EV: evaluation. Plugins, steps and values as the cases have them; one update is one step."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trainhooks import DataError, Trainer, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation
from trainhooks_builtins.checkpoint import read_checkpoint


def evals(recorder):
    return [step for hook, step in recorder.calls if hook == "after_eval"]


class StopsAt:
    def __init__(self, it):
        self.it = it

    @hookimpl
    def after_step(self, trainer):
        if trainer.step + 1 == self.it:
            trainer.stop("asked")


class TestEV01:
    """Final eval missing or doubled."""

    @pytest.mark.parametrize(
        ("limit", "period", "expected"),
        [(10, 4, [4, 8, 10]), (8, 4, [4, 8]), (10, 0, []), (10, 1, list(range(1, 11))), (3, 4, [3]), (1, 1, [1])],
    )
    @pytest.mark.parametrize("unit", ["every_steps", "every_updates"])
    def test_ev_01_periods(self, make_trainer, recorder, limit, period, expected, unit):
        """Documented: with no period at all there is no final evaluation either (``every_epochs=0``)."""
        listener = recorder("after_eval")
        options = {unit: period} if period else {"every_epochs": 0}
        make_trainer([Evaluation(**options), listener], val=(1.0,), max_steps=limit).train()
        assert evals(listener) == expected

    def test_ev_01_stopped_by_a_hook(self, make_trainer, recorder):
        listener = recorder("after_eval")
        make_trainer([Evaluation(every_steps=4), listener, StopsAt(5)], val=(1.0,), max_steps=10).train()
        assert evals(listener) == [4, 5]

    def test_ev_01_stopped_where_one_is_due(self, make_trainer, recorder):
        listener = recorder("after_eval")
        make_trainer([Evaluation(every_steps=4), listener, StopsAt(8)], val=(1.0,), max_steps=10).train()
        assert evals(listener) == [4, 8]

    @pytest.mark.parametrize("limit", [8, 10])
    def test_ev_01_resumed_at_the_limit(self, make_trainer, recorder, tmp_path, limit):
        plugins = [Evaluation(every_steps=4), Checkpoint()]
        make_trainer(plugins, val=(1.0,), max_steps=limit, work_dir=tmp_path / "run").train()
        listener = recorder("after_eval", "before_step", "save_checkpoint")
        again = make_trainer(
            [Evaluation(every_steps=4), Checkpoint(), listener], val=(1.0,), max_steps=limit, work_dir=tmp_path / "run"
        )
        assert again.train(resume="auto").step == limit
        assert listener.calls == []

    @pytest.mark.parametrize(("limit", "expected"), [({"max_epochs": 3}, [4, 8, 12]), ({"max_steps": 10}, [4, 8, 10])])
    def test_ev_01_by_epochs(self, make_trainer, recorder, limit, expected):
        listener = recorder("after_eval")
        make_trainer([Evaluation(), listener], values=(1.0,) * 4, val=(1.0,), **limit).train()
        assert evals(listener) == expected

    def test_ev_01_two_periods_and_a_request_meet_in_one_step(self, make_trainer, recorder):
        """Step 4 ends the epoch, is a 4th step and somebody asks for it as well: one evaluation."""

        class Asks:
            @hookimpl
            def after_step(self, trainer):
                if trainer.every_n_steps(4):
                    trainer.request_eval("val")

        listener = recorder("after_eval")
        plugins = [Evaluation(every_epochs=1, every_steps=4), Asks(), listener]
        make_trainer(plugins, values=(1.0,) * 4, val=(1.0,), max_epochs=2).train()
        assert evals(listener) == [4, 8]

    @pytest.mark.parametrize("period", [{"every_steps": 4}, {"every_updates": 4}, {"every_epochs": 1}])
    def test_ev_01_several_splits_and_instances_each_once(self, make_trainer, period):
        seen = []

        class Watches:
            @hookimpl
            def after_eval(self, trainer, split):
                seen.append((split, trainer.step))

        plugins = [Evaluation(**period, splits=("val", "test")), Evaluation(**period, splits=("test",)), Watches()]
        trainer = make_trainer(plugins, values=(1.0,) * 4, val=(1.0,), max_steps=10)
        trainer.loaders["test"] = trainer.loaders["val"]
        trainer.train()
        assert seen == [(split, step) for step in (4, 8, 10) for split in ("val", "test")]

    def test_ev_01_stopped_by_an_evaluation(self, make_trainer, recorder):
        """What stops the run is an evaluation itself, as early stopping does: it is the last."""

        class Stops:
            @hookimpl
            def after_eval(self, trainer):
                trainer.stop("good enough")

        listener = recorder("after_eval")
        make_trainer([Evaluation(every_steps=4), listener, Stops()], val=(1.0,), max_steps=10).train()
        assert evals(listener) == [4]

    def test_ev_01_a_second_training_goes_on(self, make_trainer, recorder):
        listener = recorder("after_eval")
        trainer = make_trainer([Evaluation(every_steps=4), listener], val=(1.0,), max_steps=6)
        trainer.train()
        trainer.train(max_steps=6)  # nothing left to do
        trainer.train(max_steps=10)
        assert evals(listener) == [4, 6, 8, 10]

    def test_ev_01_resumed_in_between(self, make_trainer, recorder, tmp_path):
        """The evaluation at the end of the first run, at 6, belongs to that run; the resumed one goes on as planned."""
        listener = recorder("after_eval")
        for limit in (6, 10):
            plugins = [Evaluation(every_steps=4), Checkpoint(), listener]
            make_trainer(plugins, val=(1.0,), max_steps=limit, work_dir=tmp_path / "run").train(resume="auto")
        assert evals(listener) == [4, 6, 8, 10]


def dropout_run(plugins):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))
    data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
    trainer = Trainer(
        model,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loaders={"train": DataLoader(data, batch_size=4, shuffle=True), "val": DataLoader(data, batch_size=4, shuffle=True)},
        plugins=plugins,
        max_steps=10,
        autoload=False,
    )
    trainer.train()
    return model.state_dict()


class Modes:
    def __init__(self):
        self.seen = []

    @hookimpl
    def before_step(self, trainer):
        self.seen.append(all(module.training for module in trainer.model.modules()))


class TestEV02:
    """Model stays in eval mode."""

    def test_ev_02_training_mode_and_masks_as_without_evaluation(self):
        """The evaluation draws as well, since its loader shuffles; nothing of that shows in the training."""
        modes = Modes()
        with_eval = dropout_run([Evaluation(every_steps=3), modes])
        without = dropout_run([])
        assert modes.seen == [True] * 10
        assert all(torch.equal(with_eval[name], without[name]) for name in without)

    def test_ev_02_gradients_are_off_inside_only(self, make_trainer):
        class Looks:
            def __init__(self):
                self.inside, self.training = [], []

            @hookimpl
            def before_eval(self, trainer):
                self.inside.append((torch.is_grad_enabled(), trainer.model.training, trainer.split))

            @hookimpl
            def after_step(self, trainer):
                self.training.append((torch.is_grad_enabled(), trainer.model.training, trainer.split))

        looks = Looks()
        make_trainer([Evaluation(every_steps=1), looks], val=(1.0,), max_steps=2).train()
        assert looks.inside == [(False, False, "val")] * 2
        assert looks.training == [(True, True, "train")] * 2

    def test_ev_02_a_frozen_part_stays_in_evaluation_mode(self):
        """The mode of each module is left as it was found, not that of the whole model."""
        model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
        seen = []

        class Freezes:
            @hookimpl
            def before_train(self, trainer):
                trainer.model[1].eval()

            @hookimpl
            def before_step(self, trainer):
                seen.append([module.training for module in trainer.model])

        data = [(torch.ones(2, 1), torch.ones(2, 1))] * 3
        Trainer(
            model,
            loss=nn.functional.mse_loss,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loaders={"train": data, "val": data},
            plugins=[Evaluation(every_steps=1), Freezes()],
            max_steps=3,
            autoload=False,
        ).train()
        assert seen == [[True, False]] * 3

    @pytest.mark.parametrize("hook", ["before_eval", "eval_step", "after_eval_step", "after_eval"])
    def test_ev_02_an_evaluation_that_fails_leaves_training_mode(self, make_trainer, hook):
        class Fails:
            pass

        def fail():
            raise OSError("no data")

        setattr(Fails, hook, staticmethod(hookimpl(specname=hook)(fail)))
        trainer = make_trainer([Fails()], val=(1.0,))
        with pytest.raises(OSError, match="no data"):
            trainer.evaluate("val")
        assert trainer.model.training
        assert torch.is_grad_enabled()
        assert trainer.split == "train"


class FailsFirst:
    """The evaluation at it 5 fails, the first time only."""

    def __init__(self):
        self.armed = True

    @hookimpl
    def eval_step(self, trainer):
        if self.armed and trainer.step == 5:
            self.armed = False
            raise OSError("the evaluation's data is gone")


class TestEV04:
    """Exception in eval loses the trained weights."""

    def test_ev_04_saved_owed_and_made_up_for(self, make_trainer, recorder, tmp_path):
        fails, listener = FailsFirst(), recorder("after_eval", "before_step")

        def plugins():
            return [Evaluation(every_updates=5), Checkpoint(every_updates=5), fails, listener]

        trainer = make_trainer(plugins(), val=(1.0,), max_steps=10, work_dir=tmp_path / "run")
        with pytest.raises(OSError, match="data is gone"):
            trainer.train()
        saved = tmp_path / "run" / "checkpoints" / "step-00000005"
        assert read_checkpoint(saved)["model"]["w"].item() == -5.0
        assert evals(listener) == []

        listener.calls.clear()
        again = make_trainer(plugins(), val=(1.0,), max_steps=10, work_dir=tmp_path / "run")
        assert again.train(resume="auto").step == 10
        assert listener.calls[:2] == [("after_eval", 5), ("before_step", 5)]  # it 6 comes after the evaluation of 5
        assert evals(listener) == [5, 10]
        # The loss of the batch (1.0) at weight -5, attached to the checkpoint of it 5.
        assert json.loads((saved / "manifest.json").read_text())["metrics"]["val/loss"] == -5.0

    @pytest.mark.parametrize("hook", ["before_eval", "after_eval_step", "after_eval"])
    @pytest.mark.parametrize("period", ["every_steps", "every_epochs"])
    def test_ev_04_wherever_it_fails(self, make_trainer, recorder, tmp_path, hook, period):
        """Epochs of 5 steps; what fails is a listener, the first time only."""

        class Fails:
            armed = True

        def fail(trainer):
            if Fails.armed and trainer.step == 5:
                Fails.armed = False
                raise OSError("no space left")

        setattr(Fails, hook, staticmethod(hookimpl(specname=hook)(fail)))
        listener = recorder("evaluate", "before_step")
        options = {period: 5 if period == "every_steps" else 1}

        def trainer():
            plugins = [Evaluation(**options), Checkpoint(**options), Fails(), listener]
            return make_trainer(plugins, values=(1.0,) * 5, val=(1.0,), max_steps=10, work_dir=tmp_path / "run")

        with pytest.raises(OSError, match="no space left"):
            trainer().train()
        saved = read_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000005")
        assert saved["model"]["w"].item() == -5.0
        listener.calls.clear()
        assert trainer().train(resume="auto").step == 10
        assert [call for call in listener.calls if call[0] == "evaluate" or call[1] == 5] == [
            ("evaluate", 5),
            ("before_step", 5),
            ("evaluate", 10),
        ]

    def test_ev_04_the_last_one_fails(self, make_trainer, recorder, tmp_path):
        """At the end of training, where no period is due: the weights are saved, and a resume makes up for it."""

        class Fails:
            armed = True

            @hookimpl
            def eval_step(self, trainer):
                if Fails.armed and trainer.step == 10:
                    Fails.armed = False
                    raise OSError("no data")

        listener = recorder("after_eval", "before_step")

        def trainer():
            plugins = [Evaluation(every_steps=4), Checkpoint(every_steps=4), Fails(), listener]
            return make_trainer(plugins, val=(1.0,), max_steps=10, work_dir=tmp_path / "run")

        with pytest.raises(OSError, match="no data"):
            trainer().train()
        saved = read_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000010")
        assert saved["model"]["w"].item() == -10.0
        listener.calls.clear()
        trainer().train(resume="auto")
        assert listener.calls == [("after_eval", 10)]

    def test_ev_04_without_a_checkpoint_plugin_the_error_is_the_same(self, make_trainer):
        with pytest.raises(OSError, match="data is gone"):
            make_trainer([Evaluation(every_updates=5), FailsFirst()], val=(1.0,), max_steps=10).train()


class Reports:
    """Means of 1, 1 and 4 for batches of 4, 4 and 2."""

    @hookimpl
    def eval_step(self, batch):
        return {"loss": batch.mean()}


class WithoutLength(IterableDataset):
    def __iter__(self):
        yield from (torch.full((4,), 1.0), torch.full((4,), 1.0), torch.full((2,), 4.0))


class TestEV06:
    """Averages over unequal batches; empty eval set."""

    @pytest.mark.parametrize("known", [True, False])
    def test_ev_06_weighted(self, make_trainer, known):
        """(4 * 1 + 4 * 1 + 2 * 4) / 10 = 16 / 10; without a length as well."""
        trainer = make_trainer([Evaluation(), Reports()])
        loader = DataLoader(WithoutLength(), batch_size=None)
        trainer.loaders["val"] = list(loader) if known else loader
        outcome = trainer.train()
        assert outcome.metrics["val/loss"] == pytest.approx(1.6, abs=1e-12)

    def test_ev_06_own_weights(self, make_trainer):
        """Weighted by what the step says, for example tokens: (1 * 1 + 3 * 5) / 4."""

        class Tokens:
            @hookimpl
            def eval_step(self, batch):
                return {"loss": batch.sum(), "weight": 1 if batch.sum() == 1 else 3}

        trainer = make_trainer([Tokens()], val=(1.0, 5.0))
        assert trainer.evaluate("val") == {"val/loss": 4.0}

    def test_ev_06_empty_and_known_before_it_1(self, make_trainer, recorder):
        steps = recorder("before_step")
        trainer = make_trainer([Evaluation(), steps])
        trainer.loaders["val"] = DataLoader(TensorDataset(torch.zeros(3)), batch_size=4, drop_last=True)
        with pytest.raises(DataError, match=r"evaluation of 'val': no batches \(.*3 samples, batch_size=4, drop_last=True"):
            trainer.train()
        assert steps.calls == []

    def test_ev_06_empty_and_not_known_at_the_first_evaluation(self, make_trainer, recorder):
        class Empty:
            def __iter__(self):
                return iter(())

        listener = recorder("after_eval")
        trainer = make_trainer([Evaluation(every_steps=2), listener])
        trainer.loaders["val"] = Empty()
        with pytest.raises(DataError, match="evaluation of 'val': no batches"):
            trainer.train()
        assert trainer.step == 2
        assert listener.calls == []
        assert "val/loss" not in trainer.metrics

    def test_ev_06_every_batch_dropped_by_a_filter(self, make_trainer):
        from trainhooks import SkipStep

        class Filter:
            def __init__(self, keeps):
                self.keeps = keeps

            @hookimpl(wrapper=True)
            def prepare_batch(self, trainer):
                batch = yield
                if batch.item() > self.keeps:
                    raise SkipStep("too large")
                return batch

        trainer = make_trainer([Filter(2), Reports()], val=(1.0, 2.0, 9.0))
        assert trainer.evaluate("val") == {"val/loss": 1.5}
        assert [
            round(output.item(), 3) for output in make_trainer([Filter(2)], start=1.0, val=(1.0, 9.0, 2.0)).predict("val")
        ] == [1, 2]
        trainer = make_trainer([Filter(0), Reports()], val=(1.0, 2.0))
        with pytest.raises(DataError, match="prepare_batch dropped all of its 2 batches"):
            trainer.evaluate("val")

    def test_ev_06_batches_without_samples(self, make_trainer):
        """The mean of no samples is NaN and counts for nothing; a set of nothing but such batches is an empty one."""

        class Tokens:
            @hookimpl
            def eval_step(self, batch):
                count = int(batch.sum())
                return {"loss": batch.sum() / count if count else torch.tensor(torch.nan), "weight": count}

        trainer = make_trainer([Evaluation(), Reports()], val=(1.0,))
        trainer.loaders["val"] = [torch.tensor([1.0, 3.0]), torch.zeros(0), torch.tensor([5.0])]
        assert trainer.evaluate("val") == {"val/loss": 3.0}
        trainer.loaders["val"] = [torch.zeros(0)] * 2
        with pytest.raises(DataError, match="evaluation of 'val': none of its 2 batches has a sample"):
            trainer.evaluate("val")
        assert make_trainer([Tokens()], val=(4.0, 0.0)).evaluate("val") == {"val/loss": 1.0}
        with pytest.raises(DataError, match="or a weight above 0"):
            make_trainer([Tokens()], val=(0.0, 0.0)).evaluate("val")

    @pytest.mark.parametrize("shape", [(1,), (1, 1)])
    def test_ev_06_a_loss_with_a_dimension(self, make_trainer, shape):
        """What training takes for a loss is measured as one."""

        class Shaped:
            @hookimpl
            def compute_loss(self, batch):
                return batch.sum().reshape(shape)

        assert make_trainer([Shaped()], val=(1.0, 4.0)).evaluate("val") == {"val/loss": 2.5}

    @pytest.mark.parametrize(
        ("weight", "shown"), [(torch.ones(3), r"a tensor of shape \(3,\)"), (-1, "-1"), (float("nan"), "nan"), ("4", "'4'")]
    )
    def test_ev_06_a_weight_that_is_none(self, make_trainer, weight, shown):
        class Weighs:
            @hookimpl
            def eval_step(self, batch):
                return {"loss": batch.sum(), "weight": weight}

        with pytest.raises(UsageError, match=f"the weight {shown}: it says for how much the batch counts"):
            make_trainer([Weighs()], val=(1.0,)).evaluate("val")


def test_the_train_loader_is_evaluated_while_it_is_trained_with(make_trainer):
    """A loader whose workers persist has one iterator, which an evaluation of the same loader would set back."""

    class Sees:
        def __init__(self):
            self.seen = []

        @hookimpl
        def after_step(self, batch):
            self.seen.append(batch[0].item())

    runs = []
    for workers in (0, 1):
        sees = Sees()
        trainer = make_trainer([Evaluation(every_steps=3, splits=("train",)), sees], max_epochs=2)
        values = TensorDataset(torch.arange(8.0))
        trainer.loaders["train"] = DataLoader(
            values,
            collate_fn=lambda items: torch.stack([one for (one,) in items]),
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        outcome = trainer.train()
        runs.append((sees.seen, outcome.metrics["train/loss"]))
        del trainer
    assert runs[0] == runs[1]
    assert runs[1][0] == [float(value) for value in range(8)] * 2
