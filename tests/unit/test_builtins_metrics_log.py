"""``metrics_log``: what stands in the files, and after a kill and a resume."""

import csv
import json
import math

import pytest

from trainhooks import Record, hookimpl
from trainhooks_builtins import Checkpoint, MetricsLog


def rows(work_dir):
    with (work_dir / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def lines(work_dir):
    """Parse the JSON lines strictly: NaN is no JSON."""
    text = (work_dir / "metrics.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text.split("\n")[:-1]]


class Logs:
    """Logs these values in each step: a function of the step's number, from 1."""

    def __init__(self, values):
        self.values = values

    @hookimpl
    def after_step(self, trainer):
        trainer.log_dict(self.values(trainer.step + 1))


def train(make_trainer, folder, values, steps, *, resume=None, others=(), log=None, **arguments):
    plugins = [Logs(values), log or MetricsLog(), Checkpoint(every_steps=5), *others]
    trainer = make_trainer(plugins, max_steps=steps, work_dir=folder, log_every_steps=1, **arguments)
    return trainer.train(resume=resume)


def test_one_row_and_line_for_each_flush(make_trainer, tmp_path):
    train(make_trainer, tmp_path / "run", lambda n: {"a": n / 2}, 4)
    assert [(row["step"], row["update"], row["epoch"], row["a"]) for row in rows(tmp_path / "run")] == [
        (str(n), str(n), "0", str(n / 2)) for n in (1, 2, 3, 4)
    ]
    assert [(line["step"], line["a"], line["train/loss"]) for line in lines(tmp_path / "run")] == [
        (n, n / 2, 1.0 - n) for n in (1, 2, 3, 4)
    ]


class FailsAfterEpoch:
    """Logs something more at the end of an epoch, as an evaluation does, and fails at the end of epoch ``at``."""

    def __init__(self, at=None):
        self.at = at

    @hookimpl
    def after_train_epoch(self, trainer):
        trainer.log("more", 1.0)
        trainer.flush()

    @hookimpl
    def after_epoch(self, epoch):
        if epoch == self.at:
            message = "as the test wants it"
            raise RuntimeError(message)


def test_each_record_once_in_a_folder_that_a_run_went_on_in(make_trainer, tmp_path):
    """2 epochs of 5 in one folder, the next in another, where it fails after its checkpoint and goes on: 5 + 1 records an epoch."""

    def part(folder, epochs, resume=None, at=None):
        plugins = [Logs(lambda n: {"a": float(n)}), MetricsLog(), Checkpoint(every_steps=5, at_end=False), FailsAfterEpoch(at)]
        settings = {"max_steps": None, "max_epochs": epochs, "steps_per_epoch": 5, "log_every_steps": 1}
        trainer = make_trainer(plugins, work_dir=tmp_path / folder, **settings)
        return trainer.train(resume=resume)

    part("first", 1)
    with pytest.raises(RuntimeError, match="as the test wants it"):
        part("second", 3, tmp_path / "first" / "checkpoints" / "step-00000005", at=1)
    part("second", 3, "auto")
    wanted = [5, *range(6, 11), 10, *range(11, 16), 15]
    assert [int(row["step"]) for row in rows(tmp_path / "second")] == wanted
    assert [line["step"] for line in lines(tmp_path / "second")] == wanted
    part("second", 4, "auto")
    assert [int(row["step"]) for row in rows(tmp_path / "second")] == [*wanted, *range(16, 21), 20]


def test_lg_05_a_later_column_and_a_resume(make_trainer, tmp_path):
    """5 rows, stopped, resumed to 8; ``b`` from 4 on: one header, 8 rows, empty cells before 4."""

    def values(n):
        return {"a": float(n)} | ({"b": 10.0 * n} if n >= 4 else {})

    train(make_trainer, tmp_path / "run", values, 5)
    train(make_trainer, tmp_path / "run", values, 8, resume="auto")
    found = rows(tmp_path / "run")
    assert [(row["step"], row["a"], row["b"]) for row in found] == [
        (str(n), f"{n}.0", f"{10.0 * n}" if n >= 4 else "") for n in range(1, 9)
    ]
    assert (tmp_path / "run" / "metrics.csv").read_text().count("step") == 1
    assert [line["step"] for line in lines(tmp_path / "run")] == list(range(1, 9))


def test_what_was_logged_after_the_checkpoint_is_dropped(make_trainer, tmp_path):
    """Killed at 7, resumed from 5: steps 6 and 7 are logged again, once."""

    class Fails:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 7:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make_trainer, tmp_path / "run", lambda n: {"a": n}, 10, others=[Fails()])
    assert [row["step"] for row in rows(tmp_path / "run")][-1] == "7"
    train(make_trainer, tmp_path / "run", lambda n: {"a": 100 + n}, 10, resume="auto")
    expected = [(n, n if n <= 5 else 100 + n) for n in range(1, 11)]
    assert [(int(row["step"]), float(row["a"])) for row in rows(tmp_path / "run")] == expected
    assert [(line["step"], line["a"]) for line in lines(tmp_path / "run")] == expected


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8, 13, 17, 21, 30, 39])
def test_a_kill_in_the_middle_of_the_last_line(make_trainer, tmp_path, cut):
    """Whatever is missing at the end, in a number or in a character of several bytes: the resume repairs it."""
    folder = tmp_path / "run"
    train(make_trainer, folder, lambda n: {"genauigkeit/größe": n + 0.123456789012}, 5)
    for name in ("metrics.csv", "metrics.jsonl"):
        path = folder / name
        data = path.read_bytes()
        extra = data[data.rstrip().rfind(b"\n") + 1 :].replace(b"5,5,", b"3,3,").replace(b'"step": 5', b'"step": 3')
        path.write_bytes(data + extra[:-cut])  # a row that was begun
    train(make_trainer, folder, lambda n: {"genauigkeit/größe": n + 0.123456789012}, 6, resume="auto")
    expected = [(n, n + 0.123456789012) for n in range(1, 7)]
    assert [(int(row["step"]), float(row["genauigkeit/größe"])) for row in rows(folder)] == expected
    assert [(line["step"], line["genauigkeit/größe"]) for line in lines(folder)] == expected


