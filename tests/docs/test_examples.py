"""docs/examples: each file can be imported, and the demo trains as well as it says."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
DIGITS = EXAMPLES / "digits"

FILES = sorted(EXAMPLES.rglob("*.py"))


def test_all_examples_are_found():
    assert {"coming-from/detectron2.py", "coming-from/keras.py", "coming-from/mmcv.py", "coming-from/filter_pipeline.py"} <= {
        file.relative_to(EXAMPLES).as_posix() for file in FILES
    }


def test_every_example_imports_cleanly():
    """In an interpreter of their own, with warnings as errors; nothing runs that a guard should keep from running."""
    code = (
        "import sys; from trainhooks.project import load_project; from pathlib import Path\n"
        "for name in sys.argv[1:]: print(bool(load_project(Path(name)).__doc__), name)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, *FILES], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("".join(f"True {file}\n" for file in FILES), "")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo, run once as a user does: its output and its run folder."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, DIGITS / "demo.py", folder / "run"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAINHOOKS_")}
    environment |= {"PYTHONUTF8": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, folder / "run"


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_the_demo_reads_97_percent_of_the_digits(demo):
    output, run = demo
    accuracies = [record["val/accuracy"] for record in records(run) if "val/accuracy" in record]
    assert len(accuracies) == 20  # once for each epoch
    assert accuracies[-1] >= 0.97
    assert (accuracies[-1] * 360) == pytest.approx(round(accuracies[-1] * 360), abs=1e-4)  # of a fifth of 1,797 scans
    assert f"{accuracies[-1]:.2%} in training, {accuracies[-1]:.2%} from the checkpoint" in output


@pytest.mark.slow
def test_the_demo_shows_plugins_curves_and_checkpoints(demo):
    output, run = demo
    lines = [line.split() for line in output.splitlines()]
    for name in ("checkpoint", "evaluation", "lr", "metrics_log", "progress", "timer"):
        assert [name, "active", "trainhooks"] in [line[:3] for line in lines]
    for name in ("train/loss", "val/loss", "val/accuracy"):
        values = [record[name] for record in records(run) if name in record]
        (title,) = [number for number, line in enumerate(output.splitlines()) if line.startswith(name) and ": from" in line]
        assert output.splitlines()[title].endswith(f"from {values[0]:.4f} to {values[-1]:.4f}")
        top, bottom = lines[title + 1], lines[title + 6]
        assert float(top[0]) == pytest.approx(max(values), abs=1e-4)
        assert float(bottom[0]) == pytest.approx(min(values), abs=1e-4)
    best = max(records(run), key=lambda record: record.get("val/accuracy", 0))  # the first of equal ones
    assert [f"step-{best['step']:08d}", "best", "val/accuracy", f"{best['val/accuracy']:.4f}"] in lines
    assert (run / "checkpoints" / f"step-{best['step']:08d}" / "state.json").is_file()


@pytest.mark.slow
def test_the_demo_fails_when_it_reads_less(tmp_path):
    # one epoch is too short; with a rate of 0 the weights stay random, and 97 % of ten classes cannot be guessed
    command = [sys.executable, DIGITS / "demo.py", tmp_path / "run", "--set", "max_epochs=1", "-o", "lr.base=0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("the accuracy is below 97%\n")


@pytest.mark.slow
def test_the_learning_rate_warms_up_and_falls(demo):
    # 23 batches of 64 in 1,437 scans, 20 epochs; AdamW's 0.005 is reached after one epoch; each record has its last rate
    _, run = demo
    rates = {record["update"]: record["lr"] for record in records(run) if "lr" in record}
    warmup, total = 23, 20 * 23
    for update, rate in rates.items():
        used = update - 1  # the rate of the last update that was done
        if used < warmup:
            expected = 0.005 * used / warmup
        else:
            expected = 0.005 * (1 + math.cos(math.pi * (used - warmup) / (total - warmup))) / 2
        assert rate == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert total in rates


@pytest.mark.slow
def test_evaluate_gives_exactly_what_training_logged(demo):
    _, run = demo
    last = [record for record in records(run) if "val/accuracy" in record][-1]
    command = [sys.executable, "-c", "from trainhooks.cli import main; main()", "evaluate", DIGITS, "--json"]
    done = subprocess.run([*command, "--checkpoint", run], capture_output=True, text=True, check=True)
    metrics = json.loads(done.stdout)
    assert metrics == {name: last[name] for name in ("val/loss", "val/accuracy")}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run(demo, tmp_path):
    _, run = demo
    command = [sys.executable, "-c", "from trainhooks.cli import main; main()", "train", DIGITS, "-p", "no:progress"]
    subprocess.run([*command, "--set", f"work_dir={tmp_path / 'run'}"], capture_output=True, check=True)
    first, second = (
        [{k: r.get(k) for k in ("train/loss", "val/loss", "val/accuracy")} for r in records(p)] for p in (run, tmp_path / "run")
    )
    assert first == second
