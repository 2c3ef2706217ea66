"""``progress``: rates, estimates and what a line holds. Files, pipes, terminals and notebooks: ``tests/cases/test_pb.py``."""

import io
import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from trainhooks import OptionError, SkipStep, hookimpl
from trainhooks_builtins import Accumulate, Checkpoint, Evaluation, Progress
from trainhooks_builtins._progress_readings import duration
from trainhooks_builtins.progress import Rate, _part


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


class Run:
    """Steps and pauses on a clock, noted by a rate as often as ``progress`` does: after each step."""

    def __init__(self, step=0):
        self.step, self.now = step, 100.0
        self.rate = Rate(step, self.now)

    def steps(self, count, seconds):
        for _ in range(count):
            self.step, self.now = self.step + 1, self.now + seconds
            self.rate.observe(self.step, self.now)
        return self

    def pause(self, kind, seconds):
        self.rate.begin_pause(self.now)
        self.now += seconds
        self.rate.end_pause(kind, self.step, self.now)
        return self

    def left(self, total):
        return self.rate.seconds_left(self.step, total, self.now)

    @property
    def speed(self):
        return self.rate.per_second(self.step, self.now)


def test_a_stall_is_forgotten_at_once():
    """100 steps of 1 s, of which one takes an hour: what is left takes 1 s a step, not 37 s."""
    run = Run().steps(50, 1.0).steps(1, 3600.0).steps(49, 1.0)
    assert run.speed == pytest.approx(1.0)
    assert run.left(1100) == pytest.approx(1000.0)


def test_a_slow_first_step_is_forgotten():
    """Compiling takes 90 s, then a step takes 2 s; with four parts of the window the longest no longer counts."""
    run = Run().steps(1, 90.0)
    assert run.left(100) == pytest.approx(99 * 90.0)
    assert run.steps(4, 2.0).left(100) == pytest.approx(95 * 2.0)


def test_what_is_slow_again_and_again_counts():
    """Every tenth step waits 11 s for data, the others take 1 s: 2 s a step, whatever the window holds."""
    run = Run()
    for _ in range(40):
        run.steps(9, 1.0).steps(1, 11.0)
    assert run.speed == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(("before", "after"), [(1.0, 3.0), (3.0, 1.0)])
def test_another_speed_is_followed(before, after):
    """1000 s at one speed; 300 s later, a fifth of the time so far and more, only the new one counts."""
    run = Run().steps(int(1000 / before), before).steps(int(330 / after), after)
    assert run.speed == pytest.approx(1 / after, rel=1e-6)


def test_evaluations_are_no_part_of_the_speed_and_are_still_to_come():
    """10 s after every 20 steps of 1 s: 1 step/s, and 100 steps take 150 s. The checkpoint within it is part of it."""
    run = Run()
    for _ in range(5):
        run.steps(20, 1.0)
        run.rate.begin_pause(run.now)
        run.pause("checkpoint", 4.0)
        run.now += 6.0
        run.rate.end_pause("evaluate", run.step, run.now)
    assert run.speed == pytest.approx(1.0)
    assert run.left(200) == pytest.approx(150.0)
    assert run.steps(10, 1.0).left(200) == pytest.approx(90 * 1.5)


def test_several_pauses_at_one_step_are_one():
    """Two splits of 5 s each after every 20 steps."""
    run = Run()
    for _ in range(3):
        run.steps(20, 1.0).pause("evaluate", 5.0).pause("evaluate", 5.0)
    assert run.left(80) == pytest.approx(20 + 20 * 10 / 20)


def test_a_stall_that_is_longer_than_what_is_looked_back():
    """Ten minutes in one of 500 steps of 1 s: the steps before it are not pushed out of the window."""
    run = Run().steps(500, 1.0).steps(1, 600.0)
    for _ in range(100):
        assert run.left(1001) == pytest.approx(1001 - run.step)
        run.steps(1, 1.0)


