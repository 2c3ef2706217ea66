"""Event files: order, and whole or not at all."""

import subprocess
import sys
import time

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from trainhooks_tensorboard.event_file import EventFile, cut, find, new_paths, read
from trainhooks_tensorboard.summaries import event, text

FULL = """
import pathlib, resource, sys
from trainhooks_tensorboard.event_file import EventFile
from trainhooks_tensorboard.summaries import event, text

path = pathlib.Path(sys.argv[1])
file = EventFile(path)
file.append([event([text("first", "x" * 50)], 1, 0.0)])
size = path.stat().st_size
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 60, limits[1]))
try:
    file.append([event([text("second", "y" * 50)], 2, 0.0), event([text("third", "z" * 50)], 3, 0.0)])
except OSError as error:
    print(error.strerror, path.stat().st_size == size)
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
file.append([event([text("second", "y" * 50)], 2, 0.0), event([text("third", "z" * 50)], 3, 0.0)])
"""


def tags(events):
    return [value.tag for one in events for value in one.summary.value]


def test_a_write_that_fails_leaves_nothing(tmp_path):
    """A real limit of the file's size: the system takes a part of the write, then refuses the rest."""
    path = tmp_path / "events.out.tfevents.1"
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "File too large True\n"
    found = list(EventFileLoader(str(path)).Load())  # checks the checksums
    assert tags(found) == ["first", "second", "third"]


def test_new_files_come_after_all_others(tmp_path):
    ahead = int(time.time()) + 100
    (tmp_path / f"events.out.tfevents.{ahead}.zzz.1.0").write_bytes(b"")
    names = [path.name for _ in range(3) for path in _made(new_paths(tmp_path, "0123456789ab"))]
    assert names == sorted(names)
    assert names[0] > f"events.out.tfevents.{ahead}.zzz.1.0"
    assert [(kind, run) for _, kind, run in find(tmp_path)] == [("hparams", "0123456789ab"), ("records", "0123456789ab")] * 3


def test_nobody_elses_files_are_found(tmp_path):
    for name in (
        "events.out.tfevents.1700000000.host.1.0",
        "events.out.tfevents.1700000000.host.1.records.x",
        "notes.trainhooks",
    ):
        (tmp_path / name).write_bytes(b"")
    assert find(tmp_path) == []
    assert find(tmp_path / "missing") == []


def test_cut(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    file = EventFile(path, [event([text(f"at {step}", "x")], step, 0.0) for step in (1, 2, 3, 4)])
    file.close()
    cut(path, lambda one: one.step <= 2)
    assert tags(EventFileLoader(str(path)).Load()) == ["at 1", "at 2"]
    path.write_bytes(path.read_bytes() + b"\x05\x00\x00")  # the beginning of a header
    assert tags(read(path)) == ["at 1", "at 2"]
    cut(path, lambda one: True)
    assert tags(EventFileLoader(str(path)).Load()) == ["at 1", "at 2"]


def _made(paths):
    for path in paths:
        path.write_bytes(b"")
    return paths
