"""Puts the helpers for satellites on the path; a real server of MLflow, started once; and how to read back what it has."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[3] / "tests"), str(Path(__file__).parent)]

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.pop("MLFLOW_TRACKING_URI", None)
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")


def pytest_configure(config):
    # MLflow 3.17 with SQLAlchemy 2.1 and with newer protocol buffers; an error in an import would leave half a module behind
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore::FutureWarning:mlflow.*")
    # MLflow leaves connections of its pools to the garbage collector
    config.addinivalue_line("filterwarnings", "ignore:unclosed:ResourceWarning")
    config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="session")
def server_url(tmp_path_factory):
    """The address of a real tracking server, which keeps the files, too."""
    folder = tmp_path_factory.mktemp("server")
    reserved = socket.socket()  # bound and not listening, as long as the server is there: nobody else gets its port
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'server.db'}", "--artifacts-destination", str(folder / "files")]
    with contextlib.closing(reserved), (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True)
        try:
            url = f"http://127.0.0.1:{port}"
            while not _answers(f"{url}/health"):
                assert process.poll() is None, (folder / "output.txt").read_text()
                time.sleep(0.5)  # until the time limit of the test
            yield url
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the server and its workers: the group that it leads
            process.wait()


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
