"""crash_report: what is known of a failure, and nothing of the user's data."""

import json
import os
import platform
import random
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import trainhooks
from trainhooks import Trainer, hookimpl
from trainhooks_builtins import Accumulate, Checkpoint, CrashReport, Evaluation
from trainhooks_builtins.crash_report import read_epoch_start


class Samples(Dataset):
    """Twenty samples; sample 13 fails where it is told to. Served indices are noted, in this process."""

    def __init__(self, fails=False):
        self.fails, self.served = fails, []

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.served.append(index)
        if self.fails and index == 13:
            raise LookupError("sample is broken\nsecond line")
        return torch.tensor([float(index)], dtype=torch.float64)


class FailsAt:
    """Fails in one hook at one step, with something secret in its variables."""

    def __init__(self, hook, step, error=None):
        self.error, self.step = error or ValueError("of mine\nsecond line"), step
        setattr(self, hook, self.make(hook))

    def make(self, hook):
        @hookimpl(specname=hook)
        def fail(trainer):
            password = "hunter2"
            if trainer.step == self.step:
                self.used = password
                raise self.error

        return fail


@pytest.fixture
def fails(make_trainer, scalar_model, tmp_path):
    """Return a function that trains on the samples until it fails, and gives the error and the report."""

    def run(*plugins, loader=None, resume=None, val=None, error=Exception, **arguments):
        model = scalar_model()
        loaders = {"train": loader or DataLoader(Samples(), 4, shuffle=True)}
        if val is not None:
            loaders["val"] = val
        arguments = {"max_epochs": 3, "work_dir": tmp_path / "run", "autoload": False, **arguments}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        trainer = Trainer(model, optimizer=optimizer, loaders=loaders, plugins=[CrashReport(), *plugins], **arguments)
        with pytest.raises(error) as caught:
            trainer.train(resume=resume)
        raised, caught = caught.value.with_traceback(None), None  # else an iterator is garbage: 5 s for each of its workers
        path = tmp_path / "run" / "crash.json"
        return raised, json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    return run


def test_who_failed_where(fails, tmp_path):
    """Step 7 is batch 2 of epoch 1 with batches of 4 from 20 samples; every second step is an update."""
    error, report = fails(FailsAt("before_step", 7), Accumulate(2), Checkpoint(every_steps=3), seed=5)
    counters = ("step", "update", "epoch", "batch_index", "split")
    assert tuple(report[name] for name in counters) == (7, 4, 1, 2, "train")  # 3 updates in epoch 0: its end makes one
    assert report["plugin"] == {
        "name": "fails_at",
        "distribution": None,
        "version": None,
        "hook": "before_step",
        "source": "object",
    }
    assert report["checkpoint"] == "checkpoints/step-00000006"
    assert report["settings"]["seed"] == 5
    locked = {entry["name"]: entry["options"] for entry in report["plugins"]}
    assert set(locked) == {"crash_report", "fails_at", "accumulate", "checkpoint"}
    assert report["versions"] == {
        "trainhooks": trainhooks.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        **({"cuda": torch.version.cuda} if torch.version.cuda else {}),
    }
    last = report["exception"]["traceback"][-1]
    assert (last["file"], last["function"]) == (__file__, "fail")
    assert "raise self.error" in Path(__file__).read_text().splitlines()[last["line"] - 1]
    assert f"crash report: {tmp_path}/run/crash.json" in error.__notes__


def test_a_plugin_of_a_distribution(fails):
    infinite = [torch.tensor([float("inf")], dtype=torch.float64)] * 3
    _, report = fails("nan_guard", loader=infinite, options={"nan_guard": {"every_steps": 1}})
    assert report["plugin"] == {
        "name": "nan_guard",
        "distribution": "trainhooks",
        "version": trainhooks.__version__,
        "hook": "after_step",
        "source": "built-in",
    }
    assert {"name": "nan_guard", "options": {"every_steps": 1}}.items() <= report["plugins"][0].items()


def test_the_engine_and_what_it_calls_are_no_plugin(fails):
    _, report = fails(Evaluation(every_steps=1), val=[object()])
    assert (report["plugin"], report["split"], report["step"]) == (None, "val", 1)