NAMES = [
    "a,b",
    'with "quotes"',
    "line\nbreak",
    "größe",
    "🚂",
    "sep\u2028arator",
    "tab\t",
    " spaces ",
    "",
    "a;b",
    "=1+1",
    "x" * 500,
]


def test_any_name(make_trainer, tmp_path):
    def values(n):
        return {name: float(index * n) for index, name in enumerate(NAMES)}

    train(make_trainer, tmp_path / "run", values, 5)
    train(make_trainer, tmp_path / "run", values, 7, resume="auto")
    for found in (rows(tmp_path / "run"), lines(tmp_path / "run")):
        assert [[float(row[name]) for name in NAMES] for row in found] == [
            [float(index * n) for index in range(len(NAMES))] for n in range(1, 8)
        ]


def test_nan_and_infinity(make_trainer, tmp_path):
    train(make_trainer, tmp_path / "run", lambda n: {"a": [math.nan, math.inf, -math.inf, 1.0][n - 1]}, 4)
    assert [line["a"] for line in lines(tmp_path / "run")] == [None, None, None, 1.0]
    assert [row["a"] for row in rows(tmp_path / "run")] == ["nan", "inf", "-inf", "1.0"]


def test_a_metric_named_like_a_counter(make_trainer, tmp_path):
    """It would otherwise stand in the counter's place, and a resume would drop the wrong rows."""
    values = dict.fromkeys(("step", "update", "epoch", "time"), 0.5)
    train(make_trainer, tmp_path / "run", lambda n: values, 5)
    train(make_trainer, tmp_path / "run", lambda n: values, 7, resume="auto")
    for found in (rows(tmp_path / "run"), lines(tmp_path / "run")):
        assert [int(row["step"]) for row in found] == list(range(1, 8))
        assert all(float(row[f"metric/{name}"]) == 0.5 for row in found for name in values)


def test_which_files(make_trainer, tmp_path):
    for options, expected in (({"csv": False}, ["metrics.jsonl"]), ({"jsonl": False}, ["metrics.csv"])):
        folder = tmp_path / expected[0]
        train(make_trainer, folder, lambda n: {}, 1, log=MetricsLog(**options))
        assert [path.name for path in folder.glob("metrics*")] == expected


def test_without_a_work_dir_nothing_is_written(make_trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_trainer([MetricsLog()], log_every_steps=1).train()
    assert list(tmp_path.iterdir()) == []


def test_not_on_other_ranks(make_trainer, tmp_path):
    class Rank:
        @hookimpl
        def configure(self, trainer):
            trainer.rank = 1

    train(make_trainer, tmp_path / "run", lambda n: {"a": n}, 2, others=[Rank()])
    assert list((tmp_path / "run").glob("metrics*")) == []


def test_lg_05_bytes_written(tmp_path):
    """For 20,000 rows, with a column that comes halfway: at most three times the final size, all writes counted."""
    written = 0
    log = MetricsLog(jsonl=False)
    path = tmp_path / "metrics.csv"

    class Counts:
        def __init__(self, file):
            self.file, self.name = file, file.name

        def write(self, text):
            nonlocal written
            written += len(text.encode())
            return self.file.write(text)

        def __getattr__(self, name):
            return getattr(self.file, name)

    log._files["metrics.csv"] = Counts(path.open("a", encoding="utf-8", newline=""))
    for block in range(40):
        records = [
            Record(n, n, 0, 0.0, {"a": n / 7} | ({"b": 1.5} if block >= 20 else {}))
            for n in range(block * 500, (block + 1) * 500)
        ]
        before = type(log._files["metrics.csv"])
        size = path.stat().st_size
        log.report_metrics(None, records)
        if type(log._files["metrics.csv"]) is not before:  # it was written anew, through another file
            written += path.stat().st_size
            log._files["metrics.csv"] = Counts(log._files["metrics.csv"])
        assert path.stat().st_size > size
    log.teardown()
    final = path.stat().st_size
    assert written <= 3 * final
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [float(row["a"]) for row in found] == [n / 7 for n in range(20_000)]
    assert [row["b"] for row in found] == [""] * 10_000 + ["1.5"] * 10_000


def test_a_kill_while_a_column_is_added_costs_nothing(tmp_path, monkeypatch):
    """The longer file takes the old one's place in one go; before that the old one is whole."""
    from pathlib import Path

    log = MetricsLog(jsonl=False)
    path = tmp_path / "metrics.csv"
    log._files["metrics.csv"] = path.open("a", encoding="utf-8", newline="")
    log.report_metrics(None, [Record(1, 1, 0, 0.0, {"a": 1.0})])
    whole = path.read_bytes()

    def killed(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        log.report_metrics(None, [Record(2, 2, 0, 0.0, {"b": 1.0})])
    assert path.read_bytes() == whole
