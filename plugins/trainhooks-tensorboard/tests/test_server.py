"""What a real TensorBoard shows of runs of ``trainhooks-tensorboard``, asked over its own interface on the loopback."""

import io
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from PIL.Image import open as open_image
from satellite_support import run

from trainhooks_tensorboard import TensorBoard

_WAIT_S = 120


class Server:
    """A TensorBoard process; ``fast`` is its loader in Rust, which it uses unless told otherwise, the other one is in Python."""

    def __init__(self, folder, fast):
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", "0", "--host", "127.0.0.1"]
        command += [f"--load_fast={'true' if fast else 'false'}", "--reload_interval", "1"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.url = found[0]
                return
        raise AssertionError("TensorBoard did not start")

    def get(self, path, body=None, **query):
        url = f"{self.url}/data/{path}?{urllib.parse.urlencode(query)}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def until(self, wanted, path, body=None, **query):
        """Ask until the answer satisfies ``wanted``: TensorBoard reads in the background."""
        end, answer = time.monotonic() + _WAIT_S, None
        while time.monotonic() < end:
            try:
                answer = self.get(path, body, **query)
                if wanted(answer):
                    return answer
            except urllib.error.HTTPError as error:  # not read yet
                answer = error
            time.sleep(0.2)
        raise AssertionError(f"{path}: {answer}")

    def losses(self, run, last):
        found = self.until(lambda rows: rows and rows[-1][1] == last, "plugin/scalars/scalars", run=run, tag="train/loss")
        return [(step, value) for _, step, value in found]

    def close(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stderr.close()


@pytest.fixture(params=[True, False], ids=["fast", "python"])
def serve(request):
    """Return a function that starts a TensorBoard on a folder."""
    servers = []

    def start(folder):
        servers.append(Server(folder, request.param))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


SESSIONS = {"allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"], "sliceSize": 10}


def test_runs_are_shown(tmp_path, serve):
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    run(tmp_path / "good", TensorBoard(), hyperparameters={"rate": 0.5, "kind": "a"})
    run(tmp_path / "bad", TensorBoard(), fail_after=6, hyperparameters={"rate": 0.25, "kind": "b"})
    server = serve(tmp_path)
    good, bad = "good/run/tensorboard", "bad/run/tensorboard"
    assert server.losses(good, 20) == [(step, 1.0 - step) for step in range(1, 21)]
    server.losses(bad, 6)
    (image,) = server.until(bool, "plugin/images/images", run=good, tag="media/image", sample=0)
    with urllib.request.urlopen(f"{server.url}/data/plugin/images/individualImage?{image['query']}", timeout=30) as answer:
        assert (image["step"], open_image(io.BytesIO(answer.read())).size) == (5, (10, 8))
    (text,) = server.until(bool, "plugin/text/text", run=good, tag="media/table")
    assert "<td>b | c</td>" in text["text"]
    ((_, step, bins),) = server.until(bool, "plugin/histograms/histograms", run=good, tag="media/histogram")
    assert (step, sum(count for _, _, count in bins), bins[0][0], bins[-1][1]) == (5, 4, 0, 4)
    groups = server.until(lambda answer: len(answer["sessionGroups"]) == 2, "plugin/hparams/session_groups", SESSIONS)
    sessions = {group["sessions"][0]["name"]: group["sessions"][0]["status"] for group in groups["sessionGroups"]}
    assert sessions == {good: "STATUS_SUCCESS", bad: "STATUS_FAILURE"}
    rates = {
        group["sessions"][0]["name"]: (group["hparams"]["rate"], group["hparams"]["kind"]) for group in groups["sessionGroups"]
    }
    assert rates == {good: (0.5, "a"), bad: (0.25, "b")}
    metrics = {group["sessions"][0]["name"]: group["metricValues"] for group in groups["sessionGroups"]}
    (loss,) = [one["value"] for one in metrics[good] if one["name"] == {"tag": "train/loss", "group": ""}]
    assert loss == -19.0


def test_a_running_tensorboard_follows_a_resume(tmp_path, serve):
    run(tmp_path, TensorBoard(), fail_after=10)
    server = serve(tmp_path)
    name = "run/tensorboard"
    assert server.losses(name, 10) == [(step, 1.0 - step) for step in range(1, 11)]
    run(tmp_path, TensorBoard(), 15, resume=tmp_path / "run/checkpoints/step-00000008")
    assert server.losses(name, 15) == [(step, 1.0 - step) for step in range(1, 16)]