def test_nothing_of_the_data(fails, tmp_path):
    """The first line of a message is there, as the terminal shows it; no variable, no tensor, no batch."""
    _, report = fails(FailsAt("after_step", 1))
    assert report["exception"]["type"] == "ValueError"
    assert report["exception"]["message"] == "of mine"
    text = (tmp_path / "run" / "crash.json").read_text()
    assert "hunter2" not in text
    assert "second line" not in text
    assert set(report["exception"]["traceback"][0]) == {"file", "line", "function"}


class TestBatchIndices:
    @pytest.mark.parametrize("step", [0, 3, 7])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_are_what_the_loader_has_served(self, fails, step, shuffle):
        samples = Samples()
        _, report = fails(FailsAt("before_step", step), loader=DataLoader(samples, 4, shuffle=shuffle))
        assert report["batch_indices"] == samples.served[-4:]
        assert len(samples.served) == 4 * (step + 1)

    def test_after_a_resume_in_the_middle_of_an_epoch(self, fails, tmp_path):
        fails(Checkpoint(every_steps=2), FailsAt("before_step", 7))
        samples = Samples()
        _, report = fails(Checkpoint(), FailsAt("before_step", 8), loader=DataLoader(samples, 4, shuffle=True), resume="auto")
        assert (report["epoch"], report["batch_index"], report["checkpoint"]) == (1, 3, "checkpoints/step-00000006")
        assert report["batch_indices"] == samples.served[-4:]
        assert len(samples.served) == 12  # steps 6, 7, 8

    @pytest.mark.parametrize("workers", [0, 2])
    def test_of_a_batch_that_cannot_be_loaded(self, fails, workers):
        loader = DataLoader(Samples(fails=True), 4, shuffle=True, num_workers=workers)
        _, report = fails(loader=loader, error=LookupError)
        assert 13 in report["batch_indices"]
        assert len(report["batch_indices"]) == 4
        assert report["plugin"] is None
        exception = report["exception"]
        frames = exception["worker_traceback"] if workers else exception["traceback"]
        assert (frames[-1]["file"], frames[-1]["function"]) == (__file__, "__getitem__")
        assert exception["message"] == ("sample is broken" if not workers else exception["message"])
        assert "second line" not in json.dumps(report)

    @pytest.mark.parametrize("hook", ["after_epoch", "after_train_epoch", "on_save", "after_train"])
    def test_are_none_between_batches(self, fails, hook):
        """The batch before has been trained, and the one after has not begun."""
        _, report = fails(FailsAt(hook, 5), Checkpoint(every_steps=5), max_epochs=1)
        assert report["plugin"]["hook"] == hook
        assert report["batch_indices"] is None

    def test_are_none_in_an_evaluation(self, fails):
        evaluation = Evaluation(every_steps=2)
        _, report = fails(FailsAt("after_eval_step", 2), evaluation, val=[torch.ones(1, dtype=torch.float64)])
        assert (report["split"], report["batch_indices"]) == ("val", None)
        _, report = fails(FailsAt("before_step", 3), evaluation.__class__(every_steps=2), overwrite=True)
        assert report["split"] == "train"  # the evaluation before it is over

    def test_are_none_where_the_loader_does_not_tell(self, fails):
        batches = [torch.ones(1, dtype=torch.float64)] * 3
        assert fails(FailsAt("before_step", 1), loader=batches)[1]["batch_indices"] is None

    def test_a_sampler_that_fails_costs_no_report(self, fails):
        class Once(torch.utils.data.Sampler):
            begun = False

            def __len__(self):
                return 20

            def __iter__(self):
                if self.begun:
                    raise RuntimeError("only once")
                self.begun = True
                return iter(range(20))

        loader = DataLoader(Samples(), 4, sampler=Once())
        _, report = fails(FailsAt("before_step", 1), loader=loader, error=ValueError)
        assert (report["exception"]["type"], report["batch_indices"]) == ("ValueError", None)


