"""Mistakes made on purpose are noticed: a part of what ``seeded.py`` does."""

import pytest
import seeded
from faults import FAULTS


def test_there_are_enough_and_each_has_a_check():
    assert len(FAULTS) >= 20
    assert set(FAULTS.values()) == set(seeded.CHECKS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_some_of_each_kind(capsys):
    """Those of which nothing is killed at random, and that need no recorded disk: they take a few seconds each."""
    quick = [name for name, check in FAULTS.items() if check.startswith(("cuts", "interrupts", "background"))]
    assert len(quick) >= 15
    assert seeded.run(only=quick) == {"faults": len(quick), "found": len(quick), "alarms": 0}, capsys.readouterr().out
