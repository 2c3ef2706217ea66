"""``slurm``: when ``scontrol`` is called, and what it is told; it is a script here that notes its arguments."""

import os
import signal

import pytest

from trainhooks import OptionError, Terminated, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, Signals, Slurm
from trainhooks_builtins.slurm import job_id


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """Put a ``scontrol`` on PATH that notes how it was called, and ends as ``scontrol.does`` says; this is a job."""

    class Scontrol:
        def does(self, line):
            program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{line}\n')
            program.chmod(0o755)

        @property
        def calls(self):
            return calls.read_text().splitlines() if calls.exists() else []

    program, calls = tmp_path / "bin/scontrol", tmp_path / "calls"
    program.parent.mkdir()
    found = Scontrol()
    found.does("exit 0")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    return found


class Sends:
    """Sends a signal after the third update, or fails."""

    def __init__(self, number=None, error=None, step=2):
        self.number, self.error, self.step = number, error, step

    @hookimpl
    def after_update(self, trainer):
        if trainer.step == self.step:
            if self.error is not None:
                raise self.error
            if self.number is not None:
                os.kill(os.getpid(), self.number)


@pytest.fixture
def run(make_trainer, tmp_path):
    """Return a function that trains with a signal and returns the trainer; ``error`` is what leaves it."""

    def run(*plugins, error=None, resume=None, work_dir=tmp_path / "run", **arguments):
        trainer = make_trainer([Signals(), Slurm(), *plugins], work_dir=work_dir, **arguments)
        if error is None:
            trainer.train(resume=resume)
        else:
            with pytest.raises(error):
                trainer.train(resume=resume)
        return trainer

    return run


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "77"}, "77"),
        ({"SLURM_JOB_ID": "78", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}, "12_3"),
        ({"SLURM_JOB_ID": "78", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "0"}, "12_0"),
        ({"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}, None),
        ({"SLURM_JOB_ID": ""}, None),
    ],
)
def test_job_id(environment, job):
    assert job_id(environment) == job


def test_requeued_once_when_the_checkpoint_is_there(run, scontrol, tmp_path):
    class Looks:
        phase = "reporting"

        @hookimpl
        def after_save(self):
            assert scontrol.calls == []

    run(Checkpoint(), Looks(), Sends(signal.SIGUSR1), error=Terminated)
    assert scontrol.calls == ["requeue 77"]


def test_requeued_when_the_background_has_written_it(run, scontrol):
    run(Checkpoint(async_save=True), Sends(signal.SIGTERM), error=Terminated)
    assert scontrol.calls == ["requeue 77"]


def test_interrupted_again_before_the_first_step(run, scontrol):
    """The checkpoint that it was resumed from is still the one to go on from."""

    class AtOnce:
        @hookimpl
        def before_train(self):
            os.kill(os.getpid(), signal.SIGTERM)

    run(Checkpoint(), Sends(signal.SIGTERM), error=Terminated)
    run(Checkpoint(), AtOnce(), resume="auto", error=Terminated)
    assert scontrol.calls == ["requeue 77"] * 2


@pytest.mark.parametrize(
    ("sends", "error"),
    [
        (Sends(), None),
        (Sends(error=LookupError()), LookupError),
        (Sends(error=SystemExit(143)), SystemExit),
        (Sends(signal.SIGINT), KeyboardInterrupt),
    ],
    ids=["end", "error", "exit", "ctrl-c"],
)
def test_not_requeued(run, scontrol, sends, error):
    run(Checkpoint(), sends, error=error)
    assert scontrol.calls == []


def test_not_requeued_after_the_training(run, scontrol):
    class Late:
        @hookimpl
        def after_train(self):
            os.kill(os.getpid(), signal.SIGTERM)

    assert run(Checkpoint(), Late(), error=Terminated).outcome.status == "completed"
    assert scontrol.calls == []


def test_not_requeued_without_a_checkpoint(run, scontrol, messages):
    run(Sends(signal.SIGTERM), work_dir=None, error=Terminated)
    assert scontrol.calls == []
    assert "slurm: job 77 is not requeued, since there is no checkpoint of step 3" in messages()


def test_nothing_outside_of_a_job(run, scontrol, monkeypatch, messages):
    monkeypatch.delenv("SLURM_JOB_ID")
    run(Checkpoint(), Sends(signal.SIGTERM), error=Terminated)
    assert scontrol.calls == []
    assert not [text for text in messages() if text.startswith("slurm")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo 'Requeue disabled' >&2; exit 1", "slurm: job 77 is not requeued, scontrol failed with 1: Requeue disabled"),
        ("exit 3", "slurm: job 77 is not requeued, scontrol failed with 3: it says nothing"),
    ],
)
def test_scontrol_fails(run, scontrol, messages, line, words):
    scontrol.does(line)
    trainer = run(Checkpoint(), Sends(signal.SIGTERM), error=Terminated)
    assert trainer.outcome.status == "interrupted"
    assert words in messages()


def test_scontrol_hangs(make_trainer, tmp_path, scontrol, messages):
    scontrol.does("exec sleep 600")
    trainer = make_trainer([Signals(), Slurm(timeout_s=0.2), Checkpoint(), Sends(signal.SIGTERM)], work_dir=tmp_path / "run")
    with pytest.raises(Terminated):
        trainer.train()
    assert [text for text in messages() if text.startswith("slurm: job 77 is not requeued: ") and "timed out" in text]


def test_no_scontrol(run, scontrol, monkeypatch, messages):
    monkeypatch.setenv("PATH", "/nowhere")
    run(Checkpoint(), Sends(signal.SIGTERM), error=Terminated)
    assert "slurm: job 77 is not requeued, since there is no scontrol on PATH" in messages()


def test_needs_signals(make_trainer):
    with pytest.raises(UsageError, match="needs plugin 'signals'"):
        make_trainer(["no:signals", "slurm"])


def test_wrong_option():
    with pytest.raises(OptionError, match="timeout_s = 0: must be above 0"):
        Slurm(timeout_s=0)
