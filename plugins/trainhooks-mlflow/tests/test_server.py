"""A real run, reported to a real tracking server, which is also slow, away, hangs, or loses its answer; needs ``mlflow`` itself."""

from __future__ import annotations

import http.client
import json
import math
import os
import threading
import time
import urllib.parse
from collections import Counter
from contextlib import contextmanager
from pathlib import PurePosixPath

import pytest
import satellite_support as support
from mlflow_reading import Read, complaints, every_step

from trainhooks import hookimpl
from trainhooks_mlflow import MLflow


@contextmanager
def proxy(server_url, mode="answer", reply=None):
    """A server that passes everything on to the real one, and can go away."""
    host = urllib.parse.urlsplit(server_url).netloc

    def pass_on(method, path, body):
        connection = http.client.HTTPConnection(host, timeout=120)
        kind = "application/octet-stream" if method == "PUT" else "application/json"
        connection.request(method, path, body or None, {"Content-Type": kind})
        response = connection.getresponse()
        found = response.status, {"Content-Type": response.getheader("Content-Type", "")}, response.read()
        connection.close()
        return found

    with support.Server(mode, reply=lambda *request: reply(pass_on, *request) if reply else pass_on(*request)) as server:
        yield server


#: Seconds for a request where it is to be answered, however slow the machine is.
PATIENT_S = 100.0


@pytest.fixture
def experiment(request):
    """An experiment for each test: the server is one for all."""
    return request.node.name[:100]


class Before:
    """Calls ``action`` at the end of a run, while reports are still delivered; ``at`` a step instead if that is given."""

    def __init__(self, action, at=None):
        self.action, self.at = action, at

    @hookimpl
    def after_step(self, trainer):
        if trainer.step == self.at:
            self.action()

    @hookimpl
    def after_train(self):
        if self.at is None:
            self.action()


def test_everything_that_is_logged_is_read_back(tmp_path, server_url, experiment, monkeypatch):
    plugin = MLflow(tracking_uri=server_url, experiment=experiment, tags={"team": "vision"}, timeout_s=PATIENT_S)
    given = {**support.HYPERPARAMETERS, **support.ODD_HYPERPARAMETERS}
    ran = support.run(tmp_path, plugin, scalars=support.ODD_SCALARS, hyperparameters=given)
    assert (ran.outcome.status, complaints(ran)) == ("completed", [])
    read = Read(server_url)
    run = read.only_run(experiment)
    assert (run.info.run_name, run.info.status, run.data.tags["team"]) == ("run", "FINISHED", "vision")
    assert read.steps(run, "probe/double") == every_step(20)
    assert read.steps(run, "ünïcode/µ") == [(step, 2.0) for step in range(1, 21)]
    assert [step for step, value in read.steps(run, "odd/nan") if math.isnan(value)] == list(range(1, 21))
    assert read.steps(run, "odd/minus inf")[0][1] < -1.7e308
    expected = {name: str(value) for name, value in support.HYPERPARAMETERS.items()}
    assert expected.items() <= run.data.params.items()
    assert len(run.data.params["long"]) == 6000
    assert {name.split("/")[0] for name in read.files(run)} == {"images", "text", "table", "histogram", "file", "dataset"}
    assert read.file(run, "dataset/bundle/inner/two.txt", tmp_path).decode() == support.ARTIFACT
    assert read.file(run, "text/media/text/step_00000005.txt", tmp_path).decode() == support.TEXT
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server_url)  # load_table looks for runs there, whatever its client has
    table = read.client.load_table(run.info.experiment_id, "table/media/table/step_00000005.json")
    assert table.values.tolist() == support.ROWS
    assert [*table.columns] == support.COLUMNS


@pytest.mark.parametrize(("how", "status"), [({"fail_after": 5}, "FAILED"), ({"signal_after": 5}, "KILLED")])
def test_a_run_that_does_not_reach_its_end_has_its_status(tmp_path, server_url, experiment, how, status):
    with proxy(server_url) as server:
        plugin = MLflow(tracking_uri=server.url, experiment=experiment, timeout_s=PATIENT_S)
        support.run(tmp_path, plugin, media=False, **how)
        updates = [json.loads(body)["status"] for _, path, _, body in server.requests if path.endswith("runs/update")]
    assert updates == [status]
    assert Read(server_url).only_run(experiment).info.status == status


