"""LG and MP-08: the files that a run reports to, over kills, resumes, forks of a run and two jobs in one folder."""

import csv
import json
import signal
import subprocess
import sys
import textwrap

import pytest

from trainhooks import UsageError, hookimpl
from trainhooks_builtins import Checkpoint, MetricsLog

SCRIPT = """
    import os, signal, sys, time
    import torch
    from trainhooks import Trainer, hookimpl

    class Acts:
        '''Logs ``a`` from the first step on and ``b`` from the fourth; dies in the way that the command line says.'''

        @hookimpl
        def after_step(self, trainer):
            number = trainer.step + 1
            trainer.log("a", number / 7)
            if number >= 4:
                trainer.log("b", 10.0 * number)
            trainer.log_text("note", f"step {number}")

        @hookimpl
        def before_step(self, trainer):
            if how == "after" and trainer.step == at:
                wait_for(f"\\n{at},")
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "any-time" and not said:
                said.append(print("running", flush=True))  # whoever reads this kills at some time

    def wait_for(text):
        '''Wait until the record of a step is in both files.'''
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = [open(f"run/metrics.{kind}").read() for kind in ("csv", "jsonl")]
            if text in found[0] and f'"step": {at},' in found[1]:
                return
            time.sleep(0.01)
        sys.exit("the record was not delivered")

    said = []
    how, at, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    outcome = Trainer(
        model,
        loss=torch.nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        loaders={"train": [(torch.ones(2, 1) * n, torch.ones(2, 1)) for n in range(1000)]},
        max_steps=steps,
        log_every_steps=1,
        work_dir="run",
        plugins=[Acts(), "metrics_log", "run_store", "checkpoint"],
        options={"checkpoint": {"every_steps": 8}},
        autoload=False,
    ).train(resume="auto")
    print(outcome.status, outcome.step)
"""


