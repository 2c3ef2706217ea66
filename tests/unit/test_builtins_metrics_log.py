"""``metrics_log``: what stands in the files, and after a kill and a resume."""

import csv
import json
import math
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from trainhooks import Record, RunInfo, hookimpl
from trainhooks.backlog import Backlog
from trainhooks.run_history import read_history
from trainhooks.workdir import RunFolder
from trainhooks_builtins import Checkpoint, MetricsLog, RunStore


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
    "a;b",
    "=1+1",
    "x" * 500,
]


@pytest.mark.parametrize("resumed", [False, True])
def test_taken_out_and_put_back_it_keeps_what_it_has(make_trainer, tmp_path, resumed):
    """Out in step 7, whose record is made behind the hook, and back in step 8."""
    log, store = MetricsLog(), RunStore()

    class Changes:
        @hookimpl
        def after_step(self, trainer):
            trainer.log_text("note", "...")
            if trainer.step == 6:
                trainer.unregister("metrics_log")
                trainer.unregister("run_store")
            if trainer.step == 7:
                trainer.register(log)
                trainer.register(store)

    if resumed:
        train(make_trainer, tmp_path / "run", lambda n: {"a": n}, 5, others=[RunStore(), Changes()])
    train(
        make_trainer,
        tmp_path / "run",
        lambda n: {"a": n},
        10,
        others=[store, Changes()],
        log=log,
        resume="auto" if resumed else None,
    )
    there = [1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert [int(row["step"]) for row in rows(tmp_path / "run")] == there
    assert [line["step"] for line in lines(tmp_path / "run")] == there
    media = [json.loads(line)["step"] for line in (tmp_path / "run" / "media.jsonl").read_text().splitlines()]
    assert media == there


def test_what_waits_at_most_is_written_in_two_goes(files):
    """Each write gives up Python's lock, for which a fast loop may keep it waiting 5 ms."""
    backlog, calls = Backlog(), 0
    for step in range(10_000):
        backlog.append(record(step, a=1.0))
    files.open()
    while group := backlog.take(files.log.records_per_call):
        files.log.report_metrics(group)
        calls += 1
    assert calls == 2
    assert [int(row["step"]) for row in rows(files.path)] == list(range(10_000))


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


class Files:
    """A ``MetricsLog`` as its lane calls it, in a folder of its own."""

    def __init__(self, path, **options):
        self.path, self.log = path, MetricsLog(**options)
        self.folder = RunFolder(path)
        self.csv, self.jsonl = path / "metrics.csv", path / "metrics.jsonl"

    def open(self, step=0, records=0):
        if not self.folder.is_open:
            self.folder.open(resume=True, overwrite=False)
        self.log._folder = self.folder
        self.log.report_start(RunInfo("run", self.path, resumed_step=step, resumed_records=records))
        return self

    def add(self, *steps, **values):
        self.log.report_metrics([record(step, **values) for step in steps])

    def end(self):
        self.log.report_end()
        self.folder.close(status="completed")

    def drop(self):
        """Leave it as a kill does."""
        self.log._close()
        self.folder.close()


def record(step, **values):
    return Record(step, step, 0, 0.5, values or {"a": step / 7})


@pytest.fixture
def files(tmp_path):
    made = Files(tmp_path / "run")
    yield made
    made.drop()


def written():
    """Return how many bytes this process has written so far, as the kernel counts them."""
    (line,) = [one for one in Path("/proc/self/io").read_text().splitlines() if one.startswith("wchar")]
    return int(line.split()[1])


counted = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts what a process writes")


@counted
@pytest.mark.parametrize(("late", "rows_in_all"), [(4, 20_000), (50_000, 100_000), (19_999, 20_000)])
def test_lg_05_bytes_written(tmp_path, late, rows_in_all):
    """``b`` from step 4, or halfway, or at the very end: at most three times the final size."""
    files = Files(tmp_path / "run", jsonl=False).open()
    before = written()
    for first in range(1, rows_in_all + 1, 500):
        steps = range(first, first + 500)
        files.log.report_metrics([record(n, a=n / 7, **({"b": 10.0 * n} if n >= late else {})) for n in steps])
    files.end()
    total, final = written() - before, files.csv.stat().st_size
    assert final <= total <= 3 * final
    found = rows(files.path)
    assert list(found[0]) == ["step", "update", "epoch", "time", "a", "b"]
    assert [float(row["a"]) for row in found] == [n / 7 for n in range(1, rows_in_all + 1)]
    assert [row["b"] for row in found] == [str(10.0 * n) if n >= late else "" for n in range(1, rows_in_all + 1)]


@counted
def test_bytes_written_for_columns_that_come_one_by_one(tmp_path):
    """500 columns in 10,000 rows, each logged once when it is new: in proportion to the file, not to its square.

    Writing the file anew for each of them would write about 160 times its size.
    """
    files = Files(tmp_path / "run", jsonl=False).open()
    before = written()
    for number in range(500):
        steps = range(20 * number + 1, 20 * number + 21)
        files.log.report_metrics([record(n, a=0.5, **({f"c{number}": n / 3} if n == steps[0] else {})) for n in steps])
        if number == 350:
            during = rows(files.path)
    files.end()
    assert written() - before <= 3.34 * files.csv.stat().st_size
    found = rows(files.path)
    assert list(found[0]) == ["step", "update", "epoch", "time", "a", *(f"c{number}" for number in range(500))]
    assert {
        (int(row["step"]), name): float(cell) for row in found for name, cell in row.items() if name[0] == "c" and cell
    } == {(20 * number + 1, f"c{number}"): (20 * number + 1) / 3 for number in range(500)}
    # Meanwhile everything was there, too, and each row had all cells:
    assert not any(None in row or None in row.values() for row in during)
    in_columns = {name: row[name] for row in during for name in row if name[0] == "c" and row[name]}
    in_more = {name: str(value) for row in during if row["more"] for name, value in json.loads(row["more"]).items()}
    assert in_more
    assert in_columns | in_more == {f"c{number}": str((20 * number + 1) / 3) for number in range(351)}


def test_what_stands_in_more_when_the_run_is_killed_gets_its_columns_at_the_resume(tmp_path):
    files = Files(tmp_path / "run", jsonl=False).open()
    values = {"nan": math.nan, "inf": -math.inf, 'größe, in "m"': 0.1, "line\nbreak": 2.0, "more": 3.0}
    for n in range(1, 9_001):
        late = {f"x{n // 1_000}": n / 3} if n > 4_000 else {}
        files.add(n, a=0.5, **late, **(values if n == 8_000 else {}))
    assert "more" in rows(files.path)[0]  # else this tests nothing
    files.drop()
    series = read_history(files.path).series  # which others read off it meanwhile
    assert list(series["x5"].steps) == list(range(5_000, 6_000))
    assert (list(series['größe, in "m"'].steps), list(series["inf"].values)) == ([8_000], [-math.inf])
    Files.open(files, step=8_500, records=8_500)
    files.add(8_501, a=1.0)
    files.end()
    found = rows(files.path)
    assert "more" not in found[0]
    assert [int(row["step"]) for row in found] == list(range(1, 8_502))
    at = found[7_999]
    assert [at[name] for name in ("nan", "inf", 'größe, in "m"', "line\nbreak", "metric/more")] == [
        *("nan", "-inf", "0.1", "2.0", "3.0")
    ]
    assert [float(row["x5"]) for row in found[5_000:5_999]] == [n / 3 for n in range(5_001, 6_000)]
    assert found[-1]["a"] == "1.0"


class TestFailures:
    """A disk that is full, a folder that is gone, a power cut."""

    def test_a_full_disk_costs_no_row_and_doubles_none(self, files):
        """A limit on file sizes stands for the disk: the write goes halfway, and the same records come again."""
        files.open()
        files.add(*range(1, 101))
        sizes = files.csv.stat().st_size, files.jsonl.stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            for room in (sizes[0] + 300, sizes[1] + 300):  # the first is in the middle of the CSV, the other of the JSON lines
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
                with pytest.raises(OSError, match="File too large"):
                    files.add(*range(101, 201))
                assert (files.csv.stat().st_size, files.jsonl.stat().st_size) == sizes
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        files.add(*range(101, 201))
        files.end()
        for found in (rows(files.path), lines(files.path)):
            assert [int(row["step"]) for row in found] == list(range(1, 201))

    def test_a_disk_that_is_full_for_a_while_in_a_run(self, make_trainer, tmp_path, messages):
        """From step 3 until the reporter has said so: the records wait, and are there once."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

        class Fills:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 3:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
                if trainer.step == 10:
                    end = time.monotonic() + 60
                    while not any("report_metrics() failed with OSError" in text for text in messages()):
                        assert time.monotonic() < end
                        time.sleep(0.01)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            trainer = make_trainer([Fills(), MetricsLog()], values=(1.0,) * 20, work_dir=tmp_path / "run", log_every_steps=1)
            assert trainer.train().status == "completed"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        for found in (rows(tmp_path / "run"), lines(tmp_path / "run")):
            assert [int(row["step"]) for row in found] == list(range(1, 21))
        assert len([text for text in messages() if "report_metrics() failed" in text]) == 1

    def test_what_cannot_be_taken_back_at_once_is_taken_back_before_the_next_row(self, files, monkeypatch):
        files.open()
        files.add(1, 2)
        sizes = files.csv.stat().st_size, files.jsonl.stat().st_size
        for file in files.log._files:  # a write that fails halfway, on a disk that does not even truncate
            real = file._file

            class Fails:
                def __init__(self, real=real):
                    self.real = real

                def write(self, data):
                    self.real.write(data[:5])
                    raise OSError(28, "No space left on device")

                def truncate(self, size):
                    raise OSError(5, "Input/output error")

                def __getattr__(self, name):
                    return getattr(self.real, name)

            file._file = Fails()
        with pytest.raises(OSError, match="No space left"):
            files.add(3)
        assert files.csv.stat().st_size == sizes[0] + 5
        for file in files.log._files:
            file._file = file._file.real
        files.add(3)
        files.end()
        for found in (rows(files.path), lines(files.path)):
            assert [int(row["step"]) for row in found] == [1, 2, 3]

    def test_a_kill_while_a_column_is_added_costs_nothing(self, files, monkeypatch):
        """The longer file takes the old one's place in one go; before that the old one is whole."""
        files.open()
        files.add(1, a=1.0)
        whole = files.csv.read_bytes()

        def killed(self, target):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", killed)
            with pytest.raises(KeyboardInterrupt):
                files.add(2, b=1.0)
        assert files.csv.read_bytes() == whole
        files.add(2, b=1.0)
        files.end()
        assert [(row["a"], row["b"]) for row in rows(files.path)] == [("1.0", ""), ("", "1.0")]
        assert [path.name for path in files.path.glob(".*")] == []

    @pytest.mark.parametrize("zeros", [1, 100, 4096])
    @pytest.mark.parametrize("cut", [0, 5])
    def test_a_power_cut_leaves_zeros_at_the_end(self, files, zeros, cut):
        files.open()
        files.add(*range(1, 11))
        files.drop()
        for path in (files.csv, files.jsonl):
            path.write_bytes(path.read_bytes()[: -cut or None] + bytes(zeros))
        files.open(step=8, records=8)
        files.add(9, 10)
        files.end()
        for found in (rows(files.path), lines(files.path)):
            assert [(int(row["step"]), float(row["a"])) for row in found] == [(n, n / 7) for n in range(1, 11)]

    def test_zeros_between_rows_are_dropped(self, files, messages):
        files.open()
        files.add(*range(1, 11))
        files.drop()
        for path in (files.csv, files.jsonl):
            whole = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join([*whole[:5], bytes(20) + whole[5], *whole[6:]]))
        files.open(step=10, records=10)
        files.add(11)
        files.end()
        assert [int(row["step"]) for row in rows(files.path)] == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
        assert [line["step"] for line in lines(files.path)] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
        assert len([text for text in messages() if "dropped a line that is no record" in text]) == 2

    @pytest.mark.parametrize("damage", [b"", bytes(64), b"\0step,upd", b"step,upd", b"no,table,of,ours\r\n1,2,3,4\r\n"])
    def test_a_table_without_its_header_is_begun_anew(self, files, damage, messages):
        files.open()
        files.add(1, 2, 3)
        files.drop()
        files.csv.write_bytes(damage)
        files.open(step=2, records=2)
        files.add(3)
        files.end()
        assert [int(row["step"]) for row in rows(files.path)] == [3]
        assert [line["step"] for line in lines(files.path)] == [1, 2, 3]
        aside = files.path / "metrics.csv.damaged"
        if damage.strip(b"\0"):
            assert aside.read_bytes() == damage
            assert any("its header is damaged; it is now metrics.csv.damaged" in text for text in messages())
        else:
            assert not aside.exists()

    def test_a_folder_that_somebody_removes(self, files, messages):
        import shutil

        files.open()
        files.add(1, 2)
        shutil.rmtree(files.path)
        files.add(3, 4)
        files.end()
        for found in (rows(files.path), lines(files.path)):
            assert [int(row["step"]) for row in found] == [3, 4]
        assert sum("was removed, replaced or cut: it goes on from what is there" in text for text in messages()) == 2

    def test_a_file_of_somebody_else_is_left_alone(self, make_trainer, tmp_path, messages):
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "metrics.csv").write_text("mine")
        trainer = make_trainer([MetricsLog()], work_dir=folder, max_steps=2, log_every_steps=1, overwrite=True)
        assert trainer.train().status == "completed"
        assert (folder / "metrics.csv").read_text() == "mine"
        assert any("metrics.csv exists and was not made by trainhooks" in text for text in messages())


