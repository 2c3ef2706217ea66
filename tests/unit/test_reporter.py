"""Reporters: order, slowness, errors, the end. Events instead of clocks."""

import threading
import time

import pytest
import torch

from trainhooks import Record, RunInfo, UsageError, hookimpl
from trainhooks.backlog import Artifact, Backlog
from trainhooks.lane import Lane
from trainhooks.manager import Plugin, PluginManager
from trainhooks.media import Text
from trainhooks.reporter import Reporter
from trainhooks.state import Outcome
from trainhooks_builtins import Checkpoint

RUN = RunInfo("run")
DONE = Outcome("completed", "", 0, 0, 0)


def record(step, **values):
    return Record(step, step, 0, 0.0, values or {"x": float(step)})


def managed(*plugins):
    """Return a manager with these plugins, whose policy is their ``on_error``."""
    manager = PluginManager()
    for index, plugin in enumerate(plugins):
        policy = getattr(plugin, "on_error", None)
        manager.add(Plugin(f"p{index}", plugin, index=index, on_error=policy or "raise", insists=policy == "raise"))
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

    @hookimpl
    def report_media(self, items):
        self.got += [item.name for item in items]


class Batches(Takes):
    records_per_call = 100

    @hookimpl
    def report_metrics(self, records):
        self.got.append([one.step for one in records])


class Held(Takes):
    """Waits in its first call until it is let go."""

    def __init__(self):
        super().__init__()
        self.entered, self.release = threading.Event(), threading.Event()

    @hookimpl
    def report_metrics(self, run, records):
        self.entered.set()
        assert self.release.wait(250)
        self.got += [one.step for one in records]


