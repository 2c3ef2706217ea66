"""Puts what the satellites share on the path, and keeps the SDK from what the machine has configured."""

import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[3] / "tests"), str(Path(__file__).parent)]


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch, tmp_path):
    """No API key, no configuration file, no server but those that a test names, and no limits of the test before."""
    for name in [name for name in os.environ if name.startswith("COMET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COMET_CONFIG", str(tmp_path / "no-such.config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COMET_ERROR_TRACKING_ENABLE", "false")
    monkeypatch.setenv("COMET_URL_OVERRIDE", "http://127.0.0.1:9/clientlib/")
