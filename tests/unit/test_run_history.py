"""What is read back from a run folder, whatever state it is in."""

import json
import math
import subprocess
import sys

import pytest

from trainhooks import UsageError, hookimpl
from trainhooks.run_history import read_history
from trainhooks.run_lock import RunLock
from trainhooks.run_media import read_media
from trainhooks_builtins import HookTime, MetricsLog


def record(step, epoch=0, **values):
    return {"step": step, "update": step // 2, "epoch": epoch, "time": 1000.0 + step, **values}


def jsonl(folder, *records, end="\n"):
    folder.mkdir(exist_ok=True)
    text = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in records)
    (folder / "metrics.jsonl").write_text(text + end, encoding="utf-8")
    return folder


class Logs:
    """Logs a value that is known at each step, one of them not finite, and another metric at every third."""

    @hookimpl
    def after_step(self, trainer):
        done = trainer.step + 1  # a step counts when its hooks are through
        trainer.log("a", math.nan if done == 4 else done / 2)
        if done % 3 == 0:
            trainer.log("b/c", -done)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_what_a_run_has_written_is_read_back(make_trainer, tmp_path, kind):
    log = MetricsLog(csv=kind == "csv", jsonl=kind == "jsonl")
    make_trainer([log, Logs(), HookTime()], max_steps=7, work_dir=tmp_path, log_every_steps=1).train()
    history = read_history(tmp_path)
    a, b = history.series["a"], history.series["b/c"]
    assert list(a.steps) == list(a.updates) == [1, 2, 3, 4, 5, 6, 7]
    assert [None if math.isnan(value) else value for value in a.values] == [0.5, 1.0, 1.5, None, 2.5, 3.0, 3.5]
    assert (list(b.steps), list(b.values)) == ([3, 6], [-3.0, -6.0])
    assert list(b.times) == [a.times[2], a.times[5]]
    assert sorted(a.times) == list(a.times)
    assert (history.source, history.outcome, history.damaged) == (f"metrics.{kind}", "completed", 0)
    assert {plugin["name"] for plugin in history.plugins} == {"logs", "hook_time", "metrics_log"}
    assert history.hook_time["logs"]["after_step"][0] == 7
    assert history.hook_time["logs"]["after_step"][1] > 0
    assert history.mapping("settings")["max_steps"] == 7


def test_json_lines_go_before_csv(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,update,epoch,time,a\n1,1,0,1.0,5.0\n")
    assert list(read_history(tmp_path).series["a"].values) == [5.0]
    assert list(read_history(jsonl(tmp_path, record(1, a=6.0))).series["a"].values) == [6.0]


def test_a_last_line_that_a_kill_has_cut_is_left_out(tmp_path):
    whole = json.dumps(record(3, a=2.5))
    for cut in range(len(whole)):
        history = read_history(jsonl(tmp_path / "run", record(1, a=1.0), record(2, a=2.0), whole[:cut], end=""))
        assert list(history.series["a"].values) == [1.0, 2.0]
        assert history.damaged == 0
    row = "3,1,0,1003.0,2.5\n"
    for cut in range(len(row)):
        (tmp_path / "metrics.csv").write_text("step,update,epoch,time,a\n1,0,0,1001.0,1.0\n2,1,0,1002.0,2.0\n" + row[:cut])
        assert list(read_history(tmp_path).series["a"].values) == [1.0, 2.0], cut


def test_lines_that_are_no_records_are_counted(tmp_path):
    bad = [
        "no json",
        "[1, 2]",
        "{}",
        '{"step": "1", "update": 1, "epoch": 0, "time": 1}',
        json.dumps({**record(1), "step": -1}),
        json.dumps({**record(1), "step": True}),
        json.dumps({**record(1), "time": None}),
        json.dumps({**record(1), "step": 10**30}),
        "[" * 100_000,
        '{"step": NaN, "update": 1, "epoch": 0, "time": 1}',
    ]
    history = read_history(jsonl(tmp_path, record(1, a=1.0), *bad, record(2, a=2.0)))
    assert list(history.series["a"].values) == [1.0, 2.0]
    assert history.damaged == len(bad)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.csv").write_text("step,update,epoch,time,a\n1,0,0,1001.0,1.0\nx,0,0,1,1\n2,0\n2,1,0,1002.0,nan\n\0\n")
    history = read_history(tmp_path)
    assert str(list(history.series["a"].values)) == "[1.0, nan]"
    assert history.damaged == 3


def test_a_value_that_is_no_number_is_left_out_and_its_record_stays(tmp_path):
    one = record(1, a="text", b=[1], c=True, d={"e": 1}, f=2, g=10**400, h=1.5, i=None)
    history = read_history(jsonl(tmp_path, one))
    assert {name: str(list(series.values)) for name, series in history.series.items()} == {
        "f": "[2.0]",
        "h": "[1.5]",
        "i": "[nan]",
    }


def test_steps_that_go_back_replace_what_was_there(tmp_path):
    """As after a kill, in a file that nobody has repaired: 8 was the checkpoint."""
    first = [record(step, a=float(step), **({"b": 1.0} if step == 9 else {})) for step in range(1, 11)]
    history = read_history(jsonl(tmp_path, *first, *(record(step, a=-float(step)) for step in range(9, 12))))
    assert list(history.series["a"].steps) == list(range(1, 12))
    assert list(history.series["a"].values) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, -9.0, -10.0, -11.0]
    assert list(history.series["b"].values) == []