def test_the_first_pause_after_a_resume():
    """Resumed at 990, evaluated for 60 s at 1000: after 10 steps, so it comes every 10; 40 steps later every 40 at most."""
    run = Run(990).steps(10, 1.0).pause("evaluate", 60.0)
    assert run.left(1500) == pytest.approx(500 * (1 + 60 / 10))
    assert run.steps(10, 1.0).left(1500) == pytest.approx(490 * (1 + 60 / 10))
    assert run.steps(30, 1.0).left(1500) == pytest.approx(460 * (1 + 60 / 40))
    assert run.pause("evaluate", 60.0).left(1500) == pytest.approx(460 * (1 + 60 / 40))


@pytest.mark.parametrize("start", [0, 990])
def test_a_pause_before_the_first_step_tells_nothing(start):
    """Of an evaluation at the start, or one that was owed, it is not known when it comes again."""
    run = Run(start).pause("evaluate", 60.0).steps(10, 1.0)
    assert run.left(start + 100) == pytest.approx(90.0)
    assert run.steps(10, 1.0).pause("evaluate", 60.0).left(start + 100) == pytest.approx(80 * (1 + 60 / 20))


def test_during_a_pause_nothing_changes():
    """Looked at from the thread that draws, in the middle of an evaluation."""
    run = Run().steps(10, 1.0)
    before = run.left(100)
    run.step += 1
    run.now += 1.0
    run.rate.begin_pause(run.now)
    for _ in range(100):
        run.now += 1.0
        run.rate.observe(run.step, run.now)
        assert run.speed == pytest.approx(1.0)
    assert run.left(101) == pytest.approx(before)


def test_a_clock_that_is_set_back():
    """An hour back after 10 steps of 1 s: the step in which that happened has no time, the others have theirs."""
    run = Run().steps(10, 1.0).steps(1, -3600.0)
    assert run.speed == pytest.approx(1.0)
    assert run.steps(20, 1.0).left(131) == pytest.approx(100.0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["step", "evaluate", "checkpoint"]), st.floats(-100, 1e5), st.integers(1, 1000)), max_size=60
    ),
    st.integers(0, 10**6),
)
def test_whatever_happens_it_is_a_time(events, more):
    """Never negative, never NaN, never an error."""
    run = Run()
    for kind, seconds, steps in events:
        if kind == "step":
            run.step, run.now = run.step + steps, run.now + seconds
            run.rate.observe(run.step, run.now)
        else:
            run.pause(kind, seconds)
        left = run.left(run.step + more)
        assert left is None or 0 <= left < math.inf
        assert run.speed is None or 0 < run.speed < math.inf
        assert len(run.rate._parts) <= 130


def test_a_long_run_keeps_little():
    """A million notes of a millisecond each are few parts, and a second of steps one."""
    run = Run()
    for _ in range(1000):
        run.steps(100, 0.01)
    assert len(run.rate._parts) <= 70
    assert run.speed == pytest.approx(100.0)


@given(st.integers(1, 10**9))
def test_about_twenty_parts(total):
    assert total / _part(total) <= 20
    assert _part(total) == 1 or total / (_part(total) - 1) > 20


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00:00"), (540, "0:09:00"), (90_061, "1 day, 1:01:01")])
def test_duration(seconds, text):
    assert duration(seconds) == text


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
    assert f"step 1/2  {expected.replace('loss -1', 'loss 0')}" in (lines := capsys.readouterr().out.splitlines())
    assert f"step 2/2  {expected}  0:00:00 left" in lines


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
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    trainer = make_trainer([Progress(style="lines")])
    assert trainer.train().step == 10
    assert [text for text in messages() if text.startswith("progress")] == [
        "progress: stdout takes nothing more (I/O operation on closed file); nothing more is printed"
    ]


def lines_of(capsys):
    return capsys.readouterr().out.splitlines()


