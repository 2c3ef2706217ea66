"""``time_limit``: when it stops, by clocks that the tests move."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainhooks import OptionError, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation, TimeLimit
from trainhooks_builtins.time_limit import seconds, timestamp


class Clock:
    """A clock that a step moves by one second, an evaluation by five, and building the model by ``setup`` seconds."""

    phase = "bookkeeping"

    def __init__(self, start=1000.0, step=1.0, evaluation=5.0):
        self.now, self.step, self.evaluation = start, step, evaluation
        self.reads = 0

    def __call__(self):
        self.reads += 1
        return self.now

    @hookimpl
    def before_step(self):
        self.now += self.step

    @hookimpl
    def before_eval(self):
        self.now += self.evaluation


@pytest.fixture
def run(make_trainer):
    """Return a function that trains with one second for each step and gives trainer and outcome."""

    def run(plugins=(), clock=None, resume=None, epochs=9, work_dir=None, val=None, **options):
        clock = clock or Clock()
        limit = TimeLimit(clock=clock, now=lambda: clock.now + 50_000, **options)
        trainer = make_trainer([clock, limit, *plugins], max_epochs=epochs, work_dir=work_dir, val=val)
        return trainer, trainer.train(resume=resume)

    return run


class TestLimit:
    @pytest.mark.parametrize(
        ("options", "step"),
        [
            ({"duration": 5}, 5),
            ({"duration": 5.5}, 6),
            ({"duration": "00:00:07"}, 7),
            ({"minutes": 0.25}, 15),
            ({"hours": 1 / 360, "minutes": 0.1}, 16),
            ({"duration": 30, "margin_s": 10}, 20),
            ({"until": "1970-01-01T14:10:12Z"}, 12),  # 51 012 s; the clock begins at 51 000
            ({"until": "1970-01-01T14:10:12Z", "duration": 9}, 9),
            ({"until": "1970-01-01T14:10:12+00:00", "duration": 60, "margin_s": 2}, 10),
        ],
    )
    def test_stops_after_the_step(self, run, options, step):
        _, outcome = run(**options)
        assert (outcome.status, outcome.step) == ("stopped", step)

    def test_reason(self, run):
        assert run(duration=5)[1].reason == "time_limit: 5 s reached"
        assert run(minutes=1, margin_s=50)[1].reason == "time_limit: 60 s reached, 50 s before it"
        assert run(until="1970-01-01T14:10:12Z")[1].reason.startswith("time_limit: 1970-01-0")

    def test_a_run_that_ends_before_is_complete(self, run):
        assert run(duration=1000, epochs=2)[1].status == "completed"

    @pytest.mark.parametrize(("duration", "step"), [(10, 10), (11, 20), (5, 10), (20, 20)])
    def test_after_the_epoch(self, run, duration, step):
        trainer, outcome = run(duration=duration, at="epoch")
        assert (outcome.status, outcome.step, outcome.epoch) == ("stopped", step, step // 10)
        assert trainer.hooks.after_step is None

    def test_after_an_evaluation(self, run):
        """Steps 1 to 4, an evaluation of 5 s: at 9 s the time is up without another step."""
        _, outcome = run([Evaluation(every_steps=4)], val=(1.0,), duration=8)
        assert outcome.step == 4

    def test_the_last_checkpoint_is_made(self, run, tmp_path):
        run([Checkpoint()], work_dir=tmp_path / "run", duration=7)
        assert (tmp_path / "run/checkpoints/step-00000007/manifest.json").is_file()

    def test_one_clock_read_in_a_step(self, run):
        clock = Clock()
        reads = []

        class Notes:
            @hookimpl
            def before_step(self):
                reads.append(clock.reads)

        run([Notes()], clock=clock, duration=100, epochs=1)
        assert [after - before for before, after in zip(reads, reads[1:], strict=False)] == [1] * 9

    def test_the_time_of_the_set_up_counts(self, run):
        clock = Clock()

        class Slow:
            after = ("time_limit",)

            @hookimpl
            def setup(self):
                clock.now += 3

        assert run([Slow()], clock=clock, duration=5)[1].step == 2

    def test_an_evaluation_outside_of_training_neither_counts_nor_stops(self, run):
        trainer, _ = run(val=(1.0,), duration=100, epochs=1, total=True)
        limit = trainer.plugins["time_limit"]
        assert limit.elapsed_s == 10.0
        trainer.evaluate("val")
        assert limit.elapsed_s == 10.0


class TestResume:
    @pytest.mark.parametrize(("total", "steps"), [(False, 4 + 10), (True, 10)])
    def test_time_of_the_runs_before(self, run, tmp_path, total, steps):
        """4 s in the first run, whose last checkpoint knows them; the clocks of the two machines have nothing in common."""
        options = {"total": total, "work_dir": tmp_path / "run"}
        run([Checkpoint()], duration=4, **options)
        _, outcome = run([Checkpoint()], clock=Clock(7.0), duration=10, resume="auto", **options)
        assert (outcome.status, outcome.step) == ("stopped", steps)

    def test_nothing_is_trained_when_the_time_is_up(self, run, tmp_path, messages):
        options = {"total": True, "work_dir": tmp_path / "run", "duration": 4}
        run([Checkpoint()], **options)
        _, outcome = run([Checkpoint()], clock=Clock(7.0), resume="auto", **options)
        assert (outcome.status, outcome.step) == ("stopped", 4)
        assert "time_limit: the time is up, nothing is trained" in messages()

    @pytest.mark.parametrize("at", ["step", "epoch"])
    def test_an_until_that_has_passed(self, run, at):
        _, outcome = run(until="1970-01-01T00:00:00Z", at=at)
        assert (outcome.status, outcome.step) == ("stopped", 0)

    def test_three_runs_add_up(self, run, tmp_path):
        options = {"total": True, "work_dir": tmp_path / "run"}
        run([Checkpoint()], duration=4, **options)
        run([Checkpoint()], duration=7, resume="auto", **options)
        trainer, outcome = run([Checkpoint()], duration=9, resume="auto", **options)
        assert outcome.step == 9
        assert trainer.plugins["time_limit"].elapsed_s == 9.0

    @pytest.mark.parametrize(("total", "step"), [(False, 8), (True, 6)])
    def test_a_second_training_of_the_same_trainer(self, run, total, step):
        trainer, _ = run(duration=6, epochs=0, total=total)
        trainer.max_steps = 2
        trainer.max_epochs = 9
        assert trainer.train().step == 2
        trainer.max_steps = None
        assert trainer.train().step == step


class TestText:
    @pytest.mark.parametrize(
        ("text", "value"),
        [("90", 90), (90, 90), ("01:30:00", 5400), ("1-12:00:00", 129600), ("1:12:00:00", 129600), ("100:00:00", 360000)]
        + [("00:00:00.5", 0.5), (" 00:01:00 ", 60)],
    )
    def test_durations(self, text, value):
        assert seconds(text) == value

    @given(st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
    def test_every_duration(self, d, h, m, s):
        assert seconds(f"{d}-{h:02}:{m:02}:{s:02}") == 86400 * d + 3600 * h + 60 * m + s

    @pytest.mark.parametrize(
        "text", ["", "soon", "1:60:00", "1:00:60", "90:00", 0, -5, "-5", math.nan, math.inf, "inf", "00:00:00"]
    )
    def test_no_durations(self, text):
        with pytest.raises(OptionError, match=r"duration = .*: must be seconds above 0"):
            TimeLimit(duration=text)

    def test_times(self):
        assert timestamp("1970-01-02T00:00:00Z") == 86400
        assert timestamp("1970-01-02T00:00+01:00") == 86400 - 3600
        with pytest.raises(OptionError, match="until = 'tomorrow': must be a time such as"):
            TimeLimit(until="tomorrow")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "time_limit needs a limit: duration, hours, minutes or until"),
        ({"duration": 5, "minutes": 1}, "give duration, or hours and minutes, not both"),
        ({"minutes": -1}, "minutes = -1: must be 0 or more"),
        ({"hours": math.inf}, "hours = inf"),
        ({"duration": 5, "margin_s": -1}, "margin_s = -1"),
        ({"duration": 5, "margin_s": 5}, "margin_s = 5: must be less than the time limit, 5 s"),
    ],
)
def test_options(options, message):
    with pytest.raises(OptionError, match=message):
        TimeLimit(**options)
