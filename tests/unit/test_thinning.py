"""What is left of what waits."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainhooks import Record, backlog
from trainhooks.backlog import Artifact, Backlog
from trainhooks.media import Image, Text
from trainhooks.thinning import lightened, thinned


def record(step, *names):
    return Record(step, step, 0, 0.0, dict.fromkeys(names, float(step)))


def test_records_with_the_same_names_lose_every_second():
    kept, left_out = thinned([record(step, "a") for step in range(8)], 8)
    assert [one.step for one in kept] == [1, 3, 5, 7]
    assert left_out == 4


def test_records_with_names_in_turn_lose_every_second_of_each():
    kept, left_out = thinned([record(step, "ab"[step % 2]) for step in range(8)], 8)
    assert [(one.step, *one.values) for one in kept] == [(2, "a"), (3, "b"), (6, "a"), (7, "b")]
    assert left_out == 4


def test_the_only_value_of_a_name_and_what_is_no_record_stay_but_the_newest():
    items = [record(0, "a"), Text("note", 1, 1, 0, 0.0, "..."), record(2, "b"), record(3, "c")]
    kept, left_out = thinned(items, 3)
    assert kept == items[:3]
    assert left_out == 1


@given(st.lists(st.sets(st.sampled_from("abc"), min_size=1), max_size=30), st.integers(1, 30))
def test_what_is_left_and_what_is_counted_make_up_the_whole(names, most):
    items = [record(step, *sorted(one)) for step, one in enumerate(names)]
    kept, left_out = thinned(items, most)
    steps = [one.step for one in kept]
    assert len(kept) <= most
    assert steps == sorted(set(steps))
    assert all(value == one.step for one in kept for value in one.values.values())
    if len(kept) < most:
        assert left_out == sum(map(len, names)) - sum(len(one.values) for one in kept)
        assert {name for one in kept for name in one.values} == set().union(*names)  # none is lost altogether


@pytest.mark.parametrize("count", [2, 20])
def test_thinning_is_done_seldom_whatever_the_names_are(monkeypatch, count):
    """5,000 records come while 100 may wait: about 50 make room for one another at a time."""
    calls = []
    monkeypatch.setattr(backlog, "thinned", lambda *given: calls.append(1) or thinned(*given))
    queue = Backlog(capacity=100)
    for step in range(5000):
        queue.append(record(step, f"m{step % count}"))
    assert 90 <= len(calls) <= 200
    assert len(queue) <= 100
    assert list(queue)[-1].step == 4999
    assert queue.left_out + len(queue) == 5000
    calls.clear()
    for step in range(5000, 10_000):
        queue.append(record(step, f"only once {step}"))
    assert len(calls) <= 10


def text(name, step, kib):
    return Text(name, step, step, 0, 0.0, "x" * (kib * 1024))


class TestMemory:
    """Texts of 10 KiB, of which 100 KiB may wait: thinned to three quarters, 75, beside the largest."""

    def test_each_name_loses_every_second_and_records_nothing(self):
        """24 texts of two names in turn are 240 KiB; six of each name left are 120, then three of each are 60."""
        items = []
        for step in range(24):
            items += [record(step, "a"), text("ab"[step % 2], step, 10)]
        kept, left_out = lightened(items, 100 * 1024)
        assert [one.step for one in kept if isinstance(one, Text)] == [6, 7, 14, 15, 22, 23]
        assert [one.step for one in kept if not isinstance(one, Text)] == list(range(24))
        assert left_out == 18

    def test_what_is_the_only_one_of_its_name_goes_oldest_first(self):
        """Ten beside the largest are a little more than 100 KiB; seven are less than 75."""
        kept, left_out = lightened([text(f"text-{step}", step, 10) for step in range(11)], 100 * 1024)
        assert [one.step for one in kept] == list(range(3, 11))
        assert left_out == 3

    def test_the_largest_gets_through(self):
        items = [text("huge", 0, 1000), *(text(f"text-{step}", step, 10) for step in range(1, 12))]
        kept, _ = lightened(items, 100 * 1024)
        assert kept[0].name == "huge"
        assert kept[-1].step == 11

    def test_records_that_take_more_than_media_are_thinned_instead(self):
        """100 records of 100 values, 10 KB each: halved to 50, 25, 13 and 7, the newest always among them, for less than 94 KB."""
        names = [f"m{number}" for number in range(100)]
        items = [*(record(step, *names) for step in range(100)), text("note", 100, 10)]
        kept, left_out = lightened(items, 125_000)
        assert [one.step for one in kept] == [15, 31, 47, 63, 79, 95, 99, 100]
        assert left_out == 100 * 93

    def test_files_are_not_counted(self):
        items = [Artifact(Path("file"), "file", "file")] * 1000
        assert lightened(items, 0) == (items, 0)

    def test_it_is_done_seldom(self, monkeypatch):
        """5,000 texts of 10 KiB come while 100 of them may wait: a quarter at the least makes room for others each time."""
        calls = []
        monkeypatch.setattr(backlog, "lightened", lambda *given: calls.append(1) or lightened(*given))
        queue = Backlog(most_bytes=100 * 10 * 1024)
        most = 0
        for step in range(5000):
            queue.append(text("x", step, 10))
            most = max(most, sum(one.size_bytes for one in queue))
        assert 50 <= len(calls) <= 200
        assert most <= 102 * 10 * 1024 * 1.02
        assert queue.left_out + len(queue) == 5000
        assert list(queue)[-1].step == 4999

    def test_a_huge_one_does_not_make_it_look_again_at_every_record(self, monkeypatch):
        calls = []
        monkeypatch.setattr(backlog, "lightened", lambda *given: calls.append(1) or lightened(*given))
        queue = Backlog(most_bytes=100 * 1024)
        queue.append(text("huge", 0, 1000))
        for step in range(1, 800):
            queue.append(record(step, "a"))
        assert len(calls) == 1
        assert len(queue) == 800


class TestGroups:
    def test_one_call_gets_so_many_bytes_at_most_but_any_single_item(self):
        """Of 32 MiB: three images of 15 MiB are two calls, one of 40 MiB is a call of its own."""
        images = [
            Image("x", step, 0, 0, 0.0, torch.zeros(mib * 1024, 1024, 1, dtype=torch.uint8))
            for step, mib in enumerate((15, 15, 15, 40, 1))
        ]
        queue = Backlog()
        for one in images:
            queue.append(one)
        assert [[one.step for one in queue.take(50)] for _ in range(4)] == [[0, 1], [2], [3], [4]]

    def test_what_is_put_back_comes_again_and_counts(self):
        queue = Backlog(most_bytes=15 * 1024)
        queue.append(text("a", 0, 10))
        queue.put_back(queue.take(1))
        queue.append(text("b", 1, 10))
        queue.append(text("c", 2, 10))
        assert [one.name for one in queue] == ["b", "c"]
        assert queue.left_out == 1