def test_killed_and_resumed_each_step_is_there_once(tmp_path, server_url, experiment):
    expression = f"MLflow(tracking_uri={server_url!r}, experiment={experiment!r}, timeout_s={PATIENT_S})"
    segments = support.kill_and_resume(
        tmp_path, expression, "from trainhooks_mlflow import MLflow", kill_after=(10, 11), steps=15
    )
    assert [one.resumed_step for one in segments] == [0, 8, 8]
    assert complaints(segments[-1]) == []
    read = Read(server_url)
    run = read.only_run(experiment)
    assert read.steps(run, "probe/double") == every_step(15)
    assert read.steps(run, "train/loss") == [(step, 1.0 - step) for step in range(1, 16)]
    assert (run.info.status, run.data.tags["trainhooks.resumed"]) == ("FINISHED", "8")
    names = [name for name in read.files(run) if name.startswith(("images", "text", "table", "histogram"))]
    assert len(names) == 5, names


def test_nothing_is_lost_with_a_server_that_takes_half_a_second(tmp_path, server_url, experiment):
    with proxy(server_url, "slow") as server:
        plugin = MLflow(tracking_uri=server.url, experiment=experiment, timeout_s=PATIENT_S)
        ran = support.run(tmp_path, plugin, steps=200)
        batches = [body for _, path, _, body in server.requests if path.endswith("runs/log-batch") and b"probe/double" in body]
    assert complaints(ran) == []
    assert len(batches) < 40  # not one request for each of the 200 steps
    read = Read(server_url)
    run = read.only_run(experiment)
    assert read.steps(run, "probe/double") == every_step(200)
    assert run.info.status == "FINISHED"
    assert len([name for name in read.files(run) if name.startswith("images/")]) == 2


@pytest.mark.parametrize("mode", ["refuse", "hang", "error"])
def test_a_server_that_is_away_from_the_start_costs_one_warning(tmp_path, mode, experiment):
    with support.Server(mode) as server:
        plugin = MLflow(tracking_uri=server.url, experiment=experiment, timeout_s=0.5)
        ran = support.run(tmp_path, plugin, report_timeout_s=3)
    assert ran.outcome.status == "completed"
    assert (ran.work_dir / "checkpoints").exists()
    about_it = [text for text in ran.warnings if "ConnectionError" in text]
    assert len(about_it) == 1, ran.warnings
    assert server.url in about_it[0]
    assert len(complaints(ran)) <= 2, ran.warnings  # the other says how much was not sent


def test_a_server_that_comes_back_gets_everything_once(tmp_path, server_url, experiment):
    with proxy(server_url) as server:
        was_away = threading.Event()

        def goes():
            server.mode = "refuse"
            was_away.set()

        def comes():
            assert was_away.is_set()
            server.mode = "answer"

        plugin = MLflow(tracking_uri=server.url, experiment=experiment)
        ran = support.run(tmp_path, plugin, steps=60, plugins=[Before(goes, at=20), Before(comes)])
    assert ran.outcome.status == "completed"
    assert all("ConnectionError" in text for text in complaints(ran))
    read = Read(server_url)
    run = read.only_run(experiment)
    assert read.steps(run, "probe/double") == every_step(60)
    assert run.info.status == "FINISHED"


def test_an_answer_that_is_lost_doubles_nothing(tmp_path, server_url, experiment):
    lost, all_lost = {"runs/create", "runs/log-batch", "runs/update", "experiments/create", "metrics"}, threading.Event()
    lost |= {".png", ".webp", ".txt"}

    def loses_each_first(pass_on, method, path, body):
        found = pass_on(method, path, body)
        name = "metrics" if b"probe/double" in body else path.removeprefix("/api/2.0/mlflow/")
        name = PurePosixPath(path).suffix if method == "PUT" else name
        if name in lost:
            lost.discard(name)
            if lost == {"runs/update"}:  # which comes at the end
                all_lost.set()
            return 503, {}, b"the answer is lost"
        return found

    with proxy(server_url, reply=loses_each_first) as server:
        waits = Before(lambda: all_lost.wait(120))  # at the end of a run there are few attempts
        plugin = MLflow(tracking_uri=server.url, experiment=experiment)
        ran = support.run(tmp_path, plugin, steps=30, plugins=[waits])
    assert ran.outcome.status == "completed"
    assert all_lost.is_set()
    assert lost == set()
    read = Read(server_url)
    run = read.only_run(experiment)
    assert read.steps(run, "probe/double") == every_step(30)
    assert len([name for name in read.files(run) if name.startswith("images/")]) == 2


