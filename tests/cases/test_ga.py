"""GA: gradient accumulation. A micro-batch is a step; the toy loss of a batch ``x`` is ``w * x``, SGD with rate 1."""

import pytest
import torch

from trainhooks import SkipEpoch, SkipStep, hookimpl
from trainhooks_builtins import EMA, LR, Accumulate, Checkpoint, Evaluation


class Weights:
    """Notes the weight and the rate of each update."""

    def __init__(self):
        self.weights, self.rates = [], []

    @hookimpl(wrapper=True)
    def optimizer_step(self, trainer):
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])
        return (yield)

    @hookimpl
    def after_update(self, trainer):
        self.weights.append(trainer.model.w.item())


@pytest.fixture
def train(make_trainer):
    """Return a function that trains and returns the trainer with the weight after each update."""

    def run(accumulate, values, *plugins, **arguments):
        seen = Weights()
        trainer = make_trainer([accumulate, seen, *plugins], values=values, **arguments)
        trainer.train()
        return trainer, seen

    return run


SEVEN = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


class TestGA01:
    """The last window is smaller."""

    def test_ga_01_its_mean_is_over_what_it_has(self, train):
        trainer, seen = train(Accumulate(3), SEVEN)
        assert seen.weights == [-2.0, -7.0, -14.0]
        assert trainer.update == 3

    def test_ga_01_dropping_must_be_asked_for(self, train):
        trainer, seen = train(Accumulate(3, partial="drop"), SEVEN)
        assert seen.weights == [-2.0, -7.0]
        assert trainer.update == 2


class TestGA02:
    """The epoch is shorter than a window."""

    def test_ga_02_each_epoch_is_an_update(self, train):
        trainer, seen = train(Accumulate(4), [1.0, 3.0], max_epochs=3)
        assert seen.weights == [-2.0, -4.0, -6.0]
        assert trainer.total_updates == trainer.update == 3

    @pytest.mark.parametrize("limits", [{"max_updates": 3}, {"max_updates": 3, "max_epochs": 9}])
    def test_ga_02_so_it_is_with_a_limit_of_updates(self, train, limits):
        trainer, seen = train(Accumulate(4), [1.0, 3.0], **limits)
        assert seen.weights == [-2.0, -4.0, -6.0]
        assert trainer.total_updates == trainer.update == 3
        assert (trainer.step, trainer.epoch) == (6, 3)

    def test_ga_02_a_limit_of_steps_ends_with_an_update(self, train):
        trainer, seen = train(Accumulate(4), [1.0, 3.0], max_steps=3)
        assert seen.weights == [-2.0, -3.0]
        assert trainer.total_updates == trainer.update == 2


class TestGA04:
    """Schedules, averages, logs and checkpoints count updates."""

    def test_ga_04_not_micro_batches(self, train, tmp_path):
        records = []

        class Report:
            @hookimpl
            def report_metrics(self, records):
                rows.extend(record for record in records if "lr" in record.values)

        rows = records
        ema, checkpoint = EMA(decay=0.5), Checkpoint(every_updates=3, keep=0, at_end=False)
        trainer, seen = train(
            Accumulate(3), SEVEN, LR("cosine"), ema, checkpoint, Report(), max_epochs=2, work_dir=tmp_path, log_every_steps=1
        )
        wanted = [1, 0.933013, 0.75, 0.5, 0.25, 0.066987]
        assert seen.rates == pytest.approx(wanted, abs=1e-6)
        assert [record.values["lr"] for record in rows] == pytest.approx(wanted, abs=1e-6)
        assert ema.averagings == 6
        average = 0.0
        for weight in seen.weights:
            average = 0.5 * average + 0.5 * weight
        assert ema.average["w"].item() == pytest.approx(average, rel=1e-12)
        saved = sorted(entry.name for entry in (tmp_path / "checkpoints").iterdir())
        assert saved == ["step-00000007", "step-00000014"]  # the steps of updates 3 and 6
        assert trainer.total_updates == trainer.update == 6

    @pytest.mark.parametrize("how", ["dropped", "short", "ended"])
    def test_ga_04_nor_do_they_miss_an_update_that_the_end_of_an_epoch_makes(self, train, tmp_path, how):
        """Seven of eight batches are trained, so each epoch ends with a window of one: updates 3 and 6."""
        done = []

        class Short(list):
            def __len__(self):
                return 8

        class Cuts:
            @hookimpl
            def prepare_batch(self, trainer, batch):
                if trainer.split == "train" and trainer.batch_index == 7:
                    raise SkipStep("not this one") if how == "dropped" else SkipEpoch("enough")

            @hookimpl
            def configure(self, trainer):
                if how == "short":
                    trainer.loaders["train"] = Short(trainer.loaders["train"][:7])

            @hookimpl
            def before_eval(self, trainer):
                done.append(("evaluated", trainer.step, trainer.update))

            @hookimpl
            def after_save(self, trainer):
                done.append(("saved", trainer.step, trainer.update))

        evaluation = Evaluation(every_updates=3, start_update=3, at_end=True)
        checkpoint = Checkpoint(every_updates=3, at_end=True)
        plugins = [evaluation, checkpoint, Cuts()]
        trainer, seen = train(Accumulate(3), [*SEVEN, 8.0], *plugins, val=(1.0,), max_epochs=2, work_dir=tmp_path)
        assert seen.weights == [-2.0, -7.0, -14.0, -16.0, -21.0, -28.0]
        assert done == [("evaluated", 7, 3), ("saved", 7, 3), ("evaluated", 14, 6), ("saved", 14, 6)]
        assert trainer.metrics["val/loss"] == -28.0

    def test_ga_04_nor_is_an_evaluation_before_such_an_update_the_last_one(self, train):
        done = []

        class Cuts:
            @hookimpl
            def before_step(self, trainer):
                if trainer.batch_index == 4:
                    raise SkipStep("not this one")

            @hookimpl
            def after_eval(self, trainer, metrics):
                done.append((trainer.step, trainer.update, metrics["val/loss"]))

        train(Accumulate(3), [1.0, 2.0, 3.0, 4.0, 5.0], Evaluation(every_steps=4), Cuts(), val=(1.0,))
        assert done == [(4, 1, -2.0), (4, 2, -6.0)]


