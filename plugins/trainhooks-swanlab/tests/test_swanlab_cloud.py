"""Runs are sent by the real SwanLab to a server on the loopback that speaks what its client needs, and that goes away."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from satellite_support import ARTIFACT, MEDIA_STEP, Does, Server, kill_and_resume, run
from swanlab_cloud import Cloud
from swanlab_files import Files

from trainhooks_swanlab import SwanLab, sdk

STEPS_20 = list(range(1, 21))
KEY = "k" * 21
PATIENT = {"timeout_s": 60.0, "finish_timeout_s": 100.0}  # where everything is to arrive, however slow the machine is
SAVED = ("notes.txt", "bundle/one.txt", "bundle/inner/two.txt")


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("SWANLAB_API_KEY", KEY)


@pytest.fixture
def cloud(key):
    cloud = Cloud()
    with Server(reply=cloud) as server:
        cloud.server, cloud.url = server, server.url
        yield cloud
    assert not cloud.unknown


def steps_of(cloud, key):
    return [(step, value) for name, step, value in cloud.scalars if name == key]


def test_run_is_sent_whole(tmp_path, cloud):
    ran = run(tmp_path, SwanLab("p", api_host=cloud.url, group="g", **PATIENT))  # with a key, auto is the cloud
    assert not ran.warnings
    (experiment,) = cloud.experiments.values()
    assert (experiment["cuid"], experiment["name"], experiment["cluster"]) == (ran.run.id, ran.run.name, "g")
    assert steps_of(cloud, "probe/double") == [(step, 2.0 * step) for step in STEPS_20]
    assert sorted(cloud.media) == [(f"media/{kind}", MEDIA_STEP) for kind in ("histogram", "image", "table", "text")]
    config = [profile["config"] for profile in cloud.profiles if "config" in profile][-1]
    assert (config["note"]["value"], config["optimizer/lr"]["value"]) == ("hello", 1.0)
    assert cloud.states == ["FINISHED"]
    assert {cloud.objects[name].decode() for name in SAVED} == {ARTIFACT}


@pytest.mark.parametrize(("error", "state"), [(None, "CRASHED"), (KeyboardInterrupt(), "ABORTED")])
def test_outcome_is_sent(tmp_path, cloud, error, state):
    run(tmp_path, SwanLab("p", api_host=cloud.url, **PATIENT), fail_after=6, error=error)
    assert cloud.states == [state]


@pytest.mark.slow
def test_killed_and_resumed_has_each_step_once(tmp_path, cloud):
    expression = f"SwanLab('p', mode='cloud', api_host={cloud.url!r}, timeout_s=60.0, finish_timeout_s=100.0)"
    imports = "from trainhooks_swanlab import SwanLab"
    names = {"probe/double", "train/loss"}
    first, second = kill_and_resume(tmp_path, expression, imports, arrived=lambda: cloud.names_at(10) == names)
    assert (second.id, second.resumed_step, second.status) == (first.id, 8, "completed")
    assert list(cloud.experiments) == [first.id]
    assert steps_of(cloud, "probe/double") == [(step, 2.0 * step) for step in range(1, 16)]
    assert cloud.states == ["FINISHED"]


@pytest.mark.slow
def test_slow_server_gets_everything(tmp_path, cloud):
    cloud.server.mode = "slow"
    ran = run(tmp_path, SwanLab("p", api_host=cloud.url, **PATIENT))
    assert not ran.warnings
    assert steps_of(cloud, "probe/double") == [(step, 2.0 * step) for step in STEPS_20]
    assert cloud.states == ["FINISHED"]


@pytest.mark.parametrize("mode", ["refuse", "hang", "error"])
def test_server_that_is_away_means_files(tmp_path, key, mode):
    with Server(mode) as server:
        ran = run(tmp_path, SwanLab("p", api_host=server.url, timeout_s=1.0))
    assert ran.outcome.status == "completed"
    (warning,) = ran.warnings
    assert server.url in warning
    assert "swanlab sync" in warning
    files = Files(ran.work_dir / "swanlab")
    assert files.metric("probe/double") == [(step, 2.0 * step) for step in STEPS_20]
    assert files.ends() == [("FINISHED", "")]


def test_server_that_goes_away_while_the_run_is_opened_means_files_at_once(tmp_path, key):
    """SwanLab itself would make the first request again and again, for more than a minute."""
    asked = []

    def answers_once(_, path, __):
        asked.append(path)
        return (200 if len(asked) == 1 else 503), {}, b"{}"

    with Server(reply=answers_once) as server:
        ran = run(tmp_path, SwanLab("p", api_host=server.url, **PATIENT), steps=3, media=False)
    (warning,) = ran.warnings
    assert "the run is recorded in" in warning
    assert [step for step, _ in Files(ran.work_dir / "swanlab").metric("probe/double")] == [1, 2, 3]
    assert len(asked) == 2, asked


def test_key_that_is_refused_means_files(tmp_path, key):
    with Server(reply=lambda *_: (401, {}, b"{}")) as server:
        ran = run(tmp_path, SwanLab("p", mode="cloud", api_host=server.url))
    (warning,) = ran.warnings
    assert "API key" in warning
    assert Files(ran.work_dir / "swanlab").ends() == [("FINISHED", "")]


def test_no_key_means_files_and_no_question(tmp_path):
    """In a process of its own: SwanLab keeps a key that it has used."""
    with Server() as server:
        script = (
            f"import sys\nsys.path.insert(0, {sys.path[0]!r})\nfrom satellite_support import run\nfrom pathlib import Path\n"
            "from trainhooks_swanlab import SwanLab\n"
            f"ran = run(Path({str(tmp_path)!r}), SwanLab('p', mode='cloud', api_host={server.url!r}))\n"
            "(warning,) = ran.warnings\nassert 'no API key was provided' in warning, warning\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert Files(tmp_path / "run" / "swanlab").ends() == [("FINISHED", "")]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["refuse", "hang"])
def test_server_that_goes_away_leaves_everything_in_files(tmp_path, cloud, mode):
    def goes():
        cloud.arrived.wait()  # until the time limit of the test
        cloud.server.mode = mode

    plugin = SwanLab("p", api_host=cloud.url, timeout_s=60.0, finish_timeout_s=3.0)
    ran = run(tmp_path / "1", plugin, plugins=[Does(10, goes)])
    assert ran.outcome.status == "completed"
    (warning,) = ran.warnings  # SwanLab alone would wait for ever
    assert f"swanlab sync --id {ran.run.id}" in warning
    assert Files(ran.work_dir / "swanlab").metric("probe/double") == [(step, 2.0 * step) for step in STEPS_20]

    cloud.server.mode = "error"  # it is back in a way, and the former run still hangs
    later = run(tmp_path / "2", SwanLab("p", api_host=cloud.url, timeout_s=1.0), steps=3)
    assert "the run is recorded in" in later.warnings[0]
    assert [step for step, _ in Files(later.work_dir / "swanlab").metric("probe/double")] == [1, 2, 3]

    cloud.server.mode = "answer"
    (closing,) = sdk._closing
    closing.join(150)
    assert not closing.is_alive()
    assert sorted(steps_of(cloud, "probe/double")) == [(step, 2.0 * step) for step in STEPS_20]


def test_run_that_is_still_being_sent_keeps_the_next_one_from_the_cloud(tmp_path, cloud):
    """At its end SwanLab would take away the connection of the next one."""
    released = threading.Event()
    former = threading.Thread(target=released.wait)
    former.start()
    sdk._closing.add(former)
    try:
        ran = run(tmp_path, SwanLab("p", api_host=cloud.url, timeout_s=0.1), steps=2)
    finally:
        released.set()
        former.join()
    (warning,) = ran.warnings
    assert "a former run of this process is still being sent" in warning
    assert Files(ran.work_dir / "swanlab").ends() == [("FINISHED", "")]
    assert not cloud.experiments
    sdk.wait_for_former(0.1)
    assert not sdk._closing


@pytest.mark.slow
def test_files_are_sent_by_sync(tmp_path, cloud, monkeypatch):
    """The files of a run that was killed, in the order in which the plugin says: each step once, one run."""
    imports = "from trainhooks_swanlab import SwanLab"
    first, _ = kill_and_resume(tmp_path, "SwanLab('p', mode='offline')", imports)
    for file in Files(tmp_path / "run" / "swanlab").files:
        command = [Path(sys.executable).parent / "swanlab", "sync", "--id", first.id, "--host", cloud.url, file.parent]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert list(cloud.experiments) == [first.id]
    assert steps_of(cloud, "probe/double") == [(step, 2.0 * step) for step in range(1, 16)]
    assert cloud.states[-1] == "FINISHED"
