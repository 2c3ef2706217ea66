"""Whole runs: the engine with its built-ins. A resumed run equals one that was never interrupted, bit for bit."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainhooks import SkipStep, Trainer, hookimpl
from trainhooks_builtins import LR, Checkpoint, Evaluation, MetricsLog
from trainhooks_builtins.checkpoint import read_checkpoint

STEPS, PER_EPOCH = 13, 5


class Noise:
    """Adds noise of every generator to the gradients and counts; its state is a tensor and a plain value."""

    def __init__(self):
        self.total, self.count = torch.zeros(()), 0

    @hookimpl
    def gradients_ready(self, trainer):
        noise = random.random() + float(np.random.rand()) + torch.rand(())  # noqa: NPY002 - the global generator
        self.total += noise
        self.count += 1
        for parameter in trainer.model.parameters():
            parameter.grad += 0.01 * noise

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total.copy_(state["total"])
        self.count = state["count"]


class Drops:
    """Drops every fourth batch of an epoch."""

    @hookimpl
    def before_step(self, trainer):
        if trainer.batch_index == 3:
            raise SkipStep("the fourth")


class Stops:
    """Stops after this many steps: the run keeps its length, which the schedule depends on."""

    def __init__(self, limit):
        self.limit = limit

    @hookimpl
    def after_step(self, trainer):
        if trainer.step + 1 == self.limit:
            trainer.stop("asked")


class Losses:
    """Keeps the loss of each step and the metrics of each epoch."""

    def __init__(self):
        self.steps, self.epochs, self.begun = {}, {}, []

    @hookimpl
    def after_step(self, trainer, output):
        assert trainer.step not in self.steps
        self.steps[trainer.step] = output["loss"].item()

    @hookimpl
    def before_epoch(self, epoch):
        self.begun.append(epoch)

    @hookimpl
    def after_epoch(self, epoch, metrics):
        self.epochs[epoch] = {name: value for name, value in metrics.items() if not name.startswith("time/")}


def train(work_dir, plugins, *, seed, generator, resume=None, eval_every=0, max_steps=STEPS):
    """Train on a shuffled loader with dropout, momentum and a schedule; return the losses seen."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(20, 3), torch.randn(20, 1))
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator
    own = torch.Generator().manual_seed(seed) if generator else None
    losses = Losses()
    trainer = Trainer(
        model,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        loaders={
            "train": DataLoader(data, batch_size=4, shuffle=True, generator=own),
            "val": DataLoader(data, batch_size=8, shuffle=True),
        },
        plugins=[
            Noise(),
            LR(warmup_updates=3),
            losses,
            Evaluation(every_steps=eval_every, every_epochs=0 if eval_every else 1),
            Checkpoint(every_steps=1, keep=0),
            *plugins,
        ],
        max_steps=max_steps,
        work_dir=work_dir,
        autoload=False,
    )
    trainer.train(resume=resume)
    return losses


