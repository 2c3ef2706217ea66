"""Comet with its own SDK: offline archives, uploaded by the SDK to a server on the loopback, and online against that server."""

import csv
import io
import json
import logging
import os
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from comet_server import CometServer
from PIL import Image as PILImage
from satellite_run import Falling, Logs, make_trainer
from satellite_support import (
    ARTIFACT,
    COLUMNS,
    HISTOGRAM,
    IMAGE,
    ODD_HYPERPARAMETERS,
    ODD_SCALARS,
    TEXT,
    Does,
    Server,
    kill_and_resume,
    list_plugins,
    run,
)

from trainhooks import Trainer
from trainhooks_comet import Comet, _archives

KEY = "0123456789abcdefghij01234"


def archives(folder):
    return sorted((folder / "comet").glob("*.zip"))


def metrics(*paths):
    """Return (name, step, value) of all metrics of archives, without the SDK's own."""
    found = [one["payload"]["metric"] for path in paths for one in _archives.read(path) if one["type"] == "metric_msg"]
    return [(one["metricName"], one["step"], one["metricValue"]) for one in found if one["metricName"] != "process duration"]


def others(path):
    return {one["payload"]["key"]: one["payload"]["value"] for one in _archives.read(path) if one["type"] == "log_other"}


def parameters(path):
    found = [one["payload"]["param"] for one in _archives.read(path) if one["type"] == "parameter_msg"]
    return {one["paramName"]: one["paramValue"] for one in found if one["source"] == "manual"}


def files(path):
    """Return the content of each uploaded file by its name; a text's name is in its metadata."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for one in _archives.read(path):
            if one["type"] == "file_upload":
                payload = one["payload"]
                added, metadata = payload["additional_params"], payload.get("metadata") or {}
                name = added.get("figName") or metadata.get("name") or added["fileName"]
                found[name] = archive.read(payload["file_path"])
    return found


def upload(monkeypatch, server, paths):
    """Upload archives with the SDK's own uploader, the one of ``comet upload``."""
    monkeypatch.setenv("COMET_URL_OVERRIDE", server.clientlib)
    monkeypatch.setenv("COMET_API_KEY", KEY)
    from comet_ml.offline import main_upload

    main_upload([str(path) for path in paths], force_upload=False)


def test_offline_run(tmp_path):
    ran = run(tmp_path, Comet(mode="offline", project="proj", tags=["a", "b"]), steps=12)
    (archive,) = archives(ran.work_dir)
    assert archive.stem.startswith(f"trainhooks{ran.run.id}0")
    assert sorted(one for one in metrics(archive) if one[0] == "probe/double") == sorted(
        ("probe/double", step, 2.0 * step) for step in range(1, 13)
    )
    assert {name for name, *_ in metrics(archive)} >= {"probe/double", "train/loss"}
    logged = parameters(archive)
    assert {name: logged[name] for name in ("model/width", "note", "flag", "rate", "nothing", "seed", "optimizer/name")} == {
        "model/width": 1, "note": "hello", "flag": True, "rate": 0.1, "nothing": None, "seed": 1, "optimizer/name": "SGD",
    }  # fmt: skip
    ended = others(archive)
    assert (ended["status"], ended["outcome"], ended["last step"], ended["Name"]) == ("finished", "completed", 12, "run")
    with zipfile.ZipFile(archive) as file:
        meta = json.loads(file.read("experiment.json"))
    assert (meta["project_name"], sorted(meta["tags"]), meta["resume_strategy"]) == ("proj", ["a", "b"], "get_or_create")
    assert ran.warnings == []
    assert not [path for path in (ran.work_dir / "comet").iterdir() if path.is_dir()]


