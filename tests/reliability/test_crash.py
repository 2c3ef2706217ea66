"""Crash points: a part of all of them, of every kind and in every scenario; `nox -s reliability` does the rest."""

import crash
import pytest

pytestmark = pytest.mark.slow


def test_every_kind_of_point_in_every_scenario():
    counts = crash.run(scale=0.04)
    assert counts["kills"] >= 3 * len(crash.SCENARIOS)
    assert counts["errno"] >= 9 * (len(crash.SCENARIOS) - 1)
    assert {name: counts[name] for name in ("lost", "corrupt", "bad", "leftovers")} == dict.fromkeys(
        ("lost", "corrupt", "bad", "leftovers"), 0
    )
