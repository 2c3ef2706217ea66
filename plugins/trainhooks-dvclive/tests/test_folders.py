"""``trainhooks-dvclive``: which folders and repositories it writes to, and which it leaves alone."""

import hashlib
import shutil
import subprocess

import pytest
from dvc.repo import Repo
from dvclive_reader import Read, losses
from satellite_support import (
    ARTIFACT,
    Does,
    make_trainer,
    run,
)

from trainhooks import OptionError
from trainhooks_dvclive import DVCLive


class TestRepositories:
    """DVC and Git of a user are left alone unless that is asked."""

    def git(self, folder, *words):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words]
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout

    def digest(self, folder):
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def test_a_git_repository_is_not_touched(self, tmp_path):
        self.git(tmp_path, "init", "-q")
        (tmp_path / "code.py").write_text("x = 1\n")
        self.git(tmp_path, "add", "code.py")
        self.git(tmp_path, "commit", "-qm", "first")
        before = self.digest(tmp_path / ".git")
        run(tmp_path, DVCLive())
        assert self.digest(tmp_path / ".git") == before
        assert not (tmp_path / ".dvc").exists()
        assert not (tmp_path / ".dvcignore").exists()

    def test_a_dvc_repository_is_not_touched(self, tmp_path):
        self.git(tmp_path, "init", "-q")
        Repo.init(str(tmp_path)).close()
        self.git(tmp_path, "commit", "-qm", "first")
        before = {name: self.digest(tmp_path / name) for name in (".git", ".dvc")}
        run(tmp_path, DVCLive())
        assert {name: self.digest(tmp_path / name) for name in (".git", ".dvc")} == before

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of libraries that DVC imports
    def test_an_experiment_is_saved_if_asked(self, tmp_path):
        self.git(tmp_path, "init", "-q")
        Repo.init(str(tmp_path)).close()
        self.git(tmp_path, "config", "user.name", "t")
        self.git(tmp_path, "config", "user.email", "t@example.org")
        self.git(tmp_path, "commit", "-qm", "first")
        ran = run(tmp_path, DVCLive(save_dvc_exp=True, exp_name="tried", cache_artifacts=True))
        assert ran.warnings == []
        assert "refs/exps" in self.git(tmp_path, "for-each-ref")
        with Repo(str(tmp_path)) as repo:
            (saved,) = repo.experiments.ls()[self.git(tmp_path, "rev-parse", "HEAD").strip()]
            assert saved[0] == "tried"
        files = self.git(tmp_path, "ls-tree", "-r", "--name-only", saved[1]).split()
        assert "run/dvclive/metrics.json" in files
        assert "notes.txt.dvc" in files
        digest = hashlib.md5(ARTIFACT.encode()).hexdigest()  # noqa: S324 - it is what DVC's cache goes by
        assert (tmp_path / ".dvc/cache/files/md5" / digest[:2] / digest[2:]).read_text() == ARTIFACT

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_no_experiment_of_a_failed_run(self, tmp_path):
        self.git(tmp_path, "init", "-q")
        Repo.init(str(tmp_path)).close()
        self.git(tmp_path, "commit", "-qm", "first")
        run(tmp_path, DVCLive(save_dvc_exp=True), fail_after=6, media=False)
        assert "refs/exps" not in self.git(tmp_path, "for-each-ref")
        assert Read(tmp_path / "run/dvclive").summary["run"]["status"] == "failed"

    def test_asked_without_a_repository(self, tmp_path):
        self.git(tmp_path, "init", "-q")
        ran = run(tmp_path, DVCLive(save_dvc_exp=True))
        assert sum("is in no DVC repository" in one for one in ran.warnings) == 1
        assert not (tmp_path / ".dvc").exists()
        assert Read(tmp_path / "run/dvclive").values("train/loss") == losses(1, 20)


class TestFolders:
    def test_without_a_work_dir_nothing_is_written(self, tmp_path):
        assert make_trainer([DVCLive()], None, 3).train().status == "completed"
        assert list(tmp_path.iterdir()) == []

    def test_a_new_run_takes_the_place_of_the_former(self, tmp_path):
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        run(tmp_path / "a", DVCLive("live"), 12)
        run(tmp_path / "b", DVCLive("live"), 4, media=False)
        read = Read(tmp_path / "live")
        assert (read.values("train/loss"), read.summary["step"]) == (losses(1, 4), 4)
        assert "artifacts" not in read.dvcyaml
        assert not (tmp_path / "live/texts").exists()

    @pytest.mark.parametrize("name", ["params.yaml", "dvc.yaml", "metrics.json"])
    def test_files_of_others_are_not_replaced(self, tmp_path, name):
        (tmp_path / "live").mkdir()
        (tmp_path / "live" / name).write_text("mine\n")
        ran = run(tmp_path, DVCLive("live"), report_timeout_s=5)
        assert ran.outcome.status == "completed"
        assert (tmp_path / "live" / name).read_text() == "mine\n"
        assert any(f"{name} was not made by trainhooks, and DVCLive would replace it" in one for one in ran.warnings)

    @pytest.mark.parametrize("folder", [".", "..", "/"])
    def test_the_working_directory_is_refused(self, folder):
        with pytest.raises(OptionError, match="is or holds the working directory"):
            DVCLive(folder)

    def test_options_that_need_another(self):
        with pytest.raises(OptionError, match="need save_dvc_exp = true"):
            DVCLive(cache_artifacts=True)

    def test_overwrite_removes_what_the_former_run_wrote(self, tmp_path):
        run(tmp_path, DVCLive())
        run(tmp_path, DVCLive(), 5, overwrite=True, media=False)
        assert Read(tmp_path / "run/dvclive").values("train/loss") == losses(1, 5)
        assert not (tmp_path / "run/dvclive/texts").exists()

    def test_a_folder_that_vanishes_is_made_anew(self, tmp_path):
        vanishes = Does(10, lambda: shutil.rmtree(tmp_path / "run/dvclive"), settled=True)
        ran = run(tmp_path, DVCLive(), plugins=[vanishes], media=False)
        read = Read(tmp_path / "run/dvclive")
        assert read.values("train/loss")[-10:] == losses(11, 20)
        assert (read.params["note"], read.summary["train"]["loss"], "plots" in read.dvcyaml) == ("hello", -19.0, True)
        assert sum("was removed; it is made anew" in one for one in ran.warnings) == 1
        run(tmp_path, DVCLive(), 22, resume="auto", media=False)
        assert Read(tmp_path / "run/dvclive").values("train/loss")[-12:] == losses(11, 22)
