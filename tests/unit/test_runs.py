"""``trainhooks runs``: what runs left on disk, as a list and one by one; and what a training records."""

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from trainhooks import SkipStep, hookimpl
from trainhooks.cli import main
from trainhooks.cli.runs import fitted
from trainhooks.workdir import RunFolder
from trainhooks_builtins import Checkpoint, CrashReport, Evaluation, MetricsLog

SCRIPT = str(Path(sys.executable).with_name("trainhooks"))


def record_of(path):
    return json.loads((path / "run.json").read_text(encoding="utf-8"))


def written(folder, steps=(), **record):
    """Write a run of which nothing but ``run.json`` and names of checkpoints is there."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"format": 1, "status": "completed", **record}))
    for step in steps:
        (folder / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)


def lock(*entries):
    """Return a plugin lock: names, or names with options."""
    pairs = [(entry, {}) if isinstance(entry, str) else entry for entry in entries]
    return [{"name": name, "distribution": "trainhooks", "version": "0.1.0", "options": options} for name, options in pairs]


class Measures:
    """Validation losses 3, 1, 2, 2, ..."""

    def __init__(self):
        self.values = [3.0, 1.0]

    @hookimpl
    def eval_step(self, trainer):
        return {"loss": self.values.pop(0) if self.values else 2.0}


class Fails:
    @hookimpl
    def after_step(self, trainer):
        if trainer.step == 3:
            raise ValueError("of mine\nsecond line")


class TestWhatATrainingRecords:
    def test_how_it_ended_and_what_was_best(self, make_trainer, tmp_path):
        plugins = [Evaluation(every_steps=2), Measures(), Checkpoint(every_steps=2, keep=1, best="val/loss"), MetricsLog()]
        make_trainer(plugins, val=(1.0,), max_steps=7, work_dir=tmp_path / "run", seed=4).train()
        record = record_of(tmp_path / "run")
        assert (record["status"], record["reason"]) == ("completed", "max_steps=7 reached")
        assert (record["step"], record["update"], record["epoch"]) == (7, 7, 0)
        assert record["best"]["val/loss"] == {"value": 1.0, "mode": "min", "step": 4}
        assert record["metrics"]["val/loss"] == 2.0
        assert record["metrics"]["train/loss"] == -6.0  # step 7 alone, since the evaluation after step 6 flushed the others
        assert record["checkpoint"] == "checkpoints/step-00000007"
        assert (record["settings"]["seed"], record["settings"]["max_steps"]) == (4, 7)
        assert [entry["name"] for entry in record["plugins"]] == ["measures", "evaluation", "checkpoint", "metrics_log"]
        assert record["started"] <= record["updated"]
        assert record["ended"] <= record["updated"]
        assert set(record["files"]) == {
            *("metrics.csv", "metrics.jsonl", "checkpoints/step-00000004", "checkpoints/step-00000007")
        }

    def test_a_checkpoint_in_place_of_what_was_not_the_runs(self, make_trainer, tmp_path):
        """CK-02: a part of a checkpoint is replaced, and what replaces it is listed."""
        make_trainer([Checkpoint()], max_steps=2, work_dir=tmp_path / "run").train()
        (tmp_path / "run" / "checkpoints" / "step-00000004").mkdir()
        make_trainer([Checkpoint()], max_steps=4, work_dir=tmp_path / "run").train(resume="auto")
        record = record_of(tmp_path / "run")
        assert record["checkpoint"] == "checkpoints/step-00000004"
        assert "checkpoints/step-00000004" in record["files"]

    def test_while_it_runs_at_every_checkpoint(self, make_trainer, tmp_path):
        seen = []

        class Looks:
            @hookimpl
            def after_save(self, trainer):
                record = record_of(trainer.work_dir)
                seen.append((record["status"], record["step"], record["checkpoint"], record["ended"]))

        make_trainer([Checkpoint(every_steps=3, at_end=False), Looks()], max_steps=7, work_dir=tmp_path / "run").train()
        names = [f"checkpoints/step-0000000{step}" for step in (3, 6)]
        assert seen == [("running", 3, names[0], None), ("running", 6, names[1], None)]
        assert record_of(tmp_path / "run")["step"] == 7  # the end, though nothing was saved there

    def test_metrics_that_are_not_finite(self, make_trainer, tmp_path):
        make_trainer([MetricsLog()], values=(float("nan"),) * 2, work_dir=tmp_path / "run").train()
        assert record_of(tmp_path / "run")["metrics"]["train/loss"] is None

    def test_a_failure(self, make_trainer, tmp_path):
        with pytest.raises(ValueError):
            make_trainer([Fails()], work_dir=tmp_path / "run").train()
        record = record_of(tmp_path / "run")
        assert (record["status"], record["reason"], record["step"]) == ("failed", "ValueError: of mine", 3)

    def test_a_failure_of_the_clean_up(self, make_trainer, tmp_path):
        class Fails:
            @hookimpl
            def teardown(self):
                raise ValueError("too late")

        with pytest.raises(ValueError):
            make_trainer([Fails()], work_dir=tmp_path / "run").train()
        assert (record_of(tmp_path / "run")["status"], record_of(tmp_path / "run")["step"]) == ("failed", 10)

    def test_resumes(self, make_trainer, tmp_path):
        for steps in (2, 4, 6):
            make_trainer([Checkpoint()], max_steps=steps, work_dir=tmp_path / "run").train(resume="auto")
        record = record_of(tmp_path / "run")
        assert [one["step"] for one in record["resumed"]] == [2, 4]
        assert record["status"] == "completed"

    def test_nothing_without_a_work_dir(self, make_trainer, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        make_trainer([Checkpoint(), CrashReport()]).train()
        assert list(tmp_path.iterdir()) == []

    def test_the_folder_is_locked_until_the_teardown_is_done(self, make_trainer, tmp_path):
        class Second:
            tried = []

            @hookimpl
            def teardown(self):
                try:
                    make_trainer(work_dir=tmp_path / "run", overwrite=True).train()
                except Exception as error:
                    self.tried.append(str(error))

        make_trainer([Second()], work_dir=tmp_path / "run").train()
        assert len(Second.tried) == 1
        assert "in use by another Trainer of this process" in Second.tried[0]
        make_trainer(work_dir=tmp_path / "run", overwrite=True).train()

    def test_of_several_ranks_the_main_one_holds_it(self, make_trainer, tmp_path):
        class Second:
            @hookimpl
            def after_step(self, trainer):
                other = make_trainer(max_steps=1, work_dir=tmp_path / "run")
                other.rank = 1
                assert other.train().step == 1

        make_trainer([Second()], max_steps=2, work_dir=tmp_path / "run").train()
        assert (record_of(tmp_path / "run")["status"], record_of(tmp_path / "run")["step"]) == ("completed", 2)

    def test_an_evaluation_takes_no_lock(self, make_trainer, tmp_path):
        class Evaluates:
            @hookimpl
            def after_step(self, trainer):
                make_trainer(val=(1.0,), work_dir=trainer.work_dir).evaluate()

        make_trainer([Evaluates()], max_steps=1, work_dir=tmp_path / "run").train()


class TestRestart:
    """The same command again, whatever became of the run before."""

    def test_failed_before_its_first_checkpoint(self, make_trainer, tmp_path):
        with pytest.raises(ValueError):
            make_trainer([Fails(), Checkpoint(), MetricsLog(), CrashReport()], work_dir=tmp_path / "run").train()
        assert (tmp_path / "run" / "crash.json").is_file()
        for resume in (None, "auto"):
            outcome = make_trainer([Checkpoint(), MetricsLog()], work_dir=tmp_path / "run").train(resume=resume)
            assert outcome.step == 10
            assert {path.name for path in (tmp_path / "run").iterdir()} == {
                *("run.json", "metrics.csv", "metrics.jsonl", "checkpoints")
            }

    @pytest.mark.parametrize("content", [None, "", "{", "[]"])
    def test_a_lost_record(self, make_trainer, tmp_path, content, messages):
        make_trainer([Checkpoint(), MetricsLog()], max_steps=4, work_dir=tmp_path / "run").train()
        if content is None:
            (tmp_path / "run" / "run.json").unlink()
        else:
            (tmp_path / "run" / "run.json").write_text(content)
        again = make_trainer([Checkpoint(), MetricsLog()], max_steps=6, work_dir=tmp_path / "run")
        assert again.train(resume="auto").step == 6
        assert again.model.w.item() == -6.0
        assert any(message.startswith(f"{tmp_path}/run/run.json is ") for message in messages())
        record = record_of(tmp_path / "run")
        assert (record["status"], record["step"]) == ("completed", 6)
        assert "metrics.csv" in record["files"]

    def test_a_lost_record_on_the_command_line(self, cli, project):
        cli("train", "--set", "work_dir=out")
        (project / "out" / "run.json").unlink()
        assert "resumed from" in cli("train", "--set", "work_dir=out", "--resume", "auto", "--set", "max_steps=5").err
        shutil.rmtree(project / "out")
        cli("train")
        (made,) = (project / "runs").iterdir()
        (made / "run.json").unlink()
        assert "resumed from" in cli("train", "--resume", "auto", "--set", "max_steps=5").err
        (made / "run.json").unlink()
        cli("train", "--resume", made / "checkpoints" / "step-00000005", "--set", "max_steps=6")
        assert list((project / "runs").iterdir()) == [made]
        assert record_of(made)["step"] == 6


class TestList:
    def test_what_is_there(self, cli, make_trainer, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        plugins = [Evaluation(every_steps=2), Measures(), Checkpoint(every_steps=2, best="val/loss")]
        make_trainer(plugins, val=(1.0,), max_steps=6, work_dir="runs/a").train()
        with pytest.raises(ValueError):
            make_trainer([Fails(), CrashReport()], work_dir="runs/sweep/b").train()
        head, *rows = cli("runs").out.splitlines()
        a, b = sorted(rows)
        assert head.split() == ["run", "outcome", "step", "epoch", "best", "started", "took", "saved", "differs"]
        assert a.split()[:6] == ["a", "completed", "6", "0", "val/loss", "1"]
        assert a.split()[8:10] == ["0:00:00", "2"]
        assert b.split()[:4] == ["sweep/b", "failed", "3", "0"]
        found = {row["run"]: row for row in json.loads(cli("runs", "--json").out)}
        assert found["a"]["best"] == {"metric": "val/loss", "value": 1.0, "mode": "min", "step": 4}
        assert found["a"]["checkpoint"] == str(tmp_path / "runs/a/checkpoints/step-00000006")
        assert (found["a"]["checkpoints"], found["a"]["crash"]) == (2, None)
        assert found["sweep/b"]["crash"] == str(tmp_path / "runs/sweep/b/crash.json")
        assert found["sweep/b"]["reason"] == "ValueError: of mine"

    def test_running_and_killed(self, cli, tmp_path):
        """A record that says running is true while the lock is held."""
        folder = RunFolder(tmp_path / "a")
        folder.open(resume=False, overwrite=False)
        assert json.loads(cli("runs", tmp_path, "--json").out)[0]["outcome"] == "running"
        saved = (tmp_path / "a" / "run.json").read_bytes()
        folder.close(status="completed")
        (tmp_path / "a" / "run.json").write_bytes(saved)  # as a kill would have left it
        assert json.loads(cli("runs", tmp_path, "--json").out)[0]["outcome"] == "killed"
        written(tmp_path / "b", status="running", locked=False)
        assert json.loads(cli("runs", tmp_path, "--json", "--sort", "name").out)[1]["outcome"] == "unknown"

    @pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.csv"])
    @pytest.mark.parametrize(("recorded", "shown"), [(0, (41, 20, 3)), (40, (41, 20, 3)), (41, (41, 0, 0)), (50, (50, 0, 0))])
    def test_how_far_one_came_that_is_running_or_was_killed(self, cli, tmp_path, name, recorded, shown):
        """The record is as old as the last checkpoint; the last line of the metrics is not whole."""
        record = {"step": recorded, "update": 0, "epoch": 0}
        folder = RunFolder(tmp_path / "a")
        folder.open(resume=False, overwrite=False)
        folder.update(**record)
        saved = (tmp_path / "a" / "run.json").read_bytes()
        text = {
            "metrics.jsonl": '{"step": 40, "update": 20, "epoch": 3, "time": 1.5, "a": 1}\n'
            '{"step": 41, "update": 20, "epoch": 3, "time": 1.5, "a": 1}\n{"step": 42, "upd',
            "metrics.csv": 'step,update,epoch,time,"a,b"\r\n40,20,3,1.5,1\r\n41,20,3,1.5,\r\n42,2',
        }
        (tmp_path / "a" / name).write_text(text[name])

        def row():
            (found,) = json.loads(cli("runs", tmp_path, "--json").out)
            return found["outcome"], (found["step"], found["update"], found["epoch"])

        assert row() == ("running", shown)
        folder.close(status="completed")
        assert row() == ("completed", (recorded, 0, 0))
        (tmp_path / "a" / "run.json").write_bytes(saved)
        assert row() == ("killed", shown)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "\n",
            "no record\n",
            "[]\n",
            "[" * 100_000 + "\n",
            '{"step": 41}\n',
            '{"step": 4e1, "update": 1, "epoch": 1}\n',
            "\xff\0\n",
        ],
    )
    def test_a_damaged_end_of_the_metrics_says_nothing(self, cli, tmp_path, text):
        for name in ("metrics.jsonl", "metrics.csv"):
            written(tmp_path / name[8:], status="running", locked=True, step=4)
            (tmp_path / name[8:] / name).write_text(text, encoding="latin-1")
        assert [row["step"] for row in json.loads(cli("runs", tmp_path, "--json").out)] == [4, 4]

    def test_a_process_that_is_killed(self, cli, project, fork):
        (project / "trainconf.py").write_text(
            (project / "trainconf.py").read_text() + "\n@hookimpl\ndef after_step(trainer):\n    import time\n"
            "    print('step', trainer.step, flush=True)\n    time.sleep(600 * (trainer.step == 2))\n"
        )
        words = [
            "train",
            "--set",
            "work_dir=out",
            "--set",
            "max_steps=9",
            "-o",
            "checkpoint.every_steps=1",
            "-p",
            "no:progress",
        ]
        process = fork(lambda: main(words))
        for step in range(3):
            assert process.said.readline() == f"step {step}\n"
        (row,) = json.loads(cli("runs", ".", "--json").out)
        assert (row["run"], row["outcome"]) == ("out", "running")
        refused = cli("train", "--set", "work_dir=out", "--overwrite", expect=2).err
        assert f"work_dir {project}/out is in use by process {process.pid} on " in refused
        process.kill()
        process.join()
        (row,) = json.loads(cli("runs", ".", "--json").out)
        assert (row["outcome"], row["step"], row["checkpoints"]) == ("killed", 2, 2)

    def test_the_newest_first_and_other_orders(self, cli, tmp_path):
        best = {"a": (0.5, "max"), "b": (0.9, "max"), "c": (0.7, "max"), "d": None}
        for number, (name, value) in enumerate(best.items()):
            found = {"val/accuracy": {"value": value[0], "mode": value[1], "step": 1}} if value else {}
            started, seconds = f"2026-11-{10 + number}T12:00:00Z", 10.0 * (4 - number)
            written(tmp_path / name, step=10 - number, best=found, started=started, seconds=seconds)

        def order(*words):
            return [row["run"] for row in json.loads(cli("runs", tmp_path, "--json", *words).out)]

        assert order() == ["d", "c", "b", "a"]
        assert order("--sort", "name") == order("--sort", "step") == order("--sort", "took") == ["a", "b", "c", "d"]
        assert order("--sort", "best") == ["b", "c", "a", "d"]

    def test_lower_is_better(self, cli, tmp_path):
        for name, value in (("a", 0.5), ("b", 0.1), ("c", float("nan"))):
            written(tmp_path / name, best={"val/loss": {"value": value, "mode": "min", "step": 1}})
        assert [row["run"] for row in json.loads(cli("runs", tmp_path, "--json", "--sort", "best").out)] == ["b", "a", "c"]

    def test_the_metric_that_checkpoints_are_kept_by_goes_first(self, cli, tmp_path):
        best = {name: {"value": 1.0, "mode": "min", "step": 1} for name in ("val/loss", "val/error")}
        written(tmp_path / "a", best=best, plugins=lock(("checkpoint", {"best": "val/error"})))
        written(tmp_path / "b", best=best, plugins=lock("checkpoint"))
        written(tmp_path / "c", best=best, plugins=lock("evaluation", "checkpoint"), checkpoint_best="val/error")
        written(tmp_path / "d", best=best, plugins=lock("checkpoint"), checkpoint_best="val/unknown")
        rows = json.loads(cli("runs", tmp_path, "--json", "--sort", "name").out)
        assert [row["best"]["metric"] for row in rows] == ["val/error", "val/loss", "val/error", "val/loss"]

    def test_time_goes_on_while_it_runs(self, cli, tmp_path):
        folder = RunFolder(tmp_path / "a")
        folder.open(resume=False, overwrite=False)
        record = record_of(tmp_path / "a")
        ago = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
        (tmp_path / "a" / "run.json").write_text(json.dumps({**record, "seconds": 100.0, "updated": ago}))
        assert json.loads(cli("runs", tmp_path, "--json").out)[0]["seconds"] >= 3700
        folder.close()


class TestDifferences:
    def differs(self, cli, tmp_path, *plugins, settings=()):
        for number, one in enumerate(plugins):
            of_run = dict(settings[number]) if settings else {}
            written(tmp_path / str(number), plugins=lock(*one), settings=of_run, started=f"2026-11-{10 + number}T12:00:00Z")
        rows = json.loads(cli("runs", tmp_path, "--json", "--sort", "name").out)
        return [row["differs"] for row in rows]

    def test_plugins_and_options(self, cli, tmp_path):
        usual = ["timer", ("lr", {"warmup": 10}), "clip"]
        other = ["timer", ("lr", {"warmup": 100, "name": "cosine"}), "ema"]
        found = self.differs(cli, tmp_path, usual, other, usual)
        assert found == [[], ["+ema", "-clip", "lr.warmup 10→100", "lr.name default→cosine"], []]

    def test_of_two_the_newest_is_what_the_other_differs_from(self, cli, tmp_path):
        assert self.differs(cli, tmp_path, ["timer"], ["timer", "ema"]) == [["-ema"], []]

    def test_settings_but_not_the_folder(self, cli, tmp_path):
        settings = [{"seed": seed, "work_dir": str(seed), "name": None} for seed in (None, 1, 1)]
        assert self.differs(cli, tmp_path, ["timer"], ["timer"], ["timer"], settings=settings) == [["seed 1→none"], [], []]

    def test_versions(self, cli, tmp_path):
        for number, version in enumerate(("1.0", "1.1", "1.1")):
            written(tmp_path / str(number), plugins=[{**lock("wandb")[0], "version": version}])
        rows = json.loads(cli("runs", tmp_path, "--json", "--sort", "name").out)
        assert [row["differs"] for row in rows] == [["wandb version 1.1→1.0"], [], []]

    def test_the_same_everywhere(self, cli, tmp_path):
        assert self.differs(cli, tmp_path, ["timer"], ["timer"]) == [[], []]
        assert "differs" not in cli("runs", tmp_path).out

    def test_long_values_are_cut(self, cli, tmp_path):
        (_, found) = self.differs(cli, tmp_path, ["lr"], [("lr", {"milestones": list(range(99))})])[::-1]
        assert len(found[0]) < 60


HOSTILE = {
    "empty": "",
    "no json": "{",
    "a list": "[]",
    "deep": "[" * 100_000,
    "no text": "\0\xff",
    "wrong types": json.dumps(
        {
            "status": 3,
            "reason": [],
            "step": "x",
            "epoch": None,
            "best": [1],
            "started": 5,
            "seconds": "no",
            "plugins": {"a": 1},
            "settings": [],
            "metrics": 3,
            "resumed": 4,
            "versions": "x",
            "command": {},
        }
    ),
    "wrong entries": json.dumps(
        {
            "status": "completed",
            "best": {"a": 3, "b": {"value": "x"}},
            "plugins": [1, {"name": 3, "options": []}, {}],
            "resumed": [1, {"time": 3, "step": "x"}],
            "settings": {"a": [1, {}]},
        }
    ),
    "huge": json.dumps(
        {"status": "completed", "step": 10**400, "epoch": 1e300, "started": "0001-01-01T00:00:00Z", "seconds": 1e300}
    ),
    "not finite": '{"status": "completed", "step": NaN, "seconds": Infinity, "best": {"a": {"value": NaN}}}',
    "escapes": json.dumps({"status": "\x1b[2J", "reason": "\x1b]0;x\x07", "command": "a\nb", "host": "\u202ex"}),
}


class TestDamaged:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_is_listed_as_what_it_is(self, cli, tmp_path, name):
        folder = tmp_path / "runs" / "bad"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(HOSTILE[name], encoding="latin-1")
        (folder / "crash.json").write_text(HOSTILE[name], encoding="latin-1")
        written(tmp_path / "runs" / "good", step=7, plugins=lock("timer"))
        found = {row["run"]: row for row in json.loads(cli("runs", tmp_path / "runs", "--json").out)}
        assert (found["good"]["outcome"], found["good"]["step"]) == ("completed", 7)
        damaged = name in ("empty", "no json", "a list", "deep", "no text")
        assert (found["bad"]["outcome"] == "damaged") == damaged
        for sort in ("started", "name", "step", "best", "took"):
            shown = cli("runs", tmp_path / "runs", "--sort", sort).out
            assert len(shown.splitlines()) == 3
            assert ("damaged: run.json cannot be read" in shown) == damaged
        one = cli("runs", folder).out
        cli("runs", folder, "--json")
        assert all(line.isprintable() for line in (shown + one).splitlines())

    def test_no_record_but_checkpoints(self, cli, tmp_path):
        (tmp_path / "a" / "checkpoints" / "step-00000010").mkdir(parents=True)
        (row,) = json.loads(cli("runs", tmp_path, "--json").out)
        assert (row["outcome"], row["reason"], row["checkpoints"]) == ("damaged", "run.json is missing", 1)

    def test_too_large(self, cli, tmp_path):
        written(tmp_path / "a")
        os.truncate(tmp_path / "a" / "run.json", 2**40)
        assert json.loads(cli("runs", tmp_path, "--json").out)[0]["outcome"] == "damaged"

    def test_what_is_no_file_is_not_waited_for(self, cli, tmp_path):
        written(tmp_path / "a")
        for name in ("crash.json", "run.lock"):
            os.mkfifo(tmp_path / "a" / name)
        (tmp_path / "b").mkdir()
        os.mkfifo(tmp_path / "b" / "run.json")
        assert [row["run"] for row in json.loads(cli("runs", tmp_path, "--json").out)] == ["a"]
        cli("runs", tmp_path / "a")


class TestWhere:
    def test_the_folder_runs_by_default(self, cli, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert "there is no folder runs in" in cli("runs", expect=2).err
        (tmp_path / "runs").mkdir()
        nothing = cli("runs")
        assert (nothing.out, nothing.err) == ("", "trainhooks: no runs below runs\n")
        assert cli("runs", "--json").out == "[]\n"

    @pytest.mark.parametrize("path", ["nowhere", "a file"])
    def test_what_is_no_folder(self, cli, tmp_path, monkeypatch, path):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a file").write_text("")
        err = cli("runs", path, expect=2).err
        assert path in err
        assert "Traceback" not in err

    def test_no_further_than_four_levels_and_not_through_links_or_hidden_folders(self, cli, tmp_path):
        for where in ("1/2/3/run", "1/2/3/4/run", ".hidden/run", "run", "run/inner"):
            written(tmp_path / "in" / where)
        written(tmp_path / "elsewhere" / "run")
        (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "in" / "circle").symlink_to(tmp_path / "in")
        found = [row["run"] for row in json.loads(cli("runs", tmp_path / "in", "--json", "--sort", "name").out)]
        assert found == ["1/2/3/run", "run"]

    def test_a_name_of_the_list(self, cli, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        written(Path("runs/one"))
        assert "; did you mean runs/one?\n" in cli("runs", "one", expect=2).err
        assert "did you mean" not in cli("runs", "two", expect=2).err

    @pytest.mark.parametrize("name", ["run[1]", "a*b", "-x", " lead", "a\nb", "$HOME", "é", "a'b", "o\udcff", "--", "\x1b[2J"])
    def test_any_name_can_be_typed_back(self, cli, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        written(tmp_path / "runs" / name, step=3)
        (row,) = json.loads(cli("runs", "--json").out)
        assert row["run"] == name
        line = cli("runs").out.splitlines()[1]
        typed = line[: line.index("  completed")]
        shell = subprocess.run(["bash", "-c", f"cd runs && printf %s {typed}"], capture_output=True, check=True).stdout
        assert os.path.normpath(os.fsdecode(shell)) == name
        assert "3 steps" in cli("runs", f"runs/{name}").out

    def test_many(self, cli, tmp_path):
        for number in range(300):
            written(tmp_path / f"run-{number:03d}", step=number, plugins=lock("timer", ("lr", {"base": number})))
        assert len(cli("runs", tmp_path).out.splitlines()) == 301


class TestNothingIsImported:
    def test_neither_torch_nor_plugins_nor_code_of_the_folder(self, project, tmp_path):
        """SE-06: in a folder, and on one, whose files have the names of modules and of the project's code."""
        folder = tmp_path / "theirs"
        written(folder / "runs" / "a", step=3, plugins=lock("timer", "evil:Plugin"), settings={"conf": "trainconf.py"})
        evil = "open('/proc/self/comm', 'w').write('evil')\nraise SystemExit('must not run')"
        for name in ("trainconf", "hooks", "json", "click", "torch", "evil"):
            for place in (folder, folder / "runs", folder / "runs" / "a"):
                (place / f"{name}.py").write_text(evil)
        (folder / "trainhooks.toml").write_text('enable = ["evil:Plugin"]\n')
        for words in (["runs"], ["runs", "--json"], ["runs", "runs/a"]):
            done = subprocess.run([SCRIPT, *words], cwd=folder, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, "")
            assert "completed" in done.stdout
        code = (
            "import sys\nfrom trainhooks.cli import main\n"
            "try:\n    main(sys.argv[1:])\nexcept SystemExit as left:\n    assert not left.code\n"
            "print(*{name.partition('.')[0] for name in sys.modules} & {'torch', 'numpy', 'pydantic', 'rich', 'trainhooks_builtins'})"
        )
        for words in (["runs", folder / "runs"], ["runs", folder / "runs" / "a"]):
            done = subprocess.run([sys.executable, "-I", "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
            assert done.stdout.splitlines()[-1] == "", done.stderr

    def test_without_the_project(self, cli, project, tmp_path, monkeypatch):
        """PK-03: elsewhere, without the file that the run was made with, and with another one of that name."""
        cli("train", "--set", "work_dir=out")
        before = record_of(project / "out")
        shutil.move(project / "out", tmp_path / "moved")
        shutil.rmtree(project)
        (tmp_path / "trainconf.py").write_text("raise SystemExit('must not run')")
        monkeypatch.chdir(tmp_path)
        (row,) = json.loads(cli("runs", ".", "--json").out)
        assert (row["run"], row["outcome"], row["step"]) == ("moved", "completed", before["step"])
        assert "trainconf" in cli("runs", "moved").out  # a name in the lock, no more


class TestTerminal:
    def written(self, folder):
        best = {"val/accuracy": {"value": 0.5, "mode": "max", "step": 3}}
        common = {"step": 100, "epoch": 2, "best": best, "started": "2026-11-30T12:00:00Z", "seconds": 65.0}
        for name in ("first", "second"):
            written(folder / name, **common, plugins=lock("timer"))
        written(folder / "third", **common, plugins=lock("timer", "ema", "clip", "accumulate", "amp", "swa"))

    @pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 40, 20, 1])
    def test_no_line_is_wider(self, tmp_path, width):
        """What goes first says the least: how long it took, the epoch, the checkpoints."""
        columns = ("run", "outcome", "step", "epoch", "best", "started", "took", "saved", "differs")
        row = dict(
            zip(columns, ("first", "completed", "100", "2", "val/acc 0.5", "2026-11-30 12:00", "0:01:05", "2", ""), strict=True)
        )
        lines = fitted([row, {**row, "differs": "+ema +clip +accumulate +amp +swa"}], width).split("\n")
        assert max(map(len, lines)) <= width
        if width < 40:
            return
        without = {
            80: ("took", "epoch"),
            60: ("took", "epoch", "saved", "started"),
            40: ("took", "epoch", "saved", "started", "best"),
        }
        assert lines[0].split() == [column for column in columns if column not in without.get(width, ())]
        assert lines[2].endswith("+swa") == (width >= 120)

    def test_on_a_real_one(self, tmp_path):
        self.written(tmp_path)
        main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        with subprocess.Popen([SCRIPT, "runs", str(tmp_path)], stdout=other, env=environment) as process:
            os.close(other)
            printed = b""
            while part := _read(main):
                printed += part
        os.close(main)
        assert process.returncode == 0
        lines = printed.decode().splitlines()
        assert [line.split()[:2] for line in lines[1:]] == [[name, "completed"] for name in ("first", "second", "third")]
        assert max(map(len, lines)) <= 50