def test_the_random_state_of_the_epochs_beginning_is_there(fails, make_trainer, tmp_path):
    """With it set, the same order is drawn: the batches of the failed epoch come again."""
    samples = Samples()
    _, report = fails(FailsAt("before_step", 7), loader=DataLoader(samples, 4, shuffle=True))
    now = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()[1].tolist()}  # noqa: NPY002
    assert all(len(report["random"]["now"][name]) == 64 for name in now)
    trainer = make_trainer()
    trainer.rng.load_state_dict(read_epoch_start(tmp_path / "run" / "crash.json"))
    order = list(DataLoader(Samples(), 4, shuffle=True).batch_sampler)
    assert sum(order[:3], []) == samples.served[20:]  # epoch 1 up to batch 2
    assert random.getstate() == now["python"]  # nobody has drawn from those two
    assert np.random.get_state()[1].tolist() == now["numpy"]  # noqa: NPY002


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interrupt_is_no_failure(fails, error):
    assert fails(FailsAt("after_step", 1, error), error=BaseException)[1] is None


def test_neither_is_one_that_the_program_asks_for(fails):
    class Interrupts:
        @hookimpl
        def after_step(self, trainer):
            trainer.interrupt(RuntimeError("the node goes down"), "maintenance")

    error, report = fails(Interrupts(), error=RuntimeError)
    assert (str(error), report) == ("the node goes down", None)


def test_before_the_training_nothing_is_written(fails, tmp_path):
    assert fails(FailsAt("setup", 0))[1] is None
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"run.json"}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_without_a_work_dir_nothing_is_written(fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fails(FailsAt("after_step", 1), work_dir=None)
    assert list(tmp_path.iterdir()) == []


def test_a_second_training_of_the_trainer_that_fails_before_it_begins(fails, make_trainer, tmp_path):
    trainer = make_trainer([CrashReport()], work_dir=tmp_path / "run")
    trainer.train()
    trainer.register(FailsAt("setup", 10))
    with pytest.raises(ValueError):
        trainer.train(max_steps=12)
    assert not (tmp_path / "run" / "crash.json").exists()


def test_causes(fails):
    class Chains:
        @hookimpl
        def after_step(self):
            try:
                {}["key"]
            except KeyError as error:
                raise trainhooks.DataError("no key") from error

    exception = fails(Chains())[1]["exception"]
    assert (exception["type"], exception["message"]) == ("trainhooks.errors.DataError", "no key")
    assert (exception["cause"]["type"], exception["cause"]["message"]) == ("KeyError", "'key'")
    assert exception["cause"]["traceback"][-1]["file"] == __file__


def test_the_run_lists_it(fails, make_trainer, tmp_path):
    fails(FailsAt("after_step", 1))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["reason"], record["step"]) == ("failed", "ValueError: of mine", 1)
    assert record["files"] == ["crash.json"]
    make_trainer(work_dir=tmp_path / "run", overwrite=True).train()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


def test_what_cannot_be_written_hides_nothing(fails, tmp_path, messages):
    class Obstacle:
        @hookimpl
        def after_step(self, trainer):
            (trainer.work_dir / ".crash.json.tmp").mkdir()
            raise ValueError("the first error")

    error, report = fails(Obstacle())
    assert (str(error), report) == ("the first error", None)
    (said,) = [message for message in messages() if message.startswith("crash_report")]
    assert said.startswith(f"crash_report: cannot write {tmp_path}/run/crash.json: [Errno 21] Is a directory")


def test_a_file_of_that_name_is_left_alone(fails, messages):
    class Obstacle:
        @hookimpl
        def after_step(self, trainer):
            (trainer.work_dir / "crash.json").write_text('"mine"')
            raise ValueError("the first error")

    error, report = fails(Obstacle())
    assert (str(error), report) == ("the first error", "mine")
    assert any("exists and was not made by trainhooks" in message for message in messages())


def test_on_a_disk_that_is_nearly_full_the_half_that_matters(fails, tmp_path):
    """No file may be larger than 8 KB: the random state has no place, the exception has."""
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
            report = fails(FailsAt("before_step", 2))[1]
            status = 0 if report["exception"]["message"] == "of mine" and "random" not in report else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_it_costs_nothing_while_nothing_fails(make_trainer, tmp_path):
    trainer = make_trainer([CrashReport()], work_dir=tmp_path / "run")
    assert trainer.hooks.before_step is trainer.hooks.after_step is trainer.hooks.after_update is None
    trainer.train()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]
