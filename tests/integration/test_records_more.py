"""What users do to a run's output and log into it that nobody planned for: the rest of it stays right."""

import base64
import csv
import json
import math
import os
import sys
import threading
import time
from array import array
from pathlib import Path

import pytest
import torch

from trainhooks import UsageError, hookimpl
from trainhooks.run_history import MetricTable, RunHistory, read_history
from trainhooks_builtins import Checkpoint, Console, Evaluation, MetricsLog, Progress, RunStore
from trainhooks_builtins._report.payload import payload
from trainhooks_builtins.progress import _first_line


class Does:
    """Calls ``do(trainer)`` after each step."""

    def __init__(self, do):
        self.do = do

    @hookimpl
    def after_step(self, trainer):
        self.do(trainer)


def steps_of(run):
    """Return the steps that stand in the two files of a run."""
    with (run / "metrics.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = [int(row["step"]) for row in csv.DictReader(file)]
    return rows, [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def wait_for(run, step):
    """Wait until both files have a step."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if all(step in found for found in steps_of(run)):
                return
        except (OSError, KeyError, ValueError):
            pass
        time.sleep(0.01)
    pytest.fail(f"step {step} was not delivered")


class TestFilesThatSomebodyElseTouches:
    def test_cut_to_nothing_while_training(self, make_trainer, tmp_path, messages):
        """``> metrics.csv``, or a rotation of logs that copies and cuts: the table has a header again."""
        run = tmp_path / "run"

        def cut(trainer):
            if trainer.step == 3:
                wait_for(run, 3)
                for name in ("metrics.csv", "metrics.jsonl"):
                    os.truncate(run / name, 0)

        make_trainer([MetricsLog(), Does(cut)], work_dir=run, log_every_steps=1, max_steps=6).train()
        rows, lines = steps_of(run)
        assert rows == lines
        assert rows[-3:] == [4, 5, 6]
        told = [text for text in messages() if "was removed, replaced or cut: it goes on from what is there" in text]
        assert len(told) == 2

    def test_a_table_that_a_spreadsheet_has_saved(self, make_trainer, tmp_path, messages):
        """It has the mark of UTF-8 in front, and other line ends; the report reads it, and a resumed run goes on with it."""
        run = tmp_path / "run"
        make_trainer([MetricsLog(jsonl=False), Checkpoint()], work_dir=run, log_every_steps=1, max_steps=3).train()
        table = run / "metrics.csv"
        table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes().replace(b"\r\n", b"\n"))
        assert list(read_history(run).series["train/loss"].steps) == [1, 2, 3]
        make_trainer([MetricsLog(jsonl=False), Checkpoint()], work_dir=run, log_every_steps=1, max_steps=5).train(resume="auto")
        assert list(read_history(run).series["train/loss"].steps) == [1, 2, 3, 4, 5]
        assert not (run / "metrics.csv.damaged").exists()
        assert not any("damaged" in text for text in messages())


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such devices")
def test_an_artifact_that_never_ends_is_not_copied(make_trainer, tmp_path, messages):
    make_trainer(
        [RunStore(), Does(lambda trainer: trainer.log_artifact("/dev/zero"))], work_dir=tmp_path / "run", max_steps=1
    ).train()
    assert "run_store: artifact 'zero' is not kept: /dev/zero: neither a file nor a folder" in messages()
    assert not list((tmp_path / "run").rglob("*zero*"))


@pytest.mark.parametrize("log", ["log_image", "log_histogram"])
def test_media_of_a_tensor_without_values_are_refused_where_they_are_logged(make_trainer, log):
    """Not at the next flush, by an error of torch that names neither."""
    trainer = make_trainer([Does(lambda trainer: getattr(trainer, log)("weights", torch.ones(4, 4, device="meta")))])
    with pytest.raises(
        UsageError, match=rf"{log}\('weights'\): a tensor of torch.float32 on meta has no values that can be read"
    ):
        trainer.train()


class WriteOnly:
    """What many put in the place of stdout to send it to a log: it has no more than ``write``."""

    def __init__(self):
        self.written = []

    def write(self, text):
        self.written.append(text)
        return len(text)


class TestStdout:
    def test_an_object_that_can_only_be_written_to(self, make_trainer, monkeypatch, messages):
        out = WriteOnly()
        monkeypatch.setattr(sys, "stdout", out)
        trainer = make_trainer([Progress(), Console()], log_every_steps=1, max_steps=3)
        assert trainer.train().status == "completed"
        assert "progress" in trainer.plugins
        text = "".join(out.written)
        assert "step 1/3  epoch 1  train/loss 0\n" in text  # of console
        assert text.count("completed (max_steps=3 reached) at step 3/3\n") == 1
        assert not any("failed" in text for text in messages())

    def test_a_line_is_written_in_one_go(self, make_trainer, monkeypatch):
        """Else those of two trainers in two threads come to stand in one."""
        out = WriteOnly()
        monkeypatch.setattr(sys, "stdout", out)
        make_trainer([Progress(style="lines")], max_steps=3).train()
        assert all(text.count("\n") == 1 and text.endswith("\n") for text in out.written)

    def test_a_line_stays_one(self, make_trainer, capsys):
        """Names of metrics, and the error that ended the run, may have line ends and control characters in them."""

        def fails(trainer):
            trainer.log("train/a\nb\x1b[2J", 1.0)
            if trainer.step == 2:
                raise RuntimeError("first line\nsecond\x1b[31m line" + "x" * 5000)

        with pytest.raises(RuntimeError):
            make_trainer([Progress(style="lines"), Does(fails)], log_every_steps=1).train()
        *lines, last = capsys.readouterr().out.splitlines()
        assert "train/a\\nb\\x1b[2J 1" in lines[-1]
        assert last == "failed (RuntimeError: first line...) at step 2/10"
        assert all(line.isprintable() for line in lines)

    def test_of_many_metrics_a_line_has_the_first(self, make_trainer, capsys):
        """A user logs 500; all of them would be a line of 10 kB."""
        logs = Does(lambda trainer: trainer.log_dict({f"loss_{number}": 1.0 for number in range(500)}))
        make_trainer([Progress(style="lines", clock=lambda: 0.0), logs], log_every_steps=1, max_steps=2).train()
        *_, line, _ = capsys.readouterr().out.splitlines()
        assert line.startswith("step 2/2  train/loss")
        assert line.count("loss_") == 19
        assert "  and 481 more  " in line
        chosen = Progress(style="lines", clock=lambda: 0.0, metrics=tuple(f"loss_{number}" for number in range(30)))
        make_trainer([chosen, logs], log_every_steps=1, max_steps=2).train()
        assert capsys.readouterr().out.splitlines()[-2].count("loss_") == 30

    def test_the_loss_is_shown_though_nobody_reports_it(self, make_trainer, capsys):
        """No timer, no reporter: losses of 0, -1, -2, -3 are flushed for what shows them."""
        progress = Progress(style="lines", clock=lambda: 0.0)
        make_trainer([progress], log_every_steps=2, max_steps=4).train()
        *_, third, _, _ = capsys.readouterr().out.splitlines()
        assert third == "step 3/4  train/loss -1"

    @pytest.mark.parametrize(
        ("reason", "shown"),
        [
            ("done", "done"),
            (" done\n", "done"),
            ("a\nb", "a..."),
            ("y" * 300, "y" * 300),
            ("y" * 301, f"{'y' * 297}..."),
            ("\n", ""),
        ],
    )
    def test_of_a_long_reason_the_beginning(self, reason, shown):
        assert _first_line(reason) == shown

    @pytest.mark.parametrize(("columns", "numbers"), [(100, 3), (55, 3), (54, 2), (42, 2), (41, 1), (30, 1)])
    def test_a_narrow_terminal_keeps_the_names_of_the_table(self, make_trainer, monkeypatch, capsys, columns, numbers):
        monkeypatch.setenv("COLUMNS", str(columns))
        logs = Does(lambda trainer: trainer.log("val/accuracy", -1.2346e-10))
        make_trainer([Console(style="table"), logs], log_every_steps=1, max_steps=1).train()
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= columns
        (row,) = [line for line in lines if "val/accuracy" in line]
        assert row.count("-1.235e-10") == numbers


class TestValidationByAnotherName:
    @pytest.mark.parametrize("name", ["valid", "validation", "dev", "eval"])
    def test_is_pointed_out(self, make_trainer, messages, name):
        trainer = make_trainer([Evaluation()], max_steps=2)
        trainer.loaders[name] = trainer.loaders["train"]
        trainer.train()
        (told,) = [text for text in messages() if text.startswith("evaluation")]
        assert told.startswith("evaluation: no loader is called 'val', the one that is evaluated by default; ")
        assert told.endswith(f"; for {name!r} set evaluation.splits = [{name!r}]")

    @pytest.mark.parametrize("plugins", [[Evaluation(splits=("valid",))], [Evaluation(), Evaluation(splits=("valid",))]])
    def test_not_where_it_is_evaluated(self, make_trainer, messages, plugins):
        trainer = make_trainer(plugins, max_steps=2)
        trainer.loaders["valid"] = trainer.loaders["train"]
        trainer.train()
        assert "valid/loss" in trainer.metrics
        assert not any("no loader is called" in text for text in messages())

    def test_nor_of_a_set_that_is_there_for_the_end(self, make_trainer, messages):
        trainer = make_trainer([Evaluation()], max_steps=2)
        trainer.loaders["test"] = trainer.loaders["train"]
        trainer.train()
        assert not any("no loader is called" in text for text in messages())


def seconds_of(times):
    """Return the axis of time that the report has for records at these times."""
    table = MetricTable()
    for number, moment in enumerate(times):
        table.add((number + 1, number + 1, 0, moment), {"a": 1.0})
    data = payload([RunHistory(Path("run"), {}, "completed", table, "metrics.jsonl")], ["run"])
    text = data["runs"][0]["clock"]["time"]
    column = array(text[0])
    column.frombytes(base64.b64decode(text[1:]))
    return list(column)


def test_the_reports_axis_of_time_never_goes_back():
    """A clock that is set back by a day between the third record and the fourth; a curve is drawn from left to right."""
    assert seconds_of([100.0, 101.0, 103.0, 103.5 - 86400, 105.0 - 86400]) == [0.0, 1.0, 3.0, 3.0, 4.5]
    assert seconds_of([100.0, 101.0, 500.0]) == [0.0, 1.0, 400.0]
    assert not any(math.isnan(one) for one in seconds_of([1e9]))


class Stalls(MetricsLog):
    """A disk that takes nothing from step 4 on, until ``works``."""

    name = "metrics_log"
    records_per_call = 1

    def __init__(self):
        super().__init__()
        self.works, self.done = threading.Event(), threading.Event()

    @hookimpl
    def report_metrics(self, records):
        if records[-1].step >= 4 and not self.works.is_set():
            raise OSError("the disk stalls")
        super().report_metrics(records)
        if records[-1].step == 7:
            self.done.set()


@pytest.mark.parametrize("arrives", [False, True], ids=["never", "after the checkpoint"])
def test_rows_that_a_stalled_disk_had_not_taken_at_a_checkpoint_stand_there_once(make_trainer, tmp_path, arrives):
    log = Stalls()

    def crash(trainer):
        if trainer.step == 7:
            if arrives:
                log.works.set()
                assert log.done.wait(120)
            raise RuntimeError("crash")

    class Dies:
        @hookimpl
        def before_step(self, trainer):
            crash(trainer)

    arguments = {"work_dir": tmp_path / "run", "max_steps": 10, "log_every_steps": 1}
    with pytest.raises(RuntimeError, match="crash"):
        make_trainer([log, Checkpoint(every_steps=5), Dies()], **arguments).train()
    assert steps_of(tmp_path / "run")[0] == list(range(1, 8 if arrives else 4))
    make_trainer([MetricsLog(), Checkpoint(every_steps=5)], **arguments).train(resume="auto")
    assert steps_of(tmp_path / "run") == (list(range(1, 11)), list(range(1, 11)))
