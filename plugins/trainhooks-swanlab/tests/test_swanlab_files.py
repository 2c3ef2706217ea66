"""Runs are recorded by the real SwanLab in files, and read back with its own reader."""

import atexit
import json
import math
import os
import signal
import subprocess
import sys
from io import BytesIO

import pytest
import torch
from PIL import Image as Picture
from satellite_support import (
    ARTIFACT,
    COLUMNS,
    IMAGE,
    MEDIA_STEP,
    ODD_HYPERPARAMETERS,
    ODD_SCALARS,
    ROWS,
    TEXT,
    kill_and_resume,
    list_plugins,
    run,
)
from swanlab_files import Files

from trainhooks import OptionError, Trainer, hookimpl
from trainhooks_swanlab import SwanLab

STEPS_20 = list(range(1, 21))


def test_run_is_recorded_whole(tmp_path):
    ran = run(tmp_path, SwanLab("whole", group="g", tags=["a", "b"], description="d"))
    files = Files(ran.work_dir / "swanlab")
    (start,) = files.of("start")
    assert (start.project, start.name, start.id, start.group) == ("whole", ran.run.name, ran.run.id, "g")
    assert (list(start.tags), start.description) == (["a", "b"], "d")
    assert files.metric("probe/double") == [(step, 2.0 * step) for step in STEPS_20]
    assert files.metric("train/loss") == [(step, 1.0 - step) for step in STEPS_20]  # w falls by 1 in each step
    config = files.config()
    assert {"model/width": 1, "note": "hello", "flag": True, "rate": 0.1, "nothing": "None"}.items() <= config.items()
    assert (config["optimizer/name"], config["optimizer/lr"]) == ("SGD", 1.0)
    assert files.ends() == [("FINISHED", "")]
    assert not ran.warnings


def test_media_and_artifacts(tmp_path):
    ran = run(tmp_path, SwanLab())
    files = Files(ran.work_dir / "swanlab")
    ((step, image),) = files.media("media/image", "image")
    assert step == MEDIA_STEP
    with Picture.open(BytesIO(image)) as picture:
        assert [picture.getpixel((x, 2))[:3] for x in range(10)] == [tuple(IMAGE[:, 2, x].tolist()) for x in range(10)]
    assert files.media("media/text", "text") == [(MEDIA_STEP, TEXT.encode())]
    ((step, table),) = files.media("media/table", "echarts")
    assert step == MEDIA_STEP
    assert [[row[name] for name in COLUMNS] for row in json.loads(table)["rowData"]] == ROWS
    ((step, histogram),) = files.media("media/histogram", "echarts")
    found = json.loads(histogram)
    labels = found["xAxis"][0]["data"]
    counts = [one["value"] if isinstance(one, dict) else one for one in found["series"][0]["data"]]
    assert (step, sum(counts), len(counts)) == (MEDIA_STEP, 4, len(labels))
    assert (labels[0].partition(" ")[0], labels[-1].rpartition(" ")[2]) == ("0", "4")

    saved = {one.name: one.target_path for one in files.of("save") if one.target_path}
    assert set(saved) == {"notes.txt", os.path.join("bundle", "one.txt"), os.path.join("bundle", "inner", "two.txt")}
    for target in saved.values():
        with open(target, encoding="utf-8") as file:
            assert file.read() == ARTIFACT
    assert files.config()["artifacts/notes"] == f"{tmp_path / 'notes.txt'} (file)"
    assert files.config()["artifacts/bundle"] == f"{tmp_path / 'bundle'} (dataset)"


@pytest.mark.parametrize(
    ("how", "status", "end"),
    [
        ({"fail_after": 6}, "failed", "CRASHED"),
        ({"fail_after": 6, "error": KeyboardInterrupt()}, "interrupted", "ABORTED"),
        ({"signal_after": 6}, "interrupted", "ABORTED"),
    ],
    ids=["error", "ctrl-c", "sigterm"],
)
def test_outcome_of_a_run_that_did_not_end_well(tmp_path, how, status, end):
    ran = run(tmp_path, SwanLab(), **how)
    files = Files(ran.work_dir / "swanlab")
    assert ran.ended.status == status
    ((state, error),) = files.ends()
    assert (state, error) == (end, ran.ended.reason)
    assert ("the model broke" in error) == (status == "failed")
    assert [step for step, _ in files.metric("probe/double")] == list(range(1, ran.ended.step + 1))


