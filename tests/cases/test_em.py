"""Cases EM: the average of the weights, its buffers, and checkpoints that are written while it stands in for them."""

import pytest
import torch
from torch import nn

from trainhooks import Trainer, hookimpl
from trainhooks_builtins import EMA, Checkpoint, Evaluation
from trainhooks_builtins.checkpoint import read_checkpoint

UP = (-1.0,) * 4  # the toy model's weight goes 1, 2, 3, 4, 5


class Normed(nn.Module):
    """Batch normalization whose weight each update makes one larger: the gradient of ``-weight`` is -1."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1, dtype=torch.float64)
        self.norm = nn.BatchNorm1d(1, dtype=torch.float64)
        self.linear.requires_grad_(False)
        with torch.no_grad():
            self.linear.weight.fill_(1.0)
            self.linear.bias.fill_(0.0)

    def forward(self, x):
        y = self.norm(self.linear(x))
        return (y * 0).sum() - self.norm.weight.sum() if self.training else y.mean()


def normed_trainer(ema, batches, **arguments):
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    arguments.setdefault("max_epochs", 1)
    return Trainer(
        model, optimizer=optimizer, loaders={"train": batches, "val": batches[:1]}, plugins=[ema], autoload=False, **arguments
    )


class TestEM01:
    @pytest.mark.parametrize("buffers", ["copy", "average"])
    def test_em_01_weights_are_averaged_and_integer_counters_copied(self, buffers):
        ema = EMA(decay=0.9, buffers=buffers)
        batches = [
            torch.tensor([[1.0, 0.0], [3.0, 0.0]], dtype=torch.float64),
            torch.tensor([[5.0, 0.0], [9.0, 0.0]], dtype=torch.float64),
        ]
        seen = []

        class Look:
            @hookimpl
            def after_update(self, trainer):
                seen.append(ema.average["norm.weight"].item())

        trainer = normed_trainer(ema, batches)
        trainer.register(Look())
        trainer.train()
        assert seen == pytest.approx([1.1, 1.29], abs=1e-12)
        norm = trainer.model.norm
        assert norm.weight.item() == 3.0
        assert norm.num_batches_tracked.item() == 2
        # by hand: batch means 2 and 7; the running mean goes 0 -> 0.1 * 2 = 0.2 -> 0.9 * 0.2 + 0.1 * 7 = 0.88
        assert norm.running_mean.item() == pytest.approx(0.88, abs=1e-12)
        with ema.averaged(trainer):
            assert norm.weight.item() == pytest.approx(1.29, abs=1e-12)
            assert norm.num_batches_tracked.item() == 2
            assert norm.num_batches_tracked.dtype == torch.int64
            # averaged: 0 -> 0.1 * 0.2 = 0.02 -> 0.9 * 0.02 + 0.1 * 0.88 = 0.106
            wanted = {"copy": 0.88, "average": 0.106}[buffers]
            assert norm.running_mean.item() == pytest.approx(wanted, abs=1e-12)
        assert norm.weight.item() == 3.0
        assert norm.running_mean.item() == pytest.approx(0.88, abs=1e-12)

    def test_em_01_evaluation_uses_statistics_of_the_data_not_the_initial_ones(self):
        ema = EMA(decay=0.9)
        batches = [torch.tensor([[3.0, 1.0], [3.0, 1.0]], dtype=torch.float64)] * 50
        trainer = normed_trainer(ema, batches)
        trainer.train()
        with_average = trainer.evaluate("val")["val/loss"]
        # the same weights with the raw statistics: mean 4 * (1 - 0.9 ** 50), variance 0.9 ** 50 of constant data
        mean, variance = 4 * (1 - 0.9**50), 0.9**50
        weight = ema.average["norm.weight"].item()
        by_hand = weight * (4 - mean) / (variance + 1e-5) ** 0.5 + ema.average["norm.bias"].item()
        assert with_average == pytest.approx(by_hand, abs=1e-3)


def restored(make_trainer, path):
    """Return the weight that a run which goes on from a checkpoint begins with, and its average."""
    seen = {}

    class First:
        @hookimpl
        def before_step(self, trainer):
            seen.setdefault("weight", trainer.model.w.item())
            seen.setdefault("average", trainer.plugins["ema"].average["w"].item())

    trainer = make_trainer(
        [EMA(decay=0.9), Checkpoint(every_epochs=0, at_end=False), First()], values=(-1.0,) * 10, start=77.0, val=(1.0,)
    )
    trainer.train(resume=path, max_steps=5)
    return seen


class SaveFrom:
    """Saves at the fourth update from a place of an evaluation."""

    def __init__(self, place, path):
        self.place, self.path = place, path

    @hookimpl
    def after_step(self, trainer):
        if trainer.step == 3:
            trainer.request_eval("val")

    def _save(self, trainer, place):
        if place == self.place:
            trainer.save_checkpoint(self.path)

    @hookimpl
    def before_eval(self, trainer):
        self._save(trainer, "before_eval")

    @hookimpl
    def after_eval_step(self, trainer):
        self._save(trainer, "after_eval_step")

    @hookimpl
    def after_eval(self, trainer):
        self._save(trainer, "after_eval")

    @hookimpl(wrapper=True)
    def evaluate(self, trainer):
        result = yield
        self._save(trainer, "wrapper")
        return result


class Innermost(SaveFrom):
    """Its wrapper is inside of that of ``ema``."""

    after = ("ema",)


class TestEM02:
    def check(self, make_trainer, path):
        state = read_checkpoint(path)
        assert state["model"]["w"].item() == 5.0
        assert state["plugins/ema"]["average"]["w"].item() == pytest.approx(1.9049, abs=1e-12)
        seen = restored(make_trainer, path)
        assert seen["weight"] == 5.0
        assert seen["average"] == pytest.approx(1.9049, abs=1e-12)

    @pytest.mark.parametrize("kind", [SaveFrom, Innermost])
    @pytest.mark.parametrize("place", ["before_eval", "after_eval_step", "after_eval", "wrapper"])
    def test_em_02_a_save_inside_an_evaluation_has_the_models_own_weights(self, make_trainer, tmp_path, place, kind):
        path = tmp_path / "kept" / "step-00000004"
        path.parent.mkdir()
        plugins = [kind(place, path), EMA(decay=0.9), Checkpoint(every_epochs=0, at_end=False)]
        trainer = make_trainer(plugins, values=UP, start=1.0, val=(1.0,))
        trainer.train()
        self.check(make_trainer, path)
        assert trainer.metrics["val/loss"] == pytest.approx(1.9049, abs=1e-12)  # the evaluation went on with the average

    def test_em_02_a_signal_during_an_evaluation(self, make_trainer, tmp_path):
        class Signal:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 3:
                    trainer.request_eval("val")

            @hookimpl
            def eval_step(self, trainer):
                raise KeyboardInterrupt

        plugins = [Signal(), EMA(decay=0.9), Checkpoint(every_epochs=0, at_end=False)]
        trainer = make_trainer(plugins, values=(-1.0,) * 9, start=1.0, val=(1.0,), work_dir=tmp_path / "run")
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert trainer.model.w.item() == 5.0
        self.check(make_trainer, tmp_path / "run/checkpoints/step-00000004")

    def test_em_02_the_best_metric(self, make_trainer, tmp_path):
        plugins = [
            EMA(decay=0.9),
            Evaluation(every_steps=4, at_end=False),
            Checkpoint(every_epochs=0, best="val/loss", at_end=False),
        ]
        trainer = make_trainer(plugins, values=UP, start=1.0, val=(1.0,), work_dir=tmp_path / "run")
        trainer.train()
        assert trainer.plugins["checkpoint"].best.value == pytest.approx(1.9049, abs=1e-12)
        self.check(make_trainer, tmp_path / "run/checkpoints/step-00000004")

    def test_em_02_whoever_asks_for_the_state_in_an_evaluation_gets_the_models_own_weights(self, make_trainer):
        kept = {}

        class Keep:
            @hookimpl
            def after_eval(self, trainer):
                kept.update(trainer.state_dict())
                kept["seen"] = trainer.model.w.item()

        trainer = make_trainer([EMA(decay=0.9), Keep()], values=UP, start=1.0, val=(1.0,))
        trainer.train()
        trainer.evaluate("val")
        assert kept["seen"] == pytest.approx(1.9049, abs=1e-12)
        assert kept["model"]["w"].item() == 5.0


class TestEM04:
    def test_em_04_an_evaluation_before_the_first_update_sees_the_weights(self, make_trainer):
        seen = []

        class Sanity:
            @hookimpl
            def before_epoch(self, trainer):
                seen.append(trainer.evaluate("val")["val/loss"])

        trainer = make_trainer([EMA(decay=0.9), Sanity()], values=UP, start=0.1, val=(1.0,))
        before = make_trainer([EMA()], start=0.1, val=(1.0,)).evaluate("val")["val/loss"]  # without any training
        trainer.train()
        assert seen == [before] == [torch.tensor(0.1, dtype=torch.float64).item()]

    def test_em_04_until_the_start_the_average_is_the_weights(self, make_trainer):
        seen = []

        class Each:
            @hookimpl
            def after_step(self, trainer):
                seen.append(trainer.evaluate("val")["val/loss"])

        trainer = make_trainer([EMA(decay=0.9, start_update=5), Each()], values=(-1.0,) * 7, start=1.0, val=(1.0,))
        trainer.train()
        assert seen[:5] == [2.0, 3.0, 4.0, 5.0, 6.0]
        # from there: 0.9 * 6 + 0.1 * 7 = 6.1, then 0.9 * 6.1 + 0.1 * 8 = 6.29
        assert seen[5:] == pytest.approx([6.1, 6.29], abs=1e-12)

    def test_em_04_a_run_resumed_from_a_checkpoint_without_it_starts_from_the_loaded_weights(
        self, make_trainer, tmp_path, messages
    ):
        checkpoint = Checkpoint(every_epochs=0)
        make_trainer([checkpoint], values=UP, start=1.0, work_dir=tmp_path / "run").train()
        ema = EMA(decay=0.9)
        trainer = make_trainer([ema, Checkpoint(every_epochs=0)], values=(-1.0,) * 5, start=77.0)
        trainer.train(resume=checkpoint.path, max_steps=5, max_epochs=2)
        assert ema.average["w"].item() == pytest.approx(0.9 * 5 + 0.1 * 6, abs=1e-12)
        assert len([one for one in messages() if "plugins/ema" in one]) == 1
