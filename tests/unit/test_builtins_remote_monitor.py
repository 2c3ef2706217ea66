"""``remote_monitor`` against a real server on the loopback."""

import json
import math
import socket
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from trainhooks import OptionError, hookimpl
from trainhooks.metrics import Record
from trainhooks.reporter import RunInfo
from trainhooks_builtins import RemoteMonitor

RUN = RunInfo("mine")


class Server:
    """Notes requests; answers with ``status``, after ``gate`` is set."""

    def __init__(self):
        self.requests, self.status, self.gate = [], 200, threading.Event()
        self.gate.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.requests.append((self.path, dict(self.headers), body))
                outer.gate.wait(5)
                try:
                    self.send_response(outer.status)
                    self.send_header("Location", outer.url + "/elsewhere")
                    self.end_headers()
                except OSError:  # the client has gone
                    pass

            do_GET = do_POST

            def log_message(self, *_):
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *_):  # a client that has gone
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def bodies(self):
        return [json.loads(body) for _, _, body in self.requests]

    def close(self):
        self.gate.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    server.close()


def record(step, **values):
    return Record(step, step, 0, 1000.5, values or {"train/loss": 0.5})


class TestDelivery:
    def test_a_run(self, make_trainer, server):
        trainer = make_trainer([RemoteMonitor(f"{server.url}/in")], max_steps=4, start=2.0, log_every_steps=2, name="mine")
        trainer.train()
        first, second, last = server.bodies
        assert [path for path, _, _ in server.requests] == ["/in"] * 3
        assert (first["run"], first["step"], first["update"], first["epoch"]) == ("mine", 2, 2, 0)
        assert first["metrics"] == {"train/loss": 1.5}
        assert second["metrics"] == {"train/loss": -0.5}
        outcome = {"status": "completed", "reason": "max_steps=4 reached", "step": 4, "update": 4, "epoch": 0}
        assert last == {"run": "mine", "outcome": {**outcome, "metrics": {"train/loss": -0.5}}}

    def test_the_outcome_of_a_failed_run_is_sent_too(self, make_trainer, server):
        class Breaks:
            @hookimpl
            def after_step(self):
                raise ZeroDivisionError("broken")

        with pytest.raises(ZeroDivisionError):
            make_trainer([RemoteMonitor(server.url), Breaks()]).train()
        assert server.bodies[-1]["outcome"]["status"] == "failed"
        assert server.bodies[-1]["outcome"]["reason"] == "ZeroDivisionError: broken"

    def test_an_evaluation_has_no_outcome(self, make_trainer, server):
        make_trainer([RemoteMonitor(server.url)], val=(1.0,)).evaluate()
        assert [list(body["metrics"]) for body in server.bodies] == [["val/loss"]]

    def test_json_that_every_parser_reads(self, server):
        monitor = RemoteMonitor(server.url)
        monitor.report_metrics(RUN, [record(1, a=math.nan, b=math.inf, c=1.5, ü=2.0)])
        (body,) = server.bodies
        assert body["metrics"] == {"a": None, "b": None, "c": 1.5, "ü": 2.0}
        assert server.requests[0][1]["Content-Type"] == "application/json"

    def test_several_records_in_a_request(self, server):
        monitor = RemoteMonitor(server.url, batch_size=2)
        monitor.report_metrics(RUN, [record(step) for step in (1, 2, 3)])
        assert [[one["step"] for one in body] for body in server.bodies] == [[1, 2], [3]]
        assert (monitor.delivered, monitor.lost) == (3, 0)

    def test_a_form(self, server):
        RemoteMonitor(server.url, field="data").report_metrics(RUN, [record(7)])
        _, headers, body = server.requests[0]
        assert headers["Content-Type"] == "application/x-www-form-urlencoded"
        form = urllib.parse.parse_qs(body, strict_parsing=True)
        assert list(form) == ["data"]
        assert json.loads(form["data"][0])["step"] == 7

    def test_headers_from_the_environment(self, make_trainer, server, monkeypatch):
        monkeypatch.setenv("MY_TOKEN", "secret-42")
        headers = {"Authorization": "Bearer $MY_TOKEN", "X-Price": "$$5"}
        options = {"remote_monitor": {"url": server.url + "/?key=${MY_TOKEN}", "headers": headers}}
        trainer = make_trainer(options=options, max_steps=1)
        trainer.train()
        path, sent, _ = server.requests[0]
        assert (path, sent["Authorization"], sent["X-Price"]) == ("/?key=secret-42", "Bearer secret-42", "$5")
        assert "secret-42" not in repr(trainer.state_dict()["plugin_lock"]) + repr(trainer.run_info())


