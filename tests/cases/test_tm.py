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
        assert lines[0].endswith("? left")
        at_910 = next(line for line in lines if line.startswith("step 910/1000"))
        assert "0.1667 steps/s" in at_910
        assert at_910.endswith("0:09:00 left")
        assert not any("-" in line.split("left")[0].rpartition("  ")[2] for line in lines)  # never negative

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
    form = re.compile(r"step \d+/10  (\S+ steps/s  )?(\?|\d+:\d\d:\d\d) left")
    assert [line for line in lines[:-1] if not form.fullmatch(line)] == []
    assert lines[-1] == "completed (max_steps=10 reached) at step 10/10"
