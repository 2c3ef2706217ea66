"""A real run, reported to a local database; needs the dependencies of the satellite only."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import satellite_support as support
import torch
from mlflow_reading import Read, complaints, every_step
from satellite_run import make_trainer

from trainhooks import OptionError, Trainer, hookimpl
from trainhooks_mlflow import MLflow


def database(folder):
    return f"sqlite:///{folder}/mlflow.db"


def test_everything_that_is_logged_is_read_back(tmp_path):
    plugin = MLflow(run_name="first", tags={"team": "vision"}, checkpoints=True)
    ran = support.run(tmp_path, plugin)
    assert (ran.outcome.status, complaints(ran)) == ("completed", [])

    read = Read(database(tmp_path))  # beside the run folder
    run = read.only_run()
    assert run.info.run_id == plugin.run_id
    assert (run.info.run_name, run.info.status, run.data.tags["team"]) == ("first", "FINISHED", "vision")
    assert run.data.tags["trainhooks.run_id"] == ran.run.id
    assert run.data.tags["trainhooks.status"] == "completed"
    assert run.info.end_time >= run.info.start_time

    assert read.steps(run, "probe/double") == every_step(20)
    # w starts at 0 and falls by 1 a step, the batch is 1: the losses are 0, -1, -2, ...
    assert read.steps(run, "train/loss") == [(step, 1.0 - step) for step in range(1, 21)]
    expected = {name: str(value) for name, value in support.HYPERPARAMETERS.items()}
    assert expected.items() <= run.data.params.items()
    assert run.data.params["optimizer/lr"] == "1.0"
    assert run.data.params["checkpoint/every_steps"] == "8"

    files = read.files(run)
    assert read.file(run, "text/media/text/step_00000005.txt", tmp_path).decode() == support.TEXT
    table = json.loads(read.file(run, "table/media/table/step_00000005.json", tmp_path))
    assert table == {"columns": support.COLUMNS, "data": support.ROWS}
    histogram = json.loads(read.file(run, "histogram/media/histogram/step_00000005.json", tmp_path))
    assert (sum(histogram["counts"]), histogram["edges"][0], histogram["edges"][-1], histogram["step"]) == (4, 0.0, 4.0, 5)
    assert len(histogram["edges"]) == len(histogram["counts"]) + 1
    for name in ("file/notes", "dataset/bundle/one.txt", "dataset/bundle/inner/two.txt"):
        assert read.file(run, name, tmp_path).decode() == support.ARTIFACT
    assert any(name.startswith("checkpoint/") and name.endswith("tensors.safetensors") for name in files)

    (image,) = [name for name in files if name.endswith(".png")]
    assert image.startswith("images/media~image+step+5+")  # as MLflow's page of images wants it
    assert run.data.tags["mlflow.loggedImages"] == "True"
    import PIL.Image

    read.file(run, image, tmp_path)
    with PIL.Image.open(next(tmp_path.rglob(Path(image).name))) as opened:
        assert opened.mode == "RGB"
        pixels = torch.tensor(list(opened.convert("RGB").tobytes()), dtype=torch.uint8).reshape(8, 10, 3)
    assert torch.equal(pixels.permute(2, 0, 1), support.IMAGE)


def test_files_are_uploaded_of_the_kinds_that_are_wanted(tmp_path):
    support.run(tmp_path, MLflow(artifacts=["dataset"]))
    read = Read(database(tmp_path))
    kinds = {name.split("/")[0] for name in read.files(read.only_run())}
    assert kinds == {"dataset", "images", "text", "table", "histogram"}


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"fail_after": 5}, "FAILED"),
        ({"fail_after": 5, "error": KeyboardInterrupt()}, "KILLED"),
        ({"signal_after": 5}, "KILLED"),
    ],
)
def test_a_run_that_does_not_reach_its_end_has_its_status(tmp_path, how, status):
    ran = support.run(tmp_path, MLflow(), **how)
    read = Read(database(tmp_path))
    run = read.only_run()
    assert run.info.status == status
    assert run.data.tags["trainhooks.step"] == str(ran.ended.step)
    assert read.steps(run, "probe/double")[:5] == every_step(5)


def test_a_run_that_is_stopped_is_finished(tmp_path):
    class Enough:
        @hookimpl
        def after_step(self, trainer):
            if trainer.step == 6:
                trainer.stop("enough")

    support.run(tmp_path, MLflow(), plugins=[Enough()])
    run = Read(database(tmp_path)).only_run()
    assert (run.info.status, run.data.tags["trainhooks.status"]) == ("FINISHED", "stopped")
    assert "enough" in run.data.tags["trainhooks.reason"]


def test_killed_and_resumed_each_step_is_there_once(tmp_path):
    segments = support.kill_and_resume(
        tmp_path, "MLflow()", "from trainhooks_mlflow import MLflow", kill_after=(10, 11, 12), steps=15
    )
    assert [one.resumed_step for one in segments] == [0, 8, 8, 8]
    assert len({one.id for one in segments}) == 1
    assert complaints(segments[-1]) == []
    read = Read(database(tmp_path))
    run = read.only_run()
    assert read.steps(run, "probe/double") == every_step(15)
    assert read.steps(run, "train/loss") == [(step, 1.0 - step) for step in range(1, 16)]
    assert (run.info.status, run.data.tags["trainhooks.resumed"]) == ("FINISHED", "8")
    names = [name for name in read.files(run) if name.startswith(("images", "text", "table", "histogram"))]
    assert len(names) == 5, names  # an image is two files


def test_a_run_that_was_killed_is_running(tmp_path):
    script = (
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(support.__file__).parent)!r})\nimport satellite_support as support\n"
        "from trainhooks_mlflow import MLflow\n"
        "plugin = MLflow()\ndef kill():\n    while plugin.run_id is None:\n        time.sleep(0.1)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"support.run(Path({str(tmp_path)!r}), plugin, plugins=[support.Does(4, kill)])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False, timeout=240)
    assert done.returncode == -9
    assert Read(database(tmp_path)).only_run().info.status == "RUNNING"


def test_metrics_and_hyperparameters_with_odd_names_and_values(tmp_path):
    given = {**support.ODD_HYPERPARAMETERS, "50% (x)": 1, "a//b/../c": 2, "/": 3}
    ran = support.run(tmp_path, MLflow(), scalars=support.ODD_SCALARS, hyperparameters=given)
    assert complaints(ran) == []
    read = Read(database(tmp_path))
    run = read.only_run()
    highest = sys.float_info.max  # what MLflow has for infinity
    assert all(math.isnan(value) for _, value in read.steps(run, "odd/nan"))
    assert len(read.steps(run, "odd/nan")) == 20
    assert read.steps(run, "odd/inf")[-1] == (20, highest)
    assert read.steps(run, "odd/minus inf")[-1] == (20, -highest)
    for name in ("with spaces", "ünïcode/µ", "a/b/c", "huge", "tiny"):
        assert read.steps(run, name) == [(step, support.ODD_SCALARS[name]) for step in range(1, 21)]
    assert read.steps(run, "50_ _x__ _1 _ y_")[0] == (1, 4.0)
    assert run.data.tags["trainhooks.metric/50_ _x__ _1 _ y_"] == "50% (x): #1 = y?"
    params, tags = run.data.params, run.data.tags
    assert params["long"] == "x" * 5999 + "…"
    assert tags["trainhooks.cut/long"].startswith("10000 characters")
    assert (params["ünïcode key"], params["lines"], params["nan"], params["empty"]) == ("ü", "a\nb\tc", "nan", "")
    assert params["big"] == str(2**70)
    assert (params["50_ _x_"], tags["trainhooks.param/50_ _x_"]) == ("1", "50% (x)")
    assert (params["a/b/c"], tags["trainhooks.param/a/b/c"]) == ("2", "a//b/../c")
    assert (params["_"], tags["trainhooks.param/_"]) == ("3", "/")


def test_changed_hyperparameters_are_noted_and_no_error(tmp_path):
    first = support.run(tmp_path, MLflow(), steps=8, hyperparameters={"lr": 0.1, "note": "x" * 7000})
    second = support.run(tmp_path, MLflow(), steps=12, resume="auto", hyperparameters={"lr": 0.2, "note": "y", "new": 1})
    third = support.run(tmp_path, MLflow(), steps=16, resume="auto", hyperparameters={"lr": 0.1, "note": "y", "new": 1})
    assert complaints(second) == complaints(third) == []
    assert first.run.id == second.run.id == third.run.id
    read = Read(database(tmp_path))
    run = read.only_run()
    assert (run.data.params["lr"], run.data.params["new"]) == ("0.1", "1")
    assert json.loads(run.data.tags["trainhooks.drift/lr"]) == {"8": "0.2", "12": "0.1"}
    assert json.loads(run.data.tags["trainhooks.drift/note"]) == {"8": "y"}
    assert run.data.tags["trainhooks.resumed"] == "8, 12"
    assert json.loads(run.data.tags["trainhooks.drift/max_steps"]) == {"8": "12", "12": "16"}
    assert run.info.status == "FINISHED"
    assert read.steps(run, "probe/double") == every_step(16)


def test_a_run_is_found_by_its_tag_where_the_file_is_gone(tmp_path):
    support.run(tmp_path, MLflow(), steps=8)
    kept = tmp_path / "run" / "mlflow.json"
    before = json.loads(kept.read_text())
    assert before["tracking_uri"] == database(tmp_path)
    kept.unlink()
    support.run(tmp_path, MLflow(), steps=12, resume="auto")
    assert json.loads(kept.read_text()) == before
    read = Read(database(tmp_path))
    assert read.steps(read.only_run(), "probe/double") == every_step(12)


def test_a_run_that_was_deleted_in_mlflow_is_made_anew(tmp_path):
    first = MLflow()
    support.run(tmp_path, first, steps=8)
    read = Read(database(tmp_path))
    read.client.delete_run(first.run_id)
    ran = support.run(tmp_path, MLflow(), steps=12, resume="auto")
    assert complaints(ran) == []
    run = read.only_run()
    assert run.info.run_id != first.run_id
    steps = read.steps(run, "probe/double")  # with those before 8 that had not arrived when the checkpoint was saved
    assert len(steps) >= 4
    assert steps == every_step(12)[-len(steps) :]


def test_a_fork_is_a_run_of_its_own(tmp_path):
    first = support.run(tmp_path, MLflow(), steps=8)
    (tmp_path / "fork").mkdir()
    uri = database(tmp_path)
    fork = support.run(tmp_path / "fork", MLflow(tracking_uri=uri), steps=12, resume=tmp_path / "run")
    read = Read(uri)
    by_id = {run.data.tags["trainhooks.run_id"]: run for run in read.runs()}
    assert by_id.keys() == {first.run.id, fork.run.id}
    assert by_id[fork.run.id].data.tags["trainhooks.parent"] == first.run.id
    assert read.steps(by_id[fork.run.id], "probe/double") == every_step(12)[8:]
    assert read.steps(by_id[first.run.id], "probe/double") == every_step(8)


_OPENS = (
    "import sys\nfrom trainhooks_mlflow.tracking import load, open_tracking\nload(telemetry=False)\n"
    "print(open_tracking(sys.argv[1], 1).experiment('shared'))\n"
)


def test_runs_that_begin_at_once_share_a_new_database(tmp_path):
    command = [sys.executable, "-c", _OPENS, database(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len(set(told)) == 1
    assert told[0].strip() == Read(database(tmp_path)).client.get_experiment_by_name("shared").experiment_id
    assert not [*tmp_path.glob(".*")]


#: Kills the process when it has made some of the tables.
_DIES = """
import os, signal
from sqlalchemy import event
from sqlalchemy.engine import Engine

