"""The verdict of the score: what must be 0, what must be reached, and the line."""

import json
import subprocess
import sys

import pytest
import score


def judged(name, scale=1.0, **counts):
    part = score.Part(name, counts=counts)
    part.judge(scale)
    return part.faults


GOOD = {
    "crash": {"kills": 600, "lost": 0, "corrupt": 0, "errno": 4000, "bad": 0, "leftovers": 0},
    "powercut": {"states": 1000, "lost": 0, "corrupt": 0, "unsafe": 3},
    "seeded": {"faults": 20, "found": 20, "alarms": 0},
    "drift": {"drift_kb": 1024, "trainers": 1000, "survivors": 0},
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_good_has_no_fault(name):
    assert judged(name, **GOOD[name]) == []


@pytest.mark.parametrize(
    ("name", "counter", "count"),
    [
        ("crash", "lost", 1),
        ("crash", "leftovers", 1),
        ("powercut", "states", 999),
        ("powercut", "unsafe", 2),
        ("seeded", "found", 19),
        ("drift", "drift_kb", 1025),
        ("crash", "a counter that nobody knows", 1),
    ],
)
def test_what_is_not_is_one(name, counter, count):
    assert judged(name, **{**GOOD[name], counter: count})


def test_a_seeded_fault_that_is_not_found_is_one_at_any_scale():
    assert judged("seeded", scale=0.1, faults=3, found=2) == ["a seeded fault was not found"]


def test_a_part_that_counts_nothing_is_one_at_any_scale():
    assert judged("powercut", scale=0.1, **{**GOOD["powercut"], "states": 0}) == ["states=0 is below 1"]


def test_the_line():
    parts = [score.Part(name, counts=counts) for name, counts in GOOD.items()]
    parts.append(score.Part("kills", counts={"kills": 500, "lost": 0, "corrupt": 0, "diff": 0}))
    assert score.score_line(parts) == (
        "kills=1100 lost=0 corrupt=0 | powercut states=1000 lost=0 | diff=0 | errno=4000 bad=0 | seeded faults=20 found=20 | "
        "drift_kb=1024"
    )


def test_a_part_that_does_not_exist_is_refused():
    done = subprocess.run([sys.executable, score.__file__, "--only", "crsh"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no part crsh" in done.stderr


def test_a_part_that_fails_is_a_fault(monkeypatch, tmp_path):
    monkeypatch.setitem(score.FLOORS, "broken_part", {"x": 1})
    (tmp_path / "broken_part.py").write_text("def run(scale):\n    raise ValueError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert score.measure("broken_part", 1.0).faults == ["exited with 1"]
    (tmp_path / "broken_part.py").write_text(f"def run(scale):\n    print('hello')\n    return {json.dumps({'x': 2})}\n")
    part = score.measure("broken_part", 1.0)
    assert (part.counts, part.faults) == ({"x": 2}, [])
