"""``timer`` on a clock that only moves where the test says so."""

import threading
from concurrent.futures import Future

import pytest

from trainhooks import SkipEpoch, SkipStep, UsageError, hookimpl
from trainhooks.workdir import RunFolder
from trainhooks_builtins import Checkpoint, Evaluation, Timer


class Clock:
    def __init__(self):
        self.now = 50.0

    def __call__(self):
        return self.now


class Slow:
    """Takes these seconds in these hooks; the loader takes ``loader`` for each batch."""

    def __init__(self, clock, loader=0.0, **seconds):
        self.clock, self.loader = clock, loader
        for hook, duration in seconds.items():
            setattr(self, hook, self._make(hook, duration))

    def _make(self, hook, seconds):
        def take():
            self.clock.now += seconds

        return hookimpl(specname=hook)(take)


class Reports:
    def __init__(self):
        self.values = []

    @hookimpl
    def report_metrics(self, records):
        self.values += [record.values for record in records]


class Loader:
    def __init__(self, clock, seconds, batches):
        self.clock, self.seconds, self.batches = clock, seconds, batches

    def __iter__(self):
        for batch in self.batches:
            self.clock.now += self.seconds
            yield batch


def run(make_trainer, plugins, clock, *, loader=0.0, **arguments):
    trainer = make_trainer(plugins, **arguments)
    trainer.loaders["train"] = Loader(clock, loader, trainer.loaders["train"])
    trainer.train()
    return trainer


def test_totals_and_logged_values(make_trainer):
    """4 steps: 3 s of waiting each; 1 s before the step, 2 s in it and 5 s after it, which other plugins take, are its own."""
    clock, reports = Clock(), Reports()
    timer = Timer(clock)
    slow = Slow(clock, before_step=1.0, gradients_ready=2.0, after_step=5.0)
    run(make_trainer, [timer, slow, reports], clock, loader=3.0, max_steps=4, log_every_steps=1)
    assert timer.totals == {"data": [4, 12.0], "step": [4, 32.0]}
    assert [(values["time/data"], values["time/step"]) for values in reports.values] == [(3.0, 8.0)] * 4


def test_evaluations_and_checkpoints_are_no_waiting(make_trainer, tmp_path):
    """After every second of 4 steps an evaluation of 10 s and a checkpoint of 100 s, and 1000 s in the hook after it."""
    clock = Clock()
    timer = Timer(clock)
    slow = Slow(clock, before_eval=10.0, on_save=100.0, compute_loss=0.0)
    plugins = [timer, slow, Evaluation(every_steps=2), Checkpoint(every_steps=2)]
    run(make_trainer, plugins, clock, loader=3.0, val=(1.0,), max_steps=4, work_dir=tmp_path / "run")
    assert timer.totals == {"data": [4, 12.0], "step": [4, 0.0], "evaluate": [2, 20.0], "checkpoint": [2, 200.0]}


def test_all_that_belongs_to_a_checkpoint_is_its_time(make_trainer, tmp_path):
    """Of each checkpoint 100 s to gather it, 30 s of hooks after it, and 4 s each time that the run folder takes note of it."""
    clock = Clock()

    class SlowFolder(RunFolder):
        def file(self, name):
            clock.now += 4.0
            return super().file(name)

        def update(self, **facts):
            clock.now += 4.0
            super().update(**facts)

    timer, reports = Timer(clock), Reports()
    plugins = [timer, Slow(clock, on_save=100.0, after_save=30.0, gradients_ready=2.0), Checkpoint(every_steps=2), reports]
    trainer = make_trainer(plugins, max_steps=4, work_dir=tmp_path / "run", log_every_steps=4)
    trainer.run_folder.__class__ = SlowFolder
    trainer.train()
    totals = timer.totals
    calls, seconds = totals.pop("checkpoint")
    assert calls == 2
    assert seconds >= 2 * (130.0 + 2 * 4.0)  # it is listed before it is written, and noted when it is
    assert totals == {"data": [4, 0.0], "step": [4, 8.0]}
    assert sum(values.get("time/checkpoint", 0.0) for values in reports.values) == seconds  # both of them


def test_what_follows_a_checkpoint_that_was_written_in_the_background_is_its_time(make_trainer, tmp_path):
    """Written while the next step of 2 s runs; then 30 s of hooks."""

    class Writes:
        future = None

        @hookimpl
        def save_checkpoint(self, path):
            self.future, self.path = Future(), path
            return self.future

        @hookimpl
        def after_step(self, trainer):
            if trainer.step == 1:
                trainer.request_checkpoint()
            elif self.future is not None:
                self.future.set_result(self.path)
                self.future = None

    clock = Clock()
    timer = Timer(clock)
    plugins = [timer, Slow(clock, after_save=30.0, gradients_ready=2.0), Writes()]
    run(make_trainer, plugins, clock, loader=3.0, max_steps=4, work_dir=tmp_path / "run")
    assert timer.totals == {"data": [4, 12.0], "step": [4, 8.0], "checkpoint": [1, 30.0]}


def test_a_step_after_which_the_epoch_is_left_is_one(make_trainer):
    """The third of each 10 steps of 1 + 2 s, before what other hooks would do after it."""

    class Leaves:
        @hookimpl
        def after_step(self, trainer):
            if trainer.batch_index == 2:
                raise SkipEpoch("enough")

    clock = Clock()
    timer = Timer(clock)
    slow = Slow(clock, before_step=1.0, gradients_ready=2.0)
    run(make_trainer, [timer, slow, Leaves()], clock, loader=3.0, max_epochs=2)
    assert timer.totals == {"data": [6, 18.0], "step": [6, 18.0]}