@pytest.mark.parametrize("name", ["nul\0inside", "half \ud800 pair", "y" * 40_000, "tab\tand\rreturn"])
def test_names_that_no_csv_file_can_hold(files, name):
    """They get another name there, the same after a resume; everybody else's column is as it was."""
    files.open()
    files.log.report_metrics([Record(1, 1, 0, 0.5, {name: 1.5, "a": 2.5})])
    files.drop()
    files.open(step=1, records=1)
    files.log.report_metrics([Record(2, 2, 0, 0.5, {name: 1.5, "a": 2.5})])
    files.end()
    assert [(line[name], line["a"]) for line in lines(files.path)] == [(1.5, 2.5)] * 2  # JSON has everything
    for found in (rows(files.path), lines(files.path)):
        assert [len(row) for row in found] == [6, 6]
        assert [[float(cell) for cell in list(row.values())[4:]] for row in found] == [[1.5, 2.5]] * 2


def test_many_columns_at_once(files):
    """5,000 new ones with long names in one record, in a file where new columns wait: no cell gets too long to be read."""
    files.open()
    files.add(*range(500), **{f"a{number}": 0.123456 for number in range(100)})
    files.add(500, b=1.0)
    files.add(501, c=1.0)
    assert json.loads(rows(files.path)[-1]["more"]) == {"c": 1.0}
    files.add(502, **{f"{'long/' * 10}{number}": float(number) for number in range(5_000)})
    found = rows(files.path)
    assert max(len(cell) for row in found for cell in row.values()) < csv.field_size_limit()
    files.end()
    assert rows(files.path)[-1][f"{'long/' * 10}4999"] == "4999.0"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # what is tested here
