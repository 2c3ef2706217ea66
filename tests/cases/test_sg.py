"""SG: signals. Also EM-02's signal during an evaluation, GA-06's signal in a window, and PK-01's workers."""

import json
import logging
import math
import os
import pickle
import pty
import random
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from trainhooks import Terminated, hookimpl
from trainhooks_builtins import EMA, LR, Accumulate, Checkpoint, Evaluation, MetricsLog, Signals, Slurm, Timer
from trainhooks_builtins._checkpoint_files import list_checkpoints, read_checkpoint

SCRIPT = str(Path(sys.executable).with_name("trainhooks"))


class At:
    """Sends signals to this process in the n-th update (from 1), one after the other."""

    def __init__(self, update, *numbers, pause_s=0.0):
        self.update, self.numbers, self.pause_s = update, numbers, pause_s

    @hookimpl
    def gradients_ready(self, trainer):
        if trainer.update + 1 == self.update:
            for number in self.numbers:
                os.kill(os.getpid(), number)
                time.sleep(self.pause_s)


@pytest.fixture
def own_handlers():
    """Install handlers of SIGTERM and SIGINT as a user does; return them and the list of the signals that they had."""
    had = []

    def on_term(signum, frame):
        had.append(signal.SIGTERM)

    def on_int(signum, frame):
        had.append(signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, on_int)
    yield {signal.SIGTERM: on_term, signal.SIGINT: on_int}, had
    for number, handler in before.items():
        signal.signal(number, handler)


class TestSG01:
    """SIGTERM ignored, or the user's handler overwritten."""

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_sg_01_checkpoint_stop_and_the_users_handler(self, make_trainer, tmp_path, own_handlers, number):
        handlers, had = own_handlers
        trainer = make_trainer([Signals(), Checkpoint(), At(3, number)], work_dir=tmp_path / "run")
        with pytest.raises((Terminated, KeyboardInterrupt)):
            trainer.train()
        assert had == [number]
        assert trainer.plugins["checkpoint"].saved_step == trainer.step == 3
        assert {one: signal.getsignal(one) for one in handlers} == handlers
        again = make_trainer([Signals(), Checkpoint()], work_dir=tmp_path / "run")  # fit twice
        again.train(resume="auto")
        assert {one: signal.getsignal(one) for one in handlers} == handlers

    def test_sg_01_also_after_an_exception(self, make_trainer, own_handlers):
        class Fails:
            @hookimpl
            def after_step(self):
                raise LookupError

        handlers, _ = own_handlers
        with pytest.raises(LookupError):
            make_trainer([Signals(), Fails()]).train()
        assert {one: signal.getsignal(one) for one in handlers} == handlers

    @pytest.mark.usefixtures("own_handlers")
    def test_sg_01_an_ignored_one_stays_ignored(self, make_trainer):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        trainer = make_trainer([Signals(), At(3, signal.SIGINT)])
        assert trainer.train().status == "completed"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


class SlowLog(logging.Handler):
    """Takes its time with a record, while the lock of the log is held."""

    def emit(self, record):
        time.sleep(0.002)


class TestSG02:
    """Heavy work inside the handler: 500 moments at random, in steps, saves and in the log, whose lock is then held."""

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    @pytest.mark.usefixtures("own_handlers")
    def test_sg_02_500_of_500(self, make_trainer, tmp_path):
        draws = random.Random(2)
        log = logging.getLogger("trainhooks")
        handler = SlowLog()
        log.addHandler(handler)

        class Logs:
            """Sends one signal to the main thread, some time after the first step has begun, and notes where it came."""

            def __init__(self, delay_s):
                self.delay_s, self.begun = delay_s, threading.Event()
                self.came_at = None

            def send(self):
                self.begun.wait()
                time.sleep(self.delay_s)
                os.kill(os.getpid(), signal.SIGTERM)

            def note(self, signum, frame):
                self.came_at = self.step

            @hookimpl
            def before_step(self, trainer):
                self.step = trainer.step
                self.begun.set()

            @hookimpl
            def after_step(self, trainer):
                if trainer.step % 7 == 0:
                    log.warning("step %d", trainer.step)

        for number in range(500):
            logs = Logs(draws.uniform(0, 0.012))
            signal.signal(signal.SIGTERM, logs.note)  # the plugin calls it
            plugins = [Signals(), Checkpoint(every_steps=3, keep=1), LR("cosine"), logs]
            trainer = make_trainer(plugins, max_epochs=None, max_steps=10**6, work_dir=tmp_path / str(number))
            thread = threading.Thread(target=logs.send)
            thread.start()
            with pytest.raises(Terminated):
                trainer.train()
            thread.join()
            (path,) = list_checkpoints(tmp_path / str(number) / "checkpoints")
            state = read_checkpoint(path)
            assert state["run"]["step"] == state["run"]["update"] == trainer.step == int(path.name.removeprefix("step-"))
            assert trainer.step <= logs.came_at + 2  # the running one, and at most one more
            assert torch.equal(state["model"]["w"], trainer.model.w)
            rates = [0.5 * (1 + math.cos(math.pi * update / 10**6)) for update in range(trainer.step)]
            assert trainer.model.w.item() == pytest.approx(-sum(rates), rel=1e-9)  # the schedule has gone as far as the weight
        log.removeHandler(handler)