made = []

@event.listens_for(Engine, "after_cursor_execute")
def dies(connection, cursor, statement, *_):
    made.extend(["CREATE TABLE"] * ("CREATE TABLE" in statement))
    if len(made) == 8:
        os.kill(os.getpid(), signal.SIGKILL)

"""


def test_a_database_that_was_not_finished_is_in_nobodys_way(tmp_path):
    command = [sys.executable, "-c", _DIES + _OPENS, database(tmp_path)]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=240, check=False).returncode == -9
    (half,) = tmp_path.glob(".mlflow.db.*.tmp")
    assert half.stat().st_size
    assert not (tmp_path / "mlflow.db").exists()
    command = [sys.executable, "-c", _OPENS, database(tmp_path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=240)
    assert done.stdout.strip() == Read(database(tmp_path)).client.get_experiment_by_name("shared").experiment_id


def test_where_to_is_an_option_else_mlflows_own_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/by_variable.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "named")
    support.run(tmp_path, MLflow(), steps=3, media=False)
    odd = tmp_path / "50% of ü #1" / "x.db"
    (tmp_path / "two").mkdir()
    ran = support.run(tmp_path / "two", MLflow(tracking_uri=f"sqlite:///{odd}", experiment="given"), steps=5)
    assert complaints(ran) == []
    read = Read(f"sqlite:///{tmp_path}/by_variable.db")
    assert read.steps(read.only_run("named"), "probe/double") == every_step(3)
    read = Read(f"sqlite:///{odd}")
    run = read.only_run("given")
    assert read.steps(run, "probe/double") == every_step(5)
    assert read.file(run, "text/media/text/step_00000005.txt", tmp_path).decode() == support.TEXT
    assert odd.exists()


def test_nothing_of_the_process_is_changed(tmp_path):
    import mlflow

    seen, threads = {}, threading.enumerate()
    before = {name: value for name, value in os.environ.items() if name.startswith(("MLFLOW", "_MLFLOW"))}
    uri = mlflow.get_tracking_uri()

    class Looks:
        @hookimpl
        def after_train(self):
            seen["environment"] = {n: v for n, v in os.environ.items() if n.startswith(("MLFLOW", "_MLFLOW"))}
            seen["active"], seen["uri"] = mlflow.active_run(), mlflow.get_tracking_uri()
            new = [thread.name for thread in threading.enumerate() if thread not in threads]
            seen["threads"] = [name for name in new if "mlflow" in name.lower()]

    support.run(tmp_path, MLflow(tracking_uri=database(tmp_path)), steps=8, plugins=[Looks()])
    assert seen == {"environment": before, "active": None, "uri": uri, "threads": ["trainhooks-reporter-mlflow"]}


def test_usage_statistics_are_off_unless_wanted(tmp_path):
    script = (
        f"import os, sys\nsys.path.insert(0, {str(Path(support.__file__).parent)!r})\n"
        "for name in [*os.environ]:\n    if name in ('CI', 'GITHUB_ACTIONS', 'PYTEST_CURRENT_TEST') or 'TELEMETRY' in name:\n"
        "        del os.environ[name]\n"
        "from trainhooks_mlflow.tracking import load\nload(telemetry=False)\n"
        "from mlflow.telemetry import get_telemetry_client\n"
        "print(get_telemetry_client(), 'MLFLOW_DISABLE_TELEMETRY' in os.environ)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == ["None", "False"]


def test_loader_workers_that_are_forked_do_not_disturb_the_database(tmp_path):
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return torch.ones((), dtype=torch.float64)

    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    model = support.make_trainer([], None, 1).model
    plugins = [MLflow(tracking_uri=database(tmp_path)), support.Logs(tmp_path, media=False)]
    trainer = Trainer(
        model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), loaders={"train": loader}, plugins=plugins,
        autoload=False, log_every_steps=1, max_steps=45, work_dir=tmp_path / "run",
    )  # fmt: skip
    assert trainer.train().status == "completed"
    read = Read(database(tmp_path))
    assert read.steps(read.only_run(), "probe/double") == every_step(45)  # workers were forked three times on the way


def test_the_command_line_does_not_import_mlflow():
    listing, imported = support.list_plugins("mlflow", "sqlalchemy", "trainhooks_mlflow.server")
    assert "mlflow" in listing
    assert imported == []


def test_an_option_that_cannot_be_is_refused():
    with pytest.raises(OptionError, match=r"timeout_s = 0: must be above 0"):
        MLflow(timeout_s=0)
    with pytest.raises(OptionError, match=r"tags: 'a%': MLflow takes .* 'a_' would do"):
        MLflow(tags={"fine": "1", "a%": "2"})


def test_a_password_is_no_option():
    with pytest.raises(OptionError, match="MLFLOW_TRACKING_PASSWORD") as caught:
        MLflow("http://user:hidden@127.0.0.1:5000")
    assert "hidden" not in str(caught.value)


def test_without_an_address_and_a_run_folder_nothing_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_trainer([MLflow()], None, 3).train().status == "completed"
    assert list(tmp_path.iterdir()) == []


def test_names_and_values_that_are_no_text_are_made_valid(tmp_path):
    ran = support.run(tmp_path, MLflow(), 3, media=False, scalars={"a\udc80": 1.0}, hyperparameters={"h\udc80": "\udc80"})
    assert complaints(ran) == []
    read = Read(database(tmp_path))
    run = read.only_run()
    assert [value for _, value in read.steps(run, "a_")] == [1.0] * 3
    assert (run.data.params["h_"], run.data.tags["trainhooks.metric/a_"]) == ("?", "a?")
    assert not [tag for tag in run.data.tags if tag.startswith("trainhooks.cut/")]
