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
from trainhooks.run_info import RunInfo
from trainhooks_builtins import RemoteMonitor

RUN = RunInfo("mine", id="0123456789ab")


class Server:
    """Notes requests; answers with ``answers``, one each, then with ``status``, after ``gate`` is set."""

    def __init__(self):
        self.requests, self.answers, self.status, self.gate = [], [], 200, threading.Event()
        self.gate.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.requests.append((self.path, dict(self.headers), body))
                outer.gate.wait(250)
                try:
                    self.send_response(outer.answers.pop(0) if outer.answers else outer.status)
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
        assert last == {"run": "mine", "id": trainer.run_id, "outcome": {**outcome, "metrics": {"train/loss": -0.5}}}
        assert first["id"] == trainer.run_id

    def test_the_outcome_of_a_failed_run_is_sent_too(self, make_trainer, server):
        class Breaks:
            @hookimpl
            def after_step(self):
                raise ZeroDivisionError("broken")

        with pytest.raises(ZeroDivisionError):
            make_trainer([RemoteMonitor(server.url), Breaks()]).train()
        assert server.bodies[-1]["outcome"]["status"] == "failed"
        assert server.bodies[-1]["outcome"]["reason"] == "ZeroDivisionError: broken"

    def test_an_evaluation_by_itself_is_not_reported(self, make_trainer, server):
        make_trainer([RemoteMonitor(server.url)], val=(1.0,)).evaluate()
        assert server.requests == []

    def test_json_that_every_parser_reads(self, server):
        monitor = RemoteMonitor(server.url)
        monitor.report_metrics(RUN, [record(1, a=math.nan, b=math.inf, c=1.5, ü=2.0)])
        (body,) = server.bodies
        assert body["metrics"] == {"a": None, "b": None, "c": 1.5, "ü": 2.0}
        assert server.requests[0][1]["Content-Type"] == "application/json"

    def test_several_records_in_a_request(self, make_trainer, server):
        """The server holds the first one until all are there."""
        server.gate.clear()

        class Opens:
            @hookimpl
            def after_train(self):
                server.gate.set()

        monitor = RemoteMonitor(server.url, batch_size=2, timeout_s=250)
        make_trainer([monitor, Opens()], max_steps=5, log_every_steps=1).train()
        sent = [[one["step"] for one in body] for body in server.bodies if isinstance(body, list)]
        assert [step for part in sent for step in part] == [1, 2, 3, 4, 5]
        assert max(map(len, sent)) == 2
        assert monitor.delivered == 5

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
    """What a server does that is away comes again, once and in order; what it refuses does not."""

    def steps(self, server):
        return [body["step"] for body in server.bodies if "step" in body]

    @pytest.mark.parametrize("status", [500, 503, 429])
    def test_a_server_that_is_back_later(self, make_trainer, server, messages, impatient, status):
        """It refuses two requests, then takes everything: nothing is lost, one warning."""
        server.answers = [status] * 2
        monitor = RemoteMonitor(f"{server.url}/in?key=secret")
        trainer = make_trainer([monitor], max_steps=4, log_every_steps=1)
        assert trainer.train().status == "completed"
        assert self.steps(server) == [1, 1, 1, 2, 3, 4]
        assert monitor.delivered == 4
        assert server.bodies[-1]["outcome"]["status"] == "completed"
        (told,) = [message for message in messages() if "remote_monitor" in message]
        assert told.startswith("plugin 'remote_monitor'")
        assert f"failed with ConnectionError: {server.url}/in answered {status} " in told
        assert "secret" not in told
        assert "remote_monitor" in trainer.plugins  # not taken out

    def test_a_server_that_refuses_everything(self, make_trainer, server, messages, impatient):
        """The training is not concerned; one warning for each of the two kinds of requests, and one of what was lost."""
        server.status = 401
        trainer = make_trainer([RemoteMonitor(server.url)], max_steps=3, log_every_steps=1)
        assert trainer.train().status == "completed"
        assert self.steps(server)[0] == 1
        told = [message.partition(": ")[2] for message in messages() if "remote_monitor" in message]
        what = f"failed with ConnectionError: {server.url} answered 401 Unauthorized; it is tried again, the training goes on"
        assert sorted(told) == ["3 of 3 records not sent", f"report_end() {what}", f"report_metrics() {what}"]

    def test_a_record_that_the_server_does_not_like(self, server):
        """What a lane does in the end: it goes on with the next one."""
        monitor = RemoteMonitor(server.url)
        server.answers = [400]
        with pytest.raises(ConnectionError, match="answered 400 Bad Request"):
            monitor.report_metrics(RUN, [record(1)])
        monitor.report_metrics(RUN, [record(2)])
        assert monitor.delivered == 1

    def test_nobody_listens(self, make_trainer, messages, impatient):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # so that no one else gets the port
            port = taken.getsockname()[1]
            trainer = make_trainer([RemoteMonitor(f"http://127.0.0.1:{port}")], max_steps=1)
            assert trainer.train().status == "completed"
        for hook in ("report_metrics", "report_end"):
            told = [message for message in messages() if f"{hook}() failed with ConnectionError: " in message]
            assert len(told) == 1
            assert "refused" in told[0]
        assert any(message.endswith("1 of 1 records not sent") for message in messages())

    def test_a_server_that_hangs(self, server):
        server.gate.clear()
        monitor = RemoteMonitor(server.url, timeout_s=0.05)
        with pytest.raises(ConnectionError, match=r"no answer within 0\.05 s"):
            monitor.report_metrics(RUN, [record(1)])
        assert monitor.delivered == 0

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

        monitor = RemoteMonitor(server.url, timeout_s=250)
        make_trainer([monitor, Opens()], max_steps=8, log_every_steps=1).train()
        assert steps == list(range(8))
        assert monitor.delivered == 8
        assert self.steps(server) == list(range(1, 9))

    @pytest.mark.parametrize("status", [301, 302, 307])
    def test_redirects_are_not_followed(self, server, status):
        server.status = status
        with pytest.raises(ConnectionError, match=f"answered {status} "):
            RemoteMonitor(server.url).report_metrics(RUN, [record(1)])
        assert len(server.requests) == 1

    def test_a_server_that_hangs_up(self):
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
            with pytest.raises(ConnectionError, match="http://127"):
                monitor.report_metrics(RUN, [record(1)])
            thread.join()


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
            (
                {"url": "http://a", "headers": {"X": "$NO_SUCH_VARIABLE"}},
                "headers: X names the environment variable NO_SUCH_VARIABLE",
            ),
            ({"url": "http://a", "headers": {"X": "5 $"}}, r"headers: X has a \$ that names no environment variable"),
            ({"url": "http://a", "headers": {"X": "a\r\nY: b"}}, "must be one line"),
            ({"url": "http://a", "headers": {"X": "10 €"}}, "'headers: X' must be one line of Latin-1"),
            ({"url": "http://a/été"}, "must be an address"),
            ({"url": "http://a/b c"}, "must be an address"),
            ({"url": "http://a", "timeout_s": float("inf")}, "timeout_s = inf: must be above 0 and finite"),
        ],
    )
    def test_wrong_ones(self, options, text):
        with pytest.raises(OptionError, match=text) as left:
            RemoteMonitor(**options)
        assert "secret" not in str(left.value)