def test_media_and_artifacts(tmp_path):
    ran = run(tmp_path, Comet(mode="offline"), steps=6)
    found = files(archives(ran.work_dir)[0])
    image = PILImage.open(io.BytesIO(found["media/image"]))
    assert (image.mode, image.size) == ("RGB", (10, 8))
    assert image.getpixel((3, 2)) == tuple(int(value) for value in IMAGE[:, 2, 3])
    assert found["media/text"].decode() == TEXT
    table = next(content for name, content in found.items() if name.startswith("media/table"))
    assert list(csv.reader(io.StringIO(table.decode()))) == [COLUMNS, ["a", "1.5"], ["b | c", "2"]]
    exact = next(json.loads(content) for name, content in found.items() if name.startswith("media/histogram-"))
    assert sum(exact["counts"]) == len(HISTOGRAM)
    assert (exact["edges"][0], exact["edges"][-1]) == (0.0, 4.0)
    theirs = json.loads(found["media/histogram"])
    assert sum(count for _, count in theirs["index_values"]) == len(HISTOGRAM)
    assert found["notes"].decode() == found["bundle/one.txt"].decode() == found["bundle/inner/two.txt"].decode() == ARTIFACT


def test_a_failed_run(tmp_path):
    ran = run(tmp_path, Comet(mode="offline"), steps=12, fail_after=3)
    (archive,) = archives(ran.work_dir)
    assert (others(archive)["status"], others(archive)["outcome"]) == ("failed", "failed")
    with zipfile.ZipFile(archive) as file:
        assert json.loads(file.read("experiment.json"))["customer_error_reported"] is True
    assert {step for _, step, _ in metrics(archive)} == {1, 2, 3}


@pytest.mark.parametrize("how", ["signal", "keyboard"])
def test_an_interrupted_run(tmp_path, how):
    arguments = {"signal_after": 3} if how == "signal" else {"fail_after": 3, "error": KeyboardInterrupt()}
    ran = run(tmp_path, Comet(mode="offline"), steps=12, **arguments)
    assert ran.ended.status == "interrupted"
    assert others(archives(ran.work_dir)[0])["status"] == "killed"


def test_killed_and_resumed(tmp_path, monkeypatch):
    first, second, third = kill_and_resume(
        tmp_path, "Comet(mode='offline')", "from trainhooks_comet import Comet", kill_after=(10, 12)
    )
    assert first.id == second.id == third.id
    assert (second.resumed_step, third.resumed_step) == (8, 8)
    found = archives(tmp_path / "run")
    counts = Counter((name, step) for name, step, _ in metrics(*found))
    assert counts == {(name, step): 1 for name in {name for name, _ in counts} for step in range(1, 16)}
    assert {step: value for name, step, value in metrics(*found) if name == "probe/double"} == {
        step: 2.0 * step for step in range(1, 16)
    }
    assert [others(path)["status"] for path in found] == ["killed", "killed", "finished"]
    with CometServer() as server:
        upload(monkeypatch, server, found)
        ((key, experiment),) = server.experiments.items()
    assert key.startswith(f"trainhooks{first.id}0")
    sent = Counter((name, step) for name, step, _ in experiment["metrics"])
    assert sent == counts
    assert experiment["others"]["status"] == "finished"
    assert experiment["parameters"]["note"] == "hello"


def test_a_stopped_run_that_is_resumed_drops_what_came_after_its_checkpoint(tmp_path):
    run(tmp_path, Comet(mode="offline"), steps=12, fail_after=10)  # its checkpoint is of step 8
    ran = run(tmp_path, Comet(mode="offline"), steps=12, resume="auto")
    assert ran.run.resumed_step == 8
    counts = Counter((name, step) for name, step, _ in metrics(*archives(ran.work_dir)))
    assert {step for _, step in counts} == set(range(1, 13))
    assert set(counts.values()) == {1}


