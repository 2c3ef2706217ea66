"""``trainhooks-dvclive`` in real runs, read back with DVCLive's and DVC's own readers."""

import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dvc.api import metrics_show, params_show
from dvc.repo import Repo
from dvclive_reader import Read, losses
from PIL.Image import open as open_image
from satellite_support import (
    ARTIFACT,
    COLUMNS,
    HISTOGRAM,
    HYPERPARAMETERS,
    IMAGE,
    MEDIA_STEP,
    ODD_HYPERPARAMETERS,
    ODD_SCALARS,
    TEXT,
    list_plugins,
    make_trainer,
    run,
)

from trainhooks import hookimpl
from trainhooks_dvclive import DVCLive
from trainhooks_dvclive.names import Names


class TestARun:
    def test_everything_is_read_back(self, tmp_path):
        ran = run(tmp_path, DVCLive())
        assert ran.warnings == []
        read = Read(tmp_path / "run/dvclive")
        assert read.values("train/loss") == losses(1, 20)
        assert read.values("probe/double") == [(step, 2.0 * step) for step in range(1, 21)]
        assert (read.summary["step"], read.summary["train"]["loss"], read.summary["probe"]["double"]) == (20, -19.0, 40.0)
        assert read.summary["run"] == {"status": "completed", "reason": "max_steps=20 reached"}
        assert {name: read.params[name] for name in HYPERPARAMETERS} == HYPERPARAMETERS
        assert (read.params["seed"], read.params["optimizer/lr"], read.params["checkpoint/every_steps"]) == (1, 1.0, 8)

    def test_media(self, tmp_path):
        run(tmp_path, DVCLive())
        folder = tmp_path / "run/dvclive"
        pixels = np.asarray(open_image(folder / f"plots/images/media/image/{MEDIA_STEP}.png"))
        assert (pixels == IMAGE.permute(1, 2, 0).numpy()).all()
        assert (folder / f"texts/media/text/{MEDIA_STEP}.txt").read_text(encoding="utf-8") == TEXT
        with (folder / f"tables/media/table/{MEDIA_STEP}.csv").open(newline="") as file:
            assert list(csv.reader(file)) == [COLUMNS, ["a", "1.5"], ["b | c", "2"]]
        points = json.loads((folder / f"plots/custom/media/histogram/{MEDIA_STEP}.json").read_text())
        counts, edges = np.histogram(HISTOGRAM.numpy(), bins=len(points))
        assert [point["count"] for point in points] == counts.tolist()
        assert [point["from"] for point in points] == pytest.approx(edges[:-1].tolist())

    def test_artifacts_are_named(self, tmp_path):
        run(tmp_path, DVCLive())
        artifacts = Read(tmp_path / "run/dvclive").dvcyaml["artifacts"]
        assert artifacts == {
            "notes": {"path": "../../notes.txt", "type": "file"},
            "bundle": {"path": "../../bundle", "type": "dataset"},
        }
        assert (tmp_path / "run/dvclive" / artifacts["notes"]["path"]).read_text() == ARTIFACT

    def test_dvc_shows_it(self, tmp_path):
        run(tmp_path, DVCLive())
        Repo.init(str(tmp_path), no_scm=True).close()
        metrics = metrics_show()
        assert (metrics["train"]["loss"], metrics["step"]) == (-19.0, 20)
        assert params_show("run/dvclive/params.yaml")["note"] == "hello"
        with Repo(str(tmp_path)) as repo:
            sources = repo.plots.show()["workspace"]["sources"]["data"]
            artifacts = repo.artifacts.read()["run/dvclive/dvc.yaml"]
        rows = sources["run/dvclive/plots/metrics/train/loss.tsv"]["data"]
        assert [(int(row["step"]), float(row["loss"])) for row in rows] == losses(1, 20)
        assert f"run/dvclive/plots/images/media/image/{MEDIA_STEP}.png" in sources
        assert artifacts["bundle"].type == "dataset"

    def test_histograms_are_listed_once_and_the_latest(self, tmp_path):
        class Histograms:
            @hookimpl
            def after_step(self, trainer):
                trainer.log_histogram("weights", [0.0, trainer.step + 1.0], bins=2)

        run(tmp_path, DVCLive(), 3, plugins=[Histograms()], media=False)
        read = Read(tmp_path / "run/dvclive")
        assert sorted(path.name for path in (read.folder / "plots/custom/weights").iterdir()) == ["1.json", "2.json", "3.json"]
        plots = [name for plot in read.dvcyaml["plots"] if isinstance(plot, dict) for name in plot]
        assert plots == ["plots/metrics", "plots/custom/weights/3.json"]


class TestHowItEnds:
    @pytest.mark.parametrize(
        ("end", "status"),
        [
            ({"fail_after": 6}, "failed"),
            ({"fail_after": 6, "error": KeyboardInterrupt()}, "interrupted"),
            ({"signal_after": 6}, "interrupted"),
        ],
    )
    def test_early(self, tmp_path, end, status):
        run(tmp_path, DVCLive(), **end)
        read = Read(tmp_path / "run/dvclive")
        assert read.summary["run"]["status"] == status
        assert read.values("train/loss")[:6] == losses(1, 6)