def test_two_records_of_one_step_stay(tmp_path):
    history = read_history(jsonl(tmp_path, record(5, a=1.0), record(5, b=2.0), record(6, a=3.0)))
    assert (list(history.series["a"].steps), list(history.series["b"].steps)) == ([5, 6], [5])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(23, 0), (46, 1), (69, 2)], 23.0),  # flushed where an epoch ends, before it counts
        ([(10, 0), (20, 0), (30, 1), (41, 1), (50, 2)], 21.0),  # 41 / 2 at least, 50 / 2 at most
        ([(10, 0), (20, 0)], None),  # no epoch has ended
        ([(10, 1), (30, 1)], None),  # an epoch cannot have 10 or fewer and 15 or more steps
        ([], None),
    ],
)
def test_steps_of_an_epoch(tmp_path, rows, expected):
    history = read_history(jsonl(tmp_path, *(record(step, epoch, a=1.0) for step, epoch in rows)))
    assert history.steps_per_epoch() == expected


def test_a_run_that_is_running_or_was_killed(tmp_path):
    jsonl(tmp_path, record(1, a=1.0))
    (tmp_path / "run.json").write_text(
        json.dumps({"status": "running", "locked": True, "resumed": [{"step": 8}, {"step": 12}, 3]})
    )
    assert read_history(tmp_path).outcome == "killed"
    with RunLock(tmp_path):
        history = read_history(tmp_path)
    assert history.outcome == "running"
    assert history.resumed_steps == [8, 12]


@pytest.mark.parametrize(
    "content", ["", "[]", '{"plugins": 3, "resumed": 4, "settings": [], "status": {}}', "\xff", '{"plugins": [4, {}]}']
)
def test_any_record_is_read(tmp_path, content):
    (tmp_path / "run.json").write_text(content, encoding="latin-1")
    (tmp_path / "hook_time.json").write_text(content, encoding="latin-1")
    history = read_history(tmp_path)
    assert (history.outcome, history.source, dict(history.series), history.hook_time) == ("unknown", None, {}, None)
    assert history.mapping("settings") == {}
    assert history.resumed_steps == []
    assert history.plugins in ([], [{}])


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "-1", "1e400", "null", str(10**400)])
def test_a_time_that_no_clock_shows(tmp_path, seconds):
    text = '{"plugins": {"a": {"hooks": {"b": {"calls": 1, "seconds": %s}}}}}'
    (tmp_path / "hook_time.json").write_text(text % seconds)
    line = json.dumps(record(1, a=1.0)).replace("1001.0", seconds)
    history = read_history(jsonl(tmp_path, line, record(2, a=2.0)))
    assert history.hook_time is None
    assert (list(history.series["a"].values), history.damaged) == (([1.0, 2.0], 0) if seconds == "-1" else ([2.0], 1))


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="run folder .*nowhere does not exist: name the folder"):
        read_history(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="run folder .*file is a file: name the folder"):
        read_history(tmp_path / "file")


def test_a_hundred_thousand_records(tmp_path):
    lines = [json.dumps(record(step, step // 1000, **{"train/loss": 1 / step, "lr": 0.5})) for step in range(1, 100_001)]
    history = read_history(jsonl(tmp_path, *lines))
    series = history.series["train/loss"]
    assert len(series) == len(history.table) == 100_000
    assert (series.steps[-1], series.values[-1], series.times[0]) == (100_000, 1e-5, 1001.0)
    assert series.rows.itemsize * len(series) + series.values.itemsize * len(series) == 1_600_000  # columns, not objects


def test_reading_imports_no_torch():
    code = "import sys, trainhooks.run_history, trainhooks.run_media; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_media_of_the_run_folder_alone(tmp_path):
    run = tmp_path / "run"
    (run / "media").mkdir(parents=True)
    (run / "media/a.txt").write_text("a")
    (tmp_path / "secret.txt").write_text("s")
    (run / "media/link.txt").symlink_to(tmp_path / "secret.txt")
    files = ["media/a.txt", "../secret.txt", str(tmp_path / "secret.txt"), "media/link.txt", "media/gone.txt", 3, "media/\0"]
    lines = [json.dumps({"kind": "text", "name": "n", "step": 1, "file": file}) for file in files]
    lines += [
        '{"kind": "histogram", "name": "h", "step": 2, "counts": [1], "edges": [0, 1]}',
        "cut",
        "[]",
        '{"kind": 1, "name": 2}',
    ]
    (run / "media.jsonl").write_text("\n".join(lines) + "\n")
    found = read_media(run)
    assert [(one.kind, one.step, one.path and one.path.name) for one in found] == [("text", 1, "a.txt"), ("histogram", 2, None)]
    assert read_media(tmp_path) == []
