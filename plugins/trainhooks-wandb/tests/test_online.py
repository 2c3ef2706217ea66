"""Runs at a server on the loopback that speaks W&B's protocol: what it gets, and what becomes of a run when it is not there."""

import os
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from read_back import config, exit_codes, files, records, rows, sync
from satellite_support import ARTIFACT, HYPERPARAMETERS, MEDIA_STEP, Does, run
from wandb_cloud import Cloud

from trainhooks_wandb import WandB


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    with Cloud() as cloud:
        for name, value in cloud.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield cloud
        cloud.mode = "answer"  # whatever wandb still holds must not keep it
        import wandb

        wandb.teardown()


#: For the server to answer, and to take everything, however slow the machine is.
PATIENT = {"init_timeout": 100, "finish_timeout": 100}


def steps_of(stored):
    assert all(line["probe/double"] == 2 * step for step, line in stored.history())
    return [step for step, _ in stored.history()]


def test_the_server_gets_everything(tmp_path, cloud):
    before = sys.exit, sys.excepthook
    ran = run(tmp_path, WandB(project="p", entity="ent", tags=["a"], group="g", notes="why", **PATIENT))
    (stored,) = cloud.runs.values()
    assert stored.name == ran.run.id
    assert steps_of(stored) == list(range(1, 21))
    assert {key: stored.config[key] for key in HYPERPARAMETERS} == HYPERPARAMETERS
    assert (stored.complete, stored.exit_code) == (True, 0)
    assert stored.given["project"] == "p"
    assert (stored.given["entity"], stored.given["tags"], stored.given["groupName"]) == ("ent", ["a"], "g")
    assert (stored.given["displayName"], stored.given["notes"]) == (ran.run.name, "why")
    row = dict(stored.history())[MEDIA_STEP]
    for kind in ("image", "text", "table"):
        assert row[f"media/{kind}"]["path"] in stored.files
    assert sum(row["media/histogram"]["values"]) == 4
    made = {artifact.name: artifact for artifact in cloud.artifacts.values() if artifact.committed}
    assert made["notes"].files["notes.txt"] == ARTIFACT.encode()
    assert made["bundle"].files["inner/two.txt"] == made["bundle"].files["one.txt"] == ARTIFACT.encode()
    # Nothing that nobody asked for: neither console, code, requirements and machine, nor hooks in the process.
    assert not [
        name for name in stored.files if not name.startswith("media/") and name not in ("config.yaml", "wandb-summary.json")
    ]
    assert not {"commit", "repo", "host", "program", "jobProgram"} & {name for name, value in stored.given.items() if value}
    assert (sys.exit, sys.excepthook) == before
    assert ran.warnings == []


@pytest.mark.parametrize(("how", "code"), [({"fail_after": 5}, 1), ({"signal_after": 5}, 255)])
def test_the_server_gets_the_status(tmp_path, cloud, how, code):
    run(tmp_path, WandB(**PATIENT), media=False, **how)
    (stored,) = cloud.runs.values()
    assert (stored.complete, stored.exit_code) == (True, code)


def test_a_slow_server_gets_everything(tmp_path, cloud):
    cloud.mode = "slow"
    ran = run(tmp_path, WandB(**PATIENT), media=False)
    (stored,) = cloud.runs.values()
    assert steps_of(stored) == list(range(1, 21))
    assert (stored.complete, stored.exit_code) == (True, 0)
    assert ran.warnings == []


@pytest.mark.parametrize("mode", ["refuse", "hang", "error"])
def test_a_server_that_is_away_leaves_a_run_that_can_be_synced(tmp_path, cloud, mode):
    cloud.mode = mode
    ran = run(tmp_path, WandB(init_timeout=8))
    assert ran.outcome.status == "completed"
    (warning,) = ran.warnings
    (file,) = files(ran.work_dir)
    assert warning.startswith(f"wandb: {cloud.url} cannot be used (")
    assert warning.endswith(f"upload it with: wandb sync {file.parent}")
    found = records(file)
    assert [step for step, _ in rows(found)] == list(range(1, 21))
    assert exit_codes(found) == [0]
    assert not cloud.runs
    cloud.mode = "answer"
    sync(file.parent)
    (stored,) = cloud.runs.values()
    assert steps_of(stored) == list(range(1, 21))
    assert {artifact.name for artifact in cloud.artifacts.values() if artifact.committed} >= {"notes", "bundle"}