class TestGA06:
    """Saving in the middle of a window; the names of checkpoints do not drift."""

    def updates_saved(self, folder):
        import json

        manifests = [json.loads((entry / "manifest.json").read_text()) for entry in sorted((folder / "checkpoints").iterdir())]
        return [manifest["update"] for manifest in manifests]

    def test_ga_06_checkpoints_stay_at_every_third_update(self, train, tmp_path):
        values = [float(x) for x in range(1, 11)]
        trainer, _ = train(Accumulate(4), values, Checkpoint(every_updates=3, keep=0), max_epochs=3, work_dir=tmp_path)
        assert trainer.update == 9
        assert self.updates_saved(tmp_path) == [3, 6, 9]

    def test_ga_06_one_that_is_asked_for_within_a_window_holds_its_gradients(self, train, make_trainer, tmp_path):
        values = [float(x) for x in range(1, 11)]

        class Signal:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 5:
                    trainer.request_checkpoint()
                if trainer.step == 6:
                    trainer.stop("signal")

        whole, _ = train(Accumulate(4), values, max_epochs=3)
        first = make_trainer([Accumulate(4), Checkpoint(), Signal()], values=values, max_epochs=3, work_dir=tmp_path)
        first.train()
        assert (first.step, first.update) == (6, 1)
        resumed = make_trainer([Accumulate(4), Checkpoint()], values=values, max_epochs=3, work_dir=tmp_path)
        resumed.train(resume="auto")
        assert torch.equal(resumed.model.w, whole.model.w)
        assert (resumed.step, resumed.update) == (30, 9)


class TestGA07:
    """Losses weighted by tokens."""

    class Report:
        """Says how many tokens a batch has; its loss is the mean over them."""

        @hookimpl
        def compute_loss(self, trainer, batch):
            return {"loss": trainer.model(batch), "weight": len(batch)}

    def run(self, make_trainer, accumulate):
        trainer = make_trainer([accumulate, self.Report()])
        trainer.loaders["train"] = [torch.tensor(x, dtype=torch.float64) for x in ([8.0], [2.0, 2.0, 2.0])]
        trainer.train()
        return trainer.model.w.item()

    def test_ga_07_the_mean_over_tokens_when_asked_for(self, make_trainer):
        assert self.run(make_trainer, Accumulate(2, weight="reported")) == -3.5

    def test_ga_07_the_mean_of_means_otherwise(self, make_trainer):
        assert self.run(make_trainer, Accumulate(2)) == -5.0


class TestLR06:
    """The length of the run in updates."""

    def test_lr_06_planned_with_accumulation(self, make_trainer):
        trainer = make_trainer([Accumulate(3)], values=SEVEN, max_epochs=2)
        assert trainer.total_updates == 6
        trainer.train()
        assert trainer.update == 6
