"""A step that neither flushes nor evaluates does not wait for the device, whatever built-in plugins take part in it.

On a device every one of these waits until all queued work is done: a copy of a value to the host (``_local_scalar_dense`` is what
``item()``, ``float()``, ``bool()`` and ``if tensor`` end in), ``cpu()``, ``numpy()``. Here they are counted on the CPU.
"""

import threading
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import trainhooks_builtins
from trainhooks import Trainer, hookimpl

STEPS, FIRST, LAST = 60, 20, 40

#: What they need to be built; the others take their defaults.
OPTIONS = {
    "Accumulate": {"steps": 2},
    "Checkpoint": {"every_epochs": 0},
    "EMA": {"warmup": True},
    "EarlyStopping": {"restore_best": True},
    "Evaluation": {"every_steps": 50},
    "Freeze": {"parameters": ("1.bias",), "until_step": 30},
    "GradNorms": {"every_updates": 1, "weights": True, "updates": True},
    "LRMonitor": {"momentum": True, "weight_decay": True},
    "Memory": {"every_steps": 1},
    "NanGuard": {"gradients": True, "every_steps": 50},
    "Progress": {"style": "lines"},
    "SWA": {"start_epoch": 0, "every_updates": 1},
    "Spike": {"every_steps": 50},
    "TimeLimit": {"hours": 1.0},
    "Throughput": {"flops_per_sample": 1.0, "peak_flops": 1.0},
}

#: They are done when the training begins.
APART = {"FindBatchSize", "FindLR"}


def whose():
    """Return which line of ours made the call that is running."""
    ours = [frame for frame in traceback.extract_stack() if "/trainhooks" in frame.filename]
    return f"{ours[-1].filename.rpartition('/')[2]}:{ours[-1].lineno}" if ours else ""


class Counts(TorchDispatchMode):
    """Counts the operations that would wait for a device."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._overloadpacket is torch.ops.aten._local_scalar_dense:
            self.seen.append(f"_local_scalar_dense {whose()}")
        return func(*args, **(kwargs or {}))


class Watches:
    """Counts in the steps from FIRST to LAST, in everything that happens between the first hook and the last."""

    def __init__(self, monkeypatch):
        self.mode, self.monkeypatch = Counts(), monkeypatch

    @hookimpl(tryfirst=True)
    def prepare_batch(self, trainer):
        if trainer.split == "train" and trainer.step == FIRST:
            for name in ("cpu", "numpy"):
                method = getattr(torch.Tensor, name)
                self.monkeypatch.setattr(torch.Tensor, name, self._counted(name, method))
            self.mode.__enter__()

    def _counted(self, name, method):
        def counted(tensor, *args, **kwargs):
            self.mode.seen.append(f"{name}() {whose()}")
            return method(tensor, *args, **kwargs)

        return counted

    @hookimpl(trylast=True)
    def after_step(self, trainer):
        if trainer.step == LAST:
            self.mode.__exit__(None, None, None)
            self.monkeypatch.undo()


@pytest.fixture
def url():
    """Return the address of a server that takes everything."""

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Takes) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def trained(plugins, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    batches = [(torch.randn(6, 1, 2, 2), torch.randint(0, 3, (6,))) for _ in range(STEPS)]
    trainer = Trainer(
        model,
        loss=nn.functional.cross_entropy,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),  # Adam reads its step count, which is on the CPU
        loaders={"train": batches, "val": batches[:2]},
        max_epochs=1,
        plugins=plugins,
        autoload=False,
        device="cpu",
        work_dir=tmp_path / "run",
        log_every_steps=50,
    )
    trainer.train()
    return trainer


def every_plugin(url, tmp_path):
    names = [name for name in trainhooks_builtins.__all__ if name not in APART]
    options = {
        **OPTIONS,
        "Closure": {"after_update": lambda: None},
        "Compile": {"backend": "eager"},
        "RemoteMonitor": {"url": url},
        "Mixup": {},
        "Profiler": {"skip_first": 45},
    }
    return [getattr(trainhooks_builtins, name)(**options.get(name, {})) for name in names]


def test_no_step_waits_with_all_built_ins(url, tmp_path, monkeypatch):
    watches = Watches(monkeypatch)
    trainer = trained([*every_plugin(url, tmp_path), watches], tmp_path)
    assert trainer.step == STEPS
    assert not trainer.manager.disabled
    assert "\n".join(sorted(set(watches.mode.seen))) == ""


WAITS = {
    "item": torch.Tensor.item,
    "float": float,
    "bool": bool,
    "cpu": lambda loss: loss.cpu(),
    "numpy": lambda loss: loss.numpy(),
}


@pytest.mark.parametrize("way", WAITS)
def test_the_counter_counts(tmp_path, monkeypatch, way):
    class Waits:
        @hookimpl
        def after_step(self, output):
            WAITS[way](output["loss"])

    watches = Watches(monkeypatch)
    trained([Waits(), watches], tmp_path)
    assert len(watches.mode.seen) == LAST - FIRST + 1