def test_epochs_where_they_are_what_ends_the_run(make_trainer, capsys):
    """Two batches an epoch; the running one is counted from 1."""
    make_trainer([Progress(style="lines", clock=lambda: 0.0)], values=(1.0,) * 2, max_epochs=2).train()
    assert lines_of(capsys)[:-1] == [
        "step 0/4  epoch 1/2",
        "step 1/4  epoch 1/2",
        "step 2/4  epoch 1/2",
        "step 3/4  epoch 2/2  train/loss -1",
        "step 4/4  epoch 2/2  train/loss -1  0:00:00 left",
    ]
    make_trainer([Progress(style="lines")], max_epochs=2, max_steps=3).train()
    assert not any("epoch" in line for line in lines_of(capsys))


def test_updates_where_they_end_the_run(make_trainer, capsys):
    """Three steps an update, 5 s a step: after 3 of 12 steps 45 s are left, as far as the updates so far tell."""
    clock = [0.0]

    class Takes:
        @hookimpl
        def before_step(self):
            clock[0] += 5.0

    plugins = [Progress(style="lines", clock=lambda: clock[0]), Takes(), Accumulate(steps=3)]
    make_trainer(plugins, values=(1.0,) * 30, max_updates=4, max_epochs=None).train()
    lines = lines_of(capsys)
    assert lines[0] == "step 0  update 0/4"
    assert lines[1] == "step 12  update 4/4  0.2 steps/s  0:00:00 left"
    assert lines[2] == "completed (max_updates=4 reached) at step 12"


def test_updates_that_take_another_number_of_steps_since_a_resume(make_trainer, tmp_path, capsys):
    """40 updates of one step, then 20 of four, of a second each: what was before the resume says nothing."""
    clock = [0.0]

    class Takes:
        @hookimpl
        def before_step(self):
            clock[0] += 1.0

    arguments = {"values": (1.0,) * 20, "work_dir": tmp_path / "run"}
    make_trainer([Checkpoint()], max_updates=40, **arguments).train()
    progress = Progress(style="lines", metrics=("none",), clock=lambda: clock[0])
    plugins = [progress, Takes(), Accumulate(4), Checkpoint()]
    make_trainer(plugins, max_updates=60, **arguments).train(resume="auto")
    lines = lines_of(capsys)
    assert lines[0] == "step 40  update 40/60"
    assert lines[1:] == [
        "step 100  update 55/60  1 steps/s  0:00:20 left",  # a minute later
        "step 120  update 60/60  1 steps/s  0:00:00 left",
        "completed (max_updates=60 reached) at step 120",
    ]


def test_steps_of_a_run_that_is_resumed_with_another_batch_size(make_trainer, tmp_path, capsys):
    """Two epochs of 10 batches, then two of 5."""

    def train(size, epochs):
        trainer = make_trainer([Progress(style="lines"), Checkpoint()], max_epochs=epochs, work_dir=tmp_path / "run")
        trainer.loaders["train"] = DataLoader(torch.ones(40, 1, dtype=torch.float64), batch_size=size)
        trainer.train(resume="auto")

    train(4, 2)
    capsys.readouterr()
    train(8, 4)
    lines = lines_of(capsys)
    assert [line.partition("  ")[0] for line in (lines[0], lines[-2])] == ["step 20/30", "step 30/30"]
    assert lines[-1] == "completed (max_epochs=4 reached) at step 30/30"


def test_nothing_left_when_a_complete_run_is_resumed(make_trainer, tmp_path, capsys):
    make_trainer([Checkpoint()], work_dir=tmp_path / "run").train()
    make_trainer([Progress(style="lines"), Checkpoint()], work_dir=tmp_path / "run").train(resume="auto")
    assert lines_of(capsys) == ["completed (max_epochs=1 reached) at step 10/10, 0 steps trained"]


def test_a_limit_that_is_below_what_was_done(make_trainer, tmp_path, capsys):
    make_trainer([Checkpoint()], work_dir=tmp_path / "run").train()
    make_trainer([Progress(style="lines"), Checkpoint()], work_dir=tmp_path / "run", max_steps=5).train(resume="auto")
    assert lines_of(capsys)[-1] == "completed (max_steps=5 reached) at step 10/5, 0 steps trained"