SAMPLES = """
import os

import torch
from torch.utils.data import Dataset


class Data(Dataset):
    def __len__(self):
        return int(os.environ.get("LENGTH", 100))

    def __getitem__(self, index):
        return torch.ones(1)
"""

WORKERS = """
import os
import time

import torch
from samples import Data
from torch.utils.data import DataLoader

from trainhooks import hookimpl


class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return (self.w * x).mean()


@hookimpl
def make_model():
    return Scalar()


@hookimpl
def make_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters(), lr=1.0)


@hookimpl
def make_loader():
    return DataLoader(Data(), num_workers=2, multiprocessing_context=os.environ["HOW"])


@hookimpl
def gradients_ready(trainer):
    if trainer.update == 4 and "WAIT" in os.environ:
        print("here", flush=True)
        until = time.monotonic() + 60
        while trainer.interruption is None and time.monotonic() < until:
            time.sleep(0.005)


@hookimpl
def after_train(trainer):
    print("done", trainer.step, flush=True)
"""


def survivors(session):
    """Return the processes of a session that run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdecimal() else ()
        except OSError:
            continue
        if fields and int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


def none_is_left(session):
    """Return whether every process of a session has ended; those that have closed its streams may still be on their way out."""
    deadline = time.monotonic() + 60
    while survivors(session) and time.monotonic() < deadline:
        time.sleep(0.02)
    return survivors(session) == []


@pytest.mark.slow
class TestSG04:
    """Group signals kill loader workers first. 2 workers, 100 updates, the signal to the group in the fifth."""

    COMMAND = (SCRIPT, "train", "-p", "no:progress", "--set", "max_epochs=1", "--set", "work_dir=out", "--set", "device=cpu")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
    def test_sg_04_checkpoint_exit_code_and_no_orphan(self, tmp_path, how, number):
        (tmp_path / "trainconf.py").write_text(WORKERS)
        (tmp_path / "samples.py").write_text(SAMPLES)
        environment = {**os.environ, "HOW": how, "WAIT": "1", "NO_COLOR": "1"}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(self.COMMAND, cwd=tmp_path, env=environment, start_new_session=True, **streams) as process:
            assert process.stdout.readline() == "here\n", process.stderr.read()
            os.killpg(process.pid, number)
            _, err = process.communicate(timeout=120)
        assert process.returncode == 128 + number, err
        assert none_is_left(process.pid)
        assert "Traceback" not in err
        (path,) = list_checkpoints(tmp_path / "out/checkpoints")
        state = read_checkpoint(path)
        assert (state["run"]["update"], state["model"]["w"].item()) == (5, -5)
        ended = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
        assert f"trainhooks: {ended}\n" in err
        assert "--resume auto" in err

    def test_sg_04_timeout(self, tmp_path):
        """``timeout`` signals its whole group when the time is up, which its own alarm tells it."""
        (tmp_path / "trainconf.py").write_text(WORKERS)
        (tmp_path / "samples.py").write_text(SAMPLES)
        environment = {**os.environ, "HOW": "fork", "WAIT": "1", "NO_COLOR": "1"}
        command = ["timeout", "-s", "TERM", "600", *self.COMMAND]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True, **streams) as process:
            assert process.stdout.readline() == "here\n", process.stderr.read()
            os.kill(process.pid, signal.SIGALRM)
            _, err = process.communicate(timeout=120)
        assert process.returncode == 124, err  # what timeout says when it had to
        assert none_is_left(process.pid)
        assert "trainhooks: ended by SIGTERM\n" in err
        assert "Traceback" not in err
        (path,) = list_checkpoints(tmp_path / "out/checkpoints")
        assert read_checkpoint(path)["run"]["update"] == 5

    @pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
    def test_sg_04_the_normal_end_does_not_hang(self, tmp_path, how):
        """Below 5 s in the case; a hang would last for ever."""
        (tmp_path / "trainconf.py").write_text(WORKERS)
        (tmp_path / "samples.py").write_text(SAMPLES)
        environment = {**os.environ, "HOW": how, "LENGTH": "10"}
        with subprocess.Popen(
            self.COMMAND, cwd=tmp_path, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline() == "done 10\n"
            process.communicate(timeout=60)
        assert process.returncode == 0
        assert none_is_left(process.pid)


RUN = """
import multiprocessing
import signal
import sys

