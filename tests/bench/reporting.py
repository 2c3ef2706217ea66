"""Prints what logging and reporting cost the training: per `log` call, over a million records, and per step with bad servers.

    python tests/bench/reporting.py [--rounds 10] [--records 1000000]

1. `trainer.log` of a tensor with a graph, beside the assignment of that tensor to an entry of a dict.
2. Records to a reporter that takes 10 ms for each: the most that waits, and the growth of resident memory.
3. A training of 2,000 steps (that of `step_time.py`, logged every 50 steps) whose reporter posts each record to a server on
   this machine that takes 500 ms, refuses, or hangs, each right after one without a reporter that posts. The ratio is of the
   wall-clock time between two batches, its middle value over the run, and the middle of all rounds; `none again` is the noise.
"""

import argparse
import contextlib
import http.server
import logging
import os
import resource
import socket
import statistics
import threading
import time
import timeit
import urllib.request

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import nn

from trainhooks import Record, RunInfo, Trainer, hookimpl
from trainhooks.manager import Plugin, PluginManager
from trainhooks.reporter import Reporter
from trainhooks.state import Outcome

STEPS = 2000


class Batches:
    """Prebuilt batches; notes when each is asked for."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1234)
        self.batches = [
            (torch.randn(32, 32, generator=generator), torch.randint(0, 10, (32,), generator=generator)) for _ in range(STEPS)
        ]
        self.stamps = []

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.stamps = stamps = []
        for batch in self.batches:
            stamps.append(time.perf_counter())
            yield batch


class Posts:
    """Posts each record to a server, as a simple tracker would."""

    on_error = "disable"

    def __init__(self, url):
        self.url, self.taken = url, 0

    @hookimpl
    def report_metrics(self, records):
        for record in records:
            body = repr(dict(record.values)).encode()
            with urllib.request.urlopen(self.url, body, timeout=1) as answer:  # noqa: S310
                answer.read()
            self.taken += 1


class PostsMany(Posts):
    """Posts many records in one request."""

    records_per_call = 500

    @hookimpl
    def report_metrics(self, records):
        body = repr([dict(record.values) for record in records]).encode()
        with urllib.request.urlopen(self.url, body, timeout=1) as answer:  # noqa: S310
            answer.read()
        self.taken += len(records)


@contextlib.contextmanager
def server(mode):
    """Run a server on loopback: ``slow`` takes 500 ms, ``hangs`` takes a connection and says nothing, ``refuses`` is none."""
    if mode != "slow":
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        if mode == "hangs":
            listener.listen(100)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        listener.close()
        return

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(0.5)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}/"
    running.shutdown()
    running.server_close()


def train(plugins):
    """Train, and return the middle time between two batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    batches = Batches()
    trainer = Trainer(
        model,
        loss=nn.functional.cross_entropy,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loaders={"train": batches},
        plugins=plugins,
        autoload=False,
        max_epochs=1,
        log_every_steps=50,
        report_timeout_s=120,
    )
    outcome = trainer.train()
    assert outcome.status == "completed"
    return statistics.median(b - a for a, b in zip(batches.stamps, batches.stamps[1:], strict=False))


class Takes:
    """Takes records and does nothing with them, so that every variant has a lane and flushes."""

    @hookimpl
    def report_metrics(self, records):
        pass


def print_calls():
    """Print the cost of one `log` call."""
    model = nn.Linear(2, 1)
    trainer = Trainer(
        model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loaders={"train": [1]}, max_steps=1, autoload=False
    )
    loss, entries = model(torch.ones(2)).sum(), {}

    def log():
        trainer.log("x", loss)

    def assign():
        entries["x"] = loss

    times = {work.__name__: min(timeit.repeat(work, number=20_000, repeat=7)) / 20_000 * 1e6 for work in (log, assign)}
    print(
        f"trainer.log of a tensor with a graph: {times['log']:.2f} us, a dict assignment in a call: {times['assign']:.2f} us, "
        f"difference {times['log'] - times['assign']:.2f} us (at most 2)"
    )


def print_memory(count):
    """Print what many records cost in memory when the reporter cannot keep up."""

    class Slow(Takes):
        @hookimpl
        def report_metrics(self, records):
            time.sleep(0.01)

    manager = PluginManager()
    manager.add(Plugin("slow", Slow(), on_error="disable"))
    reporter = Reporter(manager, RunInfo("run"))
    lane, longest, before = reporter.lanes[0], 0, 0
    for step in range(count):
        reporter.put(Record(step, step, 0, 0.0, {"train/loss": float(step)}))
        longest = max(longest, len(lane._queue))
        if step == count // 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    total = lane.thinned + lane.sent + lane.lost + lane.waiting
    print(
        f"{count:,} records to a reporter that takes 10 ms each: at most {longest:,} waited, {lane.thinned:,} were left out and counted; "
        f"{grown:.1f} MiB more after the last than after the first tenth; all accounted for: {total == count}"
    )
    reporter.close(Outcome("completed", "", 0, 0, 0), 0)


def print_steps(rounds):
    """Print the time of a step with servers that are slow, away, or hang."""
    ratios = {name: [] for name in ("none again", "slow", "slow, many records a request", "refuses", "hangs")}
    lost = dict.fromkeys(ratios, 0)
    for _ in range(rounds):
        for name in ratios:
            base = train([Takes()])
            if name == "none again":
                ratios[name].append(train([Takes()]) / base)
                continue
            with server(name.partition(",")[0]) as url:
                posts = (PostsMany if "many" in name else Posts)(url)
                ratios[name].append(train([Takes(), posts]) / base)
                lost[name] = max(lost[name], STEPS // 50 - posts.taken)
    for name, values in ratios.items():
        print(f"{name:30} {statistics.median(values):.3f} of the step without   not delivered: {lost[name]} of {STEPS // 50}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--records", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("trainhooks").setLevel(logging.ERROR)
    print_calls()
    print_memory(options.records)
    print_steps(options.rounds)