def test_process_keeps_its_hooks(tmp_path, monkeypatch):
    """What SwanLab puts into ``sys.excepthook``, ``atexit`` and signals would close the run, or hang, behind the engine's back."""
    from trainhooks import hookimpl

    class Looks:
        @hookimpl
        def before_step(self, trainer):
            seen.append((sys.excepthook, signal.getsignal(signal.SIGINT)))
            stdout.append(sys.stdout)
            if trainer.step == 2:
                sys.excepthook = own

    def own(*_):
        pass

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    hook, out, exits, seen, stdout = sys.excepthook, sys.stdout, atexit._ncallbacks(), [], []
    run(tmp_path, SwanLab(), steps=4, plugins=[Looks()])
    assert {one for one, _ in seen[:3]} == {hook}
    assert seen[3][0] is own
    assert sys.excepthook is own  # neither lost nor replaced by what SwanLab had found
    assert {id(one) for one in stdout} == {id(out)}
    assert atexit._ncallbacks() <= exits + 1  # of modules that were imported


@pytest.mark.slow
def test_killed_and_resumed_has_each_step_once(tmp_path):
    imports = "from trainhooks_swanlab import SwanLab"
    first, second = kill_and_resume(tmp_path, "SwanLab('killed')", imports)
    files = Files(tmp_path / "run" / "swanlab")
    assert (first.id, second.resumed_step, second.status) == (second.id, 8, "completed")
    assert {one.id for one in files.of("start")} == {first.id}
    assert len(files.files) == 2
    assert files.metric("probe/double") == [(step, 2.0 * step) for step in range(1, 16)]
    assert files.metric("train/loss") == [(step, 1.0 - step) for step in range(1, 16)]
    assert [step for step, _ in files.media("media/text", "text")] == [MEDIA_STEP]
    assert files.ends() == [("FINISHED", "")]


@pytest.mark.slow
def test_killed_again_and_again(tmp_path):
    """The second one is killed before it is where the first one was."""
    imports = "from trainhooks_swanlab import SwanLab"
    segments = kill_and_resume(tmp_path, "SwanLab('often')", imports, kill_after=(14, 11, 15), steps=20)
    files = Files(tmp_path / "run" / "swanlab")
    assert {one.id for one in files.of("start")} == {segment.id for segment in segments} == {segments[0].id}
    assert sorted(files.metric("probe/double")) == [(step, 2.0 * step) for step in STEPS_20]


def test_odd_names_and_values(tmp_path):
    ran = run(tmp_path, SwanLab(), steps=3, scalars=ODD_SCALARS, hyperparameters=ODD_HYPERPARAMETERS)
    files = Files(ran.work_dir / "swanlab")
    assert not ran.warnings
    for name, value in ODD_SCALARS.items():
        stored = [found for _, found in files.metric(name)]
        assert all(math.isnan(one) if math.isnan(value) else one == value for one in stored), name
        assert len(stored) == 3
    config = files.config()
    assert config["long"] == "x" * 10_000
    assert (config["big"], config["lines"], config["empty"], config["ünïcode key"]) == (2**70, "a\nb\tc", "", "ü")


def test_changed_hyperparameters_are_noted(tmp_path):
    first = run(tmp_path, SwanLab(), steps=8, hyperparameters={"rate": 0.1, "gone": 1, "nan": math.nan})
    second = run(tmp_path, SwanLab(), steps=12, hyperparameters={"rate": 0.2, "nan": math.nan, "new": 2}, resume="auto")
    assert (second.run.id, second.run.resumed_step, second.warnings) == (first.run.id, 8, [])
    files = Files(first.work_dir / "swanlab")
    noted = {key.partition("/")[2]: value for key, value in files.config().items() if key.startswith("changed at step 8/")}
    assert {"rate": "0.1 -> 0.2", "gone": "1 -> not there", "new": "not there -> 2"}.items() <= noted.items()
    assert "nan" not in noted
    assert files.config()["rate"] == 0.2
    assert files.metric("probe/double") == [(step, 2.0 * step) for step in range(1, 13)]