def _read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other side is closed
        return b""


@pytest.mark.parametrize(
    ("started", "shown"),
    [
        ([SCRIPT, "train", "a run", "--set", "max_steps=1"], "trainhooks train 'a run' --set max_steps=1"),
        (["python", "-m", "trainhooks", "train", "a run", "--set", "max_steps=1"], None),
        (["python", "-W", "error", "start.py", "1"], None),
    ],
)
def test_the_command_is_shown_as_it_was_typed(cli, project, started, shown):
    (project / "a run").mkdir()
    (project / "trainconf.py").rename(project / "a run" / "trainconf.py")
    (project / "start.py").write_text(
        "from trainhooks import Trainer\nTrainer(conf='a run/trainconf.py', max_steps=1, work_dir='runs/x').train()\n"
    )
    program = sys.executable if started[0] == "python" else started[0]
    subprocess.run(started, executable=program, check=True, capture_output=True)
    (folder,) = (project / "runs").iterdir()
    shown = shown or " ".join(started).replace("a run", "'a run'")
    assert record_of(folder)["command"] == shown
    assert f"command      {shown}\n" in cli("runs", folder).out


class SkipsAll:
    @hookimpl
    def before_step(self):
        raise SkipStep("no number")


def test_a_run_whose_batches_were_all_dropped(make_trainer, cli, tmp_path):
    outcome = make_trainer([SkipsAll()], work_dir=tmp_path / "runs/empty", max_epochs=2).train()
    assert (outcome.status, outcome.reason) == ("completed", "max_epochs=2 reached, 0 of 20 batches trained")
    assert record_of(tmp_path / "runs/empty")["dropped"] == 20
    listed = cli("runs", tmp_path / "runs").out.splitlines()
    assert listed[1].split("  ")[:2] == ["empty", "completed, 0 of 20 batches trained"]
    one = cli("runs", tmp_path / "runs/empty").out
    assert "outcome      completed (max_epochs=2 reached, 0 of 20 batches trained)\n" in one
    assert "done         0 steps, 0 updates, 2 epochs, 20 batches dropped\n" in one


def test_what_is_done_is_counted_in_words(make_trainer, cli, tmp_path):
    make_trainer([], work_dir=tmp_path / "run", max_steps=1).train()
    assert "done         1 step, 1 update, 0 epochs\n" in cli("runs", tmp_path / "run").out