def test_a_killed_run_that_is_not_resumed_can_be_packed(tmp_path):
    directory = tmp_path / "comet"
    killed = (
        "import os, sys, time\nfrom pathlib import Path\nfrom trainhooks_comet import _sdk\n"
        "comet_ml = _sdk.load(None, 5)\n"
        f"experiment = _sdk.open_offline(comet_ml, 'trainhooks' + 22 * '0', None, None, Path({str(directory)!r}) / 'trainhooks0-000')\n"
        "experiment.log_other('status', 'running')\nexperiment.log_metric('m', 1.5, step=3)\n"
        "_sdk.wait_until_written(experiment, 60)\n"
        "while 'metric_msg' not in open(experiment.tmpdir + '/messages.json').read(): time.sleep(0.01)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", killed], timeout=120, check=False).returncode == -9
    with (directory / "trainhooks0-000" / "messages.json").open("a") as file:
        file.write('{"type": "metric_msg", "payl')  # cut by the kill
    done = subprocess.run([sys.executable, "-m", "trainhooks_comet", str(tmp_path)], capture_output=True, text=True, check=True)
    (archive,) = archives(tmp_path)
    assert done.stdout.strip() == str(archive)
    assert metrics(archive) == [("m", 3, 1.5)]
    assert others(archive)["status"] == "killed"
    assert not (directory / "trainhooks0-000").exists()


def test_odd_values_and_changed_hyperparameters(tmp_path, monkeypatch):
    run(tmp_path, Comet(mode="offline"), steps=9, scalars=ODD_SCALARS, hyperparameters=ODD_HYPERPARAMETERS, fail_after=8)
    changed = {**ODD_HYPERPARAMETERS, "with spaces": 2}
    ran = run(tmp_path, Comet(mode="offline"), steps=12, scalars=ODD_SCALARS, hyperparameters=changed, resume="auto")
    first, second = archives(ran.work_dir)
    values = {name: value for name, step, value in metrics(first) if step == 3}
    assert {name: values[name] for name in ODD_SCALARS if not name.startswith("odd/")} == {
        name: value for name, value in ODD_SCALARS.items() if not name.startswith("odd/")
    }
    assert (values["odd/nan"], values["odd/inf"], values["odd/minus inf"]) == ("NaN", "Infinity", "-Infinity")
    logged = parameters(first)
    assert logged["long"] == 1000 * "x"
    assert logged["ünïcode key"] == "ü"
    assert json.loads(files(first)["hyperparameters.json"])["long"] == 10_000 * "x"
    assert others(second)["changed/with spaces"] == "1 -> 2 at step 8"
    assert parameters(second)["with spaces"] == 2
    assert [name for name in others(second) if name.startswith("changed/")] == ["changed/max_steps", "changed/with spaces"]
    assert ran.warnings == []
    with CometServer() as server:
        upload(monkeypatch, server, [first, second])
        (experiment,) = server.experiments.values()
    assert Counter(name for name, *_ in experiment["metrics"])["ünïcode/µ"] == 12


def test_online_run(tmp_path, monkeypatch):
    with CometServer() as server:
        monkeypatch.setenv("COMET_API_KEY", KEY)
        monkeypatch.setenv("COMET_URL_OVERRIDE", server.clientlib)
        ran = run(tmp_path, Comet(), steps=12)
        ((key, experiment),) = server.experiments.items()
    assert key.startswith(f"trainhooks{ran.run.id}0")
    assert Counter((name, step) for name, step, _ in experiment["metrics"] if name == "probe/double") == {
        ("probe/double", step): 1 for step in range(1, 13)
    }
    assert experiment["parameters"]["note"] == "hello"
    assert (experiment["others"]["status"], experiment["alive"][-1]) == ("finished", False)
    assert {"media/image", "media/histogram", "notes", "bundle/inner/two.txt"} <= {name for name, *_ in experiment["files"]}
    assert ran.warnings == []
    assert archives(ran.work_dir) == []


def test_online_failure_is_reported(tmp_path, monkeypatch):
    with CometServer() as server:
        monkeypatch.setenv("COMET_API_KEY", KEY)
        monkeypatch.setenv("COMET_URL_OVERRIDE", server.clientlib)
        run(tmp_path, Comet(mode="online"), steps=12, fail_after=3, media=False)
        (experiment,) = server.experiments.values()
    assert experiment["others"]["status"] == "failed"
    assert any(crashed for _, crashed in experiment["errors"])


