"""ClearML with its own SDK: offline sessions, imported by the SDK into a server on the loopback, and online against that server."""

import contextlib
import fcntl
import io
import json
import logging
import multiprocessing.process
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch
from clearml_server import ClearMLServer
from PIL import Image as PILImage
from satellite_run import Falling, Logs, make_trainer
from satellite_support import (
    ARTIFACT,
    COLUMNS,
    HISTOGRAM,
    IMAGE,
    ODD_HYPERPARAMETERS,
    ODD_SCALARS,
    TEXT,
    Does,
    Server,
    kill_and_resume,
    list_plugins,
    run,
)

from trainhooks import Trainer, hookimpl
from trainhooks_clearml import ClearML


def session(work_dir):
    """Return the folder of the only offline session of a run."""
    (folder,) = [path for path in (work_dir / "clearml" / "offline").iterdir() if path.is_dir()]
    return folder


def scalars(events):
    """Return (name, step, value) of the scalars among events."""
    found = [one for one in events if one["type"] == "training_stats_scalar"]
    return [(f"{one['variant']}/{one['metric']}", one["iter"], one["value"]) for one in found]


def archived(work_dir, name):
    with zipfile.ZipFile(session(work_dir).with_suffix(".zip")) as file:
        return file.read(name).decode()


def events_of(work_dir):
    """Return the events in the archive that a session ends with."""
    return [event for line in archived(work_dir, "metrics.jsonl").splitlines() for event in json.loads(line)]


def values(task, section):
    return {name: one["value"] for name, one in task["hyperparams"][section].items()}


def task_of(work_dir):
    return json.loads(archived(work_dir, "task.json"))


def once(names, steps):
    return {(name, step): 1 for name in names for step in steps}


def test_offline_run(tmp_path):
    ran = run(tmp_path, ClearML(project="vision/digits", tags=["a"]), steps=12)
    found = scalars(events_of(ran.work_dir))
    assert {step: value for name, step, value in found if name == "probe/double"} == {step: 2.0 * step for step in range(1, 13)}
    assert Counter((name, step) for name, step, _ in found) == once(["probe/double", "train/loss"], range(1, 13))
    task = task_of(ran.work_dir)
    assert (task["name"], task["project_name"], set(task["tags"])) == (
        "run",
        "vision/digits",
        {"a", f"trainhooks-{ran.run.id}"},
    )
    logged = values(task, "General")
    assert {name: logged[name] for name in ("model/width", "note", "flag", "rate", "nothing", "seed", "optimizer/name")} == {
        "model/width": "1", "note": "hello", "flag": "True", "rate": "0.1", "nothing": "None", "seed": "1", "optimizer/name": "SGD",
    }  # fmt: skip
    assert values(task, "properties") == {
        "status": "completed", "outcome": "completed", "reason": "max_steps=12 reached", "last_step": "12",
    }  # fmt: skip
    assert ran.warnings == []


def test_media_and_artifacts(tmp_path):
    ran = run(tmp_path, ClearML(), steps=6)
    found = {(one["type"], one["metric"]): one for one in events_of(ran.work_dir) if one["type"] != "training_stats_scalar"}
    with zipfile.ZipFile(session(ran.work_dir).with_suffix(".zip")) as file:
        names = file.namelist()
        image = PILImage.open(io.BytesIO(file.read("data/" + found["training_debug_image", "image"]["key"])))
        log = file.read("log.jsonl").decode()
        artifacts = {one["key"]: one for one in task_of(ran.work_dir)["execution"]["artifacts"]}
        (notes,) = [name for name in names if name.endswith("/artifacts/notes/notes.txt")]
        assert file.read(notes).decode() == ARTIFACT
        (bundle,) = [name for name in names if name.endswith("/artifacts/bundle/bundle.zip")]
        with zipfile.ZipFile(io.BytesIO(file.read(bundle))) as inner:
            assert {name: inner.read(name).decode() for name in inner.namelist()} == {
                "one.txt": ARTIFACT,
                "inner/two.txt": ARTIFACT,
            }
    assert image.getpixel((3, 2)) == tuple(int(value) for value in IMAGE[:, 2, 3])
    assert artifacts["bundle"]["display_data"] == [["kind", "dataset"]]
    (bars,) = json.loads(found["plot", "histogram"]["plot_str"])["data"]
    assert sum(bars["y"]) == len(HISTOGRAM)
    assert (bars["x"][0].split(" to ")[0], bars["x"][-1].split(" to ")[1]) == ("0", "4")
    (table,) = json.loads(found["plot", "table"]["plot_str"])["data"]
    assert table["header"]["values"] == COLUMNS
    assert table["cells"]["values"] == [["a", "b | c"], [1.5, 2]]
    assert TEXT in "".join(one["msg"] for line in log.splitlines() for one in json.loads(line))


