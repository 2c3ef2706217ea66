"""``sync_buffers``: on one rank nothing, on two their mean."""

import json
import multiprocessing
import os

import pytest
import torch

from trainhooks import Trainer, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation, SyncBuffers
from trainhooks_builtins.sync_buffers import by_kind


class Model(torch.nn.Module):
    """One weight, and a buffer of each kind; ``mean`` and ``deep`` follow the batches."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("deep", torch.zeros((), dtype=torch.float64))
        self.register_buffer("low", torch.zeros(1, dtype=torch.float16))
        self.register_buffer("third", torch.full((1,), 1 / 3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("nothing", torch.zeros(0))

    def forward(self, x):
        if self.training:
            self.mean += torch.stack([x.mean(), 2 * x.mean()])
            self.deep += x.mean().double()
            self.low += x.mean().half()
            self.steps += 1
        return (self.w * x).mean()


class Looks:
    """Notes the buffers when an evaluation begins, when a checkpoint is saved, and at the end."""

    def __init__(self):
        self.seen = {}

    def look(self, name, model):
        values = {key: one.tolist() for key, one in model.named_buffers()}
        self.seen.setdefault(name, []).append(values)

    @hookimpl
    def before_eval(self, trainer):
        self.look("eval", trainer.model)

    @hookimpl
    def on_save(self, trainer):
        self.look("save", trainer.model)

    @hookimpl
    def after_train(self, trainer):
        self.look("end", trainer.model)


def train(values, plugins, **arguments):
    looks = Looks()
    model = Model()
    trainer = Trainer(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        loaders={"train": [torch.tensor([value]) for value in values], "val": [torch.zeros(1)]},
        plugins=[*plugins, looks],
        autoload=False,
        device="cpu",
        max_epochs=1,
        **arguments,
    )
    trainer.train()
    return looks.seen


def rank_main(rank, folder, options):
    """Train as one of two ranks: 3 steps with batches of 1, or of 3; evaluate after the second, save after the third."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    plugins = [SyncBuffers(**options), Evaluation(every_steps=2, at_end=False), Checkpoint(every_steps=3, at_end=False)]
    seen = train([1.0 + 2 * rank] * 3, plugins, work_dir=folder / f"run{rank}")
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


@pytest.fixture
def two_ranks(tmp_path):
    """Return a function that trains on two ranks and gives what each saw."""

    def run(**options):
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=rank_main, args=(rank, tmp_path, options)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0]
        return [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]

    return run


forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@forks
def test_mean(two_ranks):
    """After 2 steps ranks have 2 and 6, mean 4; then 4 + 1 and 4 + 3, mean 6."""
    for seen in two_ranks():
        (evaluated,), (saved,), (end,) = seen["eval"], seen["save"], seen["end"]
        assert evaluated["mean"] == [4.0, 8.0]
        assert saved["mean"] == [6.0, 12.0]
        assert (saved["deep"], saved["low"], saved["steps"]) == (6.0, [6.0], 3)
        assert saved["third"] == torch.full((1,), 1 / 3).tolist()  # equal values keep their bits
        assert end == saved


@forks
def test_broadcast(two_ranks):
    """2 and 6 become 2; then 2 + 1 and 2 + 3 become 3."""
    for seen in two_ranks(method="broadcast"):
        assert seen["eval"][0]["mean"] == [2.0, 4.0]
        assert seen["save"][0]["mean"] == [3.0, 6.0]
        assert seen["save"][0]["deep"] == 3.0


@forks
def test_before_one_of_the_two_only(two_ranks):
    one, other = two_ranks(before_eval=False)
    assert (one["eval"][0]["deep"], other["eval"][0]["deep"]) == (2.0, 6.0)
    assert one["save"][0]["deep"] == other["save"][0]["deep"] == 6.0


@forks
def test_before_evaluation_only(two_ranks):
    one, other = two_ranks(before_save=False)
    assert one["eval"][0]["deep"] == other["eval"][0]["deep"] == 4.0
    assert (one["save"][0]["deep"], other["save"][0]["deep"]) == (5.0, 7.0)


def test_one_rank_is_left_alone(tmp_path):
    plugins = [Evaluation(every_steps=2, at_end=False), Checkpoint(every_steps=3, at_end=False)]
    alone = train([1.0] * 3, plugins, work_dir=tmp_path / "without")
    plugins = [SyncBuffers(), Evaluation(every_steps=2, at_end=False), Checkpoint(every_steps=3, at_end=False)]
    assert train([1.0] * 3, plugins, work_dir=tmp_path / "with") == alone


def test_a_rescue_has_no_collective(monkeypatch):
    """Not all ranks may be there when a failing run is rescued."""

    class Fails:
        @hookimpl
        def before_eval(self):
            raise ValueError("evaluation")

    calls = []
    plugin = SyncBuffers()
    monkeypatch.setattr(plugin, "synchronize", lambda trainer: calls.append(trainer.step))
    saves = plugin.save_checkpoint(trainer=None, kind="rescue")
    next(saves)
    assert calls == []


def test_groups():
    groups = by_kind(Model().buffers())
    assert [[len(group), group[0].dtype] for group in groups] == [[2, torch.float32], [1, torch.float64], [1, torch.float16]]
