"""Lets the tests use what the tests of all satellites share, and the reader beside this file."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[3] / "tests"), str(Path(__file__).parent)]


@pytest.fixture(autouse=True)
def outside(tmp_path, monkeypatch):
    """Work in a folder that is in no repository, where DVC sends nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