def test_a_failed_run(tmp_path):
    ran = run(tmp_path, ClearML(), steps=12, fail_after=3)
    assert {step for _, step, _ in scalars(events_of(ran.work_dir))} == {1, 2, 3}
    assert values(task_of(ran.work_dir), "properties")["status"] == "failed"


@pytest.mark.parametrize("how", ["signal", "keyboard"])
def test_an_interrupted_run(tmp_path, how):
    arguments = {"signal_after": 3} if how == "signal" else {"fail_after": 3, "error": KeyboardInterrupt()}
    ran = run(tmp_path, ClearML(), steps=12, **arguments)
    assert ran.ended.status == "interrupted"
    assert values(task_of(ran.work_dir), "properties")["status"] == "killed"


def imported(server, archive):
    """Import a session with the SDK's own reader, in a process of its own; return the events at the server."""
    script = f"from clearml import Task\nprint(Task.import_offline_session({str(archive)!r}))"
    env = {**os.environ, **server.env, "CLEARML_CACHE_DIR": str(archive.parent / "cache")}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=200, capture_output=True)
    return [one for sent in server.events.values() for one in sent]


def test_killed_and_resumed(tmp_path):
    segments = kill_and_resume(tmp_path, "ClearML()", "from trainhooks_clearml import ClearML", kill_after=(10, 12))
    assert len({one.id for one in segments}) == 1
    assert [one.resumed_step for one in segments] == [0, 8, 8]
    found = scalars(events_of(tmp_path / "run"))
    assert Counter((name, step) for name, step, _ in found) == once(["probe/double", "train/loss"], range(1, 16))
    assert {step: value for name, step, value in found if name == "probe/double"} == {step: 2.0 * step for step in range(1, 16)}
    assert len([one for one in events_of(tmp_path / "run") if one["type"] == "training_debug_image"]) == 1
    assert values(task_of(tmp_path / "run"), "properties")["status"] == "completed"
    with ClearMLServer() as server:
        events = imported(server, session(tmp_path / "run").with_suffix(".zip"))
    counts = Counter((name, step) for name, step, _ in scalars(events))
    assert counts == once(["probe/double", "train/loss"], range(1, 16))


