"""PK: pickling and process start. How workers are shielded and the user's own fault is named is with the signals, in ``test_sg``."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from trainhooks import CheckpointError, hookimpl
from trainhooks_builtins import Checkpoint

SCRIPT = str(Path(sys.executable).with_name("trainhooks"))

SAMPLES = """
import torch
from torch.utils.data import Dataset


class Samples(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(())


def begin(worker):
    torch.set_num_threads(1)
"""

PROJECT = """
import multiprocessing
import os

import torch
from samples import Samples, begin
from torch import nn
from torch.utils.data import DataLoader

from trainhooks import hookimpl

multiprocessing.set_start_method(os.environ["HOW"])  # as Python 3.14 does for everybody


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.w * x.mean()


@hookimpl
def make_model():
    return Scalar()


@hookimpl
def make_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters(), lr=1.0)


@hookimpl
def make_loader(split):
    return DataLoader(Samples(), batch_size=2, num_workers=2, worker_init_fn=begin)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_pk_01_loggers_asynchronous_checkpoints_and_timer(tmp_path, how):
    """All that holds threads, locks and files is active: metrics log, checkpoints in the background, timer, reporter, lock, signals."""
    (tmp_path / "samples.py").write_text(SAMPLES)
    (tmp_path / "trainconf.py").write_text(PROJECT)
    words = [
        "train",
        "--set",
        "max_epochs=2",
        "--set",
        "seed=1",
        "--set",
        "work_dir=out",
        "--set",
        "log_every_steps=1",
        "-p",
        "seed",
    ]
    words += ["-o", "checkpoint.every_steps=1", "-o", "checkpoint.async_save=true", "-p", "no:progress"]
    done = subprocess.run(
        [SCRIPT, *words], cwd=tmp_path, env={**os.environ, "HOW": how}, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert (record["status"], record["step"]) == ("completed", 8)
    lines = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}
    assert losses[1] == 0.0
    assert losses[4] == -3.0  # w is -n after n updates, the loss w
    assert (tmp_path / "out/checkpoints/step-00000008").is_dir()


class Own:
    """An object of the user's."""

    def __init__(self):
        self.value = 1


class KeepsAnObject:
    def __init__(self, thing):
        self.thing = thing

    @hookimpl
    def before_train(self):
        pass

    def state_dict(self):
        return {"inside": [1, {"deep": self.thing}]}

    def load_state_dict(self, state):
        self.thing = state


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (Own(), "Own"),
        (Own, "type"),
        (len, "builtin_function_or_method"),
        (lambda: 1, "function"),
        (threading.Lock(), "lock"),
        (Path("x"), "PosixPath"),
        (torch.nn.Linear(1, 1), "Linear"),
        (range(3), "range"),
        (ValueError("x"), "ValueError"),
    ],
)
def test_pk_03_an_object_is_refused_when_saving_and_named(make_trainer, tmp_path, thing, words):
    """So no checkpoint refers to a class of a file; nothing is left behind, and the run folder has no broken checkpoint."""
    trainer = make_trainer([Checkpoint(every_steps=2), KeepsAnObject(thing)], work_dir=tmp_path / "run")
    with pytest.raises(CheckpointError) as raised:
        trainer.train()
    assert "plugins/keeps_an_object['inside'][1]['deep'] is a" in str(raised.value)
    assert words in str(raised.value)
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == []


def test_pk_03_no_import_takes_place_while_reading(make_trainer, tmp_path):
    """A process that may import nothing more reads every kind of value, and the weights without trainhooks at all."""
    kinds = {
        "tuple": (1, 2.5),
        ("a", 1): {3, 4},
        "bytes": b"\x00",
        "nan": float("nan"),
        "t": torch.ones(2, dtype=torch.bfloat16),
    }
    make_trainer([Checkpoint(), KeepsAnObject(kinds)], work_dir=tmp_path / "run").train()
    (path,) = (tmp_path / "run/checkpoints").iterdir()
    code = (
        "import sys, torch, safetensors.torch\n"
        "from pathlib import Path\n"
        "path = Path(sys.argv[1])\n"
        "sys.modules['trainhooks'] = sys.modules['trainhooks_builtins'] = None\n"
        "assert safetensors.torch.load_file(path / 'tensors.safetensors')['model/w'].item() == -10\n"
        "del sys.modules['trainhooks'], sys.modules['trainhooks_builtins']\n"
        "from trainhooks_builtins import Checkpoint\n"
        "from trainhooks_builtins import _checkpoint_tensors, _state_decoder, _state_files\n"
        "class Nothing:\n"
        "    def find_spec(self, name, *rest):\n"
        "        raise SystemExit('imported ' + name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "state = Checkpoint().load_checkpoint(path)\n"
        "assert state['plugins/keeps_an_object']['inside'][1]['deep']['tuple'] == (1, 2.5)\n"
        "assert state['plugins/keeps_an_object']['inside'][1]['deep'][('a', 1)] == {3, 4}\n"
        "assert state['model']['w'].item() == -10\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pk_03_another_file_of_that_name_changes_nothing(make_trainer, tmp_path, monkeypatch):
    """The plugin's class is another one now, in a module of the same name: its state is handed to it as plain values."""
    (tmp_path / "my_hooks.py").write_text("class Marked:\n    ran = False\n")
    make_trainer([Checkpoint(), KeepsAnObject({"x": 1})], work_dir=tmp_path / "run").train()
    (tmp_path / "my_hooks.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)

    class KeepsAnObject2(KeepsAnObject):
        name = "keeps_an_object"

    other = KeepsAnObject2(None)
    resumed = make_trainer([Checkpoint(), other], work_dir=tmp_path / "run", max_epochs=2)
    resumed.train(resume="auto")
    assert other.thing == {"inside": [1, {"deep": {"x": 1}}]}
    assert not (tmp_path / "marker").exists()


UNGUARDED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainhooks import Trainer

model = nn.Linear(1, 1)
data = TensorDataset(torch.ones(4, 1), torch.ones(4, 1))
loader = DataLoader(data, num_workers=1, multiprocessing_context="spawn")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
Trainer(model, loss=nn.functional.mse_loss, optimizer=optimizer, loaders={"train": loader}, max_epochs=1, work_dir="out").train()
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so_and_does_not_train_in_the_worker(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 1
    assert "UsageError: train() was called by a script that a new worker process imports" in done.stderr
    assert "loader worker (pid " in done.stderr
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "failed"
