"""The run folder: refused, made, locked, taken over, recorded; only what is listed is removed."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone

import pytest
import torch

from trainhooks import CheckpointError, Trainer, UsageError
from trainhooks.run_lock import LOCK, RunLock, holder
from trainhooks.run_record import RECORD, read_record
from trainhooks.workdir import RunFolder
from trainhooks_builtins import Checkpoint

_opened = []


@pytest.fixture(autouse=True)
def closed():
    """Give every lock back at the end of a test."""
    yield
    while _opened:
        _opened.pop().close()


def opened(path, *, resume=False, overwrite=False, facts=None):
    folder = RunFolder(path)
    _opened.append(folder)
    folder.open(resume=resume, overwrite=overwrite, facts=facts)
    return folder


def ran(path, status="completed", **options):
    """Return the folder of a run that is over."""
    folder = opened(path, **options)
    folder.close(status=status)
    return folder


def record_of(path):
    return json.loads((path / RECORD).read_text())


def listed(path):
    return record_of(path)["files"]


@pytest.fixture
def former(tmp_path):
    """A run that made two files, and a file of the user's beside them."""
    folder = opened(tmp_path / "run")
    folder.file("metrics.csv").write_text("old")
    folder.file("checkpoints/step-1").mkdir()
    (folder.path / "notes.txt").write_text("mine")
    folder.close(status="completed")
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
        folder = opened(tmp_path / ("x" * 255))
        assert folder.file("checkpoints/step-1").parent.is_dir()
        folder.close()

    def test_nul(self, tmp_path):
        with pytest.raises(UsageError, match="NUL"):
            RunFolder(tmp_path / "a\0b").check(resume=False, overwrite=False)

    def test_a_former_run_names_the_three_remedies(self, former):
        with pytest.raises(UsageError, match=r"--resume auto.*--overwrite.*another folder"):
            opened(former)

    def test_a_run_that_made_nothing_is_no_former_run(self, tmp_path):
        ran(tmp_path / "run")
        ran(tmp_path / "run")
        assert record_of(tmp_path / "run")["status"] == "completed"

    def test_somebody_elses_folder(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("")
        for resume in (False, True):
            with pytest.raises(UsageError, match="is not empty and holds no run"):
                opened(tmp_path, resume=resume)
        assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


class TestTakenOver:
    def test_overwrite_removes_only_what_is_listed(self, former):
        ran(former, overwrite=True)
        assert sorted(entry.name for entry in former.iterdir()) == ["notes.txt", RECORD]
        assert listed(former) == []

    def test_overwrite_never_follows_a_link(self, former, tmp_path):
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "data").write_text("x")
        (former / "checkpoints" / "step-1").rmdir()
        (former / "checkpoints" / "step-1").symlink_to(precious)
        ran(former, overwrite=True)
        assert (precious / "data").read_text() == "x"

    @pytest.mark.parametrize("name", ["", ".", "./", "link/data", "link/../precious", "a\0b", "x" * 300, "run.json"])
    def test_overwrite_believes_no_list_that_somebody_else_wrote(self, former, tmp_path, name):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "data").write_text("x")
        (former / "link").symlink_to(tmp_path / "elsewhere")
        (former / RECORD).write_text(json.dumps({"format": 1, "files": [name]}))
        ran(former, overwrite=True)
        assert (tmp_path / "elsewhere" / "data").read_text() == "x"
        assert (former / "notes.txt").read_text() == "mine"
        assert listed(former) == []

    def test_nothing_is_written_through_a_link(self, former, tmp_path):
        (tmp_path / "precious").write_text("x")
        for name in (f".{RECORD}.tmp", RECORD):
            (former / name).unlink(missing_ok=True)
            (former / name).symlink_to(tmp_path / "precious")
        ran(former, resume=True)
        assert (tmp_path / "precious").read_text() == "x"
        assert record_of(former)["status"] == "completed"
        assert not (former / RECORD).is_symlink()

    @pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": {"b": float("nan")}}, 10**400, "\ud800"])
    def test_a_former_record_with_odd_values(self, tmp_path, value):
        ran(tmp_path / "run")
        odd = dict.fromkeys(("started", "seconds", "resumed", "checkpoint", "best", "status", "locked", "saves"), value)
        (tmp_path / "run" / RECORD).write_text(json.dumps({**record_of(tmp_path / "run"), **odd}))
        ran(tmp_path / "run", resume=True)
        RunFolder(tmp_path / "run").file("predictions.csv")
        assert record_of(tmp_path / "run")["status"] == "completed"
        ran(tmp_path / "run", overwrite=True)

    @pytest.mark.parametrize("name", ["../precious", "/etc/hostname"])
    def test_overwrite_never_leaves_the_folder(self, former, tmp_path, name):
        (tmp_path / "precious").write_text("x")
        (former / RECORD).write_text(json.dumps({"format": 1, "files": [name]}))
        ran(former, overwrite=True)
        assert (tmp_path / "precious").read_text() == "x"
        assert os.path.exists("/etc/hostname")

    def test_resume_keeps_the_list(self, former):
        folder = opened(former, resume=True)
        assert folder.file("metrics.csv").read_text() == "old"
        folder.close()
        assert listed(former) == ["metrics.csv", "checkpoints/step-1"]

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"files": 3}', "\0\0\0", "[" * 100_000, None])
    def test_a_record_that_is_lost(self, former, content, messages):
        """Nothing is removed without the list; a resume takes the checkpoints, and what it writes itself, never the rest."""
        if content is None:
            (former / RECORD).unlink()
        else:
            (former / RECORD).write_text(content)
        with pytest.raises(UsageError, match="holds a former run"):
            opened(former)
        with pytest.raises(UsageError, match="is damaged or missing"):
            opened(former, overwrite=True)
        assert (former / "metrics.csv").read_text() == "old"
        folder = opened(former, resume=True)
        assert folder.file("metrics.csv").read_text() == "old"
        folder.close(status="stopped")
        assert listed(former) == ["checkpoints/step-1", "metrics.csv"]
        (said,) = [message for message in messages() if RECORD in message]
        assert said.startswith(f"{former / RECORD} is missing or damaged; the checkpoints")
        ran(former, overwrite=True)
        assert sorted(entry.name for entry in former.iterdir()) == ["notes.txt", RECORD]

    def test_a_record_that_is_no_file_is_no_run(self, tmp_path):
        (tmp_path / "run").mkdir()
        os.mkfifo(tmp_path / "run" / RECORD)
        with pytest.raises(UsageError, match="is not empty and holds no run"):
            opened(tmp_path / "run")


