"""Runs that are killed and resumed: the same wandb run, each step once."""

import math
import os

from read_back import config, exit_codes, files, records, rows, sync
from satellite_support import kill_and_resume, run
from wandb_cloud import Cloud

from trainhooks_wandb import WandB

#: Where the server is to answer, and to take everything, however slow the machine is.
ONLINE = "WandB(init_timeout=100, finish_timeout=100)"
IMPORTS = "from trainhooks_wandb import WandB"
STEPS = list(range(1, 16))

#: Lets the killed process wait until the server has what can be there.
WAITS = """
import time, urllib.request
from trainhooks import hookimpl
from trainhooks_wandb import WandB

class Waits(WandB):
    @hookimpl
    def report_metrics(self, records):
        super().report_metrics(records)
        while records[-1].step == 10 and int(urllib.request.urlopen("{url}/lines").read()) < 9:
            time.sleep(0.1)
"""

WAITS_FOR_FILE = """
import time
from pathlib import Path
from trainhooks import hookimpl
from trainhooks_wandb import WandB
from trainhooks_wandb.former import read

class Waits(WandB):
    @hookimpl
    def report_metrics(self, records):
        super().report_metrics(records)
        if records[-1].step == 10:
            (file,) = Path(self.run.dir).parent.glob("run-*.wandb")
            while len(read(file).rows) < 9:
                time.sleep(0.1)
"""


def held(lines):
    """Steps and values of a run that was killed; fails if a value is not the one of its step."""
    for step, values in lines:
        assert values["probe/double"] == 2 * step
        assert values["update"] == step
        assert math.isclose(values["train/loss"], 1 - step, abs_tol=1e-9)
    return [step for step, _ in lines]


def test_offline_each_step_is_in_one_of_the_parts(tmp_path):
    first, second, last = kill_and_resume(tmp_path, "WandB(mode='offline')", IMPORTS, kill_after=(10, 12))
    assert (first.id, first.resumed_step) == (second.id, 0)
    assert (last.id, last.resumed_step, last.status, last.warnings) == (first.id, 8, "completed", [])
    parts = [records(path) for path in files(tmp_path / "run")]
    assert len(parts) == 3
    assert held([row for part in parts for row in rows(part)]) == STEPS
    assert exit_codes(parts[-1]) == [0]
    assert not list((tmp_path / "run").rglob("trainhooks-*.jsonl*"))  # it has served


def test_offline_steps_that_are_in_the_file_are_not_written_again(tmp_path):
    _, last = kill_and_resume(tmp_path, "Waits(mode='offline')", WAITS_FOR_FILE)
    killed, resumed = [rows(records(path)) for path in files(tmp_path / "run")]
    assert [step for step, _ in killed] == list(range(1, 10))  # 10 was not complete when it was killed
    assert held(killed + resumed) == STEPS
    assert last.warnings == []


def test_parts_are_synced_into_one_run(tmp_path, monkeypatch):
    _, last = kill_and_resume(tmp_path, "WandB(mode='offline')", IMPORTS)
    with Cloud() as cloud:
        for name, value in cloud.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        sync(*[path.parent for path in files(tmp_path / "run")])
        (stored,) = cloud.runs.values()
        assert stored.name == last.id
        assert held(stored.history()) == STEPS
        assert (stored.complete, stored.exit_code) == (True, 0)
        assert all(path.with_name(path.name + ".synced").exists() for path in files(tmp_path / "run"))


def test_online_what_the_server_lacks_is_sent_after_the_resume(tmp_path):
    with Cloud() as cloud:
        env = cloud.environment(tmp_path / "home")
        first, second, last = kill_and_resume(tmp_path, ONLINE, IMPORTS, kill_after=(10, 12), env=env)
        (stored,) = cloud.runs.values()
    assert stored.name == first.id == second.id == last.id
    assert held(stored.history()) == STEPS
    assert (stored.complete, stored.exit_code) == (True, 0)
    assert last.warnings == []


