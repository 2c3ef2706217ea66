"""One reporter's lane: what counts as delivered, whom a checkpoint waits for, memory, forks, and plugins that come back."""

import os
import signal
import threading
import time

import pytest
import torch

from trainhooks import PluginValidationError, Record, RunInfo, hookimpl
from trainhooks.backlog import Backlog
from trainhooks.lane import Lane
from trainhooks.manager import Plugin, PluginManager
from trainhooks.media import Image
from trainhooks.reporter import Reporter
from trainhooks.state import Outcome

RUN = RunInfo("run")
DONE = Outcome("completed", "", 0, 0, 0)


def record(step):
    return Record(step, step, 0, 0.0, {"x": float(step)})


def image(step, kib, name="x"):
    return Image(name, step, step, 0, 0.0, torch.zeros(kib, 1024, 1, dtype=torch.uint8))


def managed(*plugins):
    manager = PluginManager()
    for index, plugin in enumerate(plugins):
        manager.add(Plugin(f"p{index}", plugin, index=index))
    return manager


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Make waiting short; what is tested is what happens, not how long it takes."""
    for name in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S", "_GATHER_S"):
        monkeypatch.setattr(f"trainhooks.lane.{name}", 0.001)
    monkeypatch.setattr("trainhooks.lane._LEAST_PATIENCE_S", 0.05)


class Held:
    """Waits in the call for one step until it is let go."""

    knows_what_arrived = True

    def __init__(self, step=0):
        self.step, self.got = step, []
        self.entered, self.release = threading.Event(), threading.Event()

    @hookimpl
    def report_metrics(self, records):
        if records[0].step == self.step:
            self.entered.set()
            assert self.release.wait(60)
        self.got.append(records[0].step)

    @hookimpl
    def report_media(self, items):
        self.got += [item.step for item in items]


class Refuses(Held):
    """Refuses some steps as if the service was away, whenever they come."""

    def __init__(self, refused, step=-1):
        super().__init__(step)
        self.refused = refused

    @hookimpl
    def report_metrics(self, records):
        if records[0].step in self.refused:
            raise ConnectionError("down")
        super().report_metrics(records)


class TestTheNextRecordsAsAProbe:
    def test_they_count_as_waiting_until_they_have_arrived(self):
        refuses = Refuses({0}, step=1)
        reporter = Reporter(managed(refuses), RUN)
        (lane,) = reporter.lanes
        for step in range(3):
            reporter.put(record(step))
        assert refuses.entered.wait(60)  # 0 has failed often enough, so 1 shows whether the service is there
        assert [one.step for one in lane.undelivered] == [0, 1, 2]
        assert lane.waiting == 3
        reporter.put(record(3))
        refuses.release.set()
        reporter.drain(30)
        assert refuses.got == [1, 2, 3]
        assert (lane.sent, lane.lost, lane.waiting, lane.undelivered) == (3, 1, 0, [])
        reporter.close(DONE, 30)

    def test_one_that_arrives_shows_that_there_is_hope(self, messages):
        """Every second record is refused, 15 in all: more than those after which nothing more is tried, were they in a row."""
        refuses = Refuses(set(range(0, 30, 2)))
        reporter = Reporter(managed(refuses), RUN)
        for step in range(30):
            reporter.put(record(step))
        wait_for(lambda: len(refuses.got) == 15 or reporter.lanes[0].dead)
        assert refuses.got == list(range(1, 30, 2))
        reporter.close(DONE, 30)


class TestWhomACheckpointWaitsFor:
    def test_not_for_a_call_that_takes_longer_already(self):
        held = Held()
        reporter = Reporter(managed(held), RUN)
        (lane,) = reporter.lanes
        reporter.put(record(0))
        assert held.entered.wait(60)
        lane._called_at -= 7200
        assert not lane.caught_up(3600)
        held.release.set()
        reporter.close(DONE, 30)

    def test_not_for_one_whose_last_call_took_longer(self):
        held = Held(step=1)
        reporter = Reporter(managed(held), RUN)
        (lane,) = reporter.lanes
        reporter.put(record(0))
        reporter.drain(30)
        reporter.put(record(1))
        assert held.entered.wait(60)
        lane._took_s = 7200.0
        assert not lane.caught_up(3600)
        held.release.set()
        reporter.close(DONE, 30)

    def test_for_one_that_has_only_begun(self):
        held = Held()
        reporter = Reporter(managed(held), RUN)
        reporter.put(record(0))
        assert held.entered.wait(60)
        later = threading.Timer(0.1, held.release.set)
        later.start()
        assert reporter.lanes[0].caught_up(3600)
        later.join()
        reporter.close(DONE, 30)

    def test_not_for_a_service_that_is_away(self, monkeypatch):
        """A refused connection takes no time; it is the pause before the next attempt that would be waited for."""
        monkeypatch.setattr("trainhooks.lane._FIRST_PAUSE_S", 3600.0)
        monkeypatch.setattr("trainhooks.lane._LONGEST_PAUSE_S", 3600.0)
        refuses = Refuses({0})
        reporter = Reporter(managed(refuses), RUN)
        (lane,) = reporter.lanes
        reporter.put(record(0))
        wait_for(lambda: lane._failing)
        refuses.refused = ()
        assert not lane.caught_up(3600)
        assert lane.waiting == 1
        monkeypatch.setattr("trainhooks.lane._FIRST_PAUSE_S", 0.001)
        reporter.close(DONE, 30)
        assert refuses.got == [0]


class Opens(Held):
    """Takes no time, but is open only when it is let go."""

    def __init__(self):
        super().__init__()
        self.calls = []

    @hookimpl
    def report_start(self):
        self.entered.set()
        assert self.release.wait(60)

    @hookimpl
    def report_metrics(self, records):
        self.calls.append([one.step for one in records])
        self.got += self.calls[-1]


class TestHowLongIsGathered:
    """Half a second is an hour here."""

    @pytest.fixture(autouse=True)
    def hours(self, monkeypatch):
        monkeypatch.setattr("trainhooks.lane._GATHER_S", 3600.0)

    @pytest.mark.parametrize("per_call", [1, 100])
    def test_one_that_takes_no_time_gets_all_that_waits_however_few_a_call_takes(self, per_call):
        opens = Opens()
        opens.records_per_call = per_call
        reporter = Reporter(managed(opens), RUN)
        for step in range(300):
            reporter.put(record(step))
        opens.release.set()
        wait_for(lambda: len(opens.got) == 300)
        assert opens.calls == [list(range(step, step + per_call)) for step in range(0, 300, per_call)]
        reporter.close(DONE, 30)

    @pytest.mark.parametrize("per_call", [1, 500, 5000])
    def test_many_records_do_not_wait_so_that_none_is_left_out(self, per_call):
        opens = Opens()
        opens.records_per_call = per_call
        opens.release.set()
        reporter = Reporter(managed(opens), RUN)
        (lane,) = reporter.lanes
        for step in range(20_000):
            reporter.put(record(step))
            if lane.waiting >= 2000:
                wait_for(lambda: lane.waiting < 500)
        reporter.drain(30)
        assert opens.got == list(range(20_000))
        assert (lane.sent, lane.lost, lane.thinned) == (20_000, 0, 0)
        reporter.close(DONE, 30)

    def test_few_are_gathered_for_one_call(self):
        opens = Opens()
        opens.records_per_call = 100
        opens.release.set()
        reporter = Reporter(managed(opens), RUN)
        reporter.put(record(0))
        wait_for(lambda: reporter.lanes[0].waiting == 0)
        for step in range(1, 61):
            reporter.put(record(step))
        assert reporter.lanes[0].waiting == 60
        reporter.catch_up(30)
        assert opens.calls == [[0], list(range(1, 61))]
        reporter.close(DONE, 30)

    def test_what_fills_the_memory_of_a_call_does_not_wait(self):
        """40 images of 1 MiB, of which a call takes 32."""
        held = Held(step=-1)
        held.records_per_call = 100
        reporter = Reporter(managed(held), RUN)
        reporter.put(record(0))
        wait_for(lambda: held.got == [0])
        for step in range(1, 41):
            reporter.put(image(step, 1024))
        wait_for(lambda: len(held.got) >= 33)
        reporter.close(DONE, 30)
        assert held.got == list(range(41))


def test_an_exception_that_cannot_be_shown_ends_nothing(messages):
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    class Fails(Held):
        failed = False

        @hookimpl
        def report_metrics(self, records):
            if not self.failed:
                self.failed = True
                raise Odd
            super().report_metrics(records)

    fails = Fails(step=-1)
    reporter = Reporter(managed(fails), RUN)
    reporter.put(record(0))
    reporter.close(DONE, 30)
    assert fails.got == [0]
    text = "report_metrics() failed with Odd: (its __str__ fails with RuntimeError); it is tried again, the training goes on"
    assert messages() == [f"plugin 'p0' (given to Trainer): {text}"]


def test_the_memory_that_waits_is_bounded_and_a_huge_image_gets_through(messages):
    """Images of 1 MiB, of which 10 MiB may wait, beside one of 30 MiB."""
    held = Held()
    lane = Lane(
        Plugin("slow", held, implementations=managed(held).plugins["p0"].implementations), RUN, Backlog(most_bytes=10 * 2**20)
    )
    lane.put(record(0))
    assert held.entered.wait(60)
    most = 0
    for step in range(1, 101):
        lane.put(image(step, 30 * 1024, "huge") if step == 50 else image(step, 1024))
        most = max(most, sum(one.size_bytes for one in lane._queue))
    assert most < 42 * 2**20
    waiting = [one.step for one in lane._queue]
    assert 50 in waiting
    assert waiting[-1] == 100
    assert lane.thinned == 100 - len(waiting)
    held.release.set()
    lane.end(DONE)
    assert lane.join(30)
    assert held.got == [0, *waiting]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_logging_in_a_forked_process_neither_waits_for_a_lock_nor_keeps_anything():
    held = Held()
    reporter = Reporter(managed(held), RUN)
    (lane,) = reporter.lanes
    locked, unlock = threading.Event(), threading.Event()

    def hold():
        with lane._changed:
            locked.set()
            unlock.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert locked.wait(60)
    child = os.fork()
    if child == 0:
        left = 1
        try:
            signal.alarm(120)  # ends this process if it waits for the lock
            reporter.put(record(0))
            left = lane.waiting
        finally:
            os._exit(left)
    unlock.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
    held.release.set()
    reporter.put(record(0))
    reporter.close(DONE, 30)
    assert held.got == [0]


def test_records_that_are_refused_are_tried_three_times_at_the_end_too(monkeypatch):
    monkeypatch.setattr("trainhooks.lane._LEAST_PATIENCE_S", 0.0)
    monkeypatch.setattr("trainhooks.lane._PATIENCE", 0.0)
    calls = []

    class Refused:
        @hookimpl
        def report_metrics(self):
            calls.append(1)
            wait_for(lambda: reporter.lanes[0]._closing)
            raise ValueError("bad")

    reporter = Reporter(managed(Refused()), RUN)
    reporter.put(record(0))
    reporter.close(DONE, 30)
    assert len(calls) == 3


@pytest.mark.parametrize("per_call", [0, -1, 2.0, "5", True, None])
def test_records_per_call_that_makes_no_sense_is_refused_with_the_plugin(per_call):
    held = Held()
    held.records_per_call = per_call
    with pytest.raises(PluginValidationError, match=r"plugin 'p0' .*records_per_call = .*: must be a whole number, 1 or more"):
        managed(held)


class TestAPluginThatComesBack:
    def test_is_not_called_on_two_threads_at_once(self):
        class Opens(Held):
            @hookimpl
            def report_start(self):
                self.got.append("start")

            @hookimpl
            def report_end(self):
                self.got.append("end")

        opens = Opens()
        manager = managed(opens)
        plugin = manager.plugins["p0"]
        reporter = Reporter(manager, RUN)
        reporter.put(record(0))
        assert opens.entered.wait(60)
        reporter.remove(plugin, DONE)
        reporter.add(plugin)
        reporter.put(record(1))
        assert [one[0] for one in reporter.undelivered()["p0"]] == [0, 1]
        assert opens.got == ["start"]
        opens.release.set()
        reporter.close(DONE, 30)
        assert opens.got == ["start", 0, "end", "start", 1, "end"]

    def test_leaves_no_lanes_behind_and_what_they_lost_is_said(self, messages):
        class Breaks(Held):
            @hookimpl
            def report_metrics(self):
                raise ValueError("broken")

        manager = managed(Breaks())
        plugin = manager.plugins["p0"]
        reporter = Reporter(manager, RUN)
        for step in range(3):
            reporter.put(record(step))
            reporter.remove(plugin, DONE)
            wait_for(lambda: reporter.lanes[-1].ended)
            reporter.add(plugin)
        assert len(reporter.lanes) == 1
        assert messages().count("plugin 'p0' (given to Trainer): 1 of 1 records not sent") == 3
        reporter.close(DONE, 30)


def test_ctrl_c_while_reporters_are_waited_for_does_not_keep_it_from_being_said_what_is_lost(messages, monkeypatch):
    first, second = Held(), Held()
    reporter = Reporter(managed(first, second), RUN)
    reporter.put(record(0))
    assert first.entered.wait(60)
    assert second.entered.wait(60)
    join, calls = reporter.lanes[0].join, []

    def interrupted(timeout_s):
        calls.append(timeout_s)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return join(timeout_s)

    monkeypatch.setattr(reporter.lanes[0], "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reporter.close(DONE, 60)
    lost = [f"plugin 'p{number}' (given to Trainer): 1 of 1 records not sent" for number in (0, 1)]
    assert [text for text in messages() if "not sent" in text] == lost
    for held in (first, second):
        held.release.set()
    wait_for(lambda: all(lane.ended for lane in reporter.lanes))