class TestNothingWorthKeeping:
    """A run that ended badly before its first checkpoint is replaced by the same command."""

    def died(self, path, status, *, saves=True, checkpoint=False):
        folder = opened(path, facts={"saves": saves})
        folder.file("metrics.csv").write_text("old")
        if checkpoint:
            folder.file("checkpoints/step-00000001").mkdir()
        folder.close(status=status)
        (path / "notes.txt").write_text("mine")

    @pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
    def test_is_replaced(self, tmp_path, status, messages):
        self.died(tmp_path / "run", status)
        ran(tmp_path / "run")
        assert sorted(entry.name for entry in (tmp_path / "run").iterdir()) == ["notes.txt", RECORD]
        ended = "killed" if status == "running" else status
        assert messages() == [f"replacing the former run in {tmp_path / 'run'} ({ended})"]

    @pytest.mark.parametrize(
        ("status", "options"),
        [("completed", {}), ("stopped", {}), ("failed", {"checkpoint": True}), ("running", {"checkpoint": True})]
        + [("failed", {"saves": False})],  # its logs are all that it was made for
    )
    def test_is_not_when_there_is_something(self, tmp_path, status, options):
        self.died(tmp_path / "run", status, **options)
        with pytest.raises(UsageError, match="holds a former run"):
            opened(tmp_path / "run")
        assert (tmp_path / "run" / "metrics.csv").read_text() == "old"

    def test_a_checkpoint_that_was_set_aside_is_something(self, tmp_path):
        self.died(tmp_path / "run", "failed", checkpoint=True)
        folder = tmp_path / "run" / "checkpoints"
        (folder / "step-00000001").rename(folder / ".step-00000001.old")
        with pytest.raises(UsageError, match="holds a former run"):
            opened(tmp_path / "run")

    @pytest.mark.parametrize("name", [LOCK, f".{RECORD}.tmp"])
    def test_killed_before_its_first_record(self, tmp_path, name):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / name).write_text("")
        ran(tmp_path / "run")


