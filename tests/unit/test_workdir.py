"""The run folder: refused, made, taken over; only what is listed is removed."""

import json
import os

import pytest

from trainhooks import UsageError
from trainhooks.workdir import MANIFEST, RunFolder


def opened(path, *, resume=False, overwrite=False):
    folder = RunFolder(path)
    folder.open(resume=resume, overwrite=overwrite)
    return folder


def listed(path):
    return json.loads((path / MANIFEST).read_text())["files"]


@pytest.fixture
def former(tmp_path):
    """A run that made two files, and a file of the user's beside them."""
    folder = opened(tmp_path / "run")
    folder.file("metrics.csv").write_text("old")
    folder.file("checkpoints/step-1").mkdir()
    (folder.path / "notes.txt").write_text("mine")
    return folder.path


class TestCheck:
    def test_changes_nothing(self, tmp_path):
        RunFolder(tmp_path / "run").check(resume=False, overwrite=False)
        assert list(tmp_path.iterdir()) == []

    def test_a_file(self, tmp_path):
        (tmp_path / "run").write_text("")
        with pytest.raises(UsageError, match="run is a file"):
            RunFolder(tmp_path / "run").check(resume=False, overwrite=True)

    def test_a_file_further_up(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match=r"file is a file"):
            RunFolder(tmp_path / "file" / "run").check(resume=False, overwrite=False)

    @pytest.mark.parametrize("where", ["{}", "{}/run"])
    def test_a_name_that_no_file_system_takes(self, tmp_path, where):
        with pytest.raises(UsageError, match="has 256 bytes, at most 255"):
            RunFolder(tmp_path / where.format("é" * 128)).check(resume=False, overwrite=False)

    def test_the_longest_name_works(self, tmp_path):
        assert opened(tmp_path / ("x" * 255)).file("checkpoints/step-1").parent.is_dir()

    def test_nul(self, tmp_path):
        with pytest.raises(UsageError, match="NUL"):
            RunFolder(tmp_path / "a\0b").check(resume=False, overwrite=False)

    def test_a_former_run_names_the_three_remedies(self, former):
        with pytest.raises(UsageError, match=r"--resume auto.*--overwrite.*another folder"):
            opened(former)

    def test_a_run_that_made_nothing_is_no_former_run(self, tmp_path):
        opened(tmp_path / "run")
        assert opened(tmp_path / "run").file("a").name == "a"

    def test_somebody_elses_folder(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("")
        for resume in (False, True):
            with pytest.raises(UsageError, match="is not empty and holds no run"):
                opened(tmp_path, resume=resume)
        assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


class TestTakenOver:
    def test_overwrite_removes_only_what_is_listed(self, former):
        opened(former, overwrite=True)
        assert sorted(entry.name for entry in former.iterdir()) == ["notes.txt", MANIFEST]
        assert listed(former) == []

    def test_overwrite_never_follows_a_link(self, former, tmp_path):
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "data").write_text("x")
        (former / "checkpoints" / "step-1").rmdir()
        (former / "checkpoints" / "step-1").symlink_to(precious)
        opened(former, overwrite=True)
        assert (precious / "data").read_text() == "x"

    @pytest.mark.parametrize("name", ["../precious", "/etc/hostname"])
    def test_overwrite_never_leaves_the_folder(self, former, tmp_path, name):
        (tmp_path / "precious").write_text("x")
        (former / MANIFEST).write_text(json.dumps({"format": 1, "files": [name]}))
        opened(former, overwrite=True)
        assert (tmp_path / "precious").read_text() == "x"
        assert os.path.exists("/etc/hostname")

    def test_resume_keeps_the_list(self, former):
        folder = opened(former, resume=True)
        assert folder.file("metrics.csv").read_text() == "old"
        assert listed(former) == ["metrics.csv", "checkpoints/step-1"]

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"files": 3}', "\0\0\0"])
    def test_a_damaged_list(self, former, content, messages):
        (former / MANIFEST).write_text(content)
        with pytest.raises(UsageError, match="is damaged"):
            opened(former, overwrite=True)
        assert (former / "metrics.csv").read_text() == "old"
        folder = opened(former, resume=True)
        assert folder.file("metrics.csv").read_text() == "old"
        assert set(listed(former)) == {"metrics.csv", "checkpoints/step-1", "notes.txt"}
        assert any("is damaged" in message for message in messages())


class TestFile:
    def test_is_listed_before_it_is_written(self, tmp_path):
        folder = opened(tmp_path / "run")
        path = folder.file("a/b.txt")
        assert not path.exists()
        assert path.parent.is_dir()
        assert listed(folder.path) == ["a/b.txt"]
        folder.file("a/b.txt")
        assert listed(folder.path) == ["a/b.txt"]
        folder.forget("a/b.txt")
        assert listed(folder.path) == []

    @pytest.mark.parametrize("name", ["../x", "a/../../x", "/tmp/x"])
    def test_stays_inside(self, tmp_path, name):
        with pytest.raises(UsageError, match="must be a name inside the run folder"):
            opened(tmp_path / "run").file(name)

    def test_something_that_is_not_ours(self, tmp_path):
        folder = opened(tmp_path / "run")
        (folder.path / "notes.txt").write_text("mine")
        with pytest.raises(UsageError, match=r"notes\.txt exists and was not made by trainhooks"):
            folder.file("notes.txt")

    def test_a_folder_that_was_removed_is_made_anew_with_a_warning(self, former, messages):
        folder = opened(former, resume=True)
        for root, folders, files in os.walk(former, topdown=False):
            for name in files:
                os.unlink(os.path.join(root, name))
            for name in folders:
                os.rmdir(os.path.join(root, name))
        former.rmdir()
        assert folder.file("checkpoints/step-2").parent.is_dir()
        assert [message for message in messages() if "was removed" in message] == [
            f"the run folder {former} was removed; it is made anew"
        ]
        assert listed(former) == ["checkpoints/step-2"]

    def test_without_opening_it_a_former_runs_list_is_kept(self, former):
        """An evaluation opens no folder, but a plugin may write its results beside a training's."""
        RunFolder(former).file("predictions.csv").write_text("1")
        assert listed(former) == ["metrics.csv", "checkpoints/step-1", "predictions.csv"]

    def test_without_opening_it_and_nothing_there(self, tmp_path, messages):
        folder = RunFolder(tmp_path / "run")
        folder.file("predictions.csv").write_text("1")
        assert listed(folder.path) == ["predictions.csv"]
        assert messages() == []  # nothing was removed
        folder.open(resume=False, overwrite=False)  # its own training goes on there
        assert listed(folder.path) == ["predictions.csv"]


def test_the_path_is_fixed_when_the_run_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(type(tmp_path)("out"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    folder.open(resume=False, overwrite=False)
    assert folder.path == tmp_path / "out"
    assert (tmp_path / "out" / MANIFEST).is_file()