def differences(a, b, path=""):
    """Name what is not bit-equal."""
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [path]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{path}: keys"]
        return [text for key in a for text in differences(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [f"{path}: length"]
        return [text for index, pair in enumerate(zip(a, b)) for text in differences(*pair, f"{path}/{index}")]
    return [] if a == b or repr(a) == repr(b) == "nan" else [path]


class TestResume:
    @pytest.mark.parametrize("generator", [False, True], ids=["global generator", "own generator"])
    @pytest.mark.parametrize("drops", [False, True], ids=["all batches", "some dropped"])
    def test_every_cut_ends_bit_equal(self, tmp_path, generator, drops):
        """One run saves after each of its 13 steps (epochs of 5 batches); one is resumed from each of those.

        The resumed process has other seeds, so that all that is equal came out of the checkpoint.
        """
        plugins = [Drops()] if drops else []
        whole = train(tmp_path / "whole", plugins, seed=1, generator=generator)
        final = read_checkpoint(tmp_path / "whole" / "checkpoints" / f"step-{STEPS:08d}")
        assert sorted(whole.steps) == list(range(STEPS))
        for cut in range(1, STEPS):
            work_dir = tmp_path / f"from-{cut}"
            saved = tmp_path / "whole" / "checkpoints" / f"step-{cut:08d}"
            losses = train(work_dir, plugins, seed=100 + cut, generator=generator, resume=saved)
            assert losses.steps == {step: loss for step, loss in whole.steps.items() if step >= cut}, cut
            again = read_checkpoint(work_dir / "checkpoints" / f"step-{STEPS:08d}")
            assert differences(final, again) == [], cut
            assert all(losses.epochs[epoch] == whole.epochs[epoch] for epoch in losses.epochs), cut

    def test_many_resumes_in_a_row(self, tmp_path):
        """RS-11: after each step a new process; nothing adds up."""
        whole = train(tmp_path / "whole", [], seed=1, generator=False)
        steps = {}
        for limit in range(1, STEPS + 1):
            resume = "auto" if limit > 1 else None
            steps |= train(tmp_path / "cut", [Stops(limit)], seed=limit, generator=False, resume=resume).steps
        assert steps == whole.steps
        assert (
            differences(
                *(read_checkpoint(tmp_path / name / "checkpoints" / f"step-{STEPS:08d}")["model"] for name in ("whole", "cut"))
            )
            == []
        )

    def test_evaluations_change_nothing(self, tmp_path):
        """RS-10: evaluated after every step or at epoch ends, the training is the same."""
        rare = train(tmp_path / "rare", [], seed=1, generator=False)
        often = train(tmp_path / "often", [], seed=1, generator=False, eval_every=1)
        assert rare.steps == often.steps

    def test_rs_03_saved_on_the_last_batch_of_an_epoch(self, tmp_path):
        """The checkpoint of step 5 is written before its epoch is closed: resumed, the epoch closes once and 1 comes next."""
        train(tmp_path / "whole", [], seed=1, generator=False, max_steps=5)
        losses = train(tmp_path / "whole", [], seed=2, generator=False, max_steps=STEPS, resume="auto")
        assert losses.begun == [1, 2]
        assert sorted(losses.steps) == list(range(5, STEPS))


class TestEpochEnd:
    def test_metrics_of_the_epoch(self, make_trainer):
        """Weights 0..-3 times 1 in the first epoch: mean loss -1.5; evaluated at -4 with batches 1 and 3: -8."""

        class Takes:
            def __init__(self):
                self.metrics = []

            @hookimpl
            def after_epoch(self, metrics):
                self.metrics.append({name: metrics[name] for name in ("train/loss", "val/loss")})

        takes = Takes()
        make_trainer([takes, Evaluation()], values=(1.0,) * 4, val=(1.0, 3.0), max_epochs=2).train()
        assert takes.metrics == [{"train/loss": -1.5, "val/loss": -8.0}, {"train/loss": -5.5, "val/loss": -16.0}]


def test_two_trainers_step_by_step_in_one_process(make_trainer, tmp_path):
    """B runs whole inside each step of A; neither sees the other in counters, metrics, files or weights."""

    class Nests:
        @hookimpl
        def after_step(self, trainer):
            inner = make_trainer([MetricsLog(), Checkpoint()], max_steps=3, start=100.0, work_dir=tmp_path / f"b{trainer.step}")
            assert inner.train().step == 3
            assert inner.model.w.item() == 97.0

    outer = make_trainer([Nests(), MetricsLog(), Checkpoint(every_steps=2)], max_steps=4, work_dir=tmp_path / "a")
    assert outer.train().step == 4
    assert outer.model.w.item() == -4.0
    assert outer.metrics["train/loss"] == -1.5  # the mean of 0, -1, -2 and -3: a save flushes nothing


def test_training_in_a_thread(make_trainer, tmp_path):
    import threading

    results = []
    trainers = [make_trainer([Checkpoint(), MetricsLog()], max_steps=50, work_dir=tmp_path / str(n)) for n in range(3)]
    threads = [threading.Thread(target=lambda t=t: results.append(t.train().step)) for t in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [50] * 3
    assert [trainer.model.w.item() for trainer in trainers] == [-50.0] * 3