def test_online_steps_that_the_server_has_are_not_sent_again(tmp_path):
    with Cloud() as cloud:
        imports = WAITS.format(url=cloud.url)
        env = cloud.environment(tmp_path / "home")
        waits = f"Waits(settings={{'x_file_stream_transmit_interval': 1}}, {ONLINE.removeprefix('WandB(')}"
        _, last = kill_and_resume(tmp_path, waits, imports, env=env)
        (stored,) = cloud.runs.values()
    assert stored.resumed_with == [9]  # lines that it had of the killed process: 10 was not complete
    assert held(stored.history()) == STEPS
    assert last.warnings == []


def test_a_stopped_run_goes_on_and_a_changed_hyperparameter_is_noted(tmp_path):
    run(tmp_path, WandB(mode="offline"), steps=8, hyperparameters={"rate": 0.1, "same": "x"})
    again = run(tmp_path, WandB(mode="offline"), steps=12, hyperparameters={"rate": 0.2, "same": "x"}, resume="auto")
    before, after = [records(path) for path in files(again.work_dir)]
    assert held(rows(before) + rows(after)) == list(range(1, 13))
    assert (config(before)["rate"], config(after)["rate"]) == (0.1, 0.2)
    (warning,) = again.warnings
    assert warning == "wandb: hyperparameters of the run were others before: max_steps 8 -> 12, rate 0.1 -> 0.2"


def test_online_a_changed_hyperparameter_is_noted(tmp_path, monkeypatch):
    with Cloud() as cloud:
        for name, value in cloud.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        run(tmp_path, WandB(), steps=8, hyperparameters={"rate": 0.1})
        again = run(tmp_path, WandB(), steps=8, hyperparameters={"rate": 0.2}, resume="auto")
        (stored,) = cloud.runs.values()
    assert again.warnings == ["wandb: hyperparameters of the run were others before: rate 0.1 -> 0.2"]
    assert stored.config["rate"] == 0.2
    assert held(stored.history()) == list(range(1, 9))


def test_an_id_that_was_used_before_is_said(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        ran = run(tmp_path / folder, WandB(mode="offline", run_id="mine", dir=tmp_path), steps=3)
    (warning,) = ran.warnings
    assert warning.startswith("wandb: run mine has steps up to 3 already")
    assert [rows(records(path)) != [] for path in files(tmp_path)] == [True, False]


def test_a_run_that_was_begun_offline_goes_on_offline_until_it_is_synced(tmp_path, monkeypatch):
    run(tmp_path, WandB(), steps=8)  # no API key
    with Cloud() as cloud:
        for name, value in cloud.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        import wandb

        wandb.teardown()  # it reads the environment once
        run(tmp_path, WandB(), steps=10, resume="auto")
        assert not cloud.runs
        parts = files(tmp_path / "run")
        sync(*[path.parent for path in parts])
        ran = run(tmp_path, WandB(), steps=13, resume="auto")
        (stored,) = cloud.runs.values()
    assert stored.name == ran.run.id
    assert held(stored.history()) == list(range(1, 14))
    assert len(files(tmp_path / "run")) == len(parts) + 1
    assert os.environ["WANDB_API_KEY"]


def test_a_fork_is_a_run_of_its_own_that_names_the_first(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    first = run(tmp_path / "one", WandB(mode="offline"), steps=8, media=False)
    (checkpoint,) = [path for path in (first.work_dir / "checkpoints").iterdir() if path.is_dir() and not path.is_symlink()]
    fork = run(tmp_path / "two", WandB(mode="offline"), steps=12, media=False, resume=checkpoint)
    assert fork.run.id != first.run.id
    (file,) = files(fork.work_dir)
    found = records(file)
    assert config(found)["parent"] == first.run.id
    assert held(rows(found)) == [9, 10, 11, 12]
