"""``trainhooks-tensorboard`` in real runs, read back with TensorBoard's own reader."""

import io
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
from PIL.Image import open as open_image
from satellite_support import (
    COLUMNS,
    HISTOGRAM,
    HYPERPARAMETERS,
    IMAGE,
    MEDIA_STEP,
    ODD_HYPERPARAMETERS,
    ODD_SCALARS,
    ROWS,
    TEXT,
    Does,
    list_plugins,
    make_trainer,
    run,
)
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
from tensorboard_reader import Reader, losses

from trainhooks import OptionError, hookimpl
from trainhooks_tensorboard import TensorBoard


class TestARun:
    def test_everything_is_read_back(self, tmp_path):
        ran = run(tmp_path, TensorBoard())
        assert ran.warnings == []
        read = Reader(tmp_path / "run/tensorboard")
        assert read.scalars("train/loss") == losses(1, 20)
        assert read.scalars("probe/double") == [(step, 2.0 * step) for step in range(1, 21)]
        (image,) = read.found.Images("media/image")
        assert (image.step, image.height, image.width) == (MEDIA_STEP, 8, 10)
        pixels = np.asarray(open_image(io.BytesIO(image.encoded_image_string)))
        assert (pixels == IMAGE.permute(1, 2, 0).numpy()).all()
        assert read.texts("media/text") == [(MEDIA_STEP, TEXT)]
        ((step, table),) = read.texts("media/table")
        assert step == MEDIA_STEP
        assert table == "| name | score |\n| --- | --- |\n| a | 1.5 |\n| b \\| c | 2 |"
        assert [COLUMNS, ROWS] == [["name", "score"], [["a", 1.5], ["b | c", 2]]]
        ((_, notes),) = read.texts("artifacts/notes")
        assert f"| notes | file | {tmp_path / 'notes.txt'} |" in notes
        ((_, bundle),) = read.texts("artifacts/bundle")
        assert f"| bundle | dataset | {tmp_path / 'bundle'} |" in bundle

    def test_histograms_keep_their_bins(self, tmp_path):
        run(tmp_path, TensorBoard())
        (one,) = Reader(tmp_path / "run/tensorboard").found.Histograms("media/histogram")
        value = one.histogram_value
        edges = [value.min, *value.bucket_limit]
        expected, at = np.histogram(HISTOGRAM.numpy(), bins=len(value.bucket))
        assert list(value.bucket) == expected.tolist()
        assert edges == pytest.approx(at.tolist())
        assert (one.step, value.num, value.max) == (MEDIA_STEP, 4, 4)

    def test_hyperparameters_and_status(self, tmp_path):
        run(tmp_path, TensorBoard())
        read = Reader(tmp_path / "run/tensorboard")
        found = read.hyperparameters()
        assert {name: found[name] for name in HYPERPARAMETERS} == {**HYPERPARAMETERS, "nothing": "None"}
        assert (found["seed"], found["optimizer/lr"], found["checkpoint/every_steps"], found["max_steps"]) == (1, 1, 8, 20)
        assert read.status() == STATUS_SUCCESS
        ((step, text),) = read.texts("run/outcome")
        assert (step, text.splitlines()[-1]) == (20, "| completed | max_steps=20 reached | 20 |")

    def test_times_are_those_of_the_records(self, tmp_path):
        run(tmp_path, TensorBoard(), plugins=["metrics_log"])
        lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
        times = [json.loads(line)["time"] for line in lines if "train/loss" in line]
        assert [one.wall_time for one in Reader(tmp_path / "run/tensorboard").found.Scalars("train/loss")] == times

    def test_off(self, tmp_path):
        run(tmp_path, TensorBoard(hparams=False))
        read = Reader(tmp_path / "run/tensorboard")
        assert SESSION_START_INFO_TAG not in read.found.Tags()["tensors"]
        assert read.scalars("train/loss") == losses(1, 20)


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
        ran = run(tmp_path, TensorBoard(), **end)
        assert ran.ended.status == status
        read = Reader(tmp_path / "run/tensorboard")
        assert read.status() == STATUS_FAILURE
        assert read.scalars("train/loss")[:6] == losses(1, 6)
        ((_, text),) = read.texts("run/outcome")
        assert f"| {status} |" in text

    def test_stopped(self, tmp_path):
        class Stops:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 11:
                    trainer.stop("enough")

        run(tmp_path, TensorBoard(), plugins=[Stops()])
        read = Reader(tmp_path / "run/tensorboard")
        assert (read.status(), read.scalars("train/loss")) == (STATUS_SUCCESS, losses(1, 12))