class Fails(Takes):
    """Raises ``error`` in the calls of these numbers, or always."""

    def __init__(self, error, calls=None, on_error=None):
        super().__init__()
        self.error, self.failing, self.calls = error, calls, 0
        if on_error is not None:
            self.on_error = on_error

    @hookimpl
    def report_metrics(self, run, records):
        self.calls += 1
        if self.failing is None or self.calls in self.failing:
            raise self.error
        self.got += [one.step for one in records]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Make waiting short; what is tested is what happens, not how long it takes."""
    monkeypatch.setattr("trainhooks.lane._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("trainhooks.lane._LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr("trainhooks.lane._GATHER_S", 0.01)
    monkeypatch.setattr("trainhooks.lane._LEAST_PATIENCE_S", 0.05)


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("trainhooks-reporter")]


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class TestDelivery:
    def test_everything_is_delivered_in_order_on_its_own_thread(self, tmp_path):
        takes = Takes()
        reporter = Reporter(managed(takes), RUN)
        expected = []
        for step in range(2000):
            reporter.put(record(step))
            expected.append(step)
            if step % 700 == 0:
                reporter.put(Artifact(tmp_path, f"file-{step}", "file"))
                reporter.put(Text(f"text-{step}", step, step, 0, 0.0, "..."))
                expected += [f"file-{step}", f"text-{step}"]
        reporter.close(DONE, 30)
        assert takes.got == expected
        assert takes.threads == {"trainhooks-reporter-p0"}
        assert threads() == []

    def test_one_record_a_call_or_as_many_as_the_plugin_says(self, monkeypatch):
        monkeypatch.setattr("trainhooks.lane._GATHER_S", 3600.0)  # what is not handed over at once comes together, at the end

        class Single(Batches):
            records_per_call = 1

        single, batches = Single(), Batches()
        reporter = Reporter(managed(single, batches, held := Held()), RUN)
        for step in range(250):
            reporter.put(record(step))
        held.release.set()
        reporter.close(DONE, 30)
        assert single.got == [[step] for step in range(250)]
        assert sum(batches.got, []) == list(range(250))
        assert max(map(len, batches.got)) == 100

    def test_one_that_hangs_holds_neither_put_nor_another_reporter_up(self):
        held, takes = Held(), Takes()
        reporter = Reporter(managed(held, takes), RUN)
        for step in range(1000):
            reporter.put(record(step))
            if step == 0:
                assert held.entered.wait(30)  # from here on it is stuck
        wait_for(lambda: takes.got == list(range(1000)))
        assert held.got == []
        held.release.set()
        reporter.close(DONE, 30)
        assert held.got == list(range(1000))

    def test_who_takes_nothing_of_a_kind_is_not_asked(self, tmp_path):
        class Metrics:
            got = ()

            @hookimpl
            def report_metrics(self, records):
                self.got = [*self.got, *records]

        metrics = Metrics()
        reporter = Reporter(managed(metrics), RUN)
        reporter.put(Artifact(tmp_path, "file", "file"))
        reporter.put(record(1))
        reporter.close(DONE, 30)
        assert metrics.got == [record(1)]


class TestTooMuch:
    def test_what_waits_is_thinned_evenly_and_counted(self, messages):
        held = Held()
        lane = Lane(
            Plugin("slow", held, implementations=managed(held).plugins["p0"].implementations), RUN, Backlog(capacity=100)
        )
        lane.put(record(-1))
        assert held.entered.wait(30)
        for step in range(101):
            lane.put(record(step, x=1.0, **({"val/acc": 0.5} if step in (10, 51) else {})))
        # 101 waiting records become: the odd ones (newer of each pair) whole, the seldom values of 10 and the last alone.
        waiting = list(lane._queue)
        assert [one.step for one in waiting] == sorted([*range(1, 100, 2), 10, 100])
        assert [one.step for one in waiting if "val/acc" in one.values] == [10, 51]
        assert [dict(one.values) for one in waiting if one.step == 10] == [{"val/acc": 0.5}]
        assert lane.thinned == 50
        held.release.set()
        lane.end(DONE)
        assert lane.join(30)

    def test_memory_is_bounded_over_many_records(self):
        held = Held()
        reporter = Reporter(managed(held), RUN)
        reporter.put(record(0))
        assert held.entered.wait(30)
        longest = 0
        for step in range(1, 200_000):
            reporter.put(record(step))
            longest = max(longest, len(reporter.lanes[0]._queue))
        assert longest == 10_000
        lane = reporter.lanes[0]
        assert lane.thinned + len(lane._queue) == 199_999
        assert list(lane._queue)[-1].step == 199_999
        lane._queue.clear()
        held.release.set()
        reporter.close(DONE, 30)

    def test_it_is_said_at_the_end(self, messages):
        held = Held()
        reporter = Reporter(managed(held), RUN)
        reporter.lanes[0]._queue.capacity = 10
        reporter.put(record(-1))
        assert held.entered.wait(30)
        for step in range(11):
            reporter.put(record(step))
        held.release.set()
        reporter.close(DONE, 30)
        assert messages() == [
            "plugin 'p0' (given to Trainer) was too slow or away: 5 values were left out, evenly, of those that waited"
        ]
        assert held.got == [-1, 1, 3, 5, 7, 9, 10]

    def test_many_media_are_refused_not_thinned(self):
        held = Held()
        lane = Lane(Plugin("slow", held, implementations=managed(held).plugins["p0"].implementations), RUN, Backlog(capacity=3))
        lane.put(record(0))
        assert held.entered.wait(30)
        for number in range(5):
            lane.put(Text(f"text-{number}", 1, 1, 0, 0.0, "..."))
        assert [one.name for one in lane._queue] == ["text-0", "text-1", "text-2"]
        assert lane.thinned == 2
        held.release.set()
        lane.end(DONE)
        assert lane.join(30)


class TestErrors:
    @pytest.mark.parametrize("error", [ConnectionError("down"), ValueError("bad")])
    def test_a_call_that_fails_is_made_again_with_the_same_records(self, messages, error):
        """Two failures in a row: nothing is lost, nothing comes twice, one warning."""
        fails = Fails(error, calls=(3, 4))
        reporter = Reporter(managed(fails), RUN)
        for step in range(10):
            reporter.put(record(step))
        wait_for(lambda: len(fails.got) == 10)
        reporter.close(DONE, 30)
        assert fails.got == list(range(10))
        (said,) = messages()
        assert said.startswith(f"plugin 'p0' (given to Trainer): report_metrics() failed with {type(error).__name__}: ")

    def test_one_warning_for_each_kind_of_error(self, messages):
        class Varies(Takes):
            errors = [ConnectionError("a"), ConnectionError("b"), TimeoutError("c"), ConnectionError("d")]

            @hookimpl
            def report_metrics(self, records):
                if self.errors:
                    raise self.errors.pop(0)

        reporter = Reporter(managed(Varies()), RUN)
        reporter.put(record(0))
        reporter.drain(30)
        reporter.close(DONE, 30)
        assert [message.partition("failed with ")[2].partition(":")[0] for message in messages()] == [
            "ConnectionError",
            "TimeoutError",
        ]

    def test_records_that_are_refused_are_given_up_and_counted(self, messages):
        class Refuses(Takes):
            @hookimpl
            def report_metrics(self, records):
                if records[0].step in (3, 4, 5):
                    raise ValueError("no such step")
                self.got.append(records[0].step)

        refuses = Refuses()
        reporter = Reporter(managed(refuses), RUN)
        for step in range(10):
            reporter.put(record(step))
        reporter.close(DONE, 30)
        assert refuses.got == [0, 1, 2, 6, 7, 8, 9]
        assert messages()[-1] == "plugin 'p0' (given to Trainer): 3 of 10 records not sent"

    def test_a_service_that_is_away_gets_everything_when_it_is_back(self):
        away = threading.Event()
        away.set()

        class Service(Takes):
            tries = 0

            @hookimpl
            def report_metrics(self, records):
                self.tries += 1
                if away.is_set():
                    raise ConnectionRefusedError("nobody there")
                self.got.append(records[0].step)

        service = Service()
        reporter = Reporter(managed(service), RUN)
        for step in range(50):
            reporter.put(record(step))
        wait_for(lambda: service.tries > 20)  # longer than other errors are tried, and than is asked for the next records
        away.clear()
        wait_for(lambda: len(service.got) >= 50)
        reporter.close(DONE, 30)
        assert sorted(service.got) == list(range(50))  # the first two may have changed places

    def test_records_that_only_look_like_an_outage_are_passed_over_in_the_end(self, messages):
        class Odd(Takes):
            @hookimpl
            def report_metrics(self, records):
                if records[0].step == 1:
                    raise OSError("no space for this one")
                self.got.append(records[0].step)

        odd = Odd()
        reporter = Reporter(managed(odd), RUN)
        for step in range(4):
            reporter.put(record(step))
        wait_for(lambda: len(odd.got) == 3)  # while the run goes on
        reporter.close(DONE, 30)
        assert odd.got == [0, 2, 3]
        assert messages()[-1] == "plugin 'p0' (given to Trainer): 1 of 4 records not sent"

    def test_a_service_that_is_back_soon_after_the_end_gets_everything(self, monkeypatch):
        monkeypatch.setattr("trainhooks.lane._LEAST_PATIENCE_S", 60.0)

        class Restarts(Takes):
            tries = 0

            @hookimpl
            def report_metrics(self, records):
                self.tries += 1
                if self.tries < 30:
                    raise ConnectionRefusedError("restarting")
                self.got.append(records[0].step)

        restarts = Restarts()
        reporter = Reporter(managed(restarts), RUN)
        for step in range(5):
            reporter.put(record(step))
        reporter.close(DONE, 60)
        assert sorted(restarts.got) == list(range(5))

    def test_a_dead_service_does_not_hold_the_end_up_for_each_record(self, messages, monkeypatch):
        monkeypatch.setattr("trainhooks.lane._PATIENCE", 0.0)  # however long it takes until the end comes

        class Down(Fails):
            @hookimpl
            def report_metrics(self):
                wait_for(lambda: reporter.lanes[0]._closing)
                self.calls += 1
                raise self.error

        fails = Down(ConnectionError("down"))
        reporter = Reporter(managed(fails), RUN)
        for step in range(1000):
            reporter.put(record(step))
        reporter.close(DONE, 600)
        assert fails.calls < 100
        assert messages()[-1] == "plugin 'p0' (given to Trainer): 1000 of 1000 records not sent"

    def test_who_only_fails_gets_nothing_more(self, messages):
        fails = Fails(TypeError("broken"))
        reporter = Reporter(managed(fails), RUN)
        for step in range(100):
            reporter.put(record(step))
        wait_for(lambda: reporter.lanes[0].dead)
        assert fails.calls == 30  # three times each for ten records
        reporter.put(record(100))
        reporter.close(DONE, 30)
        assert "gets nothing more in this run" in messages()[1]
        assert messages()[-1] == "plugin 'p0' (given to Trainer): 101 of 101 records not sent"

    def test_policy_raise_reaches_the_thread_that_checks_once_and_is_the_object_itself(self):
        error = ConnectionError("no route")
        fails, takes = Fails(error, on_error="raise"), Takes()
        reporter = Reporter(managed(fails, takes), RUN)
        for step in range(3):
            reporter.put(record(step))
        reporter.drain(30)
        with pytest.raises(ConnectionError) as caught:
            reporter.check()
        assert caught.value is error
        reporter.check()
        reporter.close(DONE, 30)
        assert takes.got == [0, 1, 2]  # the others have everything
        assert fails.calls == 1  # who failed gets nothing more

    @pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
    def test_what_is_no_exception_is_a_failure_like_others(self, messages, error):
        """Some SDKs call ``sys.exit``."""
        fails, takes = Fails(error, calls=(1,)), Takes()
        reporter = Reporter(managed(fails, takes), RUN)
        reporter.put(record(0))
        reporter.close(DONE, 30)
        assert fails.got == takes.got == [0]
        assert len(messages()) == 1
        reporter.check()


class TestStartAndEnd:
    class Opens(Takes):
        @hookimpl
        def report_start(self, run):
            self.got.append(f"start {run.name}")

        @hookimpl
        def report_end(self, outcome):
            self.got.append(f"end {outcome.status}")

    def test_opened_first_closed_last(self):
        opens = self.Opens()
        reporter = Reporter(managed(opens), RUN)
        reporter.wait_until_open()
        assert opens.got == ["start run"]
        reporter.put(record(1))
        reporter.close(DONE, 30)
        assert opens.got == ["start run", 1, "end completed"]

    def test_opening_is_tried_again_and_records_wait_for_it(self):
        class Late(self.Opens):
            tries = 0

            @hookimpl
            def report_start(self, run):
                self.tries += 1
                if self.tries < 6:
                    raise ConnectionError("not yet")
                self.got.append("start")

        late = Late()
        reporter = Reporter(managed(late), RUN)
        reporter.wait_until_open()
        reporter.put(record(1))
        wait_for(lambda: late.got == ["start", 1])
        reporter.close(DONE, 30)
        assert late.got == ["start", 1, "end completed"]

    def test_what_never_opened_is_not_closed(self, messages):
        class Never(self.Opens):
            @hookimpl
            def report_start(self):
                raise ValueError("no such project")

        never = Never()
        reporter = Reporter(managed(never), RUN)
        reporter.put(record(1))
        reporter.close(DONE, 30)
        assert never.got == []
        assert messages()[-1] == "plugin 'p0' (given to Trainer): 1 of 1 records not sent"

    def test_one_that_hangs_while_it_opens_is_not_waited_for(self, messages):
        hangs = threading.Event()

        class Hangs(Takes):
            @hookimpl
            def report_start(self):
                assert hangs.wait(60)

        hanging = Hangs()
        reporter = Reporter(managed(hanging), RUN)
        reporter.wait_until_open(0.01)
        assert messages() == [
            "plugin 'p0' (given to Trainer) has not opened after 0.01 s: the training begins without waiting for it"
        ]
        reporter.put(record(1))
        hangs.set()
        reporter.close(DONE, 30)
        assert hanging.got == [1]

    def test_one_that_hangs_at_the_end_is_left_behind_after_the_time_limit(self, messages):
        held = Held()
        reporter = Reporter(managed(held), RUN)
        reporter.put(record(0))
        assert held.entered.wait(30)
        for step in range(3):
            reporter.put(record(step))
        thread = reporter.lanes[0]._thread
        reporter.close(DONE, 0.05)
        name = "plugin 'p0' (given to Trainer)"
        assert messages() == [
            f"{name} did not finish in time (it is in report_metrics()) and was not waited for; report_timeout_s gives it more",
            "plugin 'p0' (given to Trainer): 4 of 4 records not sent",
        ]
        held.release.set()
        thread.join(30)
        assert not thread.is_alive()  # it ends with the call that it hung in
        assert held.got == [0]


class TestInARun:
    def test_policy_raise_ends_the_training(self, make_trainer):
        error = ConnectionError("no route")
        trainer = make_trainer([Fails(error, on_error="raise")], values=(1.0,) * 5, log_every_steps=1)
        with pytest.raises(ConnectionError) as caught:
            trainer.train()
        assert caught.value is error
        assert trainer.outcome.status == "failed"
        assert any("report_metrics() of plugin 'fails'" in note for note in caught.value.__notes__)
        assert threads() == []

    @pytest.mark.parametrize("policy", [None, "disable"])
    def test_otherwise_the_training_goes_on(self, make_trainer, messages, policy):
        class Torn(Fails):
            torn = 0

            @hookimpl
            def teardown(self):
                self.torn += 1

        fails, takes = Torn(ConnectionError("no route"), on_error=policy), Takes()
        trainer = make_trainer([fails, takes], values=(1.0,) * 5, log_every_steps=1)
        outcome = trainer.train()
        assert (outcome.status, outcome.step, trainer.model.w.item()) == ("completed", 5, -5.0)
        assert takes.got == [1, 2, 3, 4, 5]
        assert fails.torn == 1
        assert list(trainer.plugins) == ["torn", "takes"]
        assert len(messages()) == 2  # the kind of error, and what was lost

    def test_every_flush_is_delivered_and_the_reporter_closed_after_teardown(self, make_trainer):
        class Closes(Takes):
            @hookimpl
            def teardown(self, trainer):
                self.got.append("torn down")
                trainer.log("late", 1.0)

            @hookimpl
            def report_end(self):
                self.got.append("closed")

        closes = Closes()
        make_trainer([closes], values=(1.0,) * 10, log_every_steps=3).train()
        assert closes.got == [3, 6, 9, 10, "torn down", 10, "closed"]

    def test_nobody_reports_no_thread(self, make_trainer):
        class Looks:
            seen = None

            @hookimpl
            def after_step(self):
                self.seen = threads()

        looks = Looks()
        make_trainer([looks]).train()
        assert looks.seen == []

    def test_one_that_comes_late_is_opened_and_one_that_goes_is_closed(self, make_trainer):
        late = TestStartAndEnd.Opens()

        class Changes:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 2:
                    trainer.register(late, "late")
                if trainer.step == 4:
                    trainer.unregister("late")

        make_trainer([Changes(), Takes()], values=(1.0,) * 6, log_every_steps=1).train()
        assert late.got == ["start run", 3, 4, "end stopped"]

    def test_an_evaluation_on_its_own_reports_nothing(self, make_trainer):
        opens = TestStartAndEnd.Opens()
        trainer = make_trainer([opens])
        trainer.loaders["val"] = trainer.loaders["train"]

        class Evaluates:
            @hookimpl
            def eval_step(self, batch):
                return {"x": 1.0}

        trainer.register(Evaluates())
        assert trainer.evaluate("val") == {"val/x": 1.0}
        assert opens.got == []

    def test_hyperparameters_come_before_the_reporters(self, make_trainer):
        class Late:
            @hookimpl
            def before_train(self, trainer):
                trainer.log_hyperparameters({"x": 1})

        with pytest.raises(UsageError, match="call it in configure or setup"):
            make_trainer([Late(), Takes()]).train()

    def test_what_is_logged_before_a_checkpoint_is_delivered_before_it(self, make_trainer, tmp_path, monkeypatch):
        """Also media, which a resumed run does not log again; nothing is flushed for it."""
        monkeypatch.setattr(Reporter.catch_up, "__defaults__", (60.0,))  # a busy machine may need more than what it waits
        takes, seen = Takes(), []

        class Logs:
            @hookimpl
            def after_step(self, trainer):
                trainer.log_text(f"text-{trainer.step}", "x")

            @hookimpl
            def after_save(self):
                seen.append(list(takes.got))

        trainer = make_trainer([takes, Logs(), Checkpoint(every_steps=3)], work_dir=tmp_path / "run", log_every_steps=2)
        trainer.train()
        assert seen[0] == [2, "text-0", "text-1", "text-2"]
        assert seen[1][:8] == [2, "text-0", "text-1", "text-2", 4, "text-3", 6, "text-4"]

    def test_a_checkpoint_does_not_wait_for_one_that_hangs(self, make_trainer, tmp_path):
        held, saves = Held(), []

        class Frees:
            @hookimpl
            def after_save(self, trainer):
                saves.append(trainer.step)
                if len(saves) == 3:
                    held.release.set()

        make_trainer([held, Frees(), Checkpoint(every_steps=3)], work_dir=tmp_path / "run", log_every_steps=1).train()
        assert saves[:3] == [3, 6, 9]
        assert held.got == list(range(1, 11))


class Changes(Takes):
    """Changes all that it is given, and fails the first time."""

    records_per_call = 10

    def __init__(self):
        super().__init__()
        self.failed = False

    @hookimpl
    def report_start(self, run):
        run.hyperparameters.clear()
        run.settings.clear()

    @hookimpl
    def report_metrics(self, records):
        self.got += [] if not self.failed else [(one.step, dict(one.values)) for one in records]
        for one in records:
            one.values.clear()
        records.clear()
        if not self.failed:
            self.failed = True
            raise ConnectionError

    @hookimpl
    def report_media(self, items):
        items[0].pixels.zero_()

    @hookimpl
    def report_end(self, outcome):
        outcome.metrics.clear()


class Remembers(Takes):
    @hookimpl
    def report_start(self, run):
        self.run = run

    @hookimpl
    def report_metrics(self, records):
        self.got += [(one.step, one.values) for one in records]

    @hookimpl
    def report_media(self, items):
        self.pixels = items[0].pixels

    @hookimpl
    def report_end(self, outcome):
        self.outcome = outcome


class TestWhatIsChangedByAReporter:
    def test_is_its_own_matter_and_comes_again_unchanged(self, make_trainer):
        """The weight is 0, -1, -2 in the three steps, and so is the loss."""

        class Logs:
            @hookimpl
            def after_step(self, trainer):
                trainer.log_image("image", torch.ones(1, 1))

        changes, remembers = Changes(), Remembers()
        trainer = make_trainer([Logs(), changes, remembers], max_steps=3, log_every_steps=1)
        outcome = trainer.train()
        records = [(1, {"train/loss": 0.0}), (2, {"train/loss": -1.0}), (3, {"train/loss": -2.0})]
        assert changes.got == remembers.got == records
        assert remembers.run.hyperparameters["max_steps"] == 3
        assert remembers.run.settings["log_every_steps"] == 1
        assert remembers.pixels.tolist() == [[[255]]]
        assert outcome.metrics == remembers.outcome.metrics == {"train/loss": -2.0}

    def test_nor_does_it_get_what_a_hook_does_to_flushed_values(self, make_trainer):
        class Flushes:
            @hookimpl
            def after_step(self, trainer):
                trainer.log("a", 1.0)
                trainer.flush().clear()

        remembers = Remembers()
        make_trainer([Flushes(), remembers], max_steps=2, log_every_steps=10).train()
        assert [values["a"] for _, values in remembers.got] == [1.0, 1.0]


def test_one_that_comes_late_is_told_of_a_run_that_goes_on_from_there(make_trainer):
    """In after_step of the third step, whose record is made behind it."""
    late = Remembers()

    class Brings:
        @hookimpl
        def after_step(self, trainer):
            if trainer.step == 2:
                trainer.register(late)

    make_trainer([Brings(), Remembers()], max_steps=4, log_every_steps=1).train()
    run = late.run
    assert (run.resumed, run.resumed_step, run.resumed_records, run.offered_step) == (True, 3, 2, 3)
    assert [step for step, _ in late.got] == [3, 4]


@pytest.mark.parametrize("timeout_s", [0, 0.5])
def test_one_that_hangs_does_not_keep_the_others_from_being_closed(make_trainer, messages, monkeypatch, timeout_s):
    """It hangs until another one, which comes after it, has been told of the end."""
    monkeypatch.setattr("trainhooks.run_log._CLOSING_S", 60.0)
    held = Held()

    class Frees(Remembers):
        @hookimpl
        def report_end(self, outcome):
            self.outcome = outcome
            held.release.set()

    remembers = Frees()
    trainer = make_trainer([held, remembers], values=(1.0,) * 50, log_every_steps=1, report_timeout_s=timeout_s)
    trainer.train()
    assert len(remembers.got) == 50
    assert remembers.outcome.status == "completed"
    assert held.got == list(range(1, 51))
    assert [text for text in messages() if "did not finish in time" in text] == []


def test_what_had_not_arrived_at_a_checkpoint_is_offered_again_to_who_can_tell(make_trainer, tmp_path):
    """A tracker that is away for a whole process: the resumed run brings it all steps; one that cannot tell gets only the new ones."""

    class Away(Takes):
        knows_what_arrived = True
        away = True

        @hookimpl
        def report_metrics(self, records):
            if self.away:
                raise ConnectionError("down")
            self.got += [one.step for one in records]

    class Forgets(Away):
        knows_what_arrived = False

    class Crashes:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 7:
                raise RuntimeError("crash")

    def plugins(away):
        found = Away(), Forgets()
        for one in found:
            one.away = away
        return found

    arguments = {"work_dir": tmp_path / "run", "log_every_steps": 1}
    with pytest.raises(RuntimeError, match="crash"):
        make_trainer([*plugins(True), Checkpoint(every_steps=5), Crashes()], **arguments).train()
    knows, forgets = plugins(False)
    make_trainer([knows, forgets, Checkpoint(every_steps=5)], **arguments).train(resume="auto")
    assert knows.got == list(range(1, 11))
    assert forgets.got == list(range(6, 11))


def test_it_is_offered_again_after_a_resume_without_that_tracker_too(make_trainer, tmp_path):
    """Away up to step 5, not there up to step 8, back for 9 and 10."""

    class Tracker(Takes):
        knows_what_arrived = True

        def __init__(self, away):
            super().__init__()
            self.away = away

        @hookimpl
        def report_metrics(self, records):
            if self.away:
                raise ConnectionError("down")
            self.got += [one.step for one in records]

    def train(max_steps, *plugins, **arguments):
        given = {"max_steps": max_steps, "work_dir": tmp_path / "run", "log_every_steps": 1}
        make_trainer([*plugins, Checkpoint()], **given).train(**arguments)

    train(5, Tracker(away=True))
    train(8, resume="auto")
    train(10, back := Tracker(away=False), resume="auto")
    assert back.got == [1, 2, 3, 4, 5, 9, 10]


def test_a_run_in_another_folder_reports_nothing_of_the_one_whose_checkpoint_it_begins_with(make_trainer, tmp_path):
    class Tracker(Takes):
        knows_what_arrived = True

        def __init__(self, arrives):
            super().__init__()
            self.arrives = arrives

        @hookimpl
        def report_start(self, run):
            self.offered_step = run.offered_step

        @hookimpl
        def report_metrics(self, records):
            self.arrives.wait()
            self.got += [one.step for one in records]

    def train(name, max_steps, *plugins, **arguments):
        given = {"max_steps": max_steps, "work_dir": tmp_path / name, "log_every_steps": 1, "report_timeout_s": 60}
        make_trainer([*plugins, Checkpoint()], **given).train(**arguments)

    class Saved:
        @hookimpl
        def after_save(self):
            opened.set()

    opened = threading.Event()
    slow = Tracker(opened)
    train("first", 5, slow, Saved())
    assert slow.got == [1, 2, 3, 4, 5]
    fork = Tracker(opened)
    train("second", 8, fork, resume=tmp_path / "first")
    assert fork.got == [6, 7, 8]
    assert fork.offered_step == 5
