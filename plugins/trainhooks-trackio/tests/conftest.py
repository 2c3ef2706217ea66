"""Trackio reads ``TRACKIO_DIR`` once, when it is imported: all tests share a folder, and each has a project of its own."""

import importlib
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "tests"), str(Path(__file__).resolve().parent)]


@pytest.fixture(scope="session", autouse=True)
def trackio_dir(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("trackio")
        patch.setenv("TRACKIO_DIR", str(folder))
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        for name in ("TRACKIO_SERVER_URL", "TRACKIO_SPACE_ID", "TRACKIO_WRITE_TOKEN", "HF_TOKEN"):
            patch.delenv(name, raising=False)
        importlib.import_module("trackio")  # before a test that has the variable name the folder of its server
        yield folder