class TestOddValues:
    def test_they_do_no_harm(self, tmp_path):
        scalars = {**ODD_SCALARS, "time/step": 0.25, "a/b": 5.0, "step": 6.0, "run": 7.0, "../up": 8.0, "x:y": 9.0, "x?y": 10.0}
        ran = run(tmp_path, DVCLive(), scalars=scalars, hyperparameters=ODD_HYPERPARAMETERS)
        assert (ran.outcome.status, ran.warnings) == ("completed", [])
        read = Read(tmp_path / "run/dvclive")
        names = read.note["names"]
        assert names["time/step"] == "time/step_value"
        assert not list(tmp_path.glob("run/**/up.tsv.*"))
        for name, value in scalars.items():
            found = read.values(names.get(name, name))
            assert [step for step, _ in found] == list(range(1, 21)), name
            assert all(one == value or (math.isnan(one) and math.isnan(value)) for _, one in found), name
        params = {name: value for name, value in read.params.items() if name in ODD_HYPERPARAMETERS}
        assert math.isnan(params.pop("nan"))
        assert params == {name: value for name, value in ODD_HYPERPARAMETERS.items() if name != "nan"}

    def test_what_is_no_character(self, tmp_path):
        """As names of files may have it."""
        broken = "\udc80"
        ran = run(tmp_path, DVCLive(), 3, scalars={f"a{broken}": 1.0}, hyperparameters={f"b{broken}": f"c{broken}"})
        assert ran.warnings == []
        read = Read(tmp_path / "run/dvclive")
        assert (read.params["b?"], [value for _, value in read.values("a?")]) == ("c?", [1.0] * 3)

    def test_names_are_the_same_after_a_resume(self, tmp_path):
        scalars = {"a/b": 1.0, "a": 2.0, "x:y": 3.0, "x_y": 4.0, "time/step": 5.0}
        run(tmp_path, DVCLive(), 8, scalars=scalars, media=False)
        run(tmp_path, DVCLive(), 12, scalars=dict(reversed(scalars.items())), media=False, resume="auto")
        read = Read(tmp_path / "run/dvclive")
        for name, value in scalars.items():
            assert read.values(read.note["names"].get(name, name)) == [(step, value) for step in range(1, 13)], name


@pytest.mark.parametrize(
    ("logged", "paths"),
    [
        (["train/loss", "val/loss"], ["train/loss", "val/loss"]),
        (["lr", "lr/0", "lr/0/x"], ["lr", "lr_/0", "lr_/0_/x"]),
        (["lr/0", "lr"], ["lr/0", "lr_"]),
        (["a:b", "a_b", "a?b"], ["a_b", "a_b_", "a_b__"]),
        (["step", "timestamp", "time/step"], ["step_value", "timestamp_value", "time/step_value"]),
        (["..", "../..", "/etc/passwd", ""], ["_", "__/_", "etc/passwd", "___"]),
        (["run", "run/status"], ["run_", "run/status_"]),
        (["é" * 300], ["é" * 100]),
    ],
)
def test_names(logged, paths):
    names = Names({})
    assert [names[name] for name in logged] == paths
    assert [names[name] for name in logged] == paths


def test_a_failed_write_is_tried_again_and_adds_nothing_twice(tmp_path):
    """The disk is full in the middle of a record, after a part of a row."""
    script = tmp_path / "full.py"
    script.write_text(FULL, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    read = Read(tmp_path / "run/dvclive")
    assert read.values("train/loss") == losses(1, 10)
    assert read.values("probe/double") == [(step, 2.0 * step) for step in range(1, 11)]


FULL = f"""
import sys, pathlib
sys.path.insert(0, {str(Path(__file__).parents[3] / "tests")!r})
from satellite_support import run
from trainhooks_dvclive import DVCLive
import dvclive.plots.metric as metric

dump, calls = metric.Metric.dump, []

def fills(self, value, **rest):
    calls.append(self.name)
    if len(calls) in (6, 7, 12):
        with self.output_path.open("a") as file:
            file.write("99\\t0.")
        raise OSError(28, "No space left on device")
    return dump(self, value, **rest)

metric.Metric.dump = fills
ran = run(pathlib.Path(sys.argv[1]), DVCLive(), 10, media=False)
assert sum("No space left" in one for one in ran.warnings) == 1, ran.warnings
assert ran.outcome.status == "completed"
"""


def test_the_command_line_finds_it(tmp_path):
    """As installed: by its entry point, with options from the command line."""
    project = shutil.copytree(Path(make_trainer.__code__.co_filename).parent / "data/projects/tiny", tmp_path / "project")
    command = [sys.executable, "-c", "from trainhooks.cli import main; main()", "train", "-p", "dvclive"]
    command += ["-o", "dvclive.dir=live", "--set", "work_dir=out", "--set", "log_every_steps=1"]
    environment = {**os.environ, "TRAINHOOKS_DISABLE_AUTOLOAD": "1"}
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=120, env=environment)
    assert [step for step, _ in Read(project / "live").values("train/loss")] == [1, 2, 3]


def test_the_readme(tmp_path):
    (block,) = re.findall(
        r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    script = tmp_path / "script.py"
    script.write_text(block, encoding="utf-8")
    environment = {**os.environ, "TRAINHOOKS_DISABLE_AUTOLOAD": "1"}
    subprocess.run([sys.executable, str(script)], check=True, timeout=120, env=environment)
    assert Read(tmp_path / "runs/script/dvclive").summary["step"] == 40


def test_listing_imports_no_dvclive():
    listing, imported = list_plugins("dvclive", "dvc", "torch", "trainhooks_dvclive")
    assert "trainhooks-dvclive" in listing
    assert imported == []
