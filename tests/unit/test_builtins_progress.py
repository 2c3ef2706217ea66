"""``progress``: rates, estimates and what a line holds. Files, pipes, terminals and notebooks: ``tests/cases/test_pb.py``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainhooks import hookimpl
from trainhooks_builtins import Progress
from trainhooks_builtins.progress import Rate, _duration, _part


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6), st.floats(1e-3, 1e6), st.floats(0, 1e9))
def test_time_left(start, done, more, seconds, began):
    """What is left takes as long for each step as what was done since the start of this process, not of the run."""
    rate = Rate(start, began)
    step, now = start + done, began + seconds
    took = now - began  # as the clock's digits allow
    if took > 0:
        assert rate.seconds_left(step, step + more, now) == pytest.approx(more * took / done)
        assert rate.per_second(step, now) == pytest.approx(done / took)
    assert rate.seconds_left(start, start + more, now) is None
    assert rate.seconds_left(step, None, now) is None
    assert rate.per_second(step, began) is None


def test_never_negative_beyond_the_end():
    assert Rate(0, 0.0).seconds_left(12, 10, 6.0) == 0


@given(st.integers(1, 10**9))
def test_about_twenty_parts(total):
    assert total / _part(total) <= 20
    assert _part(total) == 1 or total / (_part(total) - 1) > 20


@pytest.mark.parametrize(("seconds", "text"), [(None, "?"), (0.4, "0:00:00"), (540, "0:09:00"), (90_061, "1 day, 1:01:01")])
def test_duration(seconds, text):
    assert _duration(seconds) == text


class Logs:
    @hookimpl
    def after_step(self, trainer):
        trainer.log_dict({"a": 1.23456, "time/own": 2.0, "b": 7.0})
        trainer.flush()


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, "train/loss -1  a 1.235  b 7"), ({"metrics": ("b", "not there")}, "b 7"), ({"metrics": ("time/own",)}, "time/own 2")],
)
def test_which_metrics(make_trainer, capsys, options, expected):
    """Times are left out unless they are asked for; four digits are enough to follow a run."""
    make_trainer([Progress(style="lines", clock=lambda: 0.0, **options), Logs()], max_steps=2).train()
    assert f"step 2/2  {expected}  ? left" in capsys.readouterr().out.splitlines()


def test_off(make_trainer, capsys):
    make_trainer([Progress(style="off")], val=(1.0,)).train()
    assert capsys.readouterr().out == ""


def test_how_it_ended(make_trainer, capsys):
    class Stops:
        @hookimpl
        def after_step(self, trainer):
            if trainer.step == 3:
                trainer.stop("good enough")

    make_trainer([Progress(style="lines"), Stops()]).train()
    assert capsys.readouterr().out.splitlines()[-1] == "stopped (good enough) at step 4/10"


def test_a_closed_stdout_does_not_cost_the_training(make_trainer, monkeypatch, messages):
    import io
    import sys

    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    trainer = make_trainer([Progress(style="lines")])
    assert trainer.train().step == 10
    assert "progress" not in trainer.plugins
    assert len([text for text in messages() if "is disabled for the rest of this run" in text]) == 1