class TestFile:
    def test_no_file_behind_a_link_of_somebody_else(self, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        folder = opened(tmp_path / "run")
        (folder.path / "profiler").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UsageError, match="run/profiler is a link or no file, and was not made by trainhooks"):
            folder.file("profiler/step-1/trace.json")
        assert not list((tmp_path / "elsewhere").iterdir())

    def test_is_listed_before_it_is_written(self, tmp_path):
        folder = opened(tmp_path / "run")
        path = folder.file("a/b.txt")
        assert not path.exists()
        assert path.parent.is_dir()
        assert listed(folder.path) == ["a/b.txt"]
        folder.file("a/b.txt")
        assert listed(folder.path) == ["a/b.txt"]
        folder.forget("a/b.txt")
        assert listed(folder.path) == ["a/b.txt"]  # what is not there is no harm, and the next change says so
        folder.update(step=1)
        assert listed(folder.path) == []

    def test_outside_of_a_training_the_list_is_right_at_once(self, former):
        folder = RunFolder(former)
        folder.file("predictions.csv")
        folder.forget("predictions.csv")
        assert listed(former) == ["metrics.csv", "checkpoints/step-1"]

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
        folder.close(status="completed")

    def test_without_opening_it_the_record_is_kept(self, tmp_path):
        ran(tmp_path / "run", facts={"name": "mine", "step": 3})
        RunFolder(tmp_path / "run").file("predictions.csv")
        record = record_of(tmp_path / "run")
        assert (record["name"], record["step"], record["status"]) == ("mine", 3, "completed")