def test_of_what_fails_the_part_that_was_taken_is_not_sent_again(tmp_path, server_url, experiment):
    """Each record is two requests, and the second one of the first record fails once."""
    taken, failed = Counter(), []

    def fails(pass_on, method, path, body):
        if not path.endswith("runs/log-batch") or b"many/" not in body:
            return pass_on(method, path, body)
        if taken and not failed:
            failed.append(path)
            return 503, {}, b"not now"
        taken.update((one["key"], one["step"]) for one in json.loads(body)["metrics"])
        return pass_on(method, path, body)

    with proxy(server_url, reply=fails) as server:
        plugin = MLflow(tracking_uri=server.url, experiment=experiment, timeout_s=PATIENT_S)
        support.run(tmp_path, plugin, steps=2, media=False, scalars={f"many/{number}": 1.0 for number in range(1200)})
    assert failed
    assert len(taken) == 2 * 1202
    assert set(taken.values()) == {1}


@pytest.mark.parametrize("last", [".png", ".webp", ".txt"])
def test_a_server_that_goes_away_during_an_upload_is_noticed_at_once(tmp_path, server_url, experiment, last):
    gone = threading.Event()

    def goes(pass_on, method, path, body):
        found = pass_on(method, path, body)
        if path.endswith(last):
            server.mode = "refuse"
            gone.set()
        return found

    with proxy(server_url, reply=goes) as server:
        plugin = MLflow(tracking_uri=server.url, experiment=experiment)
        ran = support.run(tmp_path, plugin, plugins=[Before(lambda: gone.wait(120))])
    assert ran.outcome.status == "completed"
    assert gone.is_set()
    assert any("ConnectionError" in text for text in ran.warnings)
    assert not any("did not finish in time" in text for text in ran.warnings)


def test_files_go_where_the_server_says(tmp_path, server_url, experiment):
    read = Read(server_url)
    (tmp_path / "elsewhere").mkdir()
    read.client.create_experiment(experiment, artifact_location=(tmp_path / "elsewhere").as_uri())
    ran = support.run(tmp_path, MLflow(tracking_uri=server_url, experiment=experiment, timeout_s=PATIENT_S))
    assert complaints(ran) == []
    (found,) = (tmp_path / "elsewhere").glob("*/artifacts")
    assert (found / "dataset/bundle/inner/two.txt").read_text() == support.ARTIFACT
    assert (found / "text/media/text/step_00000005.txt").read_text() == support.TEXT
    assert len(list((found / "images").iterdir())) == 2


def test_files_that_the_server_refuses_do_not_cost_metrics(tmp_path, server_url, experiment):
    def no_files(pass_on, method, path, body):
        return (403, {}, b"no files here") if "mlflow-artifacts" in path else pass_on(method, path, body)

    with proxy(server_url, reply=no_files) as server:
        ran = support.run(tmp_path, MLflow(tracking_uri=server.url, experiment=experiment), steps=20)
    assert ran.outcome.status == "completed"
    assert any("403" in text for text in ran.warnings)
    read = Read(server_url)
    run = read.only_run(experiment)
    assert read.steps(run, "probe/double") == every_step(20)
    assert run.info.status == "FINISHED"


def test_mlflows_variables_are_untouched_and_a_password_is_not_shown(tmp_path, server_url, experiment, monkeypatch):
    seen = {}

    def looks():
        seen.update({name: value for name, value in os.environ.items() if name.startswith(("MLFLOW", "_MLFLOW"))})

    with proxy(server_url) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url.replace("//", "//me:secret@"))
        before = {name: value for name, value in os.environ.items() if name.startswith(("MLFLOW", "_MLFLOW"))}
        plugin = MLflow(experiment=experiment, timeout_s=2)

        def goes():
            while plugin.run_id is None:  # until the time limit of the test
                time.sleep(0.1)
            server.mode = "refuse"

        ran = support.run(tmp_path, plugin, steps=20, plugins=[Before(looks), Before(goes, at=10)], report_timeout_s=3)
    assert seen == before
    assert any("ConnectionError" in text for text in ran.warnings)
    assert not any("secret" in text for text in ran.warnings)
    kept = json.loads((ran.work_dir / "mlflow.json").read_text())
    assert kept["tracking_uri"] == server.url
    assert kept["run_id"] == Read(server_url).only_run(experiment).info.run_id


def test_two_runs_that_make_the_experiment_at_once_share_it(tmp_path, server_url, experiment):
    from trainhooks_mlflow.tracking import open_tracking

    found = []
    start = threading.Barrier(4)

    def makes():
        tracking = open_tracking(server_url, PATIENT_S)
        start.wait()
        found.append(tracking.experiment(experiment))

    threads = [threading.Thread(target=makes) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