class TestFailures:
    def test_an_error_of_the_server(self, make_trainer, server, messages):
        server.status = 500
        trainer = make_trainer([RemoteMonitor(f"{server.url}/in?key=secret")], max_steps=2, log_every_steps=1)
        assert trainer.train().status == "completed"
        told = [message for message in messages() if message.startswith("remote_monitor")]
        assert told == [
            f"remote_monitor: {server.url}/in did not take metrics (500 Internal Server Error); the training goes on without",
            f"remote_monitor: 2 of 2 records did not reach {server.url}/in",
        ]
        assert "remote_monitor" in trainer.plugins  # not taken out

    def test_it_goes_on_when_the_server_does(self, server, messages):
        monitor = RemoteMonitor(server.url)
        for status in (500, 503, 200, 500, 500, 200):
            server.status = status
            monitor.report_metrics(RUN, [record(1)])
        assert (monitor.delivered, monitor.lost, len(server.requests)) == (2, 4, 6)
        assert sum("did not take metrics" in message for message in messages()) == 2  # once for each kind

    def test_nobody_listens(self, make_trainer, messages):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        assert make_trainer([RemoteMonitor(f"http://127.0.0.1:{port}")], max_steps=1).train().status == "completed"
        assert any("(ConnectionRefusedError: " in message for message in messages())

    def test_a_slow_server(self, server, messages):
        server.gate.clear()
        monitor = RemoteMonitor(server.url, timeout_s=0.05)
        monitor.report_metrics(RUN, [record(1)])
        assert (monitor.delivered, monitor.lost) == (0, 1)
        assert any("(TimeoutError: timed out)" in message for message in messages())

    def test_a_slow_server_does_not_slow_the_training(self, make_trainer, server):
        """The training is done while the server still holds the first request."""
        server.gate.clear()
        steps = []

        class Opens:
            @hookimpl
            def after_step(self, trainer):
                steps.append(trainer.step)

            @hookimpl
            def after_train(self):
                server.gate.set()

        monitor = RemoteMonitor(server.url, timeout_s=5)
        make_trainer([monitor, Opens()], max_steps=8, log_every_steps=1).train()
        assert steps == list(range(8))
        assert (monitor.delivered, monitor.lost) == (8, 0)

    def test_after_three_failures_it_pauses(self, server, messages):
        now = [0.0]
        server.status = 500
        monitor = RemoteMonitor(server.url, pause_s=60, clock=lambda: now[0])
        monitor.report_metrics(RUN, [record(step) for step in range(10)])
        assert (len(server.requests), monitor.lost) == (3, 10)
        now[0], server.status = 59.9, 200
        monitor.report_metrics(RUN, [record(11)])
        assert (len(server.requests), monitor.lost) == (3, 11)
        now[0] = 60.0
        monitor.report_metrics(RUN, [record(12), record(13)])
        assert (len(server.requests), monitor.delivered) == (5, 2)

    @pytest.mark.parametrize("status", [301, 302, 307])
    def test_redirects_are_not_followed(self, server, status, messages):
        server.status = status
        RemoteMonitor(server.url).report_metrics(RUN, [record(1)])
        assert len(server.requests) == 1
        assert any(f"({status} " in message for message in messages())

    def test_a_server_that_hangs_up(self, monkeypatch, messages):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()

            def hang_up():
                connection, _ = listener.accept()
                connection.recv(65536)
                connection.close()

            thread = threading.Thread(target=hang_up)
            thread.start()
            monitor = RemoteMonitor(f"http://127.0.0.1:{listener.getsockname()[1]}")
            monitor.report_metrics(RUN, [record(1)])
            thread.join()
        assert monitor.lost == 1
        assert any("did not take metrics" in message for message in messages())


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({}, "url: must be an address"),
            ({"url": "file:///etc/passwd"}, "url: must be an address"),
            ({"url": "localhost:9000"}, "url: must be an address"),
            ({"url": "http://[::1"}, "url: must be an address"),
            ({"url": "http://a:99999"}, "url: must be an address"),
            ({"url": "http://me:secret@a/b"}, "without user and password; http://a/b is not"),
            ({"url": "http://a", "batch_size": 0}, "batch_size = 0"),
            ({"url": "http://a", "timeout_s": 0.0}, "timeout_s = 0.0"),
            ({"url": "http://a", "pause_s": -1.0}, "pause_s = -1.0"),
            (
                {"url": "http://a", "headers": {"X": "$NO_SUCH_VARIABLE"}},
                "headers: X names the environment variable NO_SUCH_VARIABLE",
            ),
            ({"url": "http://a", "headers": {"X": "5 $"}}, r"headers: X has a \$ that names no environment variable"),
            ({"url": "http://a", "headers": {"X": "a\r\nY: b"}}, "must be one line"),
            ({"url": "http://a", "headers": {"X": "10 €"}}, "'headers: X' must be one line of Latin-1"),
            ({"url": "http://a/été"}, "must be an address"),
            ({"url": "http://a/b c"}, "must be an address"),
            ({"url": "http://a", "timeout_s": float("inf")}, "timeout_s = inf.*timeout_s finite"),
        ],
    )
    def test_wrong_ones(self, options, text):
        with pytest.raises(OptionError, match=text) as left:
            RemoteMonitor(**options)
        assert "secret" not in str(left.value)