def test_online_killed_and_resumed(tmp_path):
    with CometServer() as server:
        env = {"COMET_API_KEY": KEY, "COMET_URL_OVERRIDE": server.clientlib, "COMET_MESSAGE_BATCH_METRIC_INTERVAL": "0.2"}
        first, second = kill_and_resume(
            tmp_path,
            "Comet(mode='online', timeout_s=60)",
            "from trainhooks_comet import Comet",
            env=env,
            arrived=lambda: server.names_at(10) == {"probe/double", "train/loss"},
        )
        ((key, experiment),) = server.experiments.items()
    assert first.id == second.id
    assert key.startswith(f"trainhooks{first.id}0")
    counts = Counter((name, step) for name, step, _ in experiment["metrics"])
    assert counts == {(name, step): 1 for name in {name for name, _ in counts} for step in range(1, 16)}
    assert experiment["others"]["status"] == "finished"


@pytest.mark.parametrize("server_is", ["refuse", "hang", "error"])
def test_no_server_at_the_start_means_offline(tmp_path, monkeypatch, server_is):
    with Server(server_is) as server:
        monkeypatch.setenv("COMET_API_KEY", KEY)
        monkeypatch.setenv("COMET_URL_OVERRIDE", server.url + "/clientlib/")
        ran = run(tmp_path, Comet(timeout_s=1), steps=12, media=False)
    assert ran.outcome.status == "completed"
    (archive,) = archives(ran.work_dir)
    assert {step for _, step, _ in metrics(archive)} == set(range(1, 13))
    (warning,) = ran.warnings
    assert "the run is reported offline" in warning


@pytest.mark.parametrize("server_is", ["refuse", "hang"])
def test_mode_online_without_a_server(tmp_path, monkeypatch, server_is):
    with Server(server_is) as server:
        monkeypatch.setenv("COMET_API_KEY", KEY)
        monkeypatch.setenv("COMET_URL_OVERRIDE", server.url + "/clientlib/")
        ran = run(tmp_path, Comet(mode="online", timeout_s=1), steps=12, media=False, report_timeout_s=3)
    assert ran.outcome.status == "completed"
    assert sum("report_start() failed with ConnectionError" in warning for warning in ran.warnings) == 1


def test_a_server_that_comes_late(tmp_path, monkeypatch):
    with CometServer("refuse") as server:
        monkeypatch.setenv("COMET_API_KEY", KEY)
        monkeypatch.setenv("COMET_URL_OVERRIDE", server.clientlib)
        comet = Comet(mode="online", timeout_s=5)
        tried, start = threading.Event(), comet.report_start

        def starts(run):
            if tried.is_set():
                server.mode = "answer"
            tried.set()
            start(run)

        starts.trainhooks_impl = getattr(Comet.report_start, "trainhooks_impl", None)
        for name, value in vars(Comet.report_start).items():
            setattr(starts, name, value)
        comet.report_start = starts
        ran = run(tmp_path, comet, steps=12, media=False)
        (experiment,) = server.experiments.values()
    assert tried.is_set()
    assert len(ran.warnings) == 1
    assert {step for name, step, _ in experiment["metrics"] if name == "probe/double"} == set(range(1, 13))


def test_a_server_that_goes_away_leaves_an_archive(tmp_path, monkeypatch):
    with CometServer() as server:
        monkeypatch.setenv("COMET_API_KEY", KEY)
        monkeypatch.setenv("COMET_URL_OVERRIDE", server.clientlib)
        monkeypatch.setenv("COMET_FALLBACK_STREAMER_CONNECTION_CHECK_INTERVAL", "1")

        comet = Comet(timeout_s=20)

        def goes():  # when the server has confirmed all six records that there are
            while (
                server.names_at(6) != {"probe/double", "train/loss"} or comet._confirmed < comet._experiment.streamer._counter
            ):
                comet._settle()
            server.mode = "refuse"

        ran = run(tmp_path, comet, steps=12, media=False, plugins=[Does(6, goes, settled=True)])
        (experiment,) = server.experiments.values()
        assert ran.outcome.status == "completed"
        left = archives(ran.work_dir)
        assert left, "what was not sent lies in an archive"
        assert [warning for warning in ran.warnings if "the server went away" in warning] == ran.warnings
        server.mode = "answer"
        upload(monkeypatch, server, left)
    assert Counter(step for name, step, _ in experiment["metrics"] if name == "probe/double") == Counter(range(1, 13))