@pytest.mark.parametrize("hook", ["before_step", "after_step"])
def test_an_evaluation_inside_a_step_is_not_its_time(make_trainer, hook):
    """A hook that evaluates at once, 10 s, in each of 3 steps of 2 s; 3 s of waiting."""

    class Evaluates:
        def __init__(self):
            def now(trainer):
                trainer.evaluate("val")

            self.now = hookimpl(specname=hook)(now)

    clock = Clock()
    timer = Timer(clock)
    slow = Slow(clock, gradients_ready=2.0, before_eval=10.0)
    run(make_trainer, [timer, slow, Evaluates()], clock, loader=3.0, val=(1.0,), max_steps=3)
    assert timer.totals == {"data": [3, 9.0], "step": [3, 6.0], "evaluate": [3, 30.0]}


def test_a_checkpoint_inside_an_evaluation_counts_once(make_trainer, tmp_path):
    """``after_eval`` saves at once: 100 s of the evaluation's 110 s. Taken off twice, the waiting would be negative."""

    class Saves:
        @hookimpl
        def after_eval(self, trainer):
            trainer.save_checkpoint(trainer.checkpoint_path())

    clock = Clock()
    timer = Timer(clock)
    slow = Slow(clock, before_eval=10.0, on_save=100.0)
    plugins = [timer, slow, Evaluation(every_steps=1), Checkpoint(every_epochs=0, at_end=False), Saves()]
    run(make_trainer, plugins, clock, loader=3.0, val=(1.0,), max_steps=3, work_dir=tmp_path / "run")
    assert timer.totals == {"data": [3, 9.0], "step": [3, 0.0], "checkpoint": [3, 300.0], "evaluate": [3, 330.0]}


def test_a_dropped_batch_is_no_step(make_trainer):
    """The second of 4 batches is dropped after 1 s: three steps of 1 + 2 s, and what it took itself is nobody's."""

    class Drops:
        phase = "reporting"

        @hookimpl
        def before_step(self, trainer):
            if trainer.batch_index == 1:
                raise SkipStep("no")

    clock = Clock()
    timer = Timer(clock)
    slow = Slow(clock, before_step=1.0, gradients_ready=2.0)
    run(make_trainer, [timer, slow, Drops()], clock, loader=3.0, values=(1.0,) * 4)
    assert timer.totals["step"] == [3, 9.0]
    assert timer.totals["data"] == [4, 12.0]


def test_between_epochs_and_runs_nothing_is_waited_for(make_trainer):
    """1000 s in ``after_epoch`` and between two calls of ``train`` are no waiting for data."""
    clock = Clock()
    timer = Timer(clock)
    trainer = make_trainer([timer, Slow(clock, after_epoch=1000.0)], values=(1.0,) * 2, max_epochs=2)
    trainer.train()
    clock.now += 1000
    trainer.train(max_epochs=3)
    assert timer.totals == {"data": [6, 0.0], "step": [6, 0.0]}


def test_a_second_training_goes_on(make_trainer):
    clock = Clock()
    timer = Timer(clock)
    trainer = make_trainer([timer, Slow(clock, gradients_ready=2.0)], max_steps=2)
    trainer.train()
    trainer.train(max_steps=5)
    assert timer.totals["step"] == [5, 10.0]
    assert trainer.step_marks is None
    assert not trainer.bus.before_flush


def test_a_run_has_one_timer(make_trainer):
    with pytest.raises(UsageError, match="the steps of this run are timed already"):
        make_trainer([Timer(), Timer()]).train()


def test_what_threads_see_is_what_totals_would_be(make_trainer, tmp_path):
    """In the middle of the third step of 2 s, before anything of it was flushed: two steps, with 3 s of waiting each."""
    clock, seen = Clock(), []
    timer = Timer(clock)

    class Looks:
        phase = "reporting"

        @hookimpl
        def gradients_ready(self, trainer):
            if trainer.step == 2:
                before = list(trainer.step_marks)
                seen.append(timer.so_far())
                assert trainer.step_marks == before  # nothing was changed
                seen.append(timer.totals)

    run(make_trainer, [timer, Slow(clock, gradients_ready=2.0), Looks()], clock, loader=3.0, max_steps=4)
    assert seen[0] == {"data": [2, 6.0], "step": [2, 4.0]}
    assert seen[1] == seen[0]
    assert timer.so_far() == timer.totals == {"data": [4, 12.0], "step": [4, 8.0]}


def test_a_thread_never_sees_seconds_twice_or_not_at_all(make_trainer):
    """Each step of a clock's own takes 1 s: so many steps, so many seconds, whenever it is looked."""
    clock = Clock()
    timer = Timer(clock)
    done, odd, looks = threading.Event(), [], []

    def look():
        while not done.is_set():
            totals = timer.so_far()
            looks.append(totals)
            looked.set()
            if totals and totals.get("step", [0, 0.0])[0] != totals.get("step", [0, 0.0])[1]:
                odd.append(totals)

    class Waits:
        @hookimpl
        def before_epoch(self):
            assert looked.wait(120.0)

        @hookimpl
        def after_step(self, trainer):
            if trainer.step % 300 == 0:
                looked.clear()
                assert looked.wait(120.0)

    looked = threading.Event()
    thread = threading.Thread(target=look)
    thread.start()
    try:
        arguments = {"values": (1.0,) * 3000, "log_every_steps": 2}
        run(make_trainer, [timer, Slow(clock, gradients_ready=1.0), Waits()], clock, **arguments)
    finally:
        done.set()
        thread.join()
    assert len(looks) > 10
    assert odd == []
    counts = [totals.get("step", [0])[0] for totals in looks if totals]
    assert counts == sorted(counts)
