"""Runs are sent to a real Trackio server on the loopback, and to servers that are away."""

import os
import subprocess
import sys
import time

import pytest
from satellite_support import ARTIFACT, MEDIA_STEP, Does, Server, kill_and_resume, run
from trackio_reader import Reader

from trainhooks_trackio import Trackio

SERVER = """
import sys, trackio
from trackio.utils import TRACKIO_DIR
*_, url = trackio.show(open_browser=False, block_thread=False, host="127.0.0.1", share=False)
print("URL", url, flush=True)
sys.stdin.read()
"""


class TrackioServer:
    """``trackio.show`` in a process of its own, with a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        environment = {**os.environ, "TRACKIO_DIR": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for line in self.process.stdout:
            if line.startswith("URL "):
                self.url = line.split()[1]
                return
        raise AssertionError("trackio.show has no URL")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory, trackio_dir):
    server = TrackioServer(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def in_server(server, monkeypatch):
    """The command line reads the server's folder."""
    monkeypatch.setenv("TRACKIO_DIR", str(server.folder))


@pytest.mark.slow
def test_run_is_sent_whole(tmp_path, server, in_server, trackio_dir):
    ran = run(tmp_path, Trackio("sent", server_url=server.url))
    assert not ran.warnings
    reader = Reader("sent")
    assert reader.runs() == [f"{ran.run.name}-{ran.run.id}"]
    assert reader.metric("probe/double") == [(step, 2.0 * step) for step in range(1, 21)]
    config = reader.run()["config"]
    assert (config["note"], config["outcome/status"]) == ("hello", "completed")
    assert [(alert["title"], alert["level"]) for alert in reader.alerts()] == [("completed", "info")]
    ((step, image),) = reader.metric("media/image")
    assert step == MEDIA_STEP
    assert (server.folder / "media" / image["file_path"]).stat().st_size
    bundle = reader.ask("get", "artifact", "--project", "sent", "--name", "bundle")
    blobs = [path for entry in bundle["manifest"] for path in (server.folder / "artifacts").rglob(entry["digest"])]
    assert blobs
    assert {blob.read_text() for blob in blobs} == {ARTIFACT}


@pytest.mark.slow
def test_killed_and_resumed_has_each_step_once(tmp_path, server, in_server):
    """It has time to send what it has: Trackio's client sends on a thread of its own."""
    expression = f"Trackio('killed', server_url={server.url!r})"
    first, second = kill_and_resume(
        tmp_path,
        expression,
        "from trainhooks_trackio import Trackio",
        settle_s=3,
        env={"TRACKIO_DIR": str(tmp_path / "client")},
    )
    assert (first.id, second.resumed_step, second.status) == (second.id, 8, "completed")
    assert Reader("killed").metric("probe/double") == [(step, 2.0 * step) for step in range(1, 16)]


@pytest.mark.parametrize("mode", ["refuse", "hang", "error"])
def test_server_that_is_away(tmp_path, mode):
    with Server(mode) as away:
        plugin = Trackio("away", server_url=f"{away.url}/?write_token=secret", timeout_s=1.0)
        ran = run(tmp_path, plugin, steps=5, report_timeout_s=20)
    assert ran.outcome.status == "completed"
    said = [warning for warning in ran.warnings if "ConnectionError" in warning]
    assert len(said) == 1
    assert away.url in said[0]
    assert "secret" not in "".join(ran.warnings)


@pytest.mark.slow
def test_server_that_goes_away_leaves_the_rest_with_trackio(tmp_path, tmp_path_factory, monkeypatch):
    """Trackio keeps in its own database what it cannot send, and sends it when the run's project is next opened."""
    server = TrackioServer(tmp_path_factory.mktemp("gone"))

    def goes():
        for _ in range(600):
            if (server.folder / "gone-server.db").exists():
                break
            time.sleep(0.1)
        server.process.kill()

    try:
        plugin = Trackio("gone-server", server_url=server.url)
        with pytest.warns(UserWarning):  # Trackio says so itself
            ran = run(tmp_path, plugin, media=False, plugins=[Does(10, goes)], report_timeout_s=100)
    finally:
        server.close()
    assert ran.outcome.status == "completed"
    assert not [warning for warning in ran.warnings if "failed" in warning]
    kept = Reader("gone-server").metric("probe/double")
    monkeypatch.setenv("TRACKIO_DIR", str(server.folder))
    sent = Reader("gone-server").metric("probe/double")
    assert kept
    assert sorted({*sent, *kept}) == [(step, 2.0 * step) for step in range(1, 21)]
