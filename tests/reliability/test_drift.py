"""Memory, threads and files of a long run, and what trainers leave behind: a part of what ``drift.py`` does."""

import drift
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_nothing_grows():
    counts = drift.run(scale=0.2)
    assert counts["drift_kb"] <= 1024
    assert counts["drift_handles"] == 0
    assert counts["trainers"] == 200
    assert counts["survivors"] == 0


def test_what_grows_is_seen():
    """1 KB a step is 14 MB from the middle of the first to the middle of the last quarter of 18,000 steps."""
    samples = [[step, 10**8 + 1024 * step, 3, 7, 0] for step in range(2000, 20000, 200)]
    growth, by_slope = drift.growth_of(samples)
    assert growth == pytest.approx(0.75 * 18000 * 1024, rel=0.03)
    assert by_slope == pytest.approx(17800 * 1024)
    flat = [[step, 10**8, 3, 7, 0] for step in range(2000, 20000, 200)]
    assert drift.growth_of(flat) == (0, 0)


def test_a_part_that_survives_is_seen():
    """One model is kept here of each of three trainers."""
    cases = drift.test_module("cases/test_tr.py")
    conftest, kept, round_of = drift.test_module("conftest.py"), [], cases.round_of

    class Kept(conftest.Scalar):
        def __init__(self):
            super().__init__()
            kept.append(self)

    cases.round_of = lambda scalar, *arguments, **more: round_of(Kept, *arguments, **more)
    alive, _ = drift.survivors(cases, 3)
    assert alive == len(kept) == 3
