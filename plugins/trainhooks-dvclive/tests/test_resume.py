"""``trainhooks-dvclive`` in runs that are killed and resumed."""

import math

from dvclive_reader import Read, losses
from satellite_support import (
    kill_and_resume,
    run,
)

from trainhooks_dvclive import DVCLive

IMPORT = "from trainhooks_dvclive import DVCLive"


class TestResume:
    def test_killed_and_resumed_each_step_is_there_once(self, tmp_path):
        first, second = kill_and_resume(tmp_path, "DVCLive()", IMPORT)
        assert (first.id, second.resumed_step, second.status, second.warnings) == (second.id, 8, "completed", [])
        read = Read(tmp_path / "run/dvclive")
        assert read.values("train/loss") == losses(1, 15)
        assert read.values("probe/double") == [(step, 2.0 * step) for step in range(1, 16)]
        assert (read.summary["step"], read.summary["run"]["status"]) == (15, "completed")
        assert sorted(read.dvcyaml["artifacts"]) == ["bundle", "notes"]
        assert "plots/images" in read.dvcyaml["plots"]

    def test_a_killed_run_says_running_and_has_every_step(self, tmp_path):
        lines = ["import shutil", IMPORT, "def plugin(index, work):", "    if index == 1:"]
        lines += ["        shutil.copytree(work, work.parent / 'killed')", "    return DVCLive()"]
        kill_and_resume(tmp_path, "plugin(INDEX, WORK)", "\n".join(lines))
        read = Read(tmp_path / "killed/dvclive")
        assert (read.values("train/loss"), read.summary["run"]["status"]) == (losses(1, 10), "running")

    def test_killed_again_and_again(self, tmp_path):
        segments = kill_and_resume(tmp_path, "DVCLive()", IMPORT, kill_after=(10, 12, 18), steps=21)
        assert [one.resumed_step for one in segments] == [0, 8, 8, 16]
        assert Read(tmp_path / "run/dvclive").values("train/loss") == losses(1, 21)

    def test_the_summary_is_cut_back_too(self, tmp_path):
        run(tmp_path, DVCLive(), fail_after=12, scalars={"a": math.nan, "b/c": 3.0})
        run(tmp_path, DVCLive(), 9, resume=tmp_path / "run/checkpoints/step-00000008")
        summary = Read(tmp_path / "run/dvclive").summary
        assert (summary["step"], summary["train"]["loss"], summary["a"], summary["b"]["c"]) == (9, -8.0, "nan", 3.0)

    def test_what_a_kill_left_incomplete_is_mended(self, tmp_path):
        run(tmp_path, DVCLive(), 8, media=False)
        folder = tmp_path / "run/dvclive"
        file = folder / "plots/metrics/train/loss.tsv"
        file.write_bytes(file.read_bytes()[:-3])
        (folder / "metrics.json").write_text('{"step": 8, "tr')
        (folder / "params.yaml").write_text("seed: 1\n  bad: [")
        run(tmp_path, DVCLive(), 10, resume="auto", media=False)
        read = Read(folder)
        assert read.values("train/loss") == [*losses(1, 7), *losses(9, 10)]  # 8 was cut
        assert (read.params["note"], read.summary["step"]) == ("hello", 10)

    def test_a_fork_is_a_run_of_its_own(self, tmp_path):
        run(tmp_path, DVCLive(), 10)
        (tmp_path / "fork").mkdir()
        run(tmp_path / "fork", DVCLive(), 15, resume=tmp_path / "run/checkpoints/step-00000008")
        assert Read(tmp_path / "run/dvclive").values("train/loss") == losses(1, 10)
        assert Read(tmp_path / "fork/run/dvclive").values("train/loss") == losses(9, 15)

    def test_changed_hyperparameters_are_noted(self, tmp_path):
        run(tmp_path, DVCLive(), 8, hyperparameters={"rate": 0.1, "old": 1, "same": math.nan})
        ran = run(tmp_path, DVCLive(), 10, hyperparameters={"rate": 0.2, "new": True, "same": math.nan}, resume="auto")
        assert ran.warnings == []
        read = Read(tmp_path / "run/dvclive")
        assert (read.params["rate"], read.params["new"], "old" in read.params) == (0.2, True, False)
        assert read.note["changed_hyperparameters"] == [
            {"step": 8, "name": "max_steps", "before": 8, "now": 10},
            {"step": 8, "name": "new", "before": None, "now": True},
            {"step": 8, "name": "old", "before": 1, "now": None},
            {"step": 8, "name": "rate", "before": 0.1, "now": 0.2},
        ]
