"""MX: limits, epochs, loaders. A limit of updates is the case's "max_iter"; here each step makes one update."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trainhooks import DataError, Trainer, UsageError, hookimpl
from trainhooks_builtins import LR, Checkpoint, Evaluation

LIFE = ("before_train", "before_epoch", "after_train_epoch", "after_epoch", "after_train")


def checkpoints(work_dir):
    folder = work_dir / "checkpoints"
    return sorted(int(entry.name.removeprefix("step-")) for entry in folder.iterdir()) if folder.is_dir() else []


class TestMX01:
    """Zero iterations."""

    @pytest.mark.parametrize("limit", ["max_steps", "max_updates", "max_epochs"])
    def test_mx_01_zero(self, make_trainer, recorder, tmp_path, limit):
        life = recorder(*LIFE, "before_step", "after_update")
        trainer = make_trainer([life, Checkpoint()], start=3.25, work_dir=tmp_path / "run", **{limit: 0})
        outcome = trainer.train()
        assert (outcome.status, outcome.step, outcome.update, outcome.epoch) == ("completed", 0, 0, 0)
        assert trainer.model.w.item() == 3.25
        assert life.calls == [("before_train", 0), ("after_train", 0)]
        assert checkpoints(tmp_path / "run") == []

    def test_mx_01_unset_asks_for_one(self, make_trainer, tmp_path):
        trainer = make_trainer(max_epochs=None, max_steps=None, work_dir=tmp_path / "run")
        with pytest.raises(UsageError, match="no limit: give max_epochs, max_steps or max_updates") as caught:
            trainer.train()
        assert caught.value.exit_code == 2
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("limit", ["max_steps", "max_updates", "max_epochs"])
    def test_mx_01_negative_is_a_usage_error(self, make_trainer, limit):
        with pytest.raises(UsageError, match=f"{limit} = -1"):
            make_trainer(**{limit: -1})

    @pytest.mark.parametrize(
        ("limits", "steps", "reason"),
        [
            ({"max_steps": 4, "max_epochs": 2}, 4, "max_steps=4 reached"),
            ({"max_steps": 40, "max_epochs": 2}, 6, "max_epochs=2 reached"),
            ({"max_updates": 5, "max_epochs": 2}, 5, "max_updates=5 reached"),
            ({"max_updates": 5, "max_steps": 2, "max_epochs": 9}, 2, "max_steps=2 reached"),
        ],
    )
    def test_mx_01_both_set_the_first_reached_ends(self, make_trainer, limits, steps, reason):
        outcome = make_trainer(values=(1.0,) * 3, **limits).train()
        assert (outcome.step, outcome.reason) == (steps, reason)

    def test_mx_01_one(self, make_trainer, tmp_path):
        trainer = make_trainer([Checkpoint()], max_updates=1, work_dir=tmp_path / "run")
        outcome = trainer.train()
        assert (outcome.update, trainer.model.w.item()) == (1, -1.0)
        assert checkpoints(tmp_path / "run") == [1]


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


class EmptyLater:
    """Three batches in the first epoch, none afterwards."""

    def __init__(self):
        self.epochs = 0

    def __iter__(self):
        self.epochs += 1
        return iter([torch.ones(1, dtype=torch.float64)] * 3 if self.epochs == 1 else [])


def trainer_of(loader, scalar_model, plugins=(), **arguments):
    model = scalar_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Trainer(model, optimizer=optimizer, loaders={"train": loader}, plugins=plugins, autoload=False, **arguments)


class TestMX02:
    """Empty loader."""

    @pytest.mark.parametrize("limit", [{"max_updates": 10}, {"max_epochs": 5}])
    def test_mx_02_fewer_samples_than_a_batch(self, scalar_model, recorder, limit):
        life = recorder(*LIFE, "before_step")
        loader = DataLoader(TensorDataset(torch.ones(3)), batch_size=4, drop_last=True)
        trainer = trainer_of(loader, scalar_model, [life], **limit)
        with pytest.raises(DataError, match=r"no batches \(.*dataset of 3 samples, batch_size=4, drop_last=True\)") as caught:
            trainer.train()
        assert caught.value.exit_code == 1
        assert life.calls.count(("after_train", 0)) == 1
        assert ("before_step", 0) not in life.calls
        assert ("after_epoch", 0) not in life.calls  # there was no epoch
        assert trainer.outcome.status == "failed"

    @pytest.mark.parametrize("limit", [{"max_updates": 10}, {"max_epochs": 5}])
    def test_mx_02_iterable_that_yields_nothing(self, scalar_model, limit):
        with pytest.raises(DataError, match="no batches"):
            trainer_of(DataLoader(Nothing()), scalar_model, **limit).train()

    @pytest.mark.parametrize("limit", [{"max_updates": 10}, {"max_epochs": 5}])
    def test_mx_02_empty_only_in_epoch_2(self, scalar_model, tmp_path, limit):
        loader = EmptyLater()
        trainer = trainer_of(loader, scalar_model, [Checkpoint()], work_dir=tmp_path / "run", **limit)
        with pytest.raises(DataError, match="epoch 1: no batches"):  # epochs are counted from 0
            trainer.train()
        assert loader.epochs == 2
        assert checkpoints(tmp_path / "run") == [3]
        again = trainer_of([torch.ones(1, dtype=torch.float64)] * 3, scalar_model, [Checkpoint()], max_steps=3)
        again.train(resume=tmp_path / "run")
        assert (again.model.w.item(), again.step, again.epoch) == (-3.0, 3, 1)

    def test_mx_02_a_generator_is_used_up(self, scalar_model):
        loader = (torch.ones(1, dtype=torch.float64) for _ in range(3))
        with pytest.raises(DataError, match="epoch 1: no batches.*a generator can be read once only"):
            trainer_of(loader, scalar_model, max_epochs=2).train()


class Stream(IterableDataset):
    """Seven samples, and a length that it declares or not."""

    def __init__(self, count=7):
        self.count = count

    def __iter__(self):
        return iter([torch.ones((), dtype=torch.float64)] * self.count)


class Declared(Stream):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def __len__(self):
        return self.length


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones((), dtype=torch.float64)


class TestMX03:
    """IterableDataset without, or with a wrong, length."""

    def test_mx_03_no_length(self, scalar_model, recorder, tmp_path):
        life = recorder("before_epoch", "after_train_epoch", "after_epoch")
        trainer = trainer_of(
            DataLoader(Stream(), batch_size=None), scalar_model, [life, Checkpoint()], max_epochs=2, work_dir=tmp_path / "run"
        )
        assert trainer.train().update == 14
        assert life.calls == [
            *(("before_epoch", 0), ("after_train_epoch", 7), ("after_epoch", 7)),
            *(("before_epoch", 7), ("after_train_epoch", 14), ("after_epoch", 14)),
        ]
        assert checkpoints(tmp_path / "run") == [7, 14]

    def test_mx_03_declares_10_gives_7(self, scalar_model, recorder, messages):
        """One warning for the run, not one for each epoch; torch itself says nothing when there are fewer."""
        life = recorder("after_train_epoch")
        trainer = trainer_of(DataLoader(Declared(10), batch_size=None), scalar_model, [life], max_epochs=2)
        assert trainer.train().update == 14
        assert life.calls == [("after_train_epoch", 7), ("after_train_epoch", 14)]
        assert [text for text in messages() if "says that it has" in text] == [
            "the train loader says that it has 10 batches, but gave 7"
        ]

    def test_mx_03_steps_per_epoch_is_10_and_it_gives_7(self, scalar_model, messages):
        trainer = trainer_of(DataLoader(Declared(7), batch_size=None), scalar_model, max_epochs=2, steps_per_epoch=10)
        assert trainer.train().update == 14
        assert [text for text in messages() if "steps_per_epoch" in text] == [
            "steps_per_epoch = 10, but the train loader gave 7 batches in an epoch"
        ]

    def test_mx_03_declares_5_gives_7(self, scalar_model, recorder):
        """Documented: an epoch ends at the declared length."""
        life = recorder("after_train_epoch")
        trainer = trainer_of(DataLoader(Declared(5), batch_size=None), scalar_model, [life], max_epochs=2)
        assert trainer.train().update == 10
        assert life.calls == [("after_train_epoch", 5), ("after_train_epoch", 10)]

    def test_mx_03_infinite_with_a_limit_of_updates(self, scalar_model):
        assert trainer_of(DataLoader(Endless(), batch_size=None), scalar_model, max_updates=10).train().update == 10

    def test_mx_03_infinite_with_steps_per_epoch(self, scalar_model, recorder):
        life = recorder("after_epoch")
        trainer = trainer_of(DataLoader(Endless(), batch_size=None), scalar_model, [life], max_epochs=3, steps_per_epoch=4)
        assert trainer.train().update == 12
        assert life.calls == [("after_epoch", 4), ("after_epoch", 8), ("after_epoch", 12)]

    def test_mx_03_infinite_with_epochs_only_gets_a_note(self, scalar_model, messages):
        """Nobody can tell an endless loader from a long one; that its epoch may never end is said before the first step."""

        class Stops:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 20:
                    trainer.stop("enough")

        trainer = trainer_of(DataLoader(Endless(), batch_size=None), scalar_model, [Stops()], max_epochs=2)
        assert trainer.train().step == 20
        assert any("no length" in text and "steps_per_epoch" in text for text in messages())

    def test_mx_03_evaluation_and_save_come_after_the_real_last_batch(self, scalar_model, recorder, tmp_path):
        evals = recorder("before_eval")
        loader = DataLoader(Declared(10), batch_size=None)
        model = scalar_model()
        trainer = Trainer(
            model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            loaders={"train": loader, "val": [torch.ones(1, dtype=torch.float64)]},
            plugins=[Evaluation(), Checkpoint(), evals],
            max_epochs=2,
            work_dir=tmp_path / "run",
            autoload=False,
        )
        trainer.train()
        assert evals.calls == [("before_eval", 7), ("before_eval", 14)]
        assert checkpoints(tmp_path / "run") == [7, 14]


class TestMX05:
    """fit called twice. Documented: it goes on from the counters, so the same limit does 0 more."""

    def test_mx_05_same_limit_then_a_higher_one(self, make_trainer, recorder):
        steps = recorder("before_step", "after_step")
        trainer = make_trainer([steps], max_steps=5)
        model, optimizer = trainer.model, trainer.optimizer
        assert trainer.train().step == 5
        assert trainer.train().step == 5
        assert trainer.train(max_steps=10).step == 10
        assert model.w.item() == -10.0
        assert steps.calls == [(hook, step) for step in range(10) for hook in ("before_step", "after_step")]
        assert (trainer.model, trainer.optimizer) == (model, optimizer)

    def test_mx_05_the_user_changes_the_rate_in_between(self, make_trainer):
        trainer = make_trainer(max_steps=5)
        trainer.train()
        trainer.optimizer.param_groups[0]["lr"] = 0.5
        trainer.train(max_steps=10)
        assert trainer.model.w.item() == -7.5  # five updates of 1, five of 0.5

    def test_mx_05_a_schedule_goes_on(self, make_trainer):
        """Linear from 1 to 0 over 5, then over 10: updates 5..9 have 1 - i / 10."""
        trainer = make_trainer([LR(schedule="linear")], max_steps=5)
        trainer.train()
        assert trainer.model.w.item() == pytest.approx(-(1 + 0.8 + 0.6 + 0.4 + 0.2), abs=1e-12)
        trainer.train(max_steps=10)
        assert trainer.model.w.item() == pytest.approx(-3.0 - (0.5 + 0.4 + 0.3 + 0.2 + 0.1), abs=1e-12)

    def test_mx_05_after_an_exception(self, make_trainer, recorder):
        class Fails:
            armed = True

            @hookimpl
            def before_step(self, trainer):
                if self.armed and trainer.step == 2:
                    raise ValueError("once")

        fails, steps = Fails(), recorder("after_step", "setup", "teardown")
        trainer = make_trainer([fails, steps], max_steps=5)
        with pytest.raises(ValueError, match="once"):
            trainer.train()
        fails.armed = False
        outcome = trainer.train()
        assert (outcome.status, outcome.step, trainer.model.w.item()) == ("completed", 5, -5.0)
        assert [step for hook, step in steps.calls if hook == "after_step"] == [0, 1, 2, 3, 4]
        assert [hook for hook, _ in steps.calls if hook in ("setup", "teardown")] == ["setup", "teardown"] * 2

    def test_mx_05_final_save_and_evaluation_are_not_repeated(self, make_trainer, recorder, tmp_path):
        """With a checkpoint that was asked for by the last evaluation: nothing of the first call is left for the second."""
        saves = recorder("after_save", "after_eval")
        plugins = [Evaluation(every_steps=3), Checkpoint(best="val/loss"), saves]
        trainer = make_trainer(plugins, max_steps=5, val=(1.0,), work_dir=tmp_path / "run")
        trainer.train()
        calls = list(saves.calls)
        assert calls == [("after_eval", 3), ("after_save", 3), ("after_eval", 5), ("after_save", 5)]
        trainer.train()
        assert saves.calls == calls