def test_a_killed_training_is_closed_as_killed(tmp_path):
    (tmp_path / "cwd").mkdir()
    script = (
        f"import sys, os, threading\nsys.path.insert(0, {str(tmp_path)!r})\nfrom pathlib import Path\n"
        "from trainhooks_clearml import ClearML\nfrom trainhooks import Record, RunInfo\n"
        f"run, clearml = RunInfo('r', work_dir=Path({str(tmp_path / 'run')!r}), id='0123456789ab'), ClearML()\n"
        "clearml.report_start(run)\nclearml.report_metrics(run, [Record(3, 3, 0, 0.0, {'m': 1.5})])\n"
        "child = os.fork()  # a loader worker, which holds the input of the SDK's process open\n"
        "if not child:\n    threading.Event().wait()\n"
        f"Path({str(tmp_path / 'child')!r}).write_text(str(child))\nos.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "run").mkdir()
    assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == -9
    with (tmp_path / "run/clearml/0123456789ab.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the process of the SDK holds it until it is done
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert scalars(events_of(tmp_path / "run")) == [("m/m", 3, 1.5)]
    assert values(task_of(tmp_path / "run"), "properties")["status"] == "killed"


def test_a_process_of_the_sdk_that_is_killed_is_replaced(tmp_path):
    clearml, pids = ClearML(), []

    def kills():
        pids.append(clearml._link.pid)
        os.kill(clearml._link.pid, signal.SIGKILL)

    ran = run(tmp_path, clearml, steps=12, plugins=[Does(6, kills, settled=True)])
    assert len(pids) == 1
    counts = Counter((name, step) for name, step, _ in scalars(events_of(ran.work_dir)))
    assert counts == once(["probe/double", "train/loss"], range(1, 13))


def test_odd_values_and_changed_hyperparameters(tmp_path):
    run(tmp_path, ClearML(), steps=9, scalars=ODD_SCALARS, hyperparameters=ODD_HYPERPARAMETERS, fail_after=8)
    changed = {**ODD_HYPERPARAMETERS, "with spaces": 2}
    ran = run(tmp_path, ClearML(), steps=12, scalars=ODD_SCALARS, hyperparameters=changed, resume="auto")
    sent = {name: value for name, step, value in scalars(events_of(ran.work_dir)) if step == 3}
    assert {name: sent[name if "/" in name else f"{name}/{name}"] for name in ODD_SCALARS if not name.startswith("odd/")} == {
        name: value for name, value in ODD_SCALARS.items() if not name.startswith("odd/")
    }
    assert not [name for name in sent if name.startswith("odd/")]
    assert "odd/minus inf = -inf at step 3" in archived(ran.work_dir, "log.jsonl")
    logged = values(task_of(ran.work_dir), "General")
    assert logged["long"] == 10_000 * "x"
    assert logged["ünïcode key"] == "ü"
    assert logged["with spaces"] == "2"
    assert values(task_of(ran.work_dir), "Changed on resume") == {
        "max_steps": "9 -> 12 at step 8",
        "with spaces": "1 -> 2 at step 8",
    }
    assert ran.warnings == []


def configure(monkeypatch, server):
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)


def test_online_run(tmp_path, monkeypatch):
    with ClearMLServer() as server:
        configure(monkeypatch, server)
        ran = run(tmp_path, ClearML(), steps=12)
        (task,) = server.tasks.values()
    sent = [one for several in server.events.values() for one in several]
    assert Counter((name, step) for name, step, _ in scalars(sent)) == once(["probe/double", "train/loss"], range(1, 13))
    assert task["status"] == "completed"
    assert values(task, "General")["note"] == "hello"
    assert {one["key"] for one in task["execution"]["artifacts"]} == {"notes", "bundle"}
    assert any(b"\x89PNG" in body for *_, body in server.requests)
    assert ran.warnings == []
    assert not (ran.work_dir / "clearml" / "offline").exists()


@pytest.mark.parametrize("how", ["fails", "signal"])
def test_online_status(tmp_path, monkeypatch, how):
    with ClearMLServer() as server:
        configure(monkeypatch, server)
        run(tmp_path, ClearML(mode="online"), steps=12, media=False, **{"fail_after" if how == "fails" else "signal_after": 3})
        (task,) = server.tasks.values()
    assert task["status"] == ("failed" if how == "fails" else "stopped")


def test_online_killed_and_resumed(tmp_path):
    with ClearMLServer() as server:
        segments = kill_and_resume(tmp_path, "ClearML(mode='online')", "from trainhooks_clearml import ClearML", env=server.env)
        (task,) = server.tasks.values()
    assert segments[0].id == segments[1].id
    assert task["status"] == "completed"
    found = {}  # the server keeps the last event of each task, metric, variant and iteration
    for several in server.events.values():
        for name, step, value in scalars(several[-1:]):
            assert (name, step) not in found
            found[name, step] = value
    assert {key: found[key] for key in found if key[0] == "probe/double"} == {
        ("probe/double", step): 2.0 * step for step in range(1, 16)
    }


@pytest.mark.parametrize("server_is", ["refuse", "hang", "error"])
def test_no_server_at_the_start_means_offline(tmp_path, monkeypatch, server_is):
    with Server(server_is) as server:
        configure(monkeypatch, _Elsewhere(server.url))
        ran = run(tmp_path, ClearML(timeout_s=8), steps=12, media=False)
    assert ran.outcome.status == "completed"
    counts = Counter((name, step) for name, step, _ in scalars(events_of(ran.work_dir)))
    assert counts == once(["probe/double", "train/loss"], range(1, 13))
    (warning,) = ran.warnings
    assert "the run is reported offline" in warning


@pytest.mark.parametrize("server_is", ["refuse", "hang"])
def test_mode_online_without_a_server(tmp_path, monkeypatch, server_is):
    with Server(server_is) as server:
        configure(monkeypatch, _Elsewhere(server.url))
        ran = run(tmp_path, ClearML(mode="online", timeout_s=1), steps=12, media=False, report_timeout_s=3)
    assert ran.outcome.status == "completed"
    assert sum("report_start() failed with ConnectionError" in warning for warning in ran.warnings) == 1
    _wait_for_no_children()


def test_a_server_that_hangs_later(tmp_path, monkeypatch):
    with ClearMLServer() as server:
        configure(monkeypatch, server)
        clearml = ClearML(timeout_s=5)

        def hangs():
            server.mode = "hang"

        ran = run(tmp_path, clearml, steps=12, media=False, plugins=[Does(6, hangs, settled=True)], report_timeout_s=40)
        assert ran.outcome.status == "completed"
        sent = {step for several in server.events.values() for name, step, _ in scalars(several) if name == "probe/double"}
    assert sent >= set(range(1, 7))
    assert sum("report_metrics() failed with TimeoutError" in warning for warning in ran.warnings) <= 1
    assert ran.warnings


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch, caplog):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    with caplog.at_level(logging.INFO, "trainhooks"):
        outcome = make_trainer([ClearML(), Logs(tmp_path, media=False)], None, 3).train()
    assert outcome.status == "completed"
    assert os.listdir(tmp_path / "cwd") == []
    assert "neither a work_dir nor 'folder'" in caplog.text
    assert not [one for one in caplog.records if one.levelno > logging.INFO]


