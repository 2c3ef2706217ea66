"""Runs are reported by the real Trackio and read back with its command line."""

import json
import math
import sys

import pytest
from PIL import Image as Picture
from satellite_support import (
    ARTIFACT,
    COLUMNS,
    IMAGE,
    MEDIA_STEP,
    ODD_HYPERPARAMETERS,
    ODD_SCALARS,
    ROWS,
    TEXT,
    kill_and_resume,
    list_plugins,
    run,
)
from trackio_reader import Reader

from trainhooks import OptionError, hookimpl
from trainhooks_trackio import Trackio

STEPS_20 = list(range(1, 21))


def test_run_is_stored_whole(tmp_path, trackio_dir):
    ran = run(tmp_path, Trackio("whole", group="tests"))
    reader = Reader("whole")
    assert reader.runs() == [f"{ran.run.name}-{ran.run.id}"]
    assert reader.get_metric("probe/double") == [(step, 2.0 * step) for step in STEPS_20]
    assert reader.metric("train/loss") == [(step, 1.0 - step) for step in STEPS_20]  # w falls by 1 in each step
    config = reader.run()["config"]
    assert {"model/width": 1, "note": "hello", "flag": True, "rate": 0.1, "nothing": None}.items() <= config.items()
    assert (config["optimizer/name"], config["optimizer/lr"], config["_Group"]) == ("SGD", 1.0, "tests")
    assert (config["outcome/status"], config["outcome/step"]) == ("completed", 20)
    (alert,) = reader.alerts()
    assert (alert["title"], alert["level"], alert["step"]) == ("completed", "info", 20)
    assert not ran.warnings


def test_media_and_artifacts(tmp_path, trackio_dir):
    run(tmp_path, Trackio("media"))
    reader = Reader("media")
    ((step, image),) = reader.metric("media/image")
    assert step == MEDIA_STEP
    with Picture.open(trackio_dir / "media" / image["file_path"]) as picture:
        assert [picture.getpixel((x, 2))[:3] for x in range(10)] == [tuple(IMAGE[:, 2, x].tolist()) for x in range(10)]
    ((step, histogram),) = reader.metric("media/histogram")
    assert (step, sum(histogram["values"])) == (MEDIA_STEP, 4)
    assert (histogram["bins"][0], histogram["bins"][-1], len(histogram["bins"])) == (0.0, 4.0, len(histogram["values"]) + 1)
    ((step, table),) = reader.metric("media/table")
    assert [[row[name] for name in COLUMNS] for row in table["_value"]] == ROWS
    (name,) = reader.runs()
    found = reader.ask("get", "report", "--project", "media", "--run", name, "--report", "media/text")["values"]
    assert [(one["step"], one["content"]) for one in found] == [(MEDIA_STEP, TEXT)]

    notes = reader.ask("get", "artifact", "--project", "media", "--name", "notes")
    assert [entry["path"] for entry in notes["manifest"]] == ["notes.txt"]
    bundle = reader.ask("get", "artifact", "--project", "media", "--name", "bundle")
    assert sorted(entry["path"] for entry in bundle["manifest"]) == ["inner/two.txt", "one.txt"]
    blobs = [path for path in trackio_dir.rglob(notes["manifest"][0]["digest"]) if "media" in path.parts]  # of this project
    assert [blob.read_text() for blob in blobs] == [ARTIFACT]


@pytest.mark.parametrize(
    ("how", "status", "level"),
    [
        ({"fail_after": 6}, "failed", "error"),
        ({"fail_after": 6, "error": KeyboardInterrupt()}, "interrupted", "warn"),
        ({"signal_after": 6}, "interrupted", "warn"),
    ],
    ids=["error", "ctrl-c", "sigterm"],
)
def test_outcome_of_a_run_that_did_not_end_well(tmp_path, how, status, level, request):
    project = f"outcome-{request.node.callspec.id}"
    ran = run(tmp_path, Trackio(project), **how)
    reader = Reader(project)
    assert ran.ended.status == status
    assert [(alert["title"], alert["level"]) for alert in reader.alerts()] == [(status, level)]
    config = reader.run()["config"]
    assert (config["outcome/status"], config["outcome/step"]) == (status, ran.ended.step)
    assert ("the model broke" in config["outcome/reason"]) == (level == "error")
    assert [step for step, _ in reader.metric("probe/double")] == list(range(1, ran.ended.step + 1))


