"""The reporter that ``docs/reporters.md`` shows, against a server on loopback that is slow, refuses, breaks off, or is killed."""

import importlib.util
import json
import re
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from trainhooks import Trainer, hookimpl

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reporters.md"
LONG_S = 120.0


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return the module that the page shows."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    source = re.search(
        r"^<!-- file: http_reporter\.py -->\n```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    path = tmp_path / "http_reporter.py"
    path.write_text(source[1], encoding="utf-8")
    spec = importlib.util.spec_from_file_location("http_reporter", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Service:
    """Keeps rows by run and step. ``answer(path, body)`` says what becomes of a request: a status, or ``None`` to break off."""

    def __init__(self):
        self.answer = lambda path, body: 204
        self.calls, self.runs, self.steps, self.outcomes = [], {}, {}, {}
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])), parse_constant=pytest.fail)
                service.calls.append((self.path, body))
                status = service.answer(self.path, body)
                if status is None or status < 300:
                    service.take(self.path, body)
                if status is None:  # it was taken, but nobody hears of that
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False  # so that closing it waits for their ends
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def take(self, path, body):
        _, _, run, *what = path.split("/")
        if not what:
            self.runs.setdefault(run, []).append(body)
        elif what == ["steps"]:
            rows = self.steps.setdefault(run, {})
            for step, values in body["rows"].items():
                rows.setdefault(int(step), []).append(values)
        else:
            self.outcomes[run] = body

    def close(self):
        if self.url:
            self.url = ""
            self.server.shutdown()
            self.server.server_close()


@pytest.fixture
def service():
    service = Service()
    yield service
    service.close()


def train(reporter, **arguments):
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    trainer = Trainer(
        model,
        loss=torch.nn.functional.l1_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        loaders={"train": [(torch.zeros(4, 1), torch.full((4, 1), 100.0))] * 100},
        plugins=[reporter, *arguments.pop("plugins", [])],
        autoload=False,
        **{"max_steps": 10, "log_every_steps": 1, "name": "mine", **arguments},
    )
    trainer.train()
    return trainer


def test_everything_arrives(module, service):
    """The bias grows by 0.5 a step from 0, so the loss of step n is 100 - 0.5 * (n - 1)."""
    trainer = train(module.HttpReporter(service.url))
    (run,) = service.runs
    assert run == trainer.run_id
    (start,) = service.runs[run]
    assert start["name"] == "mine"
    assert (start["config"]["optimizer/name"], start["config"]["optimizer/lr"]) == ("SGD", 0.5)
    assert start["resumed_step"] == 0
    assert service.steps[run] == {step: [{"train/loss": 100 - 0.5 * (step - 1)}] for step in range(1, 11)}
    assert service.outcomes[run] == {"status": "completed", "reason": "max_steps=10 reached", "step": 10}


def test_a_failed_run(module, service):
    class Fails:
        @hookimpl
        def after_step(self, trainer):
            trainer.log("odd", float("nan"))
            if trainer.step == 2:
                raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        train(module.HttpReporter(service.url), plugins=[Fails()])
    (outcome,) = service.outcomes.values()
    assert (outcome["status"], outcome["reason"]) == ("failed", "ValueError: no")
    (rows,) = service.steps.values()
    assert rows[1][0]["odd"] is None


def test_an_answer_that_is_lost_is_asked_for_again(module, service, caplog, impatient):
    """The service has taken the records when the connection breaks off: they come a second time, and stay the same."""
    failures = iter([None, 503])
    service.answer = lambda path, body: next(failures, 204) if path.endswith("/steps") else 204
    train(module.HttpReporter(service.url))
    (rows,) = service.steps.values()
    assert sorted(rows) == list(range(1, 11))
    assert all(values == [values[0]] * len(values) for values in rows.values())
    assert max(len(values) for values in rows.values()) == 2
    warnings = [record.getMessage() for record in caplog.records if "report_metrics() failed" in record.getMessage()]
    assert len(warnings) == 2  # one of each kind
    assert not [record for record in caplog.records if "not sent" in record.getMessage()]


