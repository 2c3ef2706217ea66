"""Nothing of the user's SwanLab is read or written, and no test reaches its cloud."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "tests"), str(Path(__file__).resolve().parent)]


@pytest.fixture(autouse=True)
def swanlab_alone(tmp_path, monkeypatch):
    for name in ("SWANLAB_API_KEY", "SWANLAB_MODE", "SWANLAB_API_HOST", "SWANLAB_LOG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path / "swanlab-root"))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.chdir(tmp_path)