@pytest.mark.slow
def test_killed_and_resumed_has_each_step_once(tmp_path):
    first, second = kill_and_resume(tmp_path, "Trackio('killed')", "from trainhooks_trackio import Trackio")
    reader = Reader("killed")
    assert (first.id, second.resumed_step, second.status) == (second.id, 8, "completed")
    assert reader.metric("probe/double") == [(step, 2.0 * step) for step in range(1, 16)]
    assert reader.metric("train/loss") == [(step, 1.0 - step) for step in range(1, 16)]
    assert [step for step, _ in reader.metric("media/image")] == [MEDIA_STEP]
    assert "warning" not in second.output.lower()


@pytest.mark.slow
def test_killed_again_and_again(tmp_path):
    """The second one is killed before it is where the first one was."""
    segments = kill_and_resume(
        tmp_path, "Trackio('often')", "from trainhooks_trackio import Trackio", kill_after=(14, 11, 15), steps=20
    )
    assert len({segment.id for segment in segments}) == 1
    assert Reader("often").metric("probe/double") == [(step, 2.0 * step) for step in range(1, 21)]


def test_media_of_a_killed_run_come_once(tmp_path):
    """What was there before the kill is left out by name, not by step alone: the image of step 5, not the table."""
    from trainhooks.media import Table, Text
    from trainhooks.metrics import Record
    from trainhooks.run_info import RunInfo

    place = {"step": 5, "update": 5, "epoch": 0, "time": 0.0}
    text, table = Text("text", **place, text="a"), Table("table", **place, columns=("a",), rows=((1,),))
    reporters = [Trackio("partly"), Trackio("partly")]
    for reporter, items, resumed in ((reporters[0], [text], False), (reporters[1], [text, table], True)):
        reporter.report_start(RunInfo("r", id="0123456789ab", resumed=resumed, resumed_step=4 * resumed))
        reporter.report_metrics([Record(5, 5, 0, 0.0, {"a": 1.0, **({"b": 2.0} if resumed else {})})])
        reporter.report_media(items)
        if not resumed:
            sys.modules["trackio"].context_vars.current_run.set(None)  # as if the process had gone
    reader = Reader("partly")
    assert [len(reader.metric(name)) for name in ("a", "b", "text", "table")] == [1, 1, 1, 1]


def test_odd_names_and_values(tmp_path):
    scalars = {**ODD_SCALARS, "step": 1.0, "__own": 2.0}
    ran = run(tmp_path, Trackio("odd"), steps=3, scalars=scalars, hyperparameters={**ODD_HYPERPARAMETERS, "_private": 1})
    reader = Reader("odd")
    assert not ran.warnings
    for name, value in ODD_SCALARS.items():
        stored = [found for _, found in reader.metric(name)]
        assert all(math.isnan(float(one)) if math.isnan(value) else float(one) == value for one in stored), name
        assert len(stored) == 3
    assert reader.metric("metric/step") == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert reader.metric("metric/__own") == [(1, 2.0), (2, 2.0), (3, 2.0)]
    config = reader.run()["config"]
    assert config["long"] == "x" * 10_000
    assert (config["big"], config["lines"], config["empty"], config["ünïcode key"]) == (str(2**70), "a\nb\tc", "", "ü")
    assert config["hyperparameter_private"] == 1
    assert math.isnan(config["nan"])