import torch

from trainhooks import Trainer, hookimpl


class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return (self.w * x).mean()


class Kick:
    def __init__(self, number):
        self.number = number

    @hookimpl
    def gradients_ready(self, trainer):
        if trainer.update == 2:
            signal.raise_signal(self.number)


def fit(number):
    model = Scalar()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loaders = {"train": [torch.ones(1)] * 10}
    trainer = Trainer(model, optimizer=optimizer, loaders=loaders, max_epochs=1, work_dir="out", plugins=[Kick(number)])
    try:
        trainer.train()
    finally:
        print(trainer.outcome.status, trainer.outcome.step)
    print("NEXT")


if __name__ == "__main__":
    if "spawn" in sys.argv:
        process = multiprocessing.get_context("spawn").Process(target=fit, args=(int(sys.argv[1]),))
        process.start()
        process.join()
        print("exit code", process.exitcode)
    else:
        fit(int(sys.argv[1]))
"""


@pytest.mark.slow
class TestSG06:
    """Interrupted run reports success."""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_sg_06_a_script(self, tmp_path, number):
        (tmp_path / "script.py").write_text(RUN)
        command = [sys.executable, "script.py", str(int(number))]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        # Python itself ends by the signal after a KeyboardInterrupt that nobody catches, which shells show as 130.
        assert done.returncode in (128 + number, -number), done.stderr
        assert "NEXT" not in done.stdout
        assert "interrupted 3" in done.stdout
        assert [path.name for path in list_checkpoints(tmp_path / "out/checkpoints")] == ["step-00000003"]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_sg_06_the_command_line(self, project, number):
        file = project / "trainconf.py"
        kick = f"\n\n@hookimpl\ndef gradients_ready(trainer):\n    if trainer.update == 2:\n        import signal\n        signal.raise_signal({int(number)})\n"
        file.write_text(file.read_text() + kick)
        command = [SCRIPT, "train", "--set", "work_dir=out", "--set", "max_epochs=9"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 128 + number, done.stderr
        assert "Traceback" not in done.stderr
        assert [path.name for path in list_checkpoints(project / "out/checkpoints")][-1] == "step-00000003"

    @pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of fork, from Python 3.12 on
    def test_sg_06_the_terminal_is_closed(self, project):
        """SIGHUP comes, and nothing can be printed any more."""
        file = project / "trainconf.py"
        file.write_text(f"{file.read_text()}\n\n@hookimpl\ndef before_step():\n    import time\n    time.sleep(0.05)\n")
        process, terminal = pty.fork()
        if process == 0:
            os.execv(SCRIPT, [SCRIPT, "train", "--set", "work_dir=out", "--set", "max_epochs=999"])
        while not list_checkpoints(project / "out/checkpoints"):
            if select.select([terminal], [], [], 0.05)[0]:
                os.read(terminal, 65536)
        os.close(terminal)
        _, status = os.waitpid(process, 0)
        assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
        record = json.loads((project / "out/run.json").read_text())
        assert (record["status"], record["reason"]) == ("interrupted", "SIGHUP")
        assert record["checkpoint"] == f"checkpoints/step-{record['step']:08d}"

    @pytest.mark.usefixtures("own_handlers")
    def test_sg_06_nohup(self, make_trainer):
        found = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            assert make_trainer([Signals(), At(3, signal.SIGHUP)]).train().status == "completed"
        finally:
            signal.signal(signal.SIGHUP, found)


class TestSG08:
    """Training outside the main thread."""

    def test_sg_08_in_a_thread(self, make_trainer, messages):
        trainer = make_trainer([Signals()])
        thread = threading.Thread(target=trainer.train)
        thread.start()
        thread.join()
        assert trainer.outcome.status == "completed"
        notices = [text for text in messages() if text.startswith("signals: ")]
        assert notices == ["signals: the training is not in the main thread, so no signal is handled; Ctrl-C saves nothing"]

    @pytest.mark.slow
    def test_sg_08_imported_in_a_thread_without_a_call_of_signal(self):
        program = """
