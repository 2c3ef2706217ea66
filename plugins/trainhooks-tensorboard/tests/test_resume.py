"""``trainhooks-tensorboard`` in runs that are killed and resumed."""

import shutil
import struct

import pytest
from satellite_support import (
    MEDIA_STEP,
    TEXT,
    kill_and_resume,
    run,
)
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from tensorboard_reader import Reader, losses

from trainhooks import hookimpl
from trainhooks_tensorboard import TensorBoard


class TestResume:
    @pytest.mark.parametrize("purge", [True, False])
    def test_killed_and_resumed_each_step_is_there_once(self, tmp_path, purge):
        first, second = kill_and_resume(tmp_path, "TensorBoard()", "from trainhooks_tensorboard import TensorBoard")
        assert (first.id, second.resumed_step, second.status, second.warnings) == (second.id, 8, "completed", [])
        read = Reader(tmp_path / "run/tensorboard", purge)
        assert read.scalars("train/loss") == losses(1, 15)
        assert read.scalars("probe/double") == [(step, 2.0 * step) for step in range(1, 16)]
        assert [one.step for one in read.found.Images("media/image")] == [MEDIA_STEP]
        assert read.texts("media/text") == [(MEDIA_STEP, TEXT)]
        assert read.status() == STATUS_SUCCESS

    def test_a_kill_loses_nothing_that_was_delivered(self, tmp_path):
        lines = (
            "import shutil",
            "from trainhooks_tensorboard import TensorBoard",
            "def plugin(index, work):",
            "    if index == 1:",
            "        shutil.copytree(work, work.parent / 'killed')",
            "    return TensorBoard()",
        )
        kill_and_resume(tmp_path, "plugin(INDEX, WORK)", "\n".join(lines))
        assert Reader(tmp_path / "killed/tensorboard").scalars("train/loss") == losses(1, 10)

    def test_killed_again_and_again(self, tmp_path):
        imports = "from trainhooks_tensorboard import TensorBoard"
        segments = kill_and_resume(tmp_path, "TensorBoard()", imports, kill_after=(10, 12, 18), steps=21)
        assert [one.resumed_step for one in segments] == [0, 8, 8, 16]
        assert len({one.id for one in segments}) == 1
        for purge in (True, False):
            assert Reader(tmp_path / "run/tensorboard", purge).scalars("train/loss") == losses(1, 21)

    def test_a_running_tensorboard_sees_the_resume(self, tmp_path):
        """A reader that had read the steps that come again drops them by the mark of the restart."""
        run(tmp_path, TensorBoard(), fail_after=10)
        watching = Reader(tmp_path / "run/tensorboard")
        assert watching.scalars("train/loss") == losses(1, 10)
        run(tmp_path, TensorBoard(), 15, resume=tmp_path / "run/checkpoints/step-00000008")
        watching.found.Reload()
        assert watching.scalars("train/loss") == losses(1, 15)

    def test_the_status_is_that_of_the_last_process(self, tmp_path):
        run(tmp_path, TensorBoard(), fail_after=10)
        assert Reader(tmp_path / "run/tensorboard").status() == STATUS_FAILURE
        run(tmp_path, TensorBoard(), 15, resume="auto")
        read = Reader(tmp_path / "run/tensorboard")
        assert (read.status(), len(read.texts("run/outcome"))) == (STATUS_SUCCESS, 1)

    def test_a_finished_run_that_goes_on(self, tmp_path):
        run(tmp_path, TensorBoard(), 15)
        run(tmp_path, TensorBoard(), 20, resume="auto")
        read = Reader(tmp_path / "run/tensorboard")
        assert (read.scalars("train/loss"), read.status()) == (losses(1, 20), STATUS_SUCCESS)

    def test_artifacts_and_media_of_the_steps_that_come_again_are_there_once(self, tmp_path):
        class Late:
            name = "late"

            @hookimpl
            def after_step(self, trainer):
                trainer.log_text(f"text/{trainer.step + 1}", "x")
                trainer.log_artifact(tmp_path, name=f"{trainer.step + 1}")

        run(tmp_path, TensorBoard(), fail_after=11, plugins=[Late()])
        run(tmp_path, TensorBoard(), 15, plugins=[Late()], resume=tmp_path / "run/checkpoints/step-00000008")
        read = Reader(tmp_path / "run/tensorboard", purge=False)
        for step in range(1, 16):
            assert [at for at, _ in read.texts(f"text/{step}")] == [step]
            assert len(read.texts(f"artifacts/{step}")) == 1, step

    def test_a_fork_is_a_run_of_its_own(self, tmp_path):
        first = run(tmp_path, TensorBoard(), 10)
        (tmp_path / "fork").mkdir()
        fork = run(tmp_path / "fork", TensorBoard(), 15, resume=tmp_path / "run/checkpoints/step-00000008")
        assert fork.run.parent == first.run.id
        assert Reader(tmp_path / "run/tensorboard").scalars("train/loss") == losses(1, 10)
        assert Reader(tmp_path / "fork/run/tensorboard").scalars("train/loss") == losses(9, 15)

    def test_changed_hyperparameters_are_noted(self, tmp_path):
        run(tmp_path, TensorBoard(), 8, hyperparameters={"rate": 0.1, "old": 1, "same": "x"})
        ran = run(tmp_path, TensorBoard(), 10, hyperparameters={"rate": 0.2, "new": True, "same": "x"}, resume="auto")
        assert ran.warnings == []
        read = Reader(tmp_path / "run/tensorboard")
        found = read.hyperparameters()
        assert (found["rate"], found["new"], "old" in found) == (0.2, True, False)
        ((step, text),) = read.texts("run/changed_hyperparameters")
        rows = text.splitlines()[2:]
        assert (step, rows) == (
            8,
            ["| max_steps | 8.0 | 10.0 |", "| new |  | True |", "| old | 1.0 |  |", "| rate | 0.1 | 0.2 |"],
        )
        run(tmp_path, TensorBoard(), 12, hyperparameters={"rate": 0.2, "new": True, "same": "x"}, resume="auto")
        assert len(Reader(tmp_path / "run/tensorboard").texts("run/changed_hyperparameters")) == 2

    def test_a_cut_file_is_mended(self, tmp_path):
        """Whatever byte a kill or a power cut ends the file at, the resumed run has what was whole before it, and all after."""
        run(tmp_path, TensorBoard(), 8, media=False)
        (file,) = (tmp_path / "run/tensorboard").glob("*.records.*")
        data = file.read_bytes()
        position, ends = 0, []
        while position < len(data):
            position += 16 + struct.unpack_from("<Q", data, position)[0]
            ends.append(position)
        kept = shutil.copytree(tmp_path / "run", tmp_path / "kept")
        whole = ends[5]  # version, start, and four steps
        for size in (whole, whole + 1, whole + 11, whole + 12, whole + 30, ends[6] - 1):
            shutil.rmtree(tmp_path / "run")
            shutil.copytree(kept, tmp_path / "run")
            file.write_bytes(data[:size])
            run(tmp_path, TensorBoard(), 10, resume="auto", media=False)
            assert Reader(tmp_path / "run/tensorboard").scalars("train/loss") == [*losses(1, 4), *losses(9, 10)], size