def test_changed_hyperparameters_are_noted(tmp_path):
    first = run(tmp_path, Trackio("drift"), steps=8, hyperparameters={"rate": 0.1, "gone": 1, "nan": math.nan})
    second = run(tmp_path, Trackio("drift"), steps=12, hyperparameters={"rate": 0.2, "nan": math.nan, "new": 2}, resume="auto")
    assert (second.run.id, second.run.resumed_step, second.warnings) == (first.run.id, 8, [])
    reader = Reader("drift")
    config = reader.run()["config"]
    noted = {key.partition("/")[2]: value for key, value in config.items() if key.startswith("changed at step 8/")}
    assert {"rate": "0.1 -> 0.2", "gone": "1 -> not there", "new": "not there -> 2"}.items() <= noted.items()
    assert "nan" not in noted
    assert (config["rate"], config["outcome/status"]) == (0.2, "completed")
    assert reader.metric("probe/double") == [(step, 2.0 * step) for step in range(1, 13)]


def test_artifact_that_is_gone_is_given_up(tmp_path):
    from trainhooks import hookimpl
    from trainhooks.backlog import Artifact

    class Gone:
        @hookimpl
        def after_train(self, trainer):
            trainer.reporter.put(Artifact(tmp_path / "gone.txt", "gone", "file"))  # it was there when it was logged

    ran = run(tmp_path, Trackio("gone"), steps=3, plugins=[Gone()], report_timeout_s=20)
    assert ran.outcome.status == "completed"
    assert any("gone.txt is gone" in warning for warning in ran.warnings)
    assert Reader("gone").run()["config"]["outcome/status"] == "completed"


def test_other_folder_than_the_one_trackio_was_imported_with(tmp_path, trackio_dir):
    from trainhooks_trackio import sdk

    sdk.load(None)
    with pytest.raises(OptionError, match="trackio was imported before"):
        sdk.load(tmp_path)
    assert sdk.load(trackio_dir).__name__ == "trackio"


def test_folder_of_an_option(tmp_path, trackio_dir):
    """In a process of its own, since Trackio reads the folder when it is imported; its environment stays what it was."""
    import subprocess

    script = (
        f"import os, sys\nsys.path.insert(0, {sys.path[0]!r})\nfrom satellite_support import run\nfrom pathlib import Path\n"
        "from trainhooks_trackio import Trackio\n"
        f"run(Path({str(tmp_path)!r}), Trackio('p', dir={str(tmp_path / 'own')!r}), steps=2)\n"
        f"assert os.environ['TRACKIO_DIR'] == {str(trackio_dir)!r}\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert (tmp_path / "own" / "p.db").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"project": " "}, "project"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"server_url": "http://a/?write_token=secret", "space_id": "b"}, "space_id"),
    ],
)
def test_wrong_options(options, said):
    with pytest.raises(OptionError, match=said) as raised:
        Trackio(**options)
    assert "secret" not in str(raised.value)


def test_listing_plugins_imports_no_sdk():
    listing, imported = list_plugins("trackio", "trainhooks_trackio")
    assert "trackio" in listing
    assert not imported


def test_import_of_the_plugin_imports_no_sdk():
    import subprocess

    script = "import sys, trainhooks_trackio as it, json; it.Trackio(); print(json.dumps('trackio' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout) is False


def test_records_that_are_given_again_are_logged_once(tmp_path):
    plugin = Trackio("again")

    class FailsOnce:
        """Has the third call of Trackio's ``log`` fail."""

        calls = 0

        @hookimpl
        def before_train(self):
            log = plugin._run.log

            def log_or_fail(values, step):
                self.calls += 1
                if self.calls == 3:
                    raise ConnectionError("away")
                log(values, step=step)

            plugin._run.log = log_or_fail

    ran = run(tmp_path, plugin, media=False, plugins=[FailsOnce()])
    assert Reader("again").metric("probe/double") == [(step, 2.0 * step) for step in STEPS_20]
    assert len([one for one in ran.warnings if "failed with ConnectionError" in one]) == 1


def test_a_name_that_is_no_text_is_made_valid(tmp_path):
    run(tmp_path, Trackio("surrogate"), steps=3, media=False, scalars={"a\udc80": 1.0})
    assert Reader("surrogate").metric("a?") == [(step, 1.0) for step in (1, 2, 3)]
