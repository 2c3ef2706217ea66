"""A checkpoint that is written in the background holds what one that is written at once holds, though training goes on meanwhile.

    python tests/reliability/asynchronous.py

The writing thread is held before it has written anything, until the training thread has made two more steps: a snapshot that shares
memory with the model, the optimizer, the average, the scaler or a generator then holds the state of a later step.
"""

import os
import re
import sys
import tempfile
import threading
from pathlib import Path

from workload import STEPS, Config, Report, canonical, differences, in_child, make, print_counts, warm_up

from trainhooks import CheckpointError, hookimpl
from trainhooks_builtins import Checkpoint

EVERY, AHEAD = 3, 2

CONFIGS = (
    Config(accumulate=2, amp="float16", ema=True, evaluate=5, schedule="torch"),
    Config(adam=True, schedule="cosine", ema=True),
    Config(workers=2, own_generator=True),
)


class Gate:
    """Holds every other thread that begins to write a checkpoint until training is ``AHEAD`` steps further, or over."""

    def __init__(self, report):
        self.report = report
        self._moved = threading.Condition()
        self._step = 0
        sys.addaudithook(self._hold)

    @hookimpl(trylast=True)
    def after_step(self, trainer):
        self._move(trainer.step + 1)

    @hookimpl(tryfirst=True)
    def after_train(self, trainer):
        self._move(sys.maxsize)

    def _move(self, step):
        with self._moved:
            self._step = step
            self._moved.notify_all()

    def _hold(self, event, arguments):
        if event != "os.mkdir" or threading.current_thread() is threading.main_thread():
            return
        step = re.search(r"\.step-(\d+)\.tmp$", os.fsdecode(arguments[0]))
        if step is None:
            return
        with self._moved:
            opened = self._moved.wait_for(lambda: self._step >= int(step[1]) + AHEAD, timeout=60)
        self.report("held", int(step[1]), opened)


def train(config, run, report, *, asynchronous):
    """Train to the end in this process, and report when each checkpoint was acknowledged."""

    class Acknowledged:
        @hookimpl
        def after_save(self, trainer, path):
            whole = Path(path).is_dir() and threading.current_thread() is threading.main_thread()
            report("acknowledged", int(Path(path).name.rpartition("-")[2]), trainer.step, whole)

    plugins = [Acknowledged(), *([Gate(report)] if asynchronous else [])]
    options = {"every_steps": EVERY, "keep": 0, "async_save": asynchronous}
    make(config, run, plugins=plugins, checkpoint=options).train()


def checkpoints_of(run):
    """Return what each checkpoint of a run holds, but for the list of plugins and their options."""
    found = {}
    for path in sorted((run / "checkpoints").glob("step-*")):
        try:
            state = Checkpoint().load_checkpoint(path)
        except CheckpointError as error:  # it changed while its digest was made
            found[path.name] = {"state": str(error)}
        else:
            state.pop("plugin_lock")
            found[path.name] = canonical(state)
    return found


def compare(config, folder):
    """Return how many checkpoints were written in the background, and what is wrong with them."""
    found = {}
    for name in ("at-once", "background"):
        place = folder / name
        place.mkdir(parents=True)
        report = Report(place / "report.jsonl")
        in_child(lambda p=place, r=report, n=name: train(config, p / "run", r, asynchronous=n == "background"), place)
        found[name] = report.read(), checkpoints_of(place / "run")
    lines, checkpoints = found["background"]
    wanted = found["at-once"][1]
    wrong = [f"checkpoints {list(checkpoints)}, wanted {list(wanted)}"] if list(checkpoints) != list(wanted) else []
    for name in checkpoints.keys() & wanted.keys():
        wrong += [f"{name}: {line}" for line in differences(checkpoints[name], wanted[name])[:1]]
    held = [line[1] for line in lines if line[0] == "held" and line[2]]
    acknowledged = {line[1]: line[2:] for line in lines if line[0] == "acknowledged"}
    if sorted(held) != sorted(acknowledged) or len(held) != len(wanted):
        wrong.append(f"held {held}, acknowledged {sorted(acknowledged)}")
    wrong += [
        f"{step} was acknowledged at step {at}, whole: {whole}" for step, (at, whole) in acknowledged.items() if not whole
    ]
    early = [step for step, (at, _) in acknowledged.items() if at < min(step + AHEAD, STEPS)]
    wrong += [f"{step} was acknowledged before it was written" for step in early]
    return len(wanted), wrong


def run(scale=1.0):
    """Compare.

    Returns:
        ``saves``, the checkpoints that were compared, and ``diff``, what was wrong with them.
    """
    warm_up()
    count, wrong = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for number, config in enumerate(CONFIGS[: max(1, round(len(CONFIGS) * scale))]):
            done, found = compare(config, Path(folder) / str(number))
            count, wrong = count + done, wrong + [f"{config}: {line}" for line in found]
    for line in wrong:
        print(line)
    return {"saves": count, "diff": len(wrong)}


if __name__ == "__main__":
    print_counts(run, __doc__)
