"""Checkpoints: atomicity, corruption, rotation, by the ids of the cases. Values are worked out by hand from the cases.

Every single system call, power cuts and ten thousand mutations: tests/reliability.
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from trainhooks import CheckpointError, Trainer, hookimpl
from trainhooks_builtins import EMA, Checkpoint, Evaluation
from trainhooks_builtins._checkpoint_files import (
    list_checkpoints,
    read_checkpoint,
    take_snapshot,
    verify_checkpoint,
    write_checkpoint,
)

VALUES = [0.5, -1.25, 2.0, 0.75, -0.5, 1.5, 3.0, -2.0, 0.25]


class Saves:
    """Notes the writes: step and kind."""

    def __init__(self, tell=None):
        self.at = []
        self.tell = tell

    @hookimpl
    def after_save(self, trainer, path, kind):
        self.at.append((trainer.step, kind))
        if self.tell is not None:
            os.write(self.tell, bytes([trainer.step]))


class Begins:
    """Notes the step at which the training begins."""

    step = None

    @hookimpl
    def before_train(self, trainer):
        self.step = trainer.step


class Measures:
    """An evaluation that gives these values in turn."""

    def __init__(self, *values):
        self.values = list(values)

    @hookimpl
    def eval_step(self):
        return {"score": self.values.pop(0)}


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def momentum_trainer(make_trainer):
    """Return a function that makes a trainer whose next step depends on all those before."""

    def make(*plugins, **arguments):
        trainer = make_trainer(list(plugins), values=VALUES, lr=0.1, **{"max_steps": 9, **arguments})
        trainer.optimizer.param_groups[0]["momentum"] = 0.9
        return trainer

    return make


def by_hand(steps):
    """Return weight and momentum after some steps: the gradient of w * x is x."""
    weight = velocity = 0.0
    for step in range(steps):
        velocity = 0.9 * velocity + VALUES[step] if step else VALUES[step]
        weight -= 0.1 * velocity
    return weight


def steps_in(run):
    return [int(path.name[5:]) for path in list_checkpoints(run / "checkpoints")]


def hidden_in(run):
    return [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]


def killed_before(number, folder, work):
    """Do ``work(pipe)`` in a child that kills itself before its n-th operation on files in ``folder``.

    Returns:
        What it wrote to the pipe, and whether it was killed.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            count = [0]

            def operation():
                count[0] += 1
                if count[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)

            def audit(event, arguments):
                if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"):
                    if str(arguments[0]).startswith(str(folder)):
                        operation()

            fsync = os.fsync
            os.fsync = lambda descriptor: (operation(), fsync(descriptor))[1]
            sys.addaudithook(audit)
            work(writer)
            os.write(writer, b"\xff")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = list(pipe.read())
    _, status = os.waitpid(child, 0)
    return told, os.WIFSIGNALED(status)


class TestCK01:
    """Killed while writing."""

    @pytest.mark.slow
    def test_before_every_operation(self, momentum_trainer, run):
        """Resumes from the last acknowledged save or the one in flight; the end is the same to the last bit."""

        def trainer(*plugins):
            return momentum_trainer(Checkpoint(every_steps=3, keep=1), *plugins, work_dir=run)

        reference = momentum_trainer()
        reference.train()
        assert reference.model.w.item() == pytest.approx(by_hand(9), rel=1e-12)
        begun, points = set(), 0
        for number in range(1, 1000):
            told, killed = killed_before(number, run, lambda pipe: trainer(Saves(pipe)).train())
            if not killed:
                assert told == [3, 6, 9, 255]
                break
            points += 1
            begins = Begins()
            again = trainer(begins)
            again.train(resume="auto")
            assert begins.step in {max(told, default=0), max(told, default=0) + 3}
            begun.add(begins.step)
            assert again.model.w.item() == reference.model.w.item()
            buffers = [one.optimizer.state[one.model.w]["momentum_buffer"] for one in (again, reference)]
            assert torch.equal(*buffers)
            if begins.step < 9:  # else nothing was saved, and what the killed run had not removed yet is there
                assert steps_in(run) == [9]
                assert hidden_in(run) == []
            assert [verify_checkpoint(path).step for path in list_checkpoints(run / "checkpoints")] in ([9], [6, 9])
            shutil.rmtree(run)
        assert points >= 60  # three saves of 20 operations each, their records and rotations
        assert begun == {0, 3, 6, 9}

    def test_inside_the_write_for_9(self, momentum_trainer, run):
        def dies(pipe):
            mkdir = Path.mkdir

            def kills(path, *args, **kwargs):
                mkdir(path, *args, **kwargs)
                if path.name == ".step-00000009.tmp":
                    os.kill(os.getpid(), signal.SIGKILL)

            Path.mkdir = kills
            momentum_trainer(Checkpoint(every_steps=3, keep=1), Saves(pipe), work_dir=run).train()

        assert killed_before(None, run, dies) == ([3, 6], True)
        begins = Begins()
        again = momentum_trainer(Checkpoint(every_steps=3, keep=1), begins, work_dir=run)
        again.train(resume="auto")
        reference = momentum_trainer()
        reference.train()
        assert begins.step == 6
        assert again.model.w.item() == reference.model.w.item()