def test_a_forked_child_writes_nothing(files):
    """A loader's worker is a copy of the process, buffers included."""
    files.open()
    files.add(1, 2)
    child = os.fork()
    if child == 0:
        files.log._close()
        os._exit(0)
    os.waitpid(child, 0)
    files.add(3)
    files.end()
    for found in (rows(files.path), lines(files.path)):
        assert [int(row["step"]) for row in found] == [1, 2, 3]


def test_a_second_one_does_not_write_into_the_files_of_the_first(make_trainer, tmp_path, messages):
    trainer = make_trainer([MetricsLog(), MetricsLog()], values=(1.0,) * 3, log_every_steps=1, work_dir=tmp_path / "run")
    trainer.train()
    assert [row["step"] for row in rows(tmp_path / "run")] == ["1", "2", "3"]
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3]
    assert "plugin 'metrics_log@2' (trainhooks 0.1.0) failed and is disabled for the rest of this run" in messages()


def test_two_for_different_files(make_trainer, tmp_path):
    plugins = [MetricsLog(csv=False), MetricsLog(jsonl=False)]
    make_trainer(plugins, values=(1.0,) * 3, log_every_steps=1, work_dir=tmp_path / "run").train()
    assert [row["step"] for row in rows(tmp_path / "run")] == ["1", "2", "3"]
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3]
