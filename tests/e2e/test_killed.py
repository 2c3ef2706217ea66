"""A run that is killed again and again, wherever it is, and started anew with the same command line, ends as if nothing had been."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainhooks_builtins.checkpoint import read_checkpoint

pytestmark = pytest.mark.slow

SCRIPT = str(Path(sys.executable).with_name("trainhooks"))
STEPS = 40

SLOWLY = """

import os
import time


@hookimpl
def before_step(trainer):
    print("begins", trainer.step, flush=True)
    time.sleep(600 if trainer.step == int(os.environ.get("HOLD_AT", -1)) else 0.01)
"""


def test_killed_and_resumed(project):
    file = project / "trainconf.py"
    file.write_text(file.read_text().replace("[1.0, 1.0, 1.0]", "[1.0] * 7") + SLOWLY)
    command = [SCRIPT, "train", "-p", "no:progress", "--resume", "auto", "--set", f"max_steps={STEPS}"]
    command += ["--set", "work_dir=out", "--set", "log_every_steps=1", "-o", "checkpoint.every_steps=1", "--json"]
    begins = []
    # Killed anywhere between the n-th step of that start and the one at which it waits; the second start passes an epoch's end.
    for kill_after, hold_at in ((3, 20), (9, 39)):
        environment = {**os.environ, "HOLD_AT": str(hold_at)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
            lines = [process.stdout.readline() for _ in range(kill_after)]
            process.kill()
        assert process.returncode == -9
        assert [line.split()[0] for line in lines] == ["begins"] * kill_after
        begins.append([int(line.split()[1]) for line in lines])
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "NO_COLOR": "1"})
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert (outcome["status"], outcome["step"], outcome["epoch"]) == ("completed", STEPS, STEPS // 7)
    assert begins[0] == [0, 1, 2]  # so that the checkpoints of steps 1 and 2 were whole
    first = begins[1][0]
    assert 2 <= first <= 20
    assert begins[1] == list(range(first, first + 9))
    state = read_checkpoint(Path(outcome["checkpoint"]))
    (weight,) = state["model"].values()
    assert weight.item() == -STEPS  # 1 less at each update, none of them lost and none done twice
    logged = [json.loads(line) for line in (project / "out/metrics.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["train/loss"]) for row in logged if "train/loss" in row]
    assert losses == [(step, 1.0 - step) for step in range(1, STEPS + 1)]  # w before the update, each step once
    values = [(row["step"], row["val/loss"]) for row in logged if "val/loss" in row]
    ends = [*range(7, STEPS, 7), STEPS]  # of epochs, and of the run
    assert values == [(step, -2.0 * step) for step in ends]
    hidden = [str(path) for path in (project / "out").rglob("*") if path.name.endswith((".tmp", ".old"))]
    assert hidden == []


def test_ctrl_c_while_torch_is_imported_ends_the_process(tmp_path):
    """An import that it interrupts might swallow it, and the training would go on."""
    script = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'torch.nn':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from trainhooks.cli import main\n"
        "main(['train', '.', '--set', 'max_steps=1'])\n"
    )
    (tmp_path / "trainconf.py").write_text("raise SystemExit('the training began')\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, ""), done.stderr
