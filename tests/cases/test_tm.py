"""TM: timer and progress estimates, on a clock of the test's own."""

import re

import pytest

from trainhooks import hookimpl
from trainhooks_builtins import Checkpoint, Evaluation, Progress, Timer


class Clock:
    """Shows what it is set to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Takes:
    """Lets a stage take some seconds of the clock."""

    def __init__(self, clock, **seconds):
        for hook, duration in seconds.items():

            def work(duration=duration):
                clock.now += duration

            setattr(self, hook, hookimpl(specname=hook)(self._listener(work)))

    @staticmethod
    def _listener(work):
        return lambda: work()


class TestTM01:
    """ETA after resume."""

    def run(self, make_trainer, tmp_path, progress, clock, **arguments):
        values = (1.0,) * 1000
        first = make_trainer([Checkpoint()], values=values, max_steps=900, work_dir=tmp_path / "run")
        first.train()
        plugins = [progress, Checkpoint(), Takes(clock, before_step=6.0)]
        trainer = make_trainer(plugins, values=values, max_steps=1000, work_dir=tmp_path / "run", **arguments)
        trainer.train(resume="auto")

    def test_tm_01_lines(self, make_trainer, tmp_path, capsys):
        """10 its take 60 s, so 90 its take 540 s: 0:09:00, not 1000 / 910 * 60 or 0:00:06."""
        clock = Clock()
        self.run(make_trainer, tmp_path, Progress(style="lines", clock=clock), clock)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("step 900/1000 ")
        assert " left" not in lines[0]
        at_910 = next(line for line in lines if line.startswith("step 910/1000"))
        assert "0.1667 steps/s" in at_910
        assert at_910.endswith("0:09:00 left")
        assert not any(
            "-" in line.split("left")[0].rpartition("  ")[2] for line in lines if line.endswith("left")
        )  # never negative

    def test_tm_01_of_what_a_bar_shows(self, make_trainer, tmp_path):
        clock, seen = Clock(), {}

        class Spy(Progress):
            def _show(self, trainer, step, *, last=False):
                super()._show(trainer, step, last=last)
                seen[step] = (
                    self._rate.per_second(step, clock.now),
                    self._rate.seconds_left(step, trainer.total_steps, clock.now),
                )

        self.run(make_trainer, tmp_path, Spy(style="lines", clock=clock), clock)
        assert seen[900] == (None, None)
        assert seen[910] == pytest.approx((0.16667, 540), abs=1e-4)
        assert seen[1000][1] == 0


class TestTM03:
    """Timer state after resume or error."""

    def plugins(self, clock, timer):
        work = Takes(clock, before_step=2.0, before_eval=10.0)
        return [timer, work, Evaluation(every_steps=3), Checkpoint(every_steps=3)]

    def test_tm_03_totals_go_on_after_a_resume(self, make_trainer, tmp_path):
        """Steps of 2 s, evaluations of 10 s after steps 3 and 6, of which the first is in the checkpoint of step 3.

        That checkpoint is written inside the timed stage "checkpoint", which is therefore not among its own totals.
        """
        clock = Clock()
        timer = Timer(clock)
        make_trainer(self.plugins(clock, timer), val=(1.0,), max_steps=3, work_dir=tmp_path / "run").train()
        assert timer.totals == {"data": [3, 0.0], "step": [3, 6.0], "evaluate": [1, 10.0], "checkpoint": [1, 0.0]}

        timer = Timer(clock)
        trainer = make_trainer(self.plugins(clock, timer), val=(1.0,), max_steps=6, work_dir=tmp_path / "run")
        trainer.train(resume="auto")
        assert timer.totals == {"data": [6, 0.0], "step": [6, 12.0], "evaluate": [2, 20.0], "checkpoint": [1, 0.0]}

    @pytest.mark.parametrize("hook", ["compute_loss", "eval_step", "on_save"])
    def test_tm_03_an_exception_inside_a_stage_then_a_second_run(self, make_trainer, tmp_path, hook):
        class Fails:
            def __init__(self):
                self.armed = True

                def fail(trainer):
                    if self.armed:
                        self.armed = False
                        raise OSError("once")

                self.fails = hookimpl(specname=hook)(fail)

        clock = Clock()
        timer, fails = Timer(clock), Fails()
        trainer = make_trainer([*self.plugins(clock, timer), fails], val=(1.0,), max_steps=6, work_dir=tmp_path / "run")
        with pytest.raises(OSError, match="once"):
            trainer.train()
        trainer.train()
        # Each count is the number of calls of its stage, the failed one included where its end was reached.
        calls = {"compute_loss": 6, "eval_step": 6, "on_save": 6}
        assert timer.totals["step"][0] == calls[hook]
        assert timer.totals["step"][1] == 12.0
        assert timer.totals["data"][1] == 0.0
        assert timer._pauses == 0


def test_tm_01_lines_have_one_form(make_trainer, capsys):
    """Every line of a run can be parsed by the same expression, whatever is known when it is printed."""
    clock = Clock()
    make_trainer([Progress(style="lines", clock=clock), Takes(clock, before_step=1.0)], max_steps=10).train()
    lines = capsys.readouterr().out.splitlines()
    form = re.compile(r"step \d+/10(  \S+ steps/s)?(  \d+:\d\d:\d\d left)?")
    assert [line for line in lines[:-1] if not form.fullmatch(line)] == []
    assert lines[-1] == "completed (max_steps=10 reached) at step 10/10"


def test_tm_01_after_a_stall(make_trainer, tmp_path, capsys):
    """Resumed at 900 of 1000; steps of 6 s, but for one that takes an hour: 50 steps before the end 300 s are left."""
    clock = Clock()

    class Stalls:
        @hookimpl
        def before_step(self, trainer):
            clock.now += 3600.0 if trainer.step == 920 else 6.0

    values, folder = (1.0,) * 1000, tmp_path / "run"
    make_trainer([Checkpoint()], values=values, max_steps=900, work_dir=folder).train()
    progress = Progress(style="lines", clock=clock)
    make_trainer([progress, Checkpoint(), Stalls()], values=values, max_steps=1000, work_dir=folder).train(resume="auto")
    at_950 = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("step 950/1000"))
    assert at_950.endswith("0.1667 steps/s  0:05:00 left")


def test_tm_01_another_limit_at_the_resume(make_trainer, tmp_path, capsys):
    """900 of 1000 became 900 of 2000: 10 its of 6 s later 1090 are left, 6540 s."""
    clock = Clock()
    values, folder = (1.0,) * 2000, tmp_path / "run"
    make_trainer([Checkpoint()], values=values, max_steps=900, work_dir=folder).train()
    plugins = [Progress(style="lines", clock=clock), Checkpoint(), Takes(clock, before_step=6.0)]
    make_trainer(plugins, values=values, max_steps=2000, work_dir=folder).train(resume="auto")
    lines = capsys.readouterr().out.splitlines()
    assert " left" not in lines[0]
    at_910 = next(line for line in lines if line.startswith("step 910/2000"))
    assert at_910.endswith("1:49:00 left")


def test_tm_01_a_clock_that_goes_backwards(make_trainer, capsys):
    """Nothing is negative, and nothing is disabled."""
    clock = Clock()

    class Back:
        @hookimpl
        def before_step(self, trainer):
            clock.now += -500.0 if trainer.step % 7 == 3 else 1.0

    trainer = make_trainer([Progress(style="lines", clock=clock), Back(), Timer(clock)], max_steps=10)
    trainer.train()
    assert "progress" in trainer.plugins
    lines = capsys.readouterr().out.splitlines()
    assert not any(re.search(r"-\d+\S* (left|steps)|-\d+:", line) for line in lines)
    assert lines[-2].endswith("1 steps/s  0:00:00 left")
