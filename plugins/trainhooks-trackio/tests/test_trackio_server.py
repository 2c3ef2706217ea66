"""Runs are sent to a real Trackio server on the loopback, and to servers that are away."""

import contextlib
import http.client
import os
import sqlite3
import subprocess
import sys
import time
import urllib.parse

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


def count(database, which="1"):
    """Return how many rows of metrics a server has in a database, which it may not have made yet."""
    if not database.exists():
        return 0
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=60)) as connection:
        try:
            return connection.execute(f"SELECT count(*) FROM metrics WHERE {which}").fetchone()[0]
        except sqlite3.OperationalError as error:
            assert "no such table" in str(error)
            return 0


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
    """It is killed when the server has everything: Trackio's client sends on a thread of its own."""
    expression = f"Trackio('killed', server_url={server.url!r})"
    first, second = kill_and_resume(
        tmp_path,
        expression,
        "from trainhooks_trackio import Trackio",
        arrived=lambda: count(server.folder / "killed.db", "step = 10"),
        env={"TRACKIO_DIR": str(tmp_path / "client")},
    )
    assert (first.id, second.resumed_step, second.status) == (second.id, 8, "completed")
    assert Reader("killed").metric("probe/double") == [(step, 2.0 * step) for step in range(1, 16)]


def through(between, server):
    """Return the address of a proxy with the token of the server."""
    return f"{between.url}/?{urllib.parse.urlsplit(server.url).query}"


def proxy(server, fails):
    """A server that passes on to the real one what ``fails(path)`` is false for."""
    address = urllib.parse.urlsplit(server.url)
    headers = {"Content-Type": "application/json", "x-trackio-write-token": address.query.partition("=")[2]}

    def reply(method, path, body):
        if fails(path):
            return 503, {}, b"{}"
        connection = http.client.HTTPConnection(address.netloc, timeout=120)
        with contextlib.closing(connection):
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, {"Content-Type": "application/json"}, answer.read()

    return Server(reply=reply)


@pytest.mark.slow
@pytest.mark.parametrize("question", ["/api/get_runs_for_project", "/api/get_run_summary"])
def test_a_server_that_fails_while_a_resumed_run_is_opened_doubles_nothing(tmp_path, trackio_dir, server, in_server, question):
    """It is there when it is looked for, and does not say what it has when Trackio asks; the run is resumed on another machine."""
    project, failing = f"window-{question.rpartition('_')[2]}", []

    def fails(path):
        if path == question and failing:
            return failing.pop()
        return False

    with proxy(server, fails) as between:
        run(tmp_path, Trackio(project, server_url=through(between, server)), fail_after=10, media=False)
        for path in trackio_dir.glob(f"{project}*"):
            path.unlink()
        failing += [True, True] if question.endswith("project") else [True]  # the first is asked twice
        plugin = Trackio(project, server_url=through(between, server), timeout_s=60.0)
        with pytest.warns(UserWarning, match="could not"):  # Trackio says so itself
            ran = run(tmp_path, plugin, steps=12, media=False, resume="auto")
    assert not failing
    assert [warning for warning in ran.warnings if "did not say what it has of the run" in warning] == ran.warnings
    reader = Reader(project)
    assert reader.runs() == [f"{ran.run.name}-{ran.run.id}"]
    assert reader.metric("probe/double") == [(step, 2.0 * step) for step in range(1, 13)]


@pytest.mark.slow
def test_what_could_not_be_sent_is_tried_again_with_pauses(tmp_path, server):
    gone = []
    with proxy(server, lambda path: bool(gone) and "bulk_log" in path) as between:
        plugin = Trackio("pauses", server_url=through(between, server))
        with pytest.warns(UserWarning):
            run(tmp_path, plugin, steps=12, media=False, plugins=[Does(6, lambda: gone.append(1))], report_timeout_s=200)

        def tries():
            return sum("bulk_log" in path for _, path, *_ in between.requests)

        before, began = tries(), time.monotonic()
        while tries() < before + 6:
            time.sleep(0.05)
        assert time.monotonic() - began > 1.9  # half a second between each and the next
        gone.clear()
        while not count(server.folder / "pauses.db", "step = 12"):
            time.sleep(0.05)


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
        while not count(server.folder / "gone-server.db"):  # until the time limit of the test
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