def test_a_run_of_no_steps(make_trainer, capsys):
    make_trainer([Progress(style="lines")], max_steps=0).train()
    assert lines_of(capsys) == ["completed (max_steps=0 reached) at step 0/0, 0 steps trained"]


def test_a_run_that_skipped_all_its_batches_says_so(make_trainer, capsys, messages):
    class Skips:
        @hookimpl
        def before_step(self):
            raise SkipStep("all")

    make_trainer([Progress(style="lines"), Skips()]).train()
    assert lines_of(capsys)[-1] == "completed (max_epochs=1 reached, 0 of 10 batches trained) at step 0/0"
    assert "0 of 10 batches were trained: hooks dropped them all, the last one with 'all'" in messages()


def test_a_second_training_counts_what_was_dropped_anew(make_trainer, capsys):
    class SkipsSome:
        @hookimpl
        def before_step(self, trainer):
            if trainer.epoch == 0 or trainer.batch_index > 2:
                raise SkipStep("some")

    trainer = make_trainer([Progress(style="lines"), SkipsSome()])
    trainer.train()
    assert (trainer.dropped, trainer.step) == (10, 0)
    trainer.train(max_epochs=2)
    assert (trainer.dropped, trainer.step) == (7, 3)
    assert lines_of(capsys)[-1] == "completed (max_epochs=2 reached) at step 3/3"


def test_a_second_training_counts_for_itself(make_trainer, capsys):
    trainer = make_trainer([Progress(style="lines")], max_steps=2)
    trainer.train()
    trainer.train()
    assert [line for line in lines_of(capsys) if line.startswith("completed")] == [
        "completed (max_steps=2 reached) at step 2/2",
        "completed (max_steps=2 reached) at step 2/2, 0 steps trained",
    ]


def test_a_line_of_the_time_comes_soon_after_the_speed_has_dropped(make_trainer, capsys):
    """1000 steps of a millisecond, then a step takes 10 s: a line within 100 steps, not after a minute's worth of fast ones."""
    clock = [0.0]

    class Takes:
        @hookimpl
        def before_step(self, trainer):
            clock[0] += 0.001 if trainer.step < 1000 else 10.0

    trainer = make_trainer([Progress(style="lines", clock=lambda: clock[0]), Takes()], max_epochs=None, max_steps=1500)
    batch = trainer.loaders["train"][0]

    class Stream:
        def __iter__(self):
            return iter([batch] * 1500)

    trainer.loaders["train"] = Stream()
    trainer.max_steps, trainer.max_epochs = None, 1
    trainer.train()
    steps = [int(line.split()[1].split("/")[0]) for line in lines_of(capsys)[:-1]]
    assert any(1000 < step <= 1110 for step in steps)
    assert all(after - before <= 106 for before, after in zip(steps[1:], steps[2:], strict=False) if before > 1000)


def test_a_stdout_that_has_only_ascii(make_trainer, monkeypatch):
    raw = io.BytesIO()

    class Logs:
        @hookimpl
        def after_step(self, trainer):
            trainer.log("größe", 1.0)
            trainer.flush()

    trainer = make_trainer([Progress(style="lines"), Logs(), Evaluation()], val=(1.0,), max_steps=2)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    trainer.train()
    assert "progress" in trainer.plugins
    assert b"gr\\xf6\\xdfe 1" in raw.getvalue()


def test_a_style_that_there_is_not():
    with pytest.raises(OptionError, match="style = 'fancy': must be one of auto, bar, live, lines, off"):
        Progress(style="fancy")


def test_lines_call_no_hook_for_what_nobody_watches(make_trainer):
    trainer = make_trainer([Progress(style="lines")])
    assert trainer.hooks.after_eval_step is None
    assert trainer.hooks.before_eval is None