def test_local_mode_is_what_its_dashboard_reads(tmp_path):
    """In a process of its own: SwanLab's dashboard keeps a connection to its database, and sets an environment variable."""
    script = (
        f"import sys\nsys.path.insert(0, {sys.path[0]!r})\nfrom satellite_support import run\nfrom pathlib import Path\n"
        f"from trainhooks_swanlab import SwanLab\nrun(Path({str(tmp_path)!r}), SwanLab(mode='local'))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    (logs,) = (tmp_path / "run" / "swanlab").glob("run-*/logs")
    steps = {}
    for folder in logs.iterdir():
        lines = [json.loads(line) for file in folder.glob("*.log") for line in file.read_text().splitlines()]
        steps[folder.name] = [(line["index"], line["data"]) for line in lines]
    assert [(step, 2.0 * step) for step in STEPS_20] in steps.values()


def test_disabled_mode_writes_nothing(tmp_path):
    ran = run(tmp_path, SwanLab(mode="disabled"), steps=3)
    assert not ran.warnings
    assert not (ran.work_dir / "swanlab").exists()


def test_how_to_send_the_files_is_said(tmp_path, caplog):
    with caplog.at_level("INFO", "trainhooks"):
        ran = run(tmp_path, SwanLab(), steps=2)
    (said,) = [record.getMessage() for record in caplog.records if "swanlab sync" in record.getMessage()]
    (file,) = Files(ran.work_dir / "swanlab").files
    assert said.endswith(f"swanlab sync --id {ran.run.id} {file.parent}")


@pytest.mark.parametrize(
    ("options", "said"),
    [({"project": "a b"}, "project"), ({"mode": "online"}, "mode"), ({"timeout_s": 0}, "timeout_s")],
)
def test_wrong_options(options, said):
    with pytest.raises(OptionError, match=said):
        SwanLab(**options)


def test_listing_plugins_imports_no_sdk():
    listing, imported = list_plugins("swanlab", "trainhooks_swanlab")
    assert "swanlab" in listing
    assert not imported


def test_import_of_the_plugin_imports_no_sdk():
    script = "import sys, trainhooks_swanlab as it, json; it.SwanLab(); print(json.dumps('swanlab' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout) is False


@pytest.mark.parametrize("fails_at", [1, 3])
def test_records_that_are_given_again_are_logged_once(tmp_path, fails_at):
    plugin = SwanLab()
    ran = run(tmp_path, plugin, media=False, plugins=[FailsOnce(plugin, fails_at)])
    assert Files(ran.work_dir / "swanlab").metric("probe/double") == [(step, 2.0 * step) for step in STEPS_20]
    assert len([one for one in ran.warnings if "failed with ConnectionError" in one]) == 1


class FailsOnce:
    """Has one call of SwanLab's ``log`` fail."""

    def __init__(self, plugin, number):
        self.plugin, self.number, self.calls = plugin, number, 0

    @hookimpl
    def before_train(self):
        log = self.plugin._run.log

        def log_or_fail(values, step):
            self.calls += 1
            if self.calls == self.number:
                raise ConnectionError("away")
            log(values, step=step)

        self.plugin._run.log = log_or_fail


def test_names_that_swanlab_refuses_are_made_valid(tmp_path):
    odd = {"a\0b": 2.0, "\udc80": 3.0, "/ends/": 4.0, "x" * 511 + "/y": 5.0}
    ran = run(tmp_path, SwanLab(), steps=3, media=False, scalars=odd)
    files = Files(ran.work_dir / "swanlab")
    for key, value in {"a_b": 2.0, "?": 3.0, "ends": 4.0, "x" * 511: 5.0}.items():
        assert files.metric(key) == [(step, value) for step in (1, 2, 3)]


def test_it_replaces_the_one_that_is_installed(tmp_path):
    """An object that is given to the trainer has the name of the entry point, so that there are not two of them."""
    trainer = Trainer(torch.nn.Linear(1, 1), plugins=[SwanLab()], work_dir=tmp_path / "run", loaders={"train": []})
    assert [name for name in trainer.plugins if "swan" in name] == ["swanlab"]
