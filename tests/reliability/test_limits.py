"""A disk that is really full, read-only or out of inodes, and limits of the system: CK-06 and CK-18 with their values."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("limits.py")


@pytest.fixture(scope="module")
def namespace():
    """Return what a command with mounts of its own begins with; one of the two ways must work here."""
    ways = [["unshare", "-m"], ["unshare", "-Urm"]]
    for way in ways:
        done = subprocess.run([*way, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
        if done.returncode == 0:
            return way
    raise AssertionError(f"no mounts here: neither {' nor '.join(' '.join(way) for way in ways)} works")


def limited(way=(), **given):
    """Train under limits and return what was seen."""
    command = [*way, sys.executable, str(PROGRAM), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def whole(*steps):
    """Return what loading these checkpoints gives: at step n the weights sum to -n."""
    return [[step, pytest.approx(-step, rel=1e-4)] for step in steps]


def names(*steps):
    return [f"step-{step:08d}" for step in steps]


def full(namespace, tmp_path, **more):
    """CK-06: 2 MiB, checkpoints of 700 KiB, period 1, keep 2: the third needs 2100 KiB."""
    on_failure = more.pop("on_failure", "stop")
    options = {"every_steps": 1, "keep": 2, "on_failure": on_failure}
    return limited(namespace, work_dir=str(tmp_path / "run"), tmpfs="size=2m", steps=5, options=options, **more)


def test_ck_06_full_disk_stops(namespace, tmp_path):
    seen = full(namespace, tmp_path)
    assert "CheckpointError" in seen["error"]
    assert (seen["exit_code"], seen["errno"], seen["after_train"], seen["status"]) == (1, errno.ENOSPC, 1, "failed")
    assert str(tmp_path / "run/checkpoints/step-00000003") in seen["message"]
    assert "No space left on device" in seen["message"]
    assert seen["acknowledged"] == [1, 2]
    assert seen["names"] == names(1, 2)
    assert seen["loads"] == whole(1, 2)
    assert seen["hidden"] == []


def test_ck_06_the_message_says_how_many_bytes(namespace, tmp_path):
    seen = full(namespace, tmp_path)
    numbers = [int(word) for word in seen["message"].replace(",", " ").replace(":", " ").split() if word.isdigit()]
    needed, free = [number for number in numbers if number > 1000]
    first, second = seen["bytes"]
    assert 0.99 * first < needed <= first  # its manifest is not counted
    assert 0 < 2048 * 1024 - first - second - free < 64 * 1024  # besides what other files of the run take in whole pages


def test_ck_06_full_disk_and_continue(namespace, tmp_path):
    seen = full(namespace, tmp_path, on_failure="continue")
    assert (seen["status"], seen["step"], seen["after_train"]) == ("completed", 5, 1)
    assert seen["acknowledged"] == [1, 2]
    pairs = zip(seen["warned_at"], seen["warnings"], strict=True)
    said = [(step, text) for step, text in pairs if "No space left on device" in text]
    assert [step for step, _ in said] == [3, 4, 5, 5]  # each is tried again, and the last one once more at the end
    assert all(f"step-{step:08d}" in text for step, text in said)
    assert seen["loads"] == whole(1, 2)
    assert seen["hidden"] == []


def test_ck_06_room_again(namespace, tmp_path):
    """What fills the disk is removed before the fourth step: the next save succeeds, and older ones are removed again."""
    seen = limited(
        namespace,
        work_dir=str(tmp_path / "disk/run"),
        disk=str(tmp_path / "disk"),
        tmpfs="size=3m",
        filler=str(tmp_path / "disk/filler"),
        fill=1100 * 1024,
        steps=5,
        room_at=3,
        options={"every_steps": 1, "keep": 2, "on_failure": "continue"},
    )
    assert (seen["status"], seen["acknowledged"]) == ("completed", [1, 2, 4, 5])
    assert len([text for text in seen["warnings"] if "No space left on device" in text]) == 1
    assert seen["loads"] == whole(4, 5)


def test_ck_06_no_inodes(namespace, tmp_path):
    """Each checkpoint takes a folder and three files; with the folder of the run and its own files two fit."""
    seen = limited(
        namespace,
        work_dir=str(tmp_path / "run"),
        tmpfs="size=50m,nr_inodes=14",
        steps=5,
        options={"every_steps": 1, "keep": 3},
    )
    assert "CheckpointError" in seen["error"]
    assert seen["errno"] == errno.ENOSPC
    assert "No space left on device" in seen["message"]
    assert seen["loads"] == whole(*seen["acknowledged"])
    assert seen["acknowledged"][:1] == [1]
    assert seen["hidden"] == []


def test_ck_06_file_too_large(tmp_path):
    seen = limited(work_dir=str(tmp_path / "run"), file_size=600 * 1024, steps=3, options={"every_steps": 1})
    assert "CheckpointError" in seen["error"]
    assert (seen["errno"], seen["exit_code"], seen["after_train"]) == (errno.EFBIG, 1, 1)
    assert "File too large" in seen["message"]
    assert str(tmp_path / "run/checkpoints/step-00000001") in seen["message"]
    assert (seen["names"], seen["hidden"]) == ([], [])


def test_too_many_open_files(tmp_path):
    """Before the second of four steps nothing can be opened any more."""
    seen = limited(work_dir=str(tmp_path / "run"), no_files_at=1, steps=4, options={"every_steps": 1})
    assert "CheckpointError" in seen["error"]
    assert (seen["errno"], seen["step"], seen["exit_code"], seen["after_train"]) == (errno.EMFILE, 2, 1, 1)
    assert "Too many open files" in seen["message"]
    assert str(tmp_path / "run") in seen["message"]


def test_too_many_open_files_for_a_while_and_continue(tmp_path):
    options = {"every_steps": 1, "keep": 0, "on_failure": "continue"}
    seen = limited(work_dir=str(tmp_path / "run"), no_files_at=1, files_at=2, steps=4, options=options)
    assert (seen["status"], seen["acknowledged"]) == ("completed", [1, 3, 4])
    said = [step for step, text in zip(seen["warned_at"], seen["warnings"], strict=True) if "Too many open files" in text]
    assert said == [2, 2]  # the record of the run could not be written either
    assert seen["loads"] == whole(1, 3, 4)
    assert seen["hidden"] == []


def test_ck_18_read_only_stops(namespace, tmp_path):
    """Before the fourth of ten steps, with a checkpoint every second step."""
    seen = limited(namespace, work_dir=str(tmp_path / "run"), steps=10, read_only_at=3, options={"every_steps": 2, "keep": 0})
    assert "CheckpointError" in seen["error"]
    assert (seen["errno"], seen["step"], seen["exit_code"], seen["after_train"]) == (errno.EROFS, 4, 1, 1)
    assert "Read-only file system" in seen["message"]
    assert str(tmp_path / "run") in seen["message"]
    assert seen["loads"] == whole(2)
    assert seen["names"] == names(2)


def test_ck_18_read_only_for_a_while_and_continue(namespace, tmp_path):
    options = {"every_steps": 2, "keep": 0, "on_failure": "continue"}
    seen = limited(namespace, work_dir=str(tmp_path / "run"), steps=10, read_only_at=3, writable_at=6, options=options)
    assert (seen["status"], seen["step"]) == ("completed", 10)
    said = [step for step, text in zip(seen["warned_at"], seen["warnings"], strict=True) if "Read-only file system" in text]
    assert sorted(set(said)) == [4, 6]  # the saves of these steps failed, each of them said so when it did
    assert seen["loads"] == whole(2, 8, 10)
    assert seen["names"] == names(2, 8, 10)


def test_ck_18_an_old_checkpoint_that_cannot_be_removed(namespace, tmp_path):
    options = {"every_steps": 1, "keep": 1}
    seen = limited(
        namespace,
        work_dir=str(tmp_path / "run"),
        steps=4,
        busy_at=1,
        free_at=3,
        busy="checkpoints/step-00000001",
        options=options,
    )
    assert (seen["status"], seen["acknowledged"]) == ("completed", [1, 2, 3, 4])
    said = [(step, text) for step, text in zip(seen["warned_at"], seen["warnings"], strict=True) if "step-00000001" in text]
    assert [step for step, _ in said] == [2, 3]  # one for each rotation that could not
    assert all(os.strerror(errno.EBUSY) in text for _, text in said)
    assert seen["names"] == names(4)  # the last rotation removes it
    assert seen["loads"] == whole(4)


@pytest.mark.parametrize("inside", [[], ["mine.txt"]])
def test_ck_18_a_folder_that_is_no_checkpoint_is_in_the_way(tmp_path, inside):
    """Nothing that somebody else made is removed."""
    limited(work_dir=str(tmp_path / "run"), steps=1, options={"every_steps": 1})
    foreign = tmp_path / "run/checkpoints/step-00000003"
    foreign.mkdir()
    for name in inside:
        (foreign / name).write_text("mine")
    seen = limited(work_dir=str(tmp_path / "run"), steps=3, options={"every_steps": 1, "keep": 0})
    kept = [path for path in (tmp_path / "run").rglob("mine.txt") if path.read_text() == "mine"]
    assert len(kept) == len(inside)
    if "error" in seen:
        assert "step-00000003" in seen["message"]
    else:
        assert seen["acknowledged"] == [2, 3]
