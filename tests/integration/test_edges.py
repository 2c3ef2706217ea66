"""Edges of a run: requests and errors at awkward moments, and resuming where an epoch begins."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from trainhooks import SkipEpoch, SkipStep, Trainer, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation


def test_max_updates_holds_when_a_hook_flushes_after_the_last(make_trainer):
    class Flushes:
        @hookimpl
        def after_step(self, trainer):
            trainer.log("x", 1.0)
            trainer.flush()

    outcome = make_trainer([Flushes()], max_updates=3).train()
    assert (outcome.step, outcome.update) == (3, 3)


def test_a_batch_dropped_for_its_gradient_leaves_nothing_of_it(make_trainer):
    """Gradients are the values; the NaN is dropped before the update, so the weight is -(1 + 1 + 1)."""

    class DropsNaN:
        @hookimpl
        def gradients_ready(self, trainer):
            if not trainer.model.w.grad.isfinite():
                raise SkipStep("NaN")

    trainer = make_trainer([DropsNaN()], values=(1.0, float("nan"), 1.0, 1.0))
    assert trainer.train().update == 3
    assert trainer.model.w.item() == -3.0


def test_skip_epoch_after_the_update_counts_the_step(make_trainer):
    class Ends:
        @hookimpl
        def after_step(self, trainer):
            if trainer.batch_index == 1:
                raise SkipEpoch("enough")

    outcome = make_trainer([Ends()], max_epochs=2).train()
    assert (outcome.step, outcome.update, outcome.epoch) == (4, 4, 2)


@pytest.mark.parametrize("hook", ["after_step", "after_update"])
def test_skip_step_after_the_update_is_refused(make_trainer, hook):
    class TooLate:
        pass

    @hookimpl(specname=hook)
    def late():
        raise SkipStep("too late")

    plugin = TooLate()
    plugin.late = late
    with pytest.raises(UsageError, match="when the step had been trained"):
        make_trainer([plugin]).train()


def test_an_evaluation_cannot_end_an_epoch_of_training(make_trainer):
    class Ends:
        @hookimpl
        def after_eval_step(self):
            raise SkipEpoch("no")

    with pytest.raises(UsageError, match="steers training only"):
        make_trainer([Evaluation(every_steps=2), Ends()], val=(1.0,)).train()


def test_evaluating_a_checkpoint_leaves_the_place_in_the_run(make_trainer, tmp_path):
    make_trainer([Checkpoint(every_steps=4)], max_steps=4, work_dir=tmp_path / "run").train()
    trainer = make_trainer([Checkpoint()], val=(1.0,), max_steps=4)
    assert trainer.evaluate(checkpoint=tmp_path / "run") == {"val/loss": -4.0}
    assert trainer.step == 0
    assert trainer.train().step == 4
    assert trainer.model.w.item() == -8.0  # from the weights of the checkpoint, by 4 steps of its own


@pytest.mark.parametrize("where", ["loader", "sampler"])
@pytest.mark.parametrize(("interval", "cut"), [("every_steps", 2), ("every_steps", 3), ("every_steps", 5), ("every_epochs", 3)])
def test_a_loader_with_a_generator_of_its_own_resumes_exactly(tmp_path, where, interval, cut):
    """3 batches an epoch: cut within an epoch and where one ends; the order of all 9 batches is that of one run."""
    data = TensorDataset(torch.arange(6.0).reshape(6, 1))

    def run(steps, resume=None):
        generator = torch.Generator().manual_seed(5)
        if where == "loader":
            loader = DataLoader(data, batch_size=2, shuffle=True, generator=generator)
        else:
            loader = DataLoader(data, batch_size=2, sampler=RandomSampler(data, generator=generator))
        seen = []

        class Records:
            @hookimpl
            def before_epoch(self):
                seen.append(torch.rand(()).item())  # a hook that draws of its own

            @hookimpl
            def before_step(self, batch):
                seen.append(batch[0].flatten().tolist())

        torch.manual_seed(7 if resume is None else 99)
        model = nn.Linear(1, 1)
        trainer = Trainer(
            model,
            loss=None,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            loaders={"train": loader},
            max_steps=steps,
            work_dir=tmp_path / f"{where}{cut}",
            plugins=[Records(), Checkpoint(**{interval: 1}), Loss()],
            autoload=False,
            overwrite=True,
        )
        trainer.train(resume=resume)
        return seen

    class Loss:
        @hookimpl
        def compute_loss(self, trainer, batch):
            return trainer.model(batch[0]).mean()

    whole = run(9)
    first = run(cut)
    rest = run(9, resume="auto")
    # A checkpoint of a step belongs to its epoch, even of the last step: before_epoch is called once more for it.
    assert first + (rest[1:] if interval == "every_steps" else rest) == whole


def test_a_plugin_whose_configure_fails_is_not_left_behind(make_trainer):
    class Fails:
        @hookimpl
        def configure(self):
            raise ValueError("no")

    trainer = make_trainer(val=(1.0,))
    trainer.evaluate()
    with pytest.raises(ValueError, match="no"), trainer.using(Fails()):
        pass
    assert not trainer.plugins


def test_own_generator_loader_keeps_its_epochs_when_it_is_interrupted():
    """An iterator of its own with 4 batches an epoch, interrupted after 2: epochs end at 4, 8, 12 all the same."""
    ends = []

    class Own:
        @hookimpl
        def train_step(self):
            return {"loss": 0.0}

        @hookimpl
        def after_epoch(self, trainer):
            ends.append(trainer.step)

    trainer = Trainer(loaders={"train": iter([()] * 20)}, steps_per_epoch=4, max_steps=2, plugins=[Own()], autoload=False)
    trainer.train()
    trainer.train(max_steps=12)
    assert ends == [2, 4, 8, 12]  # the first is the epoch that was cut short