@pytest.fixture
def script(tmp_path):
    """Return a function that starts the script in ``tmp_path``."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))

    def start(*words):
        command = [sys.executable, "script.py", *map(str, words)]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    return start


def rows(run):
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def media(run):
    return [json.loads(line) for line in (run / "media.jsonl").read_text(encoding="utf-8").splitlines()]


def check(run, steps):
    """One header, each step once with the value of both columns, in both files; and one note for each step."""
    found = rows(run)
    assert [(int(row["step"]), float(row["a"])) for row in found] == [(n, n / 7) for n in range(1, steps + 1)]
    assert [row["b"] for row in found] == ["" if n < 4 else str(10.0 * n) for n in range(1, steps + 1)]
    assert (run / "metrics.csv").read_text().count("step") == 1
    assert [(line["step"], line["a"]) for line in lines(run)] == [(n, n / 7) for n in range(1, steps + 1)]
    notes = media(run)
    assert [entry["step"] for entry in notes] == list(range(1, steps + 1))
    assert [(run / entry["file"]).read_text() for entry in notes] == [f"step {n}" for n in range(1, steps + 1)]


@pytest.mark.slow
def test_lg_01_steps_of_a_killed_run(script, tmp_path):
    """Checkpoint at 8, killed when 9 and 10 had been written, resumed to 15: 1 to 15 once each, 9 and 10 of the second run."""
    killed = script("after", 10, 15)
    output, _ = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, output
    run = tmp_path / "run"
    before = rows(run)
    assert [int(row["step"]) for row in before] == list(range(1, 11))
    resumed = script("never", 0, 15)
    output, _ = resumed.communicate(timeout=240)
    assert (resumed.returncode, output.splitlines()[-1]) == (0, "completed 15"), output
    check(run, 15)
    times = {int(row["step"]): row["time"] for row in before}
    assert {step for step, time in times.items() if rows(run)[step - 1]["time"] != time} == {9, 10}
    assert [row["train/loss"] for row in rows(run)[8:10]] == [row["train/loss"] for row in before[8:10]]  # to the last digit


@pytest.mark.slow
def test_lg_05_killed_at_any_time(script, tmp_path):
    """Three kills from outside, at times that have to do with nothing, then to the end: nothing twice, nothing missing."""
    for pause in (0.3, 0.05, 0.7):
        killed = script("any-time", 0, 100_000)
        assert "running\n" in iter(killed.stdout.readline, "")
        with pytest.raises(subprocess.TimeoutExpired):
            killed.wait(pause)
        killed.kill()
        killed.communicate(timeout=60)
    run = tmp_path / "run"
    end = max((int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*")), default=0) + 60
    resumed = script("never", 0, end)
    output, _ = resumed.communicate(timeout=240)
    assert (resumed.returncode, output.splitlines()[-1]) == (0, f"completed {end}"), output
    check(run, end)


def test_lg_01_a_step_of_one_s_own_is_refused(make_trainer, tmp_path):
    """The engine owns the step: ``log`` takes none, and a metric of that name does not stand for it, over a resume either."""

    class Rogue:
        @hookimpl
        def after_step(self, trainer):
            if trainer.step == 3:
                with pytest.raises(TypeError, match="step"):
                    trainer.log("a", 1.0, step=10**9)
                trainer.log("step", 1e9)

    def train(steps, resume=None):
        plugins = [Rogue(), MetricsLog(), Checkpoint(every_steps=4)]
        make_trainer(plugins, max_steps=steps, work_dir=tmp_path / "run", log_every_steps=1).train(resume=resume)

    train(5)
    train(8, "auto")
    assert [int(row["step"]) for row in rows(tmp_path / "run")] == list(range(1, 9))
    assert [row["metric/step"] for row in rows(tmp_path / "run")] == ["", "", "", "1000000000.0", "", "", "", ""]


@pytest.mark.parametrize("fails", [False, True])
def test_lg_09_first_and_last_value(make_trainer, tmp_path, fails):
    """Logged by the first hook in ``before_train`` and by the last in ``after_train``, also when another one fails there."""

    class First:
        phase = "bookkeeping"

        @hookimpl
        def before_train(self, trainer):
            trainer.log("first", 1.0)
            trainer.flush()

    class Last:
        phase = "reporting"

        @hookimpl
        def after_train(self, trainer):
            trainer.log("last", 2.0)

    class Fails:
        @hookimpl
        def after_train(self):
            if fails:
                raise ZeroDivisionError("broken")

    log = MetricsLog()
    trainer = make_trainer([First(), Fails(), log, Last()], work_dir=tmp_path / "run")
    if fails:
        with pytest.raises(ZeroDivisionError, match="broken"):
            trainer.train()
    else:
        trainer.train()
    for found in (rows(tmp_path / "run"), lines(tmp_path / "run")):
        assert [float(row["first"]) for row in found if row.get("first")] == [1.0]
        assert [float(row["last"]) for row in found if row.get("last")] == [2.0]
    assert log._files == []  # closed


class TestLG10:
    """One run, however often it is resumed; another one where its checkpoint begins a folder of its own."""

    class Ends:
        """Ends the run before step ``at``, and keeps what reporters are told."""

        def __init__(self, at):
            self.at, self.run = at, None

        @hookimpl
        def before_step(self, trainer):
            if trainer.step == self.at:
                raise KeyboardInterrupt

        @hookimpl
        def report_start(self, run):
            self.run = run

    def segment(self, make_trainer, folder, at, *, resume="auto", lr=1.0):
        ends = self.Ends(at)
        plugins = [ends, MetricsLog(), Checkpoint(every_steps=2)]
        trainer = make_trainer(plugins, max_steps=10, lr=lr, work_dir=folder, log_every_steps=1)
        if at is None:
            trainer.train(resume=resume)
        else:
            with pytest.raises(KeyboardInterrupt):
                trainer.train(resume=resume)
        return ends.run, json.loads((folder / "run.json").read_text())

    def test_lg_10(self, make_trainer, tmp_path):
        """Interrupted at 3, 5 and 9; the third segment has another rate; then a fork from the checkpoint at 4."""
        folder = tmp_path / "run"
        segments = [self.segment(make_trainer, folder, at, lr=0.5 if at == 9 else 1.0) for at in (3, 5, 9, None)]
        ids = {run.id for run, _ in segments} | {record["id"] for _, record in segments}
        assert len(ids) == 1
        assert [run.resumed for run, _ in segments] == [False, True, True, True]
        record = segments[-1][1]
        assert [one["step"] for one in record["resumed"]] == [run.resumed_step for run, _ in segments[1:]] == [2, 4, 8]
        changed = [one.get("changed", {}) for one in record["resumed"]]
        assert changed[0] == {}
        assert changed[1]["optimizer/lr"] == [1.0, 0.5]
        assert record["hyperparameters"]["optimizer/lr"] == 1.0
        assert [int(row["step"]) for row in rows(folder)] == list(range(1, 11))

        fork, forked = self.segment(make_trainer, tmp_path / "fork", None, resume=folder / "checkpoints" / "step-00000008")
        assert fork.id == forked["id"]
        assert {fork.id} != ids
        assert {fork.parent} == {forked["parent"]} == ids
        assert [int(row["step"]) for row in rows(tmp_path / "fork")] == [9, 10]
        assert [int(row["step"]) for row in rows(folder)] == list(range(1, 11))


TWO_JOBS = """
    import json, os, signal, sys, time
    import torch
    import torch._dynamo  # the first optimizer imports it: once, not in each job
    from pathlib import Path
    from trainhooks import Trainer, UsageError, hookimpl

    class Waits:
        '''In its first step, until the other job has ended.'''

        def __init__(self, other):
            self.other = other

        @hookimpl
        def before_step(self, trainer):
            end = time.monotonic() + 120
            while trainer.step == 0 and not self.other.exists():
                if time.monotonic() > end:
                    raise TimeoutError(self.other)
                time.sleep(0.002)

    class Dies:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 12:
                os.kill(os.getpid(), signal.SIGKILL)

    def train(folder, plugins, **arguments):
        model = torch.nn.Linear(1, 1)
        return Trainer(
            model,
            loss=torch.nn.functional.mse_loss,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            loaders={"train": [(torch.ones(2, 1), torch.ones(2, 1))] * 20},
            max_epochs=1,
            log_every_steps=1,
            work_dir=folder,
            plugins=["metrics_log", "run_store", *plugins],
            options={"checkpoint": {"every_steps": 5}} if "checkpoint" in plugins else None,
            autoload=False,
        ).train(**arguments)

    def child(work):
        if (pid := os.fork()) == 0:
            try:
                work()
            finally:
                os._exit(0)
        return pid

    def job(folder, number, gate):
        def work():
            os.close(gate[1])
            os.read(gate[0], 1)  # returns when the parent has closed the other end: both begin at one instant
            result = {"pid": os.getpid()}
            try:
                result["status"] = train(folder, [Waits(Path(f"{folder}.{1 - number}"))]).status
            except BaseException as error:
                result["error"] = f"{type(error).__name__}: {error}"
            Path(f"{folder}.tmp{number}").write_text(json.dumps(result))
            Path(f"{folder}.tmp{number}").rename(f"{folder}.{number}")
        return child(work)

    torch.set_num_threads(1)
    for index in range(25):
        gate = os.pipe()
        jobs = [job(Path(f"run{index}").absolute(), number, gate) for number in range(2)]
        os.close(gate[1])
        for pid in jobs:
            os.waitpid(pid, 0)
        os.close(gate[0])
    os.waitpid(child(lambda: train("stale", ["checkpoint", Dies()])), 0)
    assert Path("stale/run.lock").exists()
    print(train("stale", ["checkpoint"], resume="auto").status)