def test_a_server_that_refuses_what_it_was_asked(tmp_path, cloud):
    """It can be reached, and ``wandb.init`` fails: its id must be free again for the run offline."""
    cloud.fail = lambda query: "RunResumeStatus" in query
    ran = run(tmp_path, WandB(init_timeout=8), media=False)
    (warning,) = ran.warnings
    assert warning.startswith(f"wandb: {cloud.url} cannot be used (Failed to get resume status")
    written = [records(path) for path in files(ran.work_dir)]
    assert [step for part in written for step, _ in rows(part)] == list(range(1, 21))
    assert config(written[-1])["note"] == "hello"


@pytest.mark.parametrize("mode", ["refuse", "hang"])
def test_a_server_that_vanishes_does_not_hold_the_end_up(tmp_path, cloud, mode):
    """wandb itself waits for ever; did the engine have to leave it behind, it would warn, too."""

    def vanish():
        cloud.mode = mode

    ran = run(tmp_path, WandB(finish_timeout=2), plugins=[Does(10, vanish)], media=False)
    assert ran.outcome.status == "completed"
    (file,) = files(ran.work_dir)
    assert ran.warnings == [
        f"wandb: not everything was uploaded within 2 s; it is on disk, complete it with: wandb sync --include-online {file.parent}"
    ]
    assert [step for step, _ in rows(records(file))] == list(range(1, 21))
    cloud.mode = "answer"
    sync("--include-online", file.parent)
    (stored,) = cloud.runs.values()
    assert steps_of(stored) == list(range(1, 21))
    assert (stored.complete, stored.exit_code) == (True, 0)


def test_the_process_ends_when_the_server_hangs(tmp_path, cloud):
    """Nothing of wandb is left that would keep it: not the thread that is left behind, nor what wandb does at exit."""
    script = tmp_path / "script.py"
    paths = [path for path in sys.path if path]
    lines = ["import sys, urllib.request", f"sys.path[:0] = {paths!r}", "from satellite_support import Does, run"]
    lines += ["from trainhooks_wandb import WandB", f"hang = lambda: urllib.request.urlopen({cloud.url + '/hang'!r}).close()"]
    lines += [
        f"ran = run({str(tmp_path)!r}, WandB(finish_timeout=2), plugins=[Does(10, hang)], media=False)",
        "print(ran.outcome.status)",
    ]
    script.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, script], env=dict(os.environ), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "completed"), done.stderr


@pytest.mark.parametrize("mode", ["auto", "online"])
def test_without_a_key_it_is_kept_offline_and_that_is_said(tmp_path, monkeypatch, mode):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    ran = run(tmp_path, WandB(mode=mode), steps=3, media=False)
    (warning,) = ran.warnings
    assert warning.startswith("wandb: there is no API key for http://127.0.0.1:9 (set WANDB_API_KEY, or call `wandb login`): ")
    assert warning.endswith(f"upload it with: wandb sync {files(ran.work_dir)[0].parent}")
    assert [step for step, _ in rows(records(files(ran.work_dir)[0]))] == [1, 2, 3]


def test_a_key_in_netrc_counts(tmp_path, cloud, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY")
    (tmp_path / "home").mkdir(exist_ok=True)
    netrc = tmp_path / "home/.netrc"
    netrc.write_text(f"machine {urlsplit(cloud.url).netloc}\n  login user\n  password {'0' * 40}\n")
    netrc.chmod(0o600)
    run(tmp_path, WandB(**PATIENT), steps=3, media=False)
    (stored,) = cloud.runs.values()
    assert steps_of(stored) == [1, 2, 3]


def test_the_users_own_run_is_left_alone(tmp_path, cloud):
    import wandb

    own = wandb.init(project="own", id="own", dir=tmp_path, settings=wandb.Settings(silent=True, console="off"))
    run(tmp_path, WandB(**PATIENT), steps=3, media=False)
    assert wandb.run is own
    own.log({"x": 1})
    own.finish()
    assert [line["x"] for line in cloud.runs["own"].lines] == [1]
    assert len(cloud.runs) == 2
