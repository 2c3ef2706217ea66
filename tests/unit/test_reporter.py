"""The reporter thread: order, slowness, errors, the end. Events instead of clocks."""

import threading

import pytest

from trainhooks import Record, RunInfo, hookimpl
from trainhooks.manager import Plugin, PluginManager
from trainhooks.reporter import Artifact, Reporter

RUN = RunInfo("run")


def record(step):
    return Record(step, step, 0, 0.0, {"x": float(step)})


def managed(*plugins):
    """Return a manager with these plugins, whose policy is their ``on_error``."""
    manager = PluginManager()
    for index, plugin in enumerate(plugins):
        manager.add(Plugin(f"p{index}", plugin, index=index, on_error=getattr(plugin, "on_error", "raise")))
    return manager


class Takes:
    def __init__(self):
        self.got, self.threads = [], set()

    @hookimpl
    def report_metrics(self, run, records):
        self.threads.add(threading.current_thread().name)
        self.got += [one.step for one in records]

    @hookimpl
    def report_artifact(self, path, name, kind):
        self.got.append(name)


class Held(Takes):
    """Waits in its first call until it is let go."""

    def __init__(self):
        super().__init__()
        self.entered, self.release = threading.Event(), threading.Event()

    @hookimpl
    def report_metrics(self, run, records):
        self.entered.set()
        assert self.release.wait(30)
        self.got += [one.step for one in records]


class Fails(Takes):
    def __init__(self, error, on_error="raise"):
        super().__init__()
        self.error, self.on_error = error, on_error

    @hookimpl
    def report_metrics(self, run, records):
        self.got.append(len(records))
        raise self.error


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "trainhooks-reporter"]


def test_everything_is_delivered_in_order_on_its_own_thread(tmp_path):
    takes = Takes()
    reporter = Reporter(managed(takes), RUN)
    expected = []
    for step in range(2000):
        reporter.put(record(step))
        expected.append(step)
        if step % 700 == 0:
            reporter.put(Artifact(tmp_path, f"file-{step}", "file"))
            expected.append(f"file-{step}")
    reporter.close(30)
    assert takes.got == expected
    assert takes.threads == {"trainhooks-reporter"}
    assert threads() == []


def test_a_slow_reporter_does_not_hold_put_up():
    held = Held()
    reporter = Reporter(managed(held), RUN)
    for step in range(1000):
        reporter.put(record(step))
        if step == 0:
            assert held.entered.wait(30)  # from here on it is stuck
    assert held.got == []  # all 1000 were put while it had not returned once
    held.release.set()
    reporter.close(30)
    assert held.got == list(range(1000))


def test_what_a_full_queue_cannot_take_is_counted_and_said(messages):
    held = Held()
    reporter = Reporter(managed(held), RUN)
    reporter.put(record(-1))
    assert held.entered.wait(30)
    for step in range(10_007):  # the queue holds 10,000
        reporter.put(record(step))
    assert reporter.dropped == 7
    held.release.set()
    reporter.close(30)
    assert held.got == [-1, *range(10_000)]  # the oldest are kept
    assert messages() == ["reporters were too slow: 7 records were dropped"]


@pytest.mark.parametrize("full", [False, True])
def test_one_that_hangs_is_left_behind_after_the_time_limit(messages, full):
    held = Held()
    reporter = Reporter(managed(held), RUN)
    reporter.put(record(0))
    assert held.entered.wait(30)
    count = 10_000 if full else 3
    for step in range(count):
        reporter.put(record(step))
    thread = reporter._thread
    reporter.close(0.05)
    lost = count if full else count + 1  # the end mark waits with them
    assert messages() == [f"reporters did not finish within 0.05 s; about {lost} records are lost"]
    held.release.set()
    thread.join(30)
    assert not thread.is_alive()  # it ends with the call that it hung in
    assert held.got == [0]


def test_an_error_reaches_the_thread_that_checks_once_and_is_the_object_itself():
    error = ConnectionError("no route")
    fails, takes = Fails(error), Takes()
    reporter = Reporter(managed(fails, takes), RUN)
    for step in range(3):
        reporter.put(record(step))
    reporter.close(30)
    with pytest.raises(ConnectionError) as caught:
        reporter.check()
    assert caught.value is error
    reporter.check()
    assert takes.got == [0, 1, 2]  # the others have everything
    assert len(fails.got) == 1  # who failed gets nothing more


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_what_is_no_exception_does_not_kill_the_thread(error):
    fails, takes = Fails(error, on_error="disable"), Takes()
    reporter = Reporter(managed(fails, takes), RUN)
    reporter.put(record(0))
    reporter.close(30)
    assert takes.got == [0]
    with pytest.raises(type(error)):
        reporter.check()


def test_a_plugin_is_disabled_on_the_thread_that_checks(messages):
    """Its hooks would otherwise vanish in the middle of a step of the training thread."""
    fails, takes = Fails(OSError("disk"), on_error="disable"), Takes()
    manager = managed(fails, takes)
    where = []
    disable = manager.disable
    manager.disable = lambda plugin, error: (where.append(threading.current_thread().name), disable(plugin, error))
    reporter = Reporter(manager, RUN)
    for step in range(3):
        reporter.put(record(step))
    reporter.close(30)
    assert list(manager.plugins) == ["p0", "p1"]
    reporter.check()
    assert list(manager.plugins) == ["p1"]
    assert where == [threading.current_thread().name]
    assert manager.disabled == {"p0": "OSError('disk')"}
    assert len(messages()) == 1
    assert takes.got == [0, 1, 2]


class TestInARun:
    def test_policy_raise_ends_the_training(self, make_trainer):
        error = ConnectionError("no route")
        trainer = make_trainer([Fails(error)], values=(1.0,) * 5, log_every_steps=1)
        with pytest.raises(ConnectionError) as caught:
            trainer.train()
        assert caught.value is error
        assert trainer.outcome.status == "failed"
        assert any("report_metrics() of plugin 'fails'" in note for note in caught.value.__notes__)
        assert threads() == []

    def test_policy_disable_goes_on_and_tears_it_down_once(self, make_trainer, messages):
        class Torn(Fails):
            torn = 0

            @hookimpl
            def teardown(self):
                self.torn += 1

        fails, takes = Torn(ConnectionError("no route"), on_error="disable"), Takes()
        trainer = make_trainer([fails, takes], values=(1.0,) * 5, log_every_steps=1)
        outcome = trainer.train()
        assert (outcome.status, outcome.step, trainer.model.w.item()) == ("completed", 5, -5.0)
        assert takes.got == [1, 2, 3, 4, 5]
        assert fails.torn == 1
        assert list(trainer.plugins) == ["takes"]
        assert len([message for message in messages() if "is disabled" in message]) == 1

    def test_every_flush_is_delivered_before_teardown(self, make_trainer):
        class Closes(Takes):
            @hookimpl
            def teardown(self):
                self.got.append("closed")

        closes = Closes()
        make_trainer([closes], values=(1.0,) * 10, log_every_steps=3).train()
        assert closes.got == [3, 6, 9, 10, "closed"]

    def test_nobody_reports_no_thread(self, make_trainer):
        class Looks:
            seen = None

            @hookimpl
            def after_step(self):
                self.seen = threads()

        looks = Looks()
        make_trainer([looks]).train()
        assert looks.seen == []