"""


@pytest.mark.slow
def test_mp_08_two_jobs_in_one_folder(tmp_path):
    """25 times two jobs that begin at one instant: one trains, the other is told by whom the folder is used; a dead one's lock is taken."""
    (tmp_path / "jobs.py").write_text(textwrap.dedent(TWO_JOBS))
    done = subprocess.run([sys.executable, "jobs.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    for index in range(25):
        results = [json.loads((tmp_path / f"run{index}.{number}").read_text()) for number in range(2)]
        (winner,) = [one for one in results if one.get("status") == "completed"]
        (loser,) = [one for one in results if "error" in one]
        assert loser["error"].startswith(
            f"UsageError: work_dir {tmp_path / f'run{index}'} is in use by process {winner['pid']} on "
        )
        run = tmp_path / f"run{index}"
        assert [int(row["step"]) for row in rows(run)] == [line["step"] for line in lines(run)] == list(range(1, 21))
        assert not (run / "run.lock").exists()
    assert done.stdout.splitlines()[-1] == "completed"
    assert [int(row["step"]) for row in rows(tmp_path / "stale")] == list(range(1, 21))


def test_mp_08_another_trainer_of_this_process(make_trainer, tmp_path):
    """It is refused while the first one trains, before it has written anything; the files are the first one's."""
    seen = []

    class Second:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 5:
                other = make_trainer([MetricsLog()], work_dir=tmp_path / "run", overwrite=True)
                with pytest.raises(UsageError, match="is in use by another Trainer of this process"):
                    other.train()
                seen.append(other.step)

    make_trainer([MetricsLog(), Second()], work_dir=tmp_path / "run", log_every_steps=1).train()
    assert seen == [0]
    assert [int(row["step"]) for row in rows(tmp_path / "run")] == list(range(1, 11))