class TestFolders:
    def test_without_a_work_dir_nothing_is_written(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        outcome = make_trainer([TensorBoard()], None, 3).train()
        assert (outcome.status, list(tmp_path.iterdir())) == ("completed", [])

    def test_log_dir(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        make_trainer([TensorBoard("tb/{name}-{id}")], None, 3, name="mine").train()
        (folder,) = (tmp_path / "tb").iterdir()
        name, _, identity = folder.name.partition("-")
        assert (name, len(identity)) == ("mine", 12)
        assert Reader(folder).scalars("train/loss") == losses(1, 3)

    def test_two_runs_in_one_folder_do_not_mix(self, tmp_path):
        make_trainer([TensorBoard(str(tmp_path / "tb"))], None, 3).train()
        ran = run(tmp_path, TensorBoard(str(tmp_path / "tb")), 10)
        assert Reader(tmp_path / "tb").scalars("train/loss") == losses(1, 3)
        assert Reader(tmp_path / "tb" / ran.run.id).scalars("train/loss") == losses(1, 10)
        run(tmp_path, TensorBoard(str(tmp_path / "tb")), 15, resume="auto")
        assert Reader(tmp_path / "tb" / ran.run.id).scalars("train/loss") == losses(1, 15)

    def test_files_of_others_are_left_alone(self, tmp_path):
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path / "tb")) as writer:
            writer.add_scalar("mine", 1.0, 100)
        (own,) = (tmp_path / "tb").iterdir()
        before = own.read_bytes()
        run(tmp_path, TensorBoard(str(tmp_path / "tb")), fail_after=10)
        run(tmp_path, TensorBoard(str(tmp_path / "tb")), 15, resume="auto")
        assert own.read_bytes() == before
        assert Reader(tmp_path / "tb", purge=False).scalars("train/loss") == losses(1, 15)

    def test_overwrite_removes_what_the_former_run_wrote(self, tmp_path):
        run(tmp_path, TensorBoard())
        run(tmp_path, TensorBoard(), 5, overwrite=True)
        assert Reader(tmp_path / "run/tensorboard").scalars("train/loss") == losses(1, 5)
        assert len(list((tmp_path / "run/tensorboard").iterdir())) == 2

    def test_a_folder_that_vanishes_is_made_anew(self, tmp_path):
        vanishes = Does(10, lambda: shutil.rmtree(tmp_path / "run/tensorboard"), settled=True)
        ran = run(tmp_path, TensorBoard(), plugins=[vanishes], media=False)
        found = Reader(tmp_path / "run/tensorboard").scalars("train/loss")
        assert (ran.outcome.status, found[-10:]) == ("completed", losses(11, 20))
        assert sum("was removed; a new file is begun" in one for one in ran.warnings) == 1

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "tb").write_text("a file")
        ran = run(tmp_path, TensorBoard(str(tmp_path / "tb/x")), report_timeout_s=5)
        assert ran.outcome.status == "completed"
        (warning,) = [one for one in ran.warnings if "report_start() failed" in one]
        assert "NotADirectoryError" in warning

    def test_a_bucket_is_refused(self):
        with pytest.raises(OptionError, match=r"log_dir = 'gs://bucket/x': must be a local folder"):
            TensorBoard("gs://bucket/x")


class TestOddValues:
    def test_they_do_no_harm(self, tmp_path):
        ran = run(tmp_path, TensorBoard(), scalars=ODD_SCALARS, hyperparameters=ODD_HYPERPARAMETERS)
        assert (ran.outcome.status, ran.warnings) == ("completed", [])
        read = Reader(tmp_path / "run/tensorboard")
        for name, value in ODD_SCALARS.items():
            values = [one for _, one in read.scalars(name)]
            assert len(values) == 20
            single = float(np.float32(value)) if abs(value) != 1e300 else math.inf
            assert all(one == single or (math.isnan(one) and math.isnan(single)) for one in values), name
        found = read.hyperparameters()
        expected = {**ODD_HYPERPARAMETERS, "nan": "nan", "inf": "inf", "big": str(2**70)}
        assert {name: found[name] for name in expected} == expected

    def test_what_is_no_character(self, tmp_path):
        """As names of files may have it: protocol buffers refuse it."""
        broken = "\udc80"
        ran = run(
            tmp_path, TensorBoard(), 3, scalars={f"a{broken}": 1.0}, hyperparameters={f"b{broken}": f"c{broken}"}, media=False
        )
        assert ran.warnings == []
        read = Reader(tmp_path / "run/tensorboard")
        assert [value for _, value in read.scalars("a?")] == [1.0] * 3
        assert read.hyperparameters()["b?"] == "c?"

    def test_pictures_with_one_and_four_channels(self, tmp_path):
        class Pictures:
            @hookimpl
            def after_step(self, trainer):
                trainer.log_image("grey", IMAGE[0])
                trainer.log_image("rgba", np.full((4, 2, 3), 7, dtype=np.uint8))

        run(tmp_path, TensorBoard(), 1, plugins=[Pictures()])
        read = Reader(tmp_path / "run/tensorboard")
        for name, mode, shape in (("grey", "L", (8, 10)), ("rgba", "RGBA", (2, 3, 4))):
            (one,) = read.found.Images(name)
            picture = open_image(io.BytesIO(one.encoded_image_string))
            assert (picture.mode, np.asarray(picture).shape) == (mode, shape)


def test_the_command_line_finds_it(tmp_path):
    """As installed: by its entry point, with options from the command line."""
    project = shutil.copytree(Path(make_trainer.__code__.co_filename).parent / "data/projects/tiny", tmp_path / "project")
    command = [sys.executable, "-c", "from trainhooks.cli import main; main()", "train", "-p", "tensorboard"]
    command += ["-o", "tensorboard.log_dir=tb/{name}", "--set", "work_dir=out", "--set", "log_every_steps=1"]
    environment = {**os.environ, "TRAINHOOKS_DISABLE_AUTOLOAD": "1"}
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=120, env=environment)
    assert [step for step, _ in Reader(project / "tb/out").scalars("train/loss")] == [1, 2, 3]


def test_listing_imports_no_tensorboard():
    listing, imported = list_plugins("tensorboard", "torch", "trainhooks_tensorboard", "google.protobuf")
    assert "trainhooks-tensorboard" in listing
    assert imported == []


def test_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(
        r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    script = tmp_path / "script.py"
    script.write_text(block, encoding="utf-8")
    environment = {**os.environ, "TRAINHOOKS_DISABLE_AUTOLOAD": "1"}
    subprocess.run([sys.executable, str(script)], check=True, timeout=120, env=environment)
    assert Reader(tmp_path / "runs/script/tensorboard").scalars("train/loss")[-1][0] == 40
