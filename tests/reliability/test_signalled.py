"""A small part of ``signalled.py``, and the proof that it sees what it looks for."""

import os
import signal
import time

import pytest
import signalled
from workload import warm_up

from trainhooks_builtins import Checkpoint

pytestmark = pytest.mark.slow


def test_every_phase_survives_a_signal():
    counts = signalled.run(0.15)
    assert counts["signals"] >= 12
    assert counts == {"signals": counts["signals"], "missed": 0, "orphans": 0}


@pytest.fixture
def reference(tmp_path):
    warm_up()
    return signalled.resumed(signalled.Case("step", signal.SIGTERM), tmp_path / "reference", "whole", init=3)


def test_a_run_that_saves_nothing_is_found(tmp_path, reference, monkeypatch):
    monkeypatch.setattr(Checkpoint, "after_train", None)
    found, _, _ = signalled.faults_of(signalled.Case("step", signal.SIGTERM), tmp_path / "run", reference)
    assert "10 steps were done, saved were [4, 8]" in found


def test_a_signal_that_nobody_handles_is_found(tmp_path, reference, monkeypatch):
    monkeypatch.setattr(signalled.Signals, "setup", None)
    found, _, _ = signalled.faults_of(signalled.Case("step", signal.SIGUSR1), tmp_path / "run", reference)
    assert f"exit code {-signal.SIGUSR1}" in found


def test_a_process_that_is_left_is_found():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(600)
        os._exit(0)
    try:
        while os.getsid(pid) != pid:
            time.sleep(0.01)
        assert signalled.orphans(pid, within_s=0.1) == [pid]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert signalled.orphans(pid) == []