def test_what_is_refused_is_given_up_and_counted(module, service, caplog):
    service.answer = lambda path, body: 400 if path.endswith("/steps") else 204
    train(module.HttpReporter(service.url))
    (outcome,) = service.outcomes.values()
    assert outcome["status"] == "completed"
    messages = [record.getMessage() for record in caplog.records]
    assert len([text for text in messages if "400 Bad Request" in text]) == 1
    assert any(re.search(r"\b10 of 10 records not sent", text) for text in messages)


def test_a_service_that_is_not_there(module, service, caplog, impatient):
    url = service.url
    service.close()
    trainer = train(module.HttpReporter(url, timeout_s=1.0), report_timeout_s=2.0)
    assert trainer.outcome.status == "completed"
    assert len([record for record in caplog.records if "Connection refused" in record.getMessage()]) == 1


def test_a_service_that_hangs(module, service, caplog):
    """The call ends by its own time limit, and the run by that of the reporters; the training has long been over."""
    released = threading.Event()

    def hang(path, body):
        released.wait(LONG_S)
        return 204

    service.answer = hang
    try:
        trainer = train(module.HttpReporter(service.url, timeout_s=0.5), report_timeout_s=2.0)
        assert trainer.outcome.status == "completed"
    finally:
        released.set()
    for thread in threading.enumerate():
        if thread.name == "trainhooks-reporter-http_reporter":
            thread.join(LONG_S)
    assert [record for record in caplog.records if "report_start() failed" in record.getMessage()]


KILLED = """
import signal, sys
sys.path.insert(0, {folder!r})
import torch
from http_reporter import HttpReporter
from trainhooks import Trainer, hookimpl
from trainhooks_builtins import Checkpoint

class Waits:
    "Has the run wait at a step until it is killed."
    @hookimpl
    def before_step(self, trainer):
        if trainer.step == 10 and {wait}:
            trainer.flush()
            signal.pause()

torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
trainer = Trainer(
    model, loss=torch.nn.functional.mse_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    loaders={{"train": [(torch.ones(4, 1), torch.ones(4, 1))] * 100}}, max_steps=15, log_every_steps=1,
    work_dir={work_dir!r}, autoload=False,
    plugins=[HttpReporter({url!r}), Checkpoint(every_steps=8, at_end=False), Waits()],
)
trainer.train(resume="auto")
"""


def test_killed_and_resumed(module, service, tmp_path, fork):
    """Killed when step 10 has arrived, with a checkpoint of step 8: 9 and 10 come again, the same, in the same run."""
    arrived = threading.Event()

    def answer(path, body):
        if "10" in body.get("rows", {}):
            arrived.set()
        return 204

    service.answer = answer
    given = {"folder": str(tmp_path), "work_dir": str(tmp_path / "run"), "url": service.url}
    process = fork(lambda: exec(KILLED.format(**given, wait=True), {"__name__": "__main__"}))
    assert arrived.wait(LONG_S)
    process.kill()
    process.join(LONG_S)
    assert process.exitcode == -signal.SIGKILL
    process = fork(lambda: exec(KILLED.format(**given, wait=False), {"__name__": "__main__"}))
    said = process.said.read()
    process.join(LONG_S)
    assert process.exitcode == 0, said
    (run,) = service.runs
    assert [start["resumed_step"] for start in service.runs[run]] == [0, 8]
    rows = service.steps[run]
    assert sorted(rows) == list(range(1, 16))
    assert {step: len(values) for step, values in rows.items() if len(values) > 1} == {9: 2, 10: 2}
    assert rows[9][0] == rows[9][1]
    assert rows[10][0] == rows[10][1]
    assert service.outcomes[run]["status"] == "completed"