def test_the_path_is_fixed_when_the_run_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(type(tmp_path)("out"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    folder.open(resume=False, overwrite=False)
    assert folder.path == tmp_path / "out"
    assert (tmp_path / "out" / RECORD).is_file()


HOLDER = """
import sys, time
from pathlib import Path
from trainhooks.workdir import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.open(resume=False, overwrite=False, facts={"saves": True})
folder.file("metrics.csv").write_text("theirs")
print("open", flush=True)
sys.stdin.read()
folder.close(status="completed")
"""


@pytest.fixture
def other_process(tmp_path):
    """A process that has the folder ``run`` open, until its standard input ends."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def content(path):
    return {entry.name: entry.read_bytes() for entry in path.iterdir()}


class TestLock:
    @pytest.mark.parametrize("mode", [{}, {"resume": True}, {"overwrite": True}])
    def test_a_second_process_is_refused_and_changes_nothing(self, tmp_path, other_process, mode):
        before = content(tmp_path / "run")
        with pytest.raises(UsageError) as refused:
            opened(tmp_path / "run", **mode)
        assert f"run is in use by process {other_process.pid} on " in str(refused.value)
        assert "command -c" in str(refused.value)  # its sys.argv
        assert str(refused.value).endswith("): wait for it, or name another folder")
        assert content(tmp_path / "run") == before

    def test_the_system_frees_it_when_its_process_is_killed(self, tmp_path, other_process):
        other_process.kill()
        other_process.wait()
        assert holder(tmp_path / "run") is None
        assert (tmp_path / "run" / LOCK).is_file()  # which by itself is no lock
        ran(tmp_path / "run")
        assert [entry.name for entry in (tmp_path / "run").iterdir()] == [RECORD]

    def test_it_is_given_back_at_the_end(self, tmp_path, other_process):
        other_process.stdin.close()
        assert other_process.wait(60) == 0
        assert sorted(entry.name for entry in (tmp_path / "run").iterdir()) == ["metrics.csv", RECORD]
        ran(tmp_path / "run", resume=True)

    def test_a_second_one_in_this_process(self, tmp_path):
        first = opened(tmp_path / "run")
        with pytest.raises(UsageError, match="in use by another Trainer of this process since"):
            opened(tmp_path / "run", overwrite=True)
        first.close(status="completed")
        ran(tmp_path / "run", overwrite=True)

    @pytest.mark.parametrize("record_is_seen", [True, False])
    def test_a_run_that_begins_while_the_folder_is_looked_at(self, tmp_path, monkeypatch, record_is_seen):
        """It is named; its files are taken neither for those of a former run nor for somebody else's."""

        def is_not_locked_yet(path):
            monkeypatch.setattr("trainhooks.workdir.holder", holder)
            opened(tmp_path / "run").file("metrics.csv").write_text("step\n")
            if not record_is_seen:
                monkeypatch.setattr("trainhooks.workdir.is_run", lambda path: False)

        monkeypatch.setattr("trainhooks.workdir.holder", is_not_locked_yet)
        with pytest.raises(UsageError, match="in use by another Trainer of this process since"):
            RunFolder(tmp_path / "run").check(resume=False, overwrite=False)

    def test_it_is_not_lost_when_the_folder_is_copied(self, tmp_path):
        """A POSIX lock would be: it goes with the first descriptor of the file that the process closes."""
        opened(tmp_path / "run")
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        found = os.fork()
        if not found:
            os._exit(0 if holder(tmp_path / "run") else 1)
        assert os.waitpid(found, 0)[1] == 0
        ran(tmp_path / "copy", resume=True)  # the copy of a lock is none

    def test_a_worker_that_outlives_its_killed_parent_does_not_keep_it(self, tmp_path):
        reads, writes = os.pipe()
        parent = os.fork()
        if not parent:
            RunFolder(tmp_path / "run").open(resume=False, overwrite=False)
            worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
            worker.start()
            os.write(writes, str(worker.pid).encode())
            time.sleep(600)
        worker = int(os.read(reads, 20))
        os.close(reads)
        os.close(writes)
        assert holder(tmp_path / "run") is not None
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        try:
            os.kill(worker, 0)  # it is there
            assert holder(tmp_path / "run") is None
        finally:
            os.kill(worker, signal.SIGKILL)

    def test_a_forked_child_gives_nothing_back(self, tmp_path):
        folder = opened(tmp_path / "run")
        child = os.fork()
        if not child:
            folder.close(status="failed")
            os._exit(0)
        os.waitpid(child, 0)
        assert (tmp_path / "run" / LOCK).is_file()
        with pytest.raises(UsageError, match="in use"):
            opened(tmp_path / "run")

    def test_who_only_looks_refuses_nobody(self, tmp_path):
        """Looking takes the lock for some microseconds."""
        stop = threading.Event()

        def look():
            while not stop.is_set():
                holder(tmp_path)

        lookers = [threading.Thread(target=look) for _ in range(2)]
        for looker in lookers:
            looker.start()
        try:
            for _ in range(100):
                with RunLock(tmp_path):
                    assert holder(tmp_path) is not None
        finally:
            stop.set()
            for looker in lookers:
                looker.join()
        assert list(tmp_path.iterdir()) == []

    def test_of_many_that_start_at_once_one_at_a_time_is_in(self, tmp_path):
        """Whoever gives it back removes the file, which the next one may have opened already."""
        inside, seen, refusals = [], [], []

        def go(number):
            for _ in range(20):
                try:
                    with RunLock(tmp_path):
                        inside.append(number)
                        seen.append(len(inside))
                        time.sleep(0.0005)
                        inside.remove(number)
                except UsageError:
                    refusals.append(number)

        threads = [threading.Thread(target=go, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(seen) == {1}
        assert len(seen) + len(refusals) == 80

    @pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
    def test_a_file_system_without_locks(self, tmp_path, monkeypatch, number):
        def refuses(*_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("fcntl.flock", refuses)
        folder = opened(tmp_path / "run")
        assert record_of(tmp_path / "run")["locked"] is False
        assert holder(tmp_path / "run") is None
        folder.close(status="completed")

    def test_another_error_of_the_lock_is_told(self, tmp_path, monkeypatch):
        def refuses(*_):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr("fcntl.flock", refuses)
        with pytest.raises(UsageError, match=r"cannot lock work_dir .*run: .*run\.lock: Input/output error"):
            opened(tmp_path / "run")

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/hostname", path)])
    def test_something_else_of_that_name_is_neither_followed_nor_waited_for(self, tmp_path, make):
        ran(tmp_path / "run")
        make(tmp_path / "run" / LOCK)
        assert holder(tmp_path / "run") is None
        with pytest.raises(UsageError, match="cannot lock work_dir"):
            opened(tmp_path / "run", resume=True)

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": 1e400, "host": 3, "started": "x", "command": ""}'])
    def test_a_lock_whose_content_says_nothing(self, tmp_path, text):
        opened(tmp_path / "run")
        (tmp_path / "run" / LOCK).write_text(text)
        with pytest.raises(UsageError, match="is in use by another process: wait"):
            opened(tmp_path / "run")

    def test_what_it_says_cannot_move_the_cursor(self, tmp_path):
        opened(tmp_path / "run")
        holds = {"pid": 7, "host": "a\x1b[2Jb", "started": "2026-11-30T12:01:00+00:00", "command": "c\nd" + "e" * 999}
        (tmp_path / "run" / LOCK).write_text(json.dumps(holds))
        words = holder(tmp_path / "run")
        assert words.isprintable()
        assert len(words) < 300
        local = datetime(2026, 11, 30, 12, 1, tzinfo=timezone.utc).astimezone()
        assert words.startswith(f"process 7 on a?[2Jb since {local:%Y-%m-%d %H:%M:%S} (command c?d")

    def test_the_folder_is_removed_and_made_anew(self, tmp_path, messages):
        folder = opened(tmp_path / "run")
        shutil.rmtree(tmp_path / "run")
        folder.file("a")
        with pytest.raises(UsageError, match="in use by another Trainer"):
            opened(tmp_path / "run")
        folder.close(status="completed")
        assert sorted(entry.name for entry in (tmp_path / "run").iterdir()) == [RECORD]


class TestRecord:
    def test_says_that_it_runs_and_how_it_ended(self, tmp_path):
        folder = opened(tmp_path / "run", facts={"name": "mine", "started": "2026-11-30T12:00:00Z", "step": 0})
        assert record_of(folder.path)["status"] == "running"
        folder.update(step=3)
        assert record_of(folder.path)["step"] == 3
        folder.close(status="completed", step=5)
        record = record_of(folder.path)
        assert (record["format"], record["name"], record["status"], record["step"]) == (1, "mine", "completed", 5)
        assert record["files"] == []
        folder.close(status="failed")  # is over already
        assert record_of(folder.path)["status"] == "completed"

    def test_time_adds_up_over_resumes(self, tmp_path, monkeypatch):
        clock = [1000.0]
        monkeypatch.setattr("trainhooks.workdir.time.monotonic", lambda: clock[0])
        for begins, resume in (("first", False), ("second", True)):
            folder = opened(tmp_path / "run", resume=resume, facts={"started": begins, "resumed": []})
            clock[0] += 30.5
            folder.close(status="stopped", resumed=[begins])
            clock[0] += 500.0
        record = record_of(tmp_path / "run")
        assert record["seconds"] == 61.0
        assert record["started"] == "first"

    def test_overwriting_begins_anew(self, tmp_path):
        ran(tmp_path / "run", facts={"started": "first", "best": {"a": 1}})
        ran(tmp_path / "run", overwrite=True, facts={"started": "second"})
        record = record_of(tmp_path / "run")
        assert record["started"] == "second"
        assert "best" not in record

    def test_one_trainer_twice(self, tmp_path):
        folder = opened(tmp_path / "run", facts={"started": "first"})
        folder.file("a").write_text("kept")
        folder.close(status="completed")
        folder.open(resume=False, overwrite=False, facts={"started": "second"})
        assert record_of(folder.path)["status"] == "running"
        folder.close(status="completed")
        assert record_of(folder.path)["started"] == "first"
        assert listed(folder.path) == ["a"]

    def test_what_cannot_be_written_is_a_warning_and_comes_with_the_next_change(self, tmp_path, messages):
        folder = opened(tmp_path / "run")
        obstacle = tmp_path / "run" / f".{RECORD}.tmp"
        obstacle.mkdir()
        folder.update(step=3)
        folder.file("a")
        assert record_of(folder.path).get("step") is None
        said = [f"cannot update {folder.path / RECORD}: Is a directory; it is tried again with the next change"]
        assert messages() == said * 2
        obstacle.rmdir()
        folder.forget("b")  # changes nothing
        folder.update(epoch=1)
        record = record_of(folder.path)
        assert (record["step"], record["epoch"], record["files"]) == (3, 1, ["a"])

    def test_the_first_one_must_be_written(self, tmp_path):
        ran(tmp_path / "run")
        (tmp_path / "run" / f".{RECORD}.tmp").mkdir()
        with pytest.raises(UsageError, match="cannot write to work_dir .*run: Is a directory"):
            opened(tmp_path / "run")
        assert not (tmp_path / "run" / LOCK).exists()

    def test_two_threads(self, tmp_path):
        """A checkpoint that is written in the background is taken off the list there."""
        folder = opened(tmp_path / "run")

        def work(number):
            for i in range(20):
                folder.file(f"{number}-{i}")
                folder.forget(f"{number}-{i}")
                folder.update(step=i)
            folder.file(str(number))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(listed(folder.path)) == ["0", "1", "2"]

    def test_a_kill_at_any_moment_leaves_a_whole_one(self, tmp_path):
        """What was written before the kill is there, or something newer."""
        for number in range(20):
            reads, writes = os.pipe()
            child = os.fork()
            if not child:
                folder = RunFolder(tmp_path / "run")
                folder.open(resume=False, overwrite=True)
                for step in range(10**9):
                    folder.update(step=step)
                    os.write(writes, b"x")
            for _ in range(number + 1):
                os.read(reads, 1)
            time.sleep(number * 0.0003)  # anywhere within the next one
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reads)
            os.close(writes)
            assert record_of(tmp_path / "run")["step"] >= number
        ran(tmp_path / "run", overwrite=True)
        assert [entry.name for entry in (tmp_path / "run").iterdir()] == [RECORD]


class TestAResumeThatCannotRestore:
    """The record says what the former run has made, and goes on saying so."""

    @staticmethod
    def run(model, folder, to, resume=None):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Trainer(
            model, loss=torch.nn.functional.mse_loss, optimizer=optimizer, plugins=[Checkpoint()], autoload=False, max_steps=to,
            loaders={"train": [(torch.ones(1, 2), torch.ones(1, 1))] * 9}, work_dir=folder,
        ).train(resume=resume)  # fmt: skip

    def test_the_record_of_a_completed_run_stays(self, tmp_path):
        self.run(torch.nn.Linear(2, 1), tmp_path, 3)
        before = read_record(tmp_path)
        with pytest.raises(CheckpointError):
            self.run(torch.nn.Sequential(torch.nn.Linear(2, 1)), tmp_path, 5, resume="auto")
        after = read_record(tmp_path)
        changing = {"updated", "seconds"}
        assert {key: after[key] for key in after.keys() - changing} == {key: before[key] for key in before.keys() - changing}
        assert after["status"] == "completed"
        self.run(torch.nn.Linear(2, 1), tmp_path, 5, resume="auto")
        assert read_record(tmp_path)["step"] == 5
