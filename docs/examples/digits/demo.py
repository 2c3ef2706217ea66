"""Trains the digits from the command line, shows what came of it, and evaluates the checkpoint again.

Usage: python demo.py [FOLDER [OPTIONS]]

FOLDER is where the run is written, runs/digits-<time> by default; OPTIONS go to `trainhooks train`: --set max_epochs=5.
"""

import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
GOAL = 0.97
CURVES = (("train/loss", "log"), ("val/loss", "log"), ("val/accuracy", "linear"))


def trainhooks(*arguments, show=True):
    """Run the command that is installed beside this Python; return what it printed, unless that is to be shown."""
    command = shutil.which("trainhooks", path=str(Path(sys.executable).parent))
    if command is None:
        sys.exit(f"no trainhooks command beside {sys.executable}: pip install trainhooks")
    print(f"\n$ trainhooks {' '.join(map(str, arguments))}", flush=True)
    line, output = [command, *map(str, arguments)], None if show else subprocess.PIPE
    done = subprocess.run(line, check=False, text=True, stdout=output)  # noqa: S603 - the arguments are those below
    if done.returncode != 0:
        sys.exit(f"it ended with exit code {done.returncode}")
    return done.stdout


def series(file, name):
    """Return the values of one metric, in the order of their steps."""
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [record[name] for record in records if record.get(name) is not None]


def chart(values, scale, width=60, height=6):
    """Return the lines of a chart: a column for each value, or for as many of them as fit."""
    columns = [values[i * len(values) // width] for i in range(width)] if len(values) > width else values
    spread = max(width // len(columns), 1)
    position = math.log if scale == "log" else float
    low, high = position(min(values)), position(max(values))
    levels = [round((position(value) - low) / ((high - low) or 1) * (height - 1)) for value in columns]
    lines = []
    for row in reversed(range(height)):
        bars = "".join(("*" if level == row else ":" if level > row else " ") * spread for level in levels)
        value = low + (high - low) * row / (height - 1)
        lines.append(f"{math.exp(value) if scale == 'log' else value:10.4f} |{bars}".rstrip())
    return lines


def main():
    """Run the demo; exit 1 if the accuracy is too low or the checkpoint does not give it again."""
    run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs") / time.strftime("digits-%Y%m%d-%H%M%S")
    trainhooks("plugins", "-C", HERE)
    trainhooks("train", HERE, "--set", f"work_dir={run}", *sys.argv[2:])

    metrics = run / "metrics.jsonl"
    for name, scale in CURVES:
        values = series(metrics, name)
        print(f"\n{name}{', logarithmic' if scale == 'log' else ''}: from {values[0]:.4f} to {values[-1]:.4f}")
        print("\n".join(chart(values, scale)))

    print(f"\ncheckpoints in {run / 'checkpoints'}, each a folder:")
    checkpoints = sorted((run / "checkpoints").glob("step-*"))
    for checkpoint in checkpoints:
        facts = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
        print(f"  {checkpoint.name}  {facts['kind']:<8}  val/accuracy {facts['metrics']['val/accuracy']:.4f}")
    again = json.loads(trainhooks("evaluate", HERE, "--checkpoint", checkpoints[-1], "--json", show=False))["val/accuracy"]
    trained = series(metrics, "val/accuracy")[-1]
    print(f"accuracy on the held-out fifth: {trained:.2%} in training, {again:.2%} from the checkpoint")
    if again != trained:
        sys.exit("the checkpoint does not give the accuracy that training reported")
    if again < GOAL:
        sys.exit(f"the accuracy is below {GOAL:.0%}")


if __name__ == "__main__":
    main()
