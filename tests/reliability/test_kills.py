"""A run that is killed at random moments and started anew by the same command: a part of what ``kills.py`` does."""

import random
import tempfile
from pathlib import Path

import kills
import pytest
import workload
from workload import Config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_random_kills():
    counts = kills.run(scale=0.05)
    assert counts["kills"] >= 25
    assert {name: counts[name] for name in ("lost", "corrupt", "diff")} == {"lost": 0, "corrupt": 0, "diff": 0}


@pytest.fixture
def judged(tmp_path):
    """Return what an uninterrupted run gave, and a run folder that has ended the same way, to be spoilt."""
    workload.warm_up()
    for name in ("wanted", "found"):
        place = tmp_path / name
        place.mkdir()
        report = workload.Report(place / "report-0.jsonl")
        workload.in_child(lambda p=place, r=report: kills.train(Config(), {}, p / "run", r), place)
    wanted = kills.reference_of(workload.Report(tmp_path / "wanted/report-0.jsonl"), tmp_path / "wanted/run")
    run = kills.KilledRun(tmp_path / "found", wanted, kills.Verdict(), "run")
    return run


def test_the_judge_accepts_a_whole_run(judged):
    assert judged.look(0, killed=False, code=0)
    assert judged.verdict.lines == []


def spoil_checkpoint(run):
    path = max((run.run / "checkpoints").glob("step-*/*"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


SPOILS = {
    "lost": lambda run: setattr(run, "acknowledged", 99),
    "corrupt": spoil_checkpoint,
    "diff": lambda run: run.wanted["steps"].update({5: "another"}),
}


@pytest.mark.parametrize("count", SPOILS)
def test_the_judge_counts(judged, count):
    SPOILS[count](judged)
    judged.look(0, killed=False, code=0)
    assert [line.split(":")[0] for line in judged.verdict.lines] == [count]


def test_the_judge_counts_a_row_that_was_logged_twice(judged):
    log = judged.run / "metrics.jsonl"
    text = log.read_text()
    log.write_text(text + text.splitlines()[-1] + "\n")
    judged.look(0, killed=False, code=0)
    assert [line.split(":")[0] for line in judged.verdict.lines] == ["diff"]


def test_kills_hit_every_phase():
    """With the moments drawn as they are, 60 kills are not all at the start of the process."""
    workload.warm_up()
    verdict = kills.Verdict()
    with tempfile.TemporaryDirectory() as folder:
        kills.forked_kills(Path(folder), 60, verdict, random.Random(0))
    assert verdict.lines == []
    assert min(verdict.phases[name] for name in ("start", "train", "save")) > 0
