"""Memory, threads and files of a long run stay as they are, and trainers leave nothing behind.

    python tests/reliability/drift.py [--scale 1.0]

20,000 steps in a process of their own with every built-in that can take part at once, sampled after a warm-up of 2,000; 1,000
trainers one after the other with the garbage collector off, whose parts must all be dead when the last reference is gone. Both use
what the tests of single steps and of single trainers use.
"""

import argparse
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import torch
from torch import nn

from trainhooks import Trainer, hookimpl

TESTS = Path(__file__).parent.parent
STEPS, WARM_UP, EVERY, TRAINERS = 20_000, 2_000, 200, 1_000

#: Each of them is on for the whole run and does its work often.
OFTEN = {"Checkpoint": {"every_epochs": 0, "every_steps": 500}, "EarlyStopping": {"restore_best": True, "patience": 1_000_000}}


def test_module(path):
    """Import a test module from its path."""
    spec = importlib.util.spec_from_file_location(f"of_{Path(path).stem}", TESTS / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Takes(BaseHTTPRequestHandler):
    """Takes whatever ``remote_monitor`` sends."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def resources():
    """Return resident bytes, and the numbers of threads, open files and children."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [
        pages * os.sysconf("SC_PAGE_SIZE"),
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
        len(children),
    ]


class Samples:
    """Samples the process after every so many steps."""

    name = "samples"

    def __init__(self):
        self.taken = []

    @hookimpl(trylast=True)
    def before_step(self, trainer):
        if trainer.step >= WARM_UP and trainer.step % EVERY == 0:
            self.taken.append([trainer.step, *resources()])


def long_run(steps, folder, url):
    """Train so many steps with all built-ins; return the samples."""
    no_sync = test_module("integration/test_no_sync.py")
    no_sync.OPTIONS.update(OFTEN)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    batches = [(torch.randn(6, 1, 2, 2), torch.randint(0, 3, (6,))) for _ in range(500)]
    samples = Samples()
    trainer = Trainer(
        model,
        loss=nn.functional.cross_entropy,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        loaders={"train": batches, "val": batches[:2]},
        max_steps=steps,
        plugins=[*no_sync.every_plugin(url, Path(folder)), samples],
        autoload=False,
        device="cpu",
        work_dir=Path(folder) / "run",
        log_every_steps=50,
    )
    trainer.train()
    if trainer.step != steps or trainer.manager.disabled:
        raise RuntimeError(f"{trainer.step} steps, without {trainer.manager.disabled}")
    return samples.taken


def long_run_in_its_own_process(steps):
    """Return the samples of a long run; one arena, so that its threads do not each grow a heap."""
    with tempfile.TemporaryDirectory() as folder, HTTPServer(("127.0.0.1", 0), Takes) as server:
        command = [sys.executable, __file__, "--samples", str(steps), folder, f"http://127.0.0.1:{server.server_port}"]
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
        with Path(folder, "stderr.txt").open("w") as stderr:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
            server.timeout = 0.2
            while process.poll() is None:
                server.handle_request()
        if process.returncode:
            raise RuntimeError(
                f"the long run ended with {process.returncode}: {Path(folder, 'stderr.txt').read_text()[-2000:]}"
            )
        return json.loads(Path(folder, "samples.json").read_text())


def growth_of(samples):
    """Return the bytes by which a run grew between its first and last quarter, and by its slope from the first sample to the last."""
    size = [sample[1] for sample in samples]
    quarter = max(1, len(size) // 4)
    slope, _ = statistics.linear_regression([sample[0] for sample in samples], size)
    return statistics.median(size[-quarter:]) - statistics.median(size[:quarter]), slope * (samples[-1][0] - samples[0][0])


def survivors(cases, trainers):
    """Make so many trainers, train and delete them; return how many of their parts lived on, and the growth in bytes."""
    scalar = test_module("conftest.py").Scalar
    gc.collect()
    gc.disable()
    alive, size, warm_up = 0, 0, max(1, trainers // 10)
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            for number in range(trainers):
                kind = list(cases.BUILT_INS)[number % len(cases.BUILT_INS)]
                refs = cases.round_of(scalar, cases.BUILT_INS[kind](), None, fails=number % 2 == 1)
                alive += sum(ref() is not None for ref in refs)
                if number == warm_up:
                    size = resources()[0]
    finally:
        gc.enable()
    return alive, resources()[0] - size


def run(scale=1.0):
    """Measure.

    Returns:
        ``drift_kb``, by which memory grew in the long run after its warm-up; ``drift_handles``, by which its threads, open files
        and children did; ``trainers`` and ``survivors``, the parts of them that were not freed.
    """
    steps = max(WARM_UP + 20 * EVERY, round(STEPS * scale))
    samples = long_run_in_its_own_process(steps)
    growth, by_slope = growth_of(samples)
    quarter = max(1, len(samples) // 4)  # a file that is open just while a sample is taken is in some of them only
    handles = [min(column[-quarter:]) - min(column[:quarter]) for column in list(zip(*samples, strict=True))[2:]]
    trainers = max(10, round(TRAINERS * scale))
    alive, left = survivors(test_module("cases/test_tr.py"), trainers)
    print(
        f"{steps} steps: {growth / 1024:.0f} KB between the first and the last quarter, {by_slope / 1024:.0f} KB by slope, "
        f"threads, files, children {samples[0][2:]} to {samples[-1][2:]}; {trainers} trainers: {left / 1024:.0f} KB"
    )
    return {"drift_kb": max(0, round(growth / 1024)), "drift_handles": sum(handles), "trainers": trainers, "survivors": alive}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--samples", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.samples:
        steps, folder, url = arguments.samples
        Path(folder, "samples.json").write_text(json.dumps(long_run(int(steps), folder, url)))
        return
    counts = run(arguments.scale)
    print(" ".join(f"{name}={value}" for name, value in counts.items()))
    sys.exit(counts["drift_kb"] > 1024 or counts["drift_handles"] > 0 or counts["survivors"] > 0)


if __name__ == "__main__":
    main()