def test_the_process_is_left_alone(tmp_path):
    def state():
        handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGSEGV)]
        return [sys.exit, sys.excepthook, multiprocessing.process.BaseProcess.run, os.fork, *handlers, "clearml" in sys.modules]

    before = state()
    run(tmp_path, ClearML(), steps=3, media=False)
    assert state() == before
    assert "clearml" not in sys.modules
    _wait_for_no_children()


def test_loader_workers_and_a_second_run(tmp_path):
    reporter, links, dataset = ClearML(timeout_s=60), [], [torch.ones(1, dtype=torch.float64)] * 8
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True)
    for name in ("one", "two"):
        model = Falling()
        Trainer(
            model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), loaders={"train": loader}, max_epochs=3,
            plugins=[reporter, Does(5, lambda: links.append(reporter._link))], autoload=False, log_every_steps=1,
            work_dir=tmp_path / name,
        ).train()  # fmt: skip
        assert Counter(step for _, step, _ in scalars(events_of(tmp_path / name))) == Counter(range(1, 13))
        assert values(task_of(tmp_path / name), "properties")["status"] == "completed"
    assert [link._process.returncode for link in links] == [0, 0]  # they ended by themselves, though loader workers live


def test_the_script_of_the_readme(tmp_path):
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    script = text.split("```python\n")[1].split("```")[0]
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=200, capture_output=True)
    assert len(scalars(events_of(tmp_path / "runs/script"))) > 0


def test_a_slow_server_gets_everything(tmp_path, monkeypatch):
    with ClearMLServer() as server:
        configure(monkeypatch, server)
        server.mode = "slow"
        ran = run(tmp_path, ClearML(timeout_s=60), steps=12, media=False)
    found = [one for several in server.events.values() for one in scalars(several)]
    assert Counter((name, step) for name, step, _ in found) == once(["probe/double", "train/loss"], range(1, 13))
    assert ran.warnings == []


def test_listing_plugins_does_not_import_the_sdk():
    listing, imported = list_plugins("clearml", "trainhooks_clearml")
    assert "clearml" in listing
    assert imported == []


class _Elsewhere:
    """Credentials for a server that is no ClearML server."""

    def __init__(self, url):
        hosts = {f"CLEARML_{name}_HOST": url for name in ("API", "WEB", "FILES")}
        self.env = {**hosts, "CLEARML_API_ACCESS_KEY": "key", "CLEARML_API_SECRET_KEY": "secret"}


def _wait_for_no_children():
    """No process of the SDK is left, not even as a zombie."""
    deadline = time.monotonic() + 60
    while any(
        _is_left(one) for one in psutil.Process().children()
    ):  # one that was just killed is a zombie until it is waited for
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_left(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE or "trainhooks_clearml" in " ".join(_line(process))
    return False


def _line(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_run_has_a_task_of_its_own_though_the_one_before_was_not_closed(tmp_path, monkeypatch):
    plugin = ClearML(mode="offline")
    end = plugin.report_end

    def fails(run, outcome):
        raise ValueError("cannot be told")

    plugin.report_end = hookimpl(specname="report_end")(fails)
    make_trainer([plugin], tmp_path / "first", 3).train()
    plugin.report_end = end
    make_trainer([plugin], tmp_path / "second", 3).train()
    assert len([one for one in scalars(events_of(tmp_path / "second")) if one[0] == "train/loss"]) == 3