def test_what_a_server_does_not_take_in_time_is_in_an_archive(tmp_path, monkeypatch):
    """It answers, so the connection stands; but files, of a size, take longer than is waited for."""
    with CometServer() as server:
        monkeypatch.setenv("COMET_API_KEY", KEY)
        monkeypatch.setenv("COMET_URL_OVERRIDE", server.clientlib)
        server.takes_files.clear()
        try:
            ran = run(tmp_path, Comet(timeout_s=2), steps=6)
            left = archives(ran.work_dir)
            assert ran.outcome.status == "completed"
            assert [warning for warning in ran.warnings if "upload the rest later" in warning] == ran.warnings
            assert {"notes", "bundle/one.txt"} <= files(left[0]).keys()
        finally:
            server.takes_files.set()


def test_the_limits_of_a_run_are_its_own(tmp_path):
    script = (
        "import os\nos.environ['COMET_TIMEOUT_API'] = '7'\nfrom trainhooks_comet import _sdk\n"
        "for seconds in (1, 30):\n    _sdk.load(None, seconds)\n"
        "    assert os.environ['COMET_TIMEOUT_HTTP'] == os.environ['COMET_TIMEOUT_CLEANING'] == str(seconds)\n"
        "    assert os.environ['COMET_TIMEOUT_API'] == '7'  # the user's\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO, "trainhooks"):
        outcome = make_trainer([Comet(), Logs(tmp_path, media=False)], None, 3).train()
    assert outcome.status == "completed"
    assert os.listdir(tmp_path) == []
    assert "neither a work_dir nor 'folder'" in caplog.text
    assert not [one for one in caplog.records if one.levelno > logging.INFO]


def test_folder_option(tmp_path):
    ran = run(tmp_path, Comet(mode="offline", folder=tmp_path / "there"), steps=3, media=False)
    assert len(list((tmp_path / "there").glob("*.zip"))) == 1
    assert not (ran.work_dir / "comet").exists()


def test_the_process_is_left_alone():
    script = (
        "import sys\nhook, finders = sys.excepthook, list(sys.meta_path)\nfrom trainhooks_comet import _sdk\n"
        "_sdk.load(None, 5)\nassert sys.excepthook is hook\nassert sys.meta_path == finders\n"
        "import sentry_sdk\nassert sentry_sdk.get_client().is_active() is False\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_loader_workers_and_a_second_run(tmp_path):
    reporter, dataset = Comet(mode="offline"), [torch.ones(1, dtype=torch.float64)] * 8
    for name in ("one", "two"):
        model = Falling()
        Trainer(
            model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), plugins=[reporter], autoload=False, log_every_steps=1,
            loaders={"train": torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=2)}, max_epochs=3,
            work_dir=tmp_path / name,
        ).train()  # fmt: skip
        steps = Counter(step for _, step, _ in metrics(*archives(tmp_path / name)))
        assert steps == Counter(range(1, 13))
        assert others(archives(tmp_path / name)[0])["status"] == "finished"


def test_the_script_of_the_readme(tmp_path):
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    script = text.split("```python\n")[1].split("```")[0]
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=200, capture_output=True)
    assert len(metrics(*archives(tmp_path / "runs/script"))) > 0


def test_a_slow_server_gets_everything(tmp_path, monkeypatch):
    with CometServer() as server:
        monkeypatch.setenv("COMET_API_KEY", KEY)
        monkeypatch.setenv("COMET_URL_OVERRIDE", server.clientlib)
        server.mode = "slow"
        ran = run(tmp_path, Comet(timeout_s=60), steps=12, media=False)
        (experiment,) = server.experiments.values()
    counts = Counter((name, step) for name, step, _ in experiment["metrics"])
    assert counts == {(name, step): 1 for name in ("probe/double", "train/loss") for step in range(1, 13)}
    assert ran.warnings == []


def test_listing_plugins_does_not_import_the_sdk():
    listing, imported = list_plugins("comet_ml", "trainhooks_comet")
    assert "comet" in listing
    assert imported == []