class TestCK02:
    """Newest folder is incomplete and blocks every restart."""

    @pytest.fixture
    def partial(self, make_trainer, run):
        """Return a function that leaves a whole 100 and a partial 200; ``listed``: the killed run had noted the latter."""

        def leave(spoil, *, listed):
            make_trainer([Checkpoint(every_steps=100, keep=0)], max_steps=200, max_epochs=1000, work_dir=run).train()
            spoil(run / "checkpoints" / "step-00000200")
            if not listed:
                record = json.loads((run / "run.json").read_text())
                record["files"] = [name for name in record["files"] if not name.endswith("200")]
                (run / "run.json").write_text(json.dumps(record))

        return leave

    @pytest.mark.parametrize("listed", [True, False])
    @pytest.mark.parametrize(
        ("spoil", "reason"),
        [
            (lambda path: (path / "tensors.safetensors").unlink(), "tensors.safetensors is missing"),
            (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
            (lambda path: (path / "state.json").write_bytes(b""), "state.json has 0 bytes"),
            (lambda path: [one.unlink() for one in path.iterdir()], "manifest.json is missing"),
            (lambda path: path.rename(path.with_name(".step-00000200.tmp")), None),
        ],
        ids=["shard missing", "metadata missing", "zero-length", "nothing in it", "only the temporary name"],
    )
    def test_resumes_at_100_and_saves_at_200(self, partial, make_trainer, run, messages, spoil, reason, listed):
        partial(spoil, listed=listed)
        begins = Begins()
        plugin = Checkpoint(every_steps=100, keep=0)
        outcome = make_trainer([plugin, begins], max_steps=300, max_epochs=1000, work_dir=run).train(resume="auto")
        assert (begins.step, outcome.status) == (100, "completed")
        warned = [text for text in messages() if "step-00000200" in text and "skipped" in text]
        if reason is None:
            assert warned == []
        else:
            assert len(warned) == 1
            assert reason in warned[0]
        assert steps_in(run) == [100, 200, 300]
        assert [verify_checkpoint(path).step for path in list_checkpoints(run / "checkpoints")] == [100, 200, 300]
        assert hidden_in(run) == []

    def test_an_unknown_file_in_it_is_moved_aside(self, partial, make_trainer, run, messages):
        partial(lambda path: (path / "notes.txt").write_text("mine"), listed=True)
        begins = Begins()
        plugin = Checkpoint(every_steps=100, keep=0)
        make_trainer([plugin, begins], max_steps=300, max_epochs=1000, work_dir=run).train(resume="auto")
        assert begins.step == 100
        assert len([text for text in messages() if "skipped" in text and "notes.txt does not belong" in text]) == 1
        assert steps_in(run) == [100, 200, 300]
        assert (run / "checkpoints/step-00000200.aside/notes.txt").read_text() == "mine"


class TestCK04:
    """ "latest" moves before the data is durable."""

    def test_killed_while_the_second_is_written(self, make_trainer, run):
        def dies(pipe):
            mkdir = Path.mkdir

            def kills(path, *args, **kwargs):
                mkdir(path, *args, **kwargs)
                if path.name == ".step-00000004.tmp":
                    os.kill(os.getpid(), signal.SIGKILL)

            Path.mkdir = kills
            make_trainer([Checkpoint(every_steps=2, keep=1, async_save=True), Saves(pipe)], work_dir=run).train()

        told, killed = killed_before(None, run, dies)
        assert killed
        assert set(told) <= {2, 3, 4}  # the step at which the run was told of 2
        assert steps_in(run) == [2]
        begins = Begins()
        make_trainer([Checkpoint(keep=1), begins], work_dir=run).train(resume="auto")
        assert begins.step == 2

    def test_a_normal_end_waits_for_the_writer(self, make_trainer, run, monkeypatch):
        mkdir = Path.mkdir
        released = threading.Event()

        def waits(path, *args, **kwargs):
            mkdir(path, *args, **kwargs)
            if path.name == ".step-00000010.tmp":
                threading.Timer(0.5, released.set).start()
                assert released.wait(60)

        monkeypatch.setattr(Path, "mkdir", waits)
        make_trainer([Checkpoint(every_steps=5, keep=1, async_save=True)], work_dir=run).train()
        assert steps_in(run) == [10]
        assert verify_checkpoint(run / "checkpoints/step-00000010").step == 10


class TestCK05:
    """Power loss leaves zero-length files."""

    def test_the_order_of_each_save(self, make_trainer, run, monkeypatch):
        """Each file, their folder, the rename, the parent folder, and only then the acknowledgement and the removal."""
        trace = []
        sync, rename = os.fsync, Path.rename

        def traced_sync(descriptor):
            trace.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
            sync(descriptor)

        def traced_rename(path, target):
            trace.append((path.name, target.name))
            return rename(path, target)

        class Told:
            @hookimpl
            def after_save(self, path):
                trace.append(("told", path.name))

        monkeypatch.setattr(os, "fsync", traced_sync)
        monkeypatch.setattr(Path, "rename", traced_rename)
        make_trainer([Checkpoint(every_steps=2, keep=1), Told()], max_steps=6, work_dir=run).train()
        for step in (2, 4, 6):
            name = f"step-{step:08d}"
            begin = next(i for i, one in enumerate(trace) if one[1] == "tensors.safetensors")
            end = trace.index(("told", name))
            save = [one for one in trace[begin:end] if one[1] not in ("run", ".run.json.tmp")]  # the record is another file
            assert save[:6] == [
                *(("fsync", file) for file in ("tensors.safetensors", "state.json", "manifest.json")),
                ("fsync", f".{name}.tmp"),
                (f".{name}.tmp", name),
                ("fsync", "checkpoints"),
            ]
            former = f"step-{step - 2:08d}"
            assert save[6:] == ([(former, f".{former}.trash"), ("fsync", "checkpoints")] if step > 2 else [])
            del trace[: end + 1]


class TestCK06:
    """Disk full; a limit for the size of files stands in for it here, a real full disk: tests/reliability."""

    @pytest.fixture
    def large(self):
        class Large(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.zeros(100_000))

            def forward(self, x):
                return (self.w * x).mean()

        return Large

    @pytest.fixture
    def full_after_two(self, monkeypatch):
        """Let files have 100 KB at most once two checkpoints are written; each one needs 400 KB."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)

        class Fills:
            @hookimpl
            def after_save(self, trainer):
                if trainer.step >= 2:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))

        yield Fills()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def trainer(self, large, run, *plugins):
        model = large()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        loaders = {"train": [torch.ones(1)] * 5}
        return Trainer(model, optimizer=optimizer, loaders=loaders, plugins=plugins, autoload=False, max_epochs=1, work_dir=run)

    def test_stop(self, large, full_after_two, run):
        ended = []

        class Watches:
            @hookimpl
            def after_train(self, trainer):
                ended.append(trainer.outcome.status)

        trainer = self.trainer(large, run, Checkpoint(every_steps=1, keep=2), full_after_two, Watches())
        with pytest.raises(CheckpointError) as caught:
            trainer.train()
        message = str(caught.value)
        place = run / "checkpoints" / "step-00000003"
        assert message.startswith(f"cannot write the checkpoint {place}: File too large (errno 27); it needs 4")
        assert " bytes, " in message
        assert " are free: make room, then go on with --resume auto" in message
        assert caught.value.exit_code == 1
        assert ended == ["failed"]
        assert steps_in(run) == [1, 2]
        assert [verify_checkpoint(path).step for path in list_checkpoints(run / "checkpoints")] == [1, 2]
        assert hidden_in(run) == []

    def test_continue(self, large, full_after_two, run, messages):
        plugin = Checkpoint(every_steps=1, keep=2, on_failure="continue")
        outcome = self.trainer(large, run, plugin, full_after_two).train()
        assert (outcome.status, outcome.step) == ("completed", 5)
        warned = [text for text in messages() if "File too large" in text]  # the last step is tried again at the end
        assert [f"step-0000000{step}:" in text for step, text in zip((3, 4, 5, 5), warned, strict=True)] == [True] * 4
        assert [verify_checkpoint(path).step for path in list_checkpoints(run / "checkpoints")] == [1, 2]
        assert hidden_in(run) == []


class TestCK07:
    """Rotation sorts names as text: here by number, never by name or time."""

    def at(self, make_trainer, run, plugin, *numbers, metrics=None, mtimes=None):
        """Save at these steps of a run that stands at step 8000 and more."""
        others = [Evaluation(every_epochs=0, at_end=False), Measures(*metrics)] if metrics else []
        trainer = make_trainer([plugin, *others], val=(1.0,), max_steps=1, work_dir=run)

        class Jumps:
            @hookimpl
            def after_step(self, trainer):
                for number in numbers:
                    trainer.step = number
                    if metrics:
                        trainer.evaluate("val")
                    trainer.save_checkpoint(trainer.checkpoint_path())
                    for path in list_checkpoints(trainer.work_dir / "checkpoints"):
                        if mtimes is not None:
                            os.utime(path, (mtimes(path), mtimes(path)))
                trainer._checkpoint_request = None  # they are saved above, at the steps that this test jumps to
                trainer.stop("enough")

        trainer.register(Jumps())
        plugin.at_end = False
        trainer.train()
        return steps_in(run)

    MTIMES = (None, lambda path: 1e9, lambda path: 2e9 - int(path.name[5:]))

    @pytest.mark.parametrize("mtimes", MTIMES)
    def test_keep_one(self, make_trainer, run, mtimes):
        assert self.at(make_trainer, run, Checkpoint(every_epochs=0, keep=1), 9000, 10000, mtimes=mtimes) == [10000]

    @pytest.mark.parametrize("mtimes", MTIMES)
    @pytest.mark.parametrize("keep", [1, 2])
    def test_the_best_beside_the_newest(self, make_trainer, run, mtimes, keep):
        plugin = Checkpoint(every_epochs=0, keep=keep, best="val/score")
        kept = self.at(make_trainer, run, plugin, 9000, 10000, 11000, metrics=[0.9, 0.5, 0.6], mtimes=mtimes)
        assert kept == [9000, 11000]

    def test_beyond_eight_digits(self, make_trainer, run):
        assert self.at(make_trainer, run, Checkpoint(every_epochs=0, keep=1), 99_999_999, 100_000_000) == [100_000_000]


class TestCK09:
    """Best score in the file is one step behind."""

    def train(self, make_trainer, run, *values, **arguments):
        """Return for each save: step, metric in the manifest, best step and value in the file."""
        seen = []
        plugin = Checkpoint(every_steps=1, keep=1, best="val/score")

        class Watches:
            @hookimpl
            def after_save(self, trainer, path):
                manifest = json.loads((path / "manifest.json").read_text())
                best = read_checkpoint(path)["plugins/checkpoint"]["best"]
                seen.append((trainer.step, manifest["metrics"]["val/score"], best["step"], best["value"]))

        parts = [Evaluation(every_steps=1), Measures(*values), plugin, Watches()]
        make_trainer(parts, val=(1.0,), work_dir=run, **arguments).train(resume="auto")
        return seen

    def test_the_file_knows_its_own_evaluation(self, make_trainer, run):
        seen = self.train(make_trainer, run, 0.5, 0.7, 0.6, max_steps=3)
        assert seen == [(1, 0.5, 1, 0.5), (2, 0.7, 2, 0.7), (3, 0.6, 2, 0.7)]
        assert steps_in(run) == [2, 3]
        seen = self.train(make_trainer, run, 0.65, 0.8, max_steps=5)
        assert seen == [(4, 0.65, 2, 0.7), (5, 0.8, 5, 0.8)]
        assert steps_in(run) == [5]  # newest and best are one


class TestCK11:
    """Final save and duplicates."""

    @pytest.mark.parametrize(
        ("limit", "period", "expected"),
        [(10, 3, [3, 6, 9, 10]), (9, 3, [3, 6, 9]), (10, 100, [10]), (10, 1, list(range(1, 11)))],
    )
    @pytest.mark.parametrize("unit", ["every_steps", "every_updates"])
    @pytest.mark.parametrize("async_save", [False, True])
    def test_a_b_d_writes(self, make_trainer, run, limit, period, expected, unit, async_save):
        written = []

        class Notes:
            @hookimpl
            def after_save(self, path):
                written.append(int(path.name[5:]))

        plugin = Checkpoint(**{unit: period}, keep=0, async_save=async_save)
        make_trainer([plugin, Notes()], max_steps=limit, work_dir=run).train()
        assert written == expected == steps_in(run)

    def test_c_resumed_at_its_end(self, make_trainer, run):
        make_trainer([Checkpoint(every_steps=3)], max_steps=9, work_dir=run).train()
        files = {path: path.read_bytes() for path in (run / "checkpoints").rglob("*") if path.is_file()}
        saves = Saves()
        outcome = make_trainer([Checkpoint(every_steps=3), saves], max_steps=9, work_dir=run).train(resume="auto")
        assert (outcome.step, saves.at) == (9, [])
        assert {path: path.read_bytes() for path in (run / "checkpoints").rglob("*") if path.is_file()} == files

    def test_e_keep_two(self, make_trainer, run):
        make_trainer([Checkpoint(every_steps=3, keep=2)], max_steps=10, work_dir=run).train()
        assert steps_in(run) == [9, 10]


class TestCK12:
    """Asynchronous save stores later values."""

    def test_the_file_for_1_has_the_values_of_1(self, run, monkeypatch):
        """The weight becomes i at step i (SGD with rate -1 on the gradient 1), the writer waits until step 3 has run."""
        go = threading.Event()
        mkdir = Path.mkdir

        def waits(path, *args, **kwargs):
            mkdir(path, *args, **kwargs)
            if path.name == ".step-00000001.tmp":
                assert go.wait(60)

        monkeypatch.setattr(Path, "mkdir", waits)

        class Counts:
            name = "counts"

            def __init__(self):
                self.seen = []

            @hookimpl
            def after_step(self, trainer):
                self.seen.append(trainer.step + 1)
                if trainer.step == 0:
                    trainer.request_checkpoint()
                if trainer.step == 2:
                    go.set()

            def state_dict(self):
                return {"seen": self.seen}

            def load_state_dict(self, state):
                self.seen = state["seen"]

        class Weight(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.zeros(()))

            def forward(self, x):
                return -(self.w * x)

        model = Weight()
        adam = torch.optim.Adam([nn.Parameter(torch.zeros(()))])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

        class StepsAdam:
            @hookimpl
            def after_update(self, trainer):
                adam.param_groups[0]["params"][0].grad = torch.ones(())
                adam.step()

        plugins = [Checkpoint(every_epochs=0, keep=0, async_save=True), Counts(), StepsAdam(), EMA(decay=0.5)]
        trainer = Trainer(
            model,
            optimizer=optimizer,
            loaders={"train": [torch.ones(())] * 4},
            plugins=plugins,
            autoload=False,
            max_epochs=1,
            work_dir=run,
        )
        trainer.stateful["adam"] = adam
        trainer.train()
        state = read_checkpoint(run / "checkpoints" / "step-00000001")
        assert state["model"]["w"] == 1.0
        assert state["adam"]["state"][0]["step"] == 1
        assert state["adam"]["state"][0]["exp_avg"] == pytest.approx(0.1)  # (1 - 0.9) * 1
        assert state["plugins/counts"] == {"seen": [1]}
        averages = [one for one in _tensors(state["plugins/ema"]) if one.numel() == 1]
        assert averages
        assert all(one.item() <= 1.0 for one in averages)
        last = read_checkpoint(run / "checkpoints" / "step-00000004")
        assert (last["model"]["w"], last["adam"]["state"][0]["step"]) == (4.0, 4)


def _tensors(part):
    if isinstance(part, torch.Tensor):
        return [part]
    values = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
    return [tensor for value in values for tensor in _tensors(value)]


class TestCK14:
    """Overwriting one checkpoint id: at every moment all of the old one or all of the new can be read."""

    def test_killed_before_every_operation(self, tmp_path):
        path = tmp_path / "checkpoints" / "last"
        state = {
            stamp: {"model": {"a": torch.full((3,), stamp), "b": torch.full((2,), stamp)}, "run": {"step": stamp}}
            for stamp in (2, 4)
        }
        found, points = set(), 0
        for number in range(1, 200):
            write_checkpoint(path, take_snapshot(state[2]), {"step": 2})
            snapshot = take_snapshot(state[4])
            told, killed = killed_before(number, tmp_path, lambda pipe: write_checkpoint(path, snapshot, {"step": 4}))
            again = read_checkpoint(path)
            stamps = {again["run"]["step"], *again["model"]["a"].tolist(), *again["model"]["b"].tolist()}
            assert stamps in ({2}, {4})
            if not killed:
                assert (told, stamps) == ([255], {4})
                break
            points += 1
            found |= stamps
            shutil.rmtree(path.parent)
        assert points >= 15
        assert found == {2, 4}


class TestCK16:
    """NaN metric becomes, or blocks, "best"."""

    @pytest.mark.parametrize(
        ("mode", "values", "expected"),
        [
            ("min", [float("nan"), 0.5, float("nan"), 0.4], [None, 2, 2, 4]),
            ("max", [float("nan"), 0.5, float("nan"), 0.4], [None, 2, 2, 2]),
            ("min", [float("-inf"), 0.5, float("inf"), 0.4], [None, 2, 2, 4]),
            ("max", [float("inf"), 0.5, float("-inf"), 0.4], [None, 2, 2, 2]),
        ],
    )
    def test_nan_and_infinity(self, make_trainer, run, mode, values, expected):
        plugin = Checkpoint(every_steps=1, keep=0, best="val/score", mode=mode)
        seen = []

        class Watches:
            @hookimpl
            def after_save(self, trainer):
                seen.append(plugin.best.step)

        parts = [Evaluation(every_steps=1), Measures(*values), plugin, Watches()]
        make_trainer(parts, val=(1.0,), max_steps=4, work_dir=run).train()
        assert seen == expected

    def test_all_nan(self, make_trainer, run, messages):
        plugin = Checkpoint(every_steps=1, keep=1, best="val/score")
        parts = [Evaluation(every_steps=1), Measures(*[float("nan")] * 4), plugin]
        make_trainer(parts, val=(1.0,), max_steps=4, work_dir=run).train()
        assert plugin.best.step is None
        assert steps_in(run) == [4]
        warned = [text for text in messages() if "never measured as a finite number" in text]
        assert warned == ["checkpoint.best = 'val/score' was never measured as a finite number: it was nan"]
        text = (run / "checkpoints" / "step-00000004" / "manifest.json").read_text()
        assert json.loads(text, parse_constant=pytest.fail)["metrics"]["val/score"] is None  # NaN is no JSON


class TestCK18:
    """A failing save is swallowed. A file system that is really read-only: tests/reliability."""

    def test_read_only_at_step_4(self, make_trainer, run, monkeypatch):
        mkdir = Path.mkdir

        def refuses(path, *args, **kwargs):
            if path.name == ".step-00000004.tmp":
                raise OSError(30, "Read-only file system", str(path))
            mkdir(path, *args, **kwargs)

        monkeypatch.setattr(Path, "mkdir", refuses)
        trainer = make_trainer([Checkpoint(every_steps=2, keep=1)], max_steps=10, work_dir=run)
        with pytest.raises(CheckpointError, match=r"step-00000004: Read-only file system \(errno 30\)"):
            trainer.train()
        assert (trainer.step, steps_in(run)) == (4, [2])

    def test_a_folder_of_others_with_its_name(self, make_trainer, run):
        class Places:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 3:
                    (run / "checkpoints/step-00000004").mkdir()
                    (run / "checkpoints/step-00000004/mine").write_text("")

        trainer = make_trainer([Checkpoint(every_steps=2, keep=1), Places()], max_steps=10, work_dir=run)
        with pytest.raises(Exception, match="step-00000004 exists and was not made by trainhooks; move it away"):
            trainer.train()
        assert (trainer.step, (run / "checkpoints/step-00000004/mine").exists()) == (4, True)

    def test_one_that_cannot_be_removed(self, make_trainer, run, monkeypatch, messages):
        """One warning with the path for each try; the training goes on; the next rotation tries again."""
        rename = Path.rename
        refused = []

        def refuse(path, target):
            if path.name == "step-00000002" and len(refused) < 2:
                refused.append(path)
                raise PermissionError(1, "Operation not permitted", str(path))
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", refuse)
        make_trainer([Checkpoint(every_steps=2, keep=1)], max_steps=10, work_dir=run).train()
        warned = [text for text in messages() if "cannot remove the checkpoint" in text]
        path = run / "checkpoints" / "step-00000002"
        expected = (
            f"cannot remove the checkpoint {path}: Operation not permitted (errno 1): {path}; tried again at the next one; "
            "there are 2 checkpoints now"
        )
        assert warned == [expected] * 2
        assert steps_in(run) == [10]


class TestCK19:
    """Flipped bits load without complaint: a sample of what tests/reliability does ten thousand times."""

    def mutate(self, generator, data):
        kind = generator.choice(["flip", "zero", "swap", "cut", "append"])
        at = generator.randrange(len(data))
        if kind == "flip":
            data[at] ^= 1 << generator.randrange(8)
        elif kind == "zero":
            data[at : at + 4096] = bytes(len(data[at : at + 4096]))
        elif kind == "swap":
            other = generator.randrange(len(data))
            one, two = data[at : at + 512], data[other : other + 512]
            size = min(len(one), len(two))
            data[at : at + size], data[other : other + size] = two[:size], one[:size]
        elif kind == "cut":
            del data[at:]
        else:
            data += generator.randbytes(generator.randrange(1, 100))
        return data

    def test_500_mutations(self, tmp_path):
        model = nn.Sequential(nn.Linear(20, 60), nn.BatchNorm1d(60), nn.Linear(60, 10))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(8, 20)).sum().backward()
        optimizer.step()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "list": [1, 2.5, "text"],
        }
        path = tmp_path / "step-00000001"
        write_checkpoint(path, take_snapshot(state), {"step": 1})
        files = {name: (path / name).read_bytes() for name in ("tensors.safetensors", "state.json", "manifest.json")}
        expected = take_snapshot(read_checkpoint(path))
        generator = random.Random(0)
        refused = same = 0
        for index in range(500):
            name = list(files)[index % 3]
            data = bytes(self.mutate(generator, bytearray(files[name])))
            (path / name).write_bytes(data)
            try:
                found = take_snapshot(read_checkpoint(path))
            except CheckpointError as error:
                refused += 1
                assert str(path / name) in str(error)
            else:
                same += 1
                assert found.text == expected.text
                assert all(
                    torch.equal(found.tensors[key].view(-1).view(torch.uint8), one.view(-1).view(torch.uint8))
                    for key, one in expected.tensors.items()
                )
                assert data == files[name] or name == "manifest.json"  # there white space may differ
            (path / name).write_bytes(files[name])
        assert refused + same == 500
        assert refused > 450