import signal, threading
def refuse(*arguments):
    raise AssertionError(arguments)
signal.signal = refuse
def work():
    import trainhooks.trainer, trainhooks_builtins
    for name in trainhooks_builtins.__all__:
        getattr(trainhooks_builtins, name)
    print("imported", len(trainhooks_builtins.__all__) > 40)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
        assert done.stdout == "imported True\n", done.stderr

    @pytest.mark.slow
    def test_sg_08_in_a_spawned_process(self, tmp_path):
        """Where it is the main thread, and signals are handled as everywhere."""
        (tmp_path / "script.py").write_text(RUN)
        command = [sys.executable, "script.py", "15", "spawn"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        assert "interrupted 3" in done.stdout, done.stderr
        assert "exit code 143" in done.stdout
        assert "NEXT" not in done.stdout


class TestSG09:
    """SLURM specifics: an array job, a fake ``scontrol``."""

    @pytest.fixture
    def calls(self, tmp_path, monkeypatch):
        program, calls = tmp_path / "bin/scontrol", tmp_path / "calls"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexit ${{SCONTROL_CODE:-0}}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        for name, value in (("JOB_ID", "4711"), ("ARRAY_JOB_ID", "12"), ("ARRAY_TASK_ID", "3")):
            monkeypatch.setenv(f"SLURM_{name}", value)
        return lambda: calls.read_text().splitlines() if calls.exists() else []

    def interrupted(self, make_trainer, tmp_path, *plugins):
        trainer = make_trainer([*plugins, Checkpoint()], work_dir=tmp_path / "run")
        with pytest.raises(Terminated) as left:
            trainer.train()
        assert trainer.plugins["checkpoint"].saved_step == 3
        return left.value.code

    def test_sg_09_requeued_once(self, make_trainer, tmp_path, calls):
        """USR1, then SIGTERM: 5 s later in the case, while the step that takes so long still runs."""
        at = At(3, signal.SIGUSR1, signal.SIGTERM, pause_s=0.1)
        assert self.interrupted(make_trainer, tmp_path, Signals(), Slurm(), at) == 138
        assert calls() == ["requeue 12_3"]

    def test_sg_09_not_after_a_normal_end(self, make_trainer, tmp_path, calls):
        make_trainer([Signals(), Slurm(), Checkpoint()], work_dir=tmp_path / "run").train()
        assert calls() == []

    def test_sg_09_not_after_an_exception(self, make_trainer, tmp_path, calls):
        class Fails:
            @hookimpl
            def after_update(self):
                raise LookupError

        with pytest.raises(LookupError):
            make_trainer([Signals(), Slurm(), Checkpoint(), Fails()], work_dir=tmp_path / "run").train()
        assert calls() == []

    def test_sg_09_scontrol_fails(self, make_trainer, tmp_path, calls, monkeypatch, messages):
        monkeypatch.setenv("SCONTROL_CODE", "1")
        assert self.interrupted(make_trainer, tmp_path, Signals(), Slurm(), At(3, signal.SIGTERM)) == 143
        assert calls() == ["requeue 12_3"]
        assert [text for text in messages() if text.startswith("slurm: job 12_3 is not requeued")]

    def test_sg_09_switched_off(self, make_trainer, tmp_path, calls):
        assert self.interrupted(make_trainer, tmp_path, Signals(), At(3, signal.SIGTERM)) == 143
        assert calls() == []

    def test_sg_09_another_signal(self, make_trainer, tmp_path, calls):
        signals = Signals(signals=("SIGTERM", "SIGUSR2"))
        assert self.interrupted(make_trainer, tmp_path, signals, Slurm(), At(3, signal.SIGUSR2)) == 128 + signal.SIGUSR2
        assert calls() == ["requeue 12_3"]


class TestEM02:
    def test_em_02_a_real_signal_during_an_evaluation(self, make_trainer, tmp_path):
        """Start 1, update i sets the weight to i + 1, decay 0.9: model 5 and average 1.9049 after the fourth."""

        class InEvaluation:
            @hookimpl
            def after_eval_step(self, trainer):
                assert trainer.model.w.item() == pytest.approx(1.9049, abs=1e-12)
                os.kill(os.getpid(), signal.SIGTERM)

        plugins = [Signals(), EMA(decay=0.9), Evaluation(every_steps=4), Checkpoint(), InEvaluation()]
        trainer = make_trainer(plugins, values=(-1.0,) * 9, start=1.0, val=(1.0, 1.0), work_dir=tmp_path / "run")
        with pytest.raises(Terminated):
            trainer.train()
        (path,) = list_checkpoints(tmp_path / "run/checkpoints")
        state = read_checkpoint(path)
        assert state["model"]["w"].item() == 5
        (average,) = [value for value in _leaves(state["plugins/ema"]) if isinstance(value, torch.Tensor)]
        assert average.item() == pytest.approx(1.9049, abs=1e-12)
        plugins = [EMA(decay=0.9), Checkpoint()]
        resumed = make_trainer(plugins, values=(-1.0,) * 9, start=1.0, val=(1.0,), work_dir=tmp_path / "run")
        resumed.train(resume="auto", max_steps=5)
        assert resumed.model.w.item() == 6


def _leaves(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list | tuple) else [value]


def test_ga_06_a_signal_in_the_sixth_micro_batch(make_trainer, tmp_path):
    """10 batches in an epoch, windows of 4, 4 and 2: the sixth is the second of a window, whose gradients are kept."""
    values = [float(x) for x in range(1, 11)]

    class InSixth:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    whole = make_trainer([Accumulate(4)], values=values, max_epochs=3)
    whole.train()
    first = make_trainer([Signals(), Accumulate(4), Checkpoint(), InSixth()], values=values, max_epochs=3, work_dir=tmp_path)
    with pytest.raises(Terminated):
        first.train()
    assert (first.step, first.update) == (6, 1)
    resumed = make_trainer([Accumulate(4), Checkpoint()], values=values, max_epochs=3, work_dir=tmp_path)
    resumed.train(resume="auto")
    assert torch.equal(resumed.model.w, whole.model.w)
    assert (resumed.step, resumed.update) == (30, 9)


class TestPK01:
    """Plugin with a thread or lock breaks spawn."""

    @pytest.fixture
    def loaders(self, monkeypatch):
        """Return the module of the datasets, importable by name in the workers, which get this process's ``sys.path``."""
        monkeypatch.syspath_prepend(Path(__file__).parents[1] / "data/loaders")
        import attached

        return attached

    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["spawn", "forkserver"])
    def test_pk_01_what_workers_are_sent_has_no_trainer(self, make_trainer, tmp_path, loaders, how):
        plugins = [Signals(), MetricsLog(), Checkpoint(every_steps=1, async_save=True), Timer()]
        trainer = make_trainer(plugins, work_dir=tmp_path / "run", seed=3)
        trainer.loaders["train"] = loaders.loader(how, begin=loaders.begin)
        assert trainer.train().step == 4
        assert trainer.model.w.item() == -4
        assert trainer.loaders["train"].worker_init_fn is loaders.begin

    @pytest.mark.parametrize("how", ["spawn", "forkserver"])
    @pytest.mark.filterwarnings("ignore:Got pickle error")
    def test_pk_01_the_users_own_fault_is_named(self, make_trainer, loaders, how):
        trainer = make_trainer([Signals()])
        trainer.loaders["train"] = loaders.loader(how, trainer=trainer, begin=None)
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)) as raised:
            trainer.train()
        (note,) = [one for one in getattr(raised.value, "__notes__", ()) if "cannot be pickled" in one]
        assert note.startswith("dataset.helper['trainer'].")
        assert trainer.loaders["train"].worker_init_fn is None
