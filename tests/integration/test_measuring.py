"""The plugins that measure, together: they change nothing, leave nothing behind, and take their options from files."""

import gc
import json
import weakref

import pytest
import torch
from torch import nn

from trainhooks import Trainer, hookimpl
from trainhooks.options import Given, validated
from trainhooks_builtins import (
    LR,
    Checkpoint,
    Evaluation,
    GradNorms,
    HookTime,
    LRMonitor,
    Memory,
    Profiler,
    Summary,
    Throughput,
)

TRAINCONF = """
import torch
from trainhooks import hookimpl

@hookimpl
def make_model():
    return torch.nn.Linear(2, 1)

@hookimpl
def make_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters(), lr=0.1)

@hookimpl
def make_loader(split):
    return [torch.ones(4, 2)] * 10 if split == "train" else None

@hookimpl
def compute_loss(trainer, batch):
    return trainer.model(batch).square().mean()
"""

OPTIONS = """
[train]
max_epochs = 2
work_dir = "run"

[plugins.profiler]
wait = 1
warmup = 1
active = 2
activities = ["cpu"]
record_shapes = true

[plugins.memory]
every_steps = 5
empty_cache = ["after_epoch", "after_step"]
empty_every_steps = 5
collect = true

[plugins.throughput]
tokens = "sequence"
flops_per_token = 6
peak_flops = 1e12

[plugins.hook_time]
warn_share = 0.5
top = 5

[plugins.summary]
depth = 1
flops = true

[plugins.lr_monitor]
momentum = true
weight_decay = true

[plugins.grad_norms]
every_updates = 2
norm_type = "inf"
weights = true
updates = true
"""


def everything():
    return [
        Profiler(2, 1, 2, repeat=0),
        Memory(every_steps=2),
        Throughput("sequence"),
        HookTime(),
        Summary(flops=True),
        LRMonitor(momentum=True, weight_decay=True),
        GradNorms(2, depth=2, weights=True, updates=True),
    ]


def make(plugins, folder, **limits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    data = torch.arange(60.0).reshape(10, 2, 3) / 10
    return Trainer(
        model,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        loaders={"train": [(x, x.mean(1, keepdim=True)) for x in data], "val": [(data[0], torch.ones(2, 1))]},
        plugins=[LR("linear", total_updates=20), Evaluation(every_steps=3), Checkpoint(every_steps=5), *plugins],
        autoload=False,
        work_dir=folder,
        log_every_steps=4,
        **{"max_epochs": 2, "seed": 1, **limits},
    )


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_training_is_the_same_to_the_last_bit(tmp_path):
    plain, measured = make([], tmp_path / "plain"), make(everything(), tmp_path / "measured")
    plain.train()
    measured.train()
    assert same(weights(plain), weights(measured))
    assert plain.metrics["train/loss"] == measured.metrics["train/loss"]
    assert {"throughput/tokens_per_s", "memory/host_mib", "lr/optimizer/0", "grad_norm/0", "update_ratio/all"} <= set(
        measured.metrics
    )


def test_a_run_that_was_cut_goes_on_the_same(tmp_path):
    whole = make(everything(), tmp_path / "whole")
    whole.train()
    make(everything(), tmp_path / "cut", max_steps=7).train()
    resumed = make(everything(), tmp_path / "cut")
    resumed.train(resume="auto")
    assert same(weights(whole), weights(resumed))
    measured = [name for name in whole.metrics if name.startswith(("lr/", "grad_norm/", "weight_norm/", "update_ratio/"))]
    assert measured and all(whole.metrics[name] == resumed.metrics[name] for name in measured)


def test_what_they_write_is_the_runs(tmp_path):
    """Everything is listed in run.json, so that ``--overwrite`` takes it away."""
    make(everything(), tmp_path / "run").train()
    listed = json.loads((tmp_path / "run" / "run.json").read_text())["files"]
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and "checkpoints" not in path.parts]
    assert {path.relative_to(tmp_path / "run").as_posix() for path in written} - {"run.json"} <= set(listed)
    make([], tmp_path / "run", overwrite=True).train()
    left = {path.relative_to(tmp_path / "run").parts[0] for path in (tmp_path / "run").iterdir()}
    assert left == {"run.json", "checkpoints"}


@pytest.mark.parametrize("step", [None, 0, 4])
def test_the_trainer_is_freed_whatever_happened(tmp_path, step):
    class Fails:
        @hookimpl
        def after_step(self, trainer):
            if trainer.step == step:
                raise ValueError("it failed")

    def run():
        trainer = make([*everything(), Fails()], tmp_path / "run")
        if step is None:
            trainer.train()
        else:
            with pytest.raises(ValueError, match="it failed") as caught:
                trainer.train()
            del caught  # and with it the traceback
        assert trainer.bus.before_flush == []
        return weakref.ref(trainer), weakref.ref(trainer.model)

    gc.collect()
    gc.disable()
    try:
        gone = run()
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert torch._C._autograd._profiler_type() == torch._C._profiler.ActiveProfilerType.NONE


def test_options_from_a_file(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainconf.py").write_text(TRAINCONF)
    (tmp_path / "trainhooks.toml").write_text(OPTIONS)
    said = cli("train")
    assert "completed (max_epochs=2 reached) at step 20/20" in said.out + said.err
    names = {path.relative_to(tmp_path / "run").as_posix() for path in (tmp_path / "run").rglob("*")}
    assert {"hook_time.json", "summary.txt", "profiler/step-00000004.txt"} <= names
    logged = (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"throughput/mfu", "memory/host_mib", "momentum/optimizer/0", "weight_norm/weight", "update_ratio/bias"} <= set(
        logged
    )


def test_names_that_are_no_choice_are_refused():
    for plugin, name, value in ((Profiler, "activities", ["tpu"]), (Memory, "empty_cache", ["after_update"])):
        with pytest.raises(Exception, match=f"option '{name}' in a file"):
            validated(plugin, {name: Given(value, "a file")}, "plugin")
