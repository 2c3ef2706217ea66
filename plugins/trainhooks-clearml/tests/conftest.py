"""Puts what the satellites share on the path, and keeps the SDK from what the machine has configured."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[3] / "tests"), str(Path(__file__).parent)]


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch, tmp_path):
    """No credentials, no configuration file, no server but those that a test names."""
    for name in ("ACCESS_KEY", "SECRET_KEY", "HOST"):
        monkeypatch.delenv(f"CLEARML_API_{name}", raising=False)
    monkeypatch.setenv("CLEARML_CONFIG_FILE", str(tmp_path / "no-such.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("API", "WEB", "FILES"):
        monkeypatch.setenv(f"CLEARML_{name}_HOST", "http://127.0.0.1:9")
