"""Trains the digits with a satellite as a user would, kills and resumes it, and reads back what the tracker has.

Usage: python satellite_demo.py SATELLITE

The satellite is found by its entry point, with its default options, in a home of its own and without a network. A training that
runs to its end and one that is killed in the middle of an epoch and resumed are compared with their run folders, by the
tracker's own reader. Prints a line for each check; exits 1 if one fails.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from satellite_readers import ARTIFACT, IMAGE, READERS, TABLE

DIGITS = Path(__file__).parents[1] / "docs" / "examples" / "digits"
METRICS = ("train/loss", "val/accuracy", "val/loss", "train/accuracy", "lr")
HYPERPARAMETERS = ("seed", "max_epochs", "optimizer/name", "optimizer/lr")
EPOCH = 23  #: Steps of an epoch: 1,437 scans in batches of 64.
#: Many records, and a checkpoint only now and then, so that a kill in the middle of an epoch finds much that came after it.
TO_BE_KILLED = (
    "--set",
    "max_epochs=90",
    "--set",
    "log_every_steps=5",
    "-o",
    "checkpoint.best=null",
    "-o",
    "checkpoint.every_epochs=30",
)
NO_TELEMETRY = {
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "COMET_ERROR_TRACKING_ENABLE": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
DEADLINE_S = 300.0


class Demo:
    """The trainings and checks of one satellite, in a folder of its own."""

    def __init__(self, satellite, folder):
        self.satellite, self.folder, self.failed = satellite, folder, 0
        self.read, self.completed = READERS[satellite]
        shutil.copytree(DIGITS, folder / "digits", ignore=shutil.ignore_patterns("__pycache__"))

    def check(self, what, found, expected):
        """Print whether what was found is what was expected; lists may be long."""
        good = found == expected
        self.failed += not good
        print(f"  {'ok  ' if good else 'FAIL'} {what}", flush=True)
        if not good:
            print(f"       found {found!r:.2000}\n       expected {expected!r:.2000}")

    def start(self, name, *options):
        """Begin a training; its output goes to a file, which processes that an SDK leaves behind may keep open."""
        command = shutil.which("trainhooks", path=str(Path(sys.executable).parent))
        words = ["train", "digits", "--set", f"work_dir=runs/{name}", *options]
        print(f"\n$ trainhooks {' '.join(words)}", flush=True)
        with (self.folder / "output.txt").open("wb") as output:
            return subprocess.Popen(
                [command, *words], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def run_to_its_end(self, name, *options):
        code = self.start(name, *options).wait(DEADLINE_S)
        self.check("the training completes", code, 0)
        lines = (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        bad = ("Traceback", "not sent", "failed with", "gets nothing more", "did not finish", "left out, evenly")
        self.check("nothing went wrong or was lost", [line for line in lines if any(text in line for text in bad)], [])
        if code:
            self.show_output()

    def show_output(self):
        print((self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")[-4000:])

    def run_until_killed(self):
        """Kill a training when it and the tracker have steps after its last checkpoint; return its name and that step.

        Only the run folder can be watched while it is written. If the tracker was behind the checkpoint then, by what was under way,
        another training is killed, later after its checkpoint.
        """
        for attempt in range(6):
            run = self.folder / "runs" / f"killed-{attempt}"
            self.kill_in_an_epoch(run, self.start(run.name, *TO_BE_KILLED), 2 * EPOCH * attempt)
            step, tracked = saved(run), self.tracked(run)
            print(
                f"  killed; last checkpoint: step {step}, run folder: {reported(run)}, {self.satellite}: {tracked}", flush=True
            )
            if step < min(reported(run), tracked) and reported(run) % EPOCH:
                return run.name, step
        sys.exit(f"{self.satellite} never had a step after the last checkpoint when the training was killed")

    def kill_in_an_epoch(self, run, process, after):
        """Kill a training when a record in the middle of an epoch is there, more than ``after`` steps after a checkpoint."""
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not (0 < saved(run) < reported(run) - after and reported(run) % EPOCH):
                if process.poll() is not None or time.monotonic() > deadline:
                    self.show_output()
                    sys.exit("the training ended, or hung, before it could be killed")
                time.sleep(0.01)
        finally:
            process.kill()
            process.wait()

    def tracked(self, run):
        """Return the last step that the tracker has; processes that its SDK has started may still be writing."""
        last, trouble = 0, None
        for _ in range(15):
            time.sleep(1)
            try:
                last = max((step for step, _ in self.read(run).metrics["train/loss"]), default=0)
            except Exception as error:
                trouble = error
            if last > saved(run):
                return last
        if trouble is not None:
            print(f"  trouble while reading: {trouble!r}")
        return last

    def compare(self, name):
        """Compare what the tracker has with the run folder."""
        run = self.folder / "runs" / name
        found = self.read(run)
        record = json.loads((run / "run.json").read_text(encoding="utf-8"))
        self.check("the run folder has its plugin", self.satellite in [one["name"] for one in record["plugins"]], True)
        for metric in METRICS:
            expected = [(one["step"], one[metric]) for one in records(run) if one.get(metric) is not None]
            if found.is_single:
                expected = [(step, single(value)) for step, value in expected]
            what = f"{metric}: {len(expected)} steps, each once, with its value"
            self.check(what, sorted(found.metrics[metric]) or "nothing", expected)
        expected = {name: plain(value) for name, value in record["hyperparameters"].items()}
        what = ", ".join(f"{name} {record['hyperparameters'][name]}" for name in HYPERPARAMETERS)
        self.check(
            f"{len(expected)} hyperparameters: {what}, ...",
            {name: plain(found.hyperparameters.get(name)) for name in expected},
            expected,
        )
        kept = {one["name"]: one for line in lines_of(run / "media.jsonl") for one in [json.loads(line)]}
        self.check(f"artifact {ARTIFACT}", found.artifacts, [(self.folder / "digits" / ARTIFACT).read_bytes()])
        sizes = [(kept[IMAGE]["width"], kept[IMAGE]["height"])] if IMAGE in kept else []  # none if all were read
        self.check(f"image {IMAGE!r}", found.images, sizes)
        _, *rows = csv.reader(lines_of(run / kept[TABLE]["file"]))
        self.check(f"table {TABLE!r}: {len(rows)} rows", found.tables, [[[int(cell) for cell in row] for row in rows]])
        self.check(f"status: {self.completed}", (record["status"], found.status), ("completed", self.completed))


def lines_of(file):
    return file.read_text(encoding="utf-8").splitlines()


def records(run):
    return [json.loads(line) for line in lines_of(run / "metrics.jsonl")]


def reported(run):
    """Return the last step in the run folder, while it is written."""
    try:
        return records(run)[-1]["step"]
    except (OSError, ValueError, IndexError):
        return 0


def saved(run):
    """Return the step of the last checkpoint."""
    return max(
        (int(path.parent.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*/manifest.json")), default=0
    )


def plain(value):
    """Return a hyperparameter as it is, whether the tracker keeps it as a number or as text."""
    try:
        return float(str(value))
    except ValueError:
        return str(value).lower()


def single(value):
    """Return a number in single precision."""
    return struct.unpack("f", struct.pack("f", value))[0]


def main():
    """Run the demo of the satellite that is named."""
    if sys.argv[1:] not in [[name] for name in READERS]:
        sys.exit(f"usage: python satellite_demo.py {'|'.join(READERS)}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        os.environ.clear()  # nothing that the machine has set up for a tracker
        os.environ.update(NO_TELEMETRY, PATH=path, HOME=f"{folder}/home", LANG="C.UTF-8")
        (Path(folder) / "home").mkdir()
        os.chdir(folder)
        demo = Demo(sys.argv[1], Path(folder))
        demo.run_to_its_end("whole")
        demo.compare("whole")
        name, step = demo.run_until_killed()
        demo.run_to_its_end(name, *TO_BE_KILLED, "--resume", "auto")
        resumed = json.loads((Path(folder) / f"runs/{name}/run.json").read_text(encoding="utf-8"))["resumed"]
        demo.check(f"it was resumed from step {step}", [one["step"] for one in resumed], [step])
        demo.compare(name)
    print(f"\n{demo.satellite}: {f'{demo.failed} checks failed' if demo.failed else 'all checks hold'}")
    sys.exit(demo.failed > 0)


if __name__ == "__main__":
    main()
