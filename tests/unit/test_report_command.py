"""``trainhooks report`` without a browser: what the page knows, what the terminal shows, and what is refused."""

import base64
import hashlib
import html
import json
import math
import os
import re
import struct
import subprocess
import sys
from array import array
from html.parser import HTMLParser
from itertools import count
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainhooks import hookimpl
from trainhooks.run_history import MetricTable, RunHistory, read_history
from trainhooks_builtins import Checkpoint, MetricsLog, RunStore, Timer
from trainhooks_builtins._report.comparison import configuration_rows, plugin_rows
from trainhooks_builtins._report.media import embedded
from trainhooks_builtins._report.page import as_data, render
from trainhooks_builtins._report.payload import metric_names, payload
from trainhooks_builtins._report.stages import plugin_seconds, stage_seconds
from trainhooks_builtins._report.terminal import draw, plot
from trainhooks_builtins._report.thinning import MOST_POINTS, knots, points_for_each, thinned
from trainhooks_builtins.report_command import run_names

VENDOR = Path(__file__).parents[2] / "plugins/builtins/trainhooks_builtins/_report/vendor"


def table_of(**columns):
    """Return a table with the given values at steps 1, 2, ...; ``None`` where a record does not have the metric."""
    table = MetricTable()
    for i, values in enumerate(zip(*columns.values(), strict=True)):
        present = {name: value for name, value in zip(columns, values, strict=True) if value is not None}
        table.add((i + 1, i + 1, 0, 1000.0 + i), present)
    return table


def history(record=None, hook_time=None, **columns):
    return RunHistory(Path("run"), record or {}, "completed", table_of(**columns), "metrics.jsonl", 0, hook_time)


def written(folder, values=(3.0, 2.0, 1.0), record=(), name="train/loss"):
    """Write a run folder by hand."""
    folder.mkdir(parents=True)
    rows = [{"step": i + 1, "update": i + 1, "epoch": 0, "time": 1e9 + i, name: value} for i, value in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.json").write_text(json.dumps({"status": "completed", "step": len(values), **dict(record)}))
    return folder


def data_of(page):
    """Return what the page knows, read as a browser does."""
    text = page.read_text(encoding="utf-8") if isinstance(page, Path) else page
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def column(text):
    values = array(text[0])
    values.frombytes(base64.b64decode(text[1:]))
    return list(values)


# Thinning

FLOATS = st.floats(width=32, allow_infinity=True, allow_nan=True)


@given(values=st.lists(FLOATS, min_size=1, max_size=400), most=st.integers(min_value=12, max_value=60))
def test_thinning_keeps_ends_extremes_and_gaps_within_its_bound(values, most):
    table = table_of(a=values)
    kept = thinned(table.series["a"], most)
    assert len(kept.values) + len(kept.means) <= max(most, 12)
    assert list(kept.steps) == sorted(set(kept.steps))
    original = dict(enumerate((value if math.isfinite(value) else math.nan for value in values), start=1))
    for step, value in zip(kept.steps, kept.values, strict=True):
        assert str(value) == str(original[step])
    assert {1, len(values)} <= set(kept.steps)
    finite = [value for value in values if math.isfinite(value)]
    shown = [value for value in kept.values if math.isfinite(value)]
    if finite:
        assert (min(shown), max(shown)) == (min(finite), max(finite))
    assert any(map(math.isnan, kept.values)) == (len(finite) < len(values))
    if len(values) <= most:
        assert len(kept.values) == len(values)
        assert not kept.means


def test_means_of_stretches():
    kept = thinned(table_of(a=[1.0, 3.0, 5.0, 7.0] * 4).series["a"], 8)  # two stretches of eight values
    assert list(kept.means) == [4.0, 4.0]
    assert list(kept.mean_steps) == [4, 12]
    kept = thinned(table_of(a=[1.0] * 8 + [math.nan] * 8).series["a"], 8)
    assert str(list(kept.means)) == "[1.0, nan]"


def test_values_near_the_end_of_what_a_float_can_be():
    run = history(a=[1.7e308] * 40, **{"time/step": [1.7e308] * 40, "time/evaluate": [1.7e308] * 40})
    assert list(thinned(run.series["a"], 12).means) == pytest.approx([1.7e308] * 3)
    assert stage_seconds(run) == {}  # more than any clock has shown
    assert column(payload([run], ["one"])["metrics"][0]["curves"][0]["y"])[0] == pytest.approx(3.4e38)
    assert "Infinity" not in as_data(payload([run], ["one"]))


def test_knots_keep_ends_and_what_is_wanted():
    assert knots(5, [], 1000) == [0, 1, 2, 3, 4]
    assert knots(0, [3]) == []
    found = knots(100_000, [41_999, 42_000, 100_000, -1])
    assert {0, 41_999, 42_000, 99_999} <= set(found)
    assert len(found) == 1002


def test_the_page_stays_bounded():
    """Twenty runs with three metrics of 12,000 points each: 720,000 points become at most 400,000 of eight bytes."""
    values = [math.sin(i) for i in range(12_000)]
    runs = [history(a=values, b=values, c=values) for _ in range(20)]
    text = as_data(payload(runs, [str(i) for i in range(20)]))
    assert 3e6 < len(text) < MOST_POINTS * 8 * 4 / 3 + 20 * 45_000  # and a clock of 1,000 knots for each run
    assert points_for_each(10**6) == 100


# What the page knows


def test_values_arrive_as_they_are():
    run = history(
        {"best": {"a": {"value": 0.5, "step": 2}}, "seconds": 2.0},
        a=[1.5, math.nan, math.inf, 0.25],
        b=[None, 1e39, None, -1.0],
    )
    found = payload([run], ["one"])
    (a, b) = found["metrics"]
    (curve,) = a["curves"]
    assert column(curve["x"]) == [1, 2, 3, 4]
    assert str(column(curve["y"])) == "[1.5, nan, nan, 0.25]"
    assert (curve["last"], curve["min"], curve["max"], curve["not_finite"], curve["points"]) == (0.25, 0.25, 1.5, 2, 4)
    assert column(b["curves"][0]["x"]) == [2, 4]
    assert column(b["curves"][0]["y"])[0] == pytest.approx(3.4e38)  # beyond single precision, so the largest that is drawn
    assert b["curves"][0]["max"] == 1e39
    assert found["runs"][0]["best"] == [["a", 0.5, 2]]
    assert column(found["runs"][0]["clock"]["time"]) == [0.0, 1.0, 2.0, 3.0]


def test_steps_beyond_four_bytes_stay_exact():
    table = MetricTable()
    for step in (1, 2**32, 2**40 + 1):
        table.add((step, step, 0, 0.0), {"a": 1.0})
    run = RunHistory(Path("run"), {}, "completed", table, "metrics.jsonl")
    assert column(payload([run], ["one"])["metrics"][0]["curves"][0]["x"]) == [1, 2**32, 2**40 + 1]


def test_groups_and_their_order():
    names = ["memory/host", "time/step", "lr", "lr/optimizer/0", "zeta/a", "alone", "val/loss", "train/loss", "train/accuracy"]
    run = history(**dict.fromkeys(names, [1.0]))
    groups = [(one["group"], one["name"]) for one in payload([run], ["one"])["metrics"]]
    assert groups == [
        ("train", "train/loss"),
        ("train", "train/accuracy"),
        ("val", "val/loss"),
        ("other", "alone"),
        ("zeta", "zeta/a"),
        ("lr", "lr"),
        ("lr", "lr/optimizer/0"),
        ("time", "time/step"),
        ("memory", "memory/host"),
    ]
    assert metric_names([run], ["*/loss", "lr"]) == ["train/loss", "val/loss", "lr"]


def test_a_metric_is_chosen_by_its_name_whatever_is_in_it():
    run = history(**{"val/acc[0]": [1.0], "val/acc0": [2.0], "a*": [3.0], "ab": [4.0]})
    assert metric_names([run], ["val/acc[0]"]) == ["val/acc[0]", "val/acc0"]
    assert metric_names([run], ["val/acc[[]0]"]) == ["val/acc[0]"]


def test_seconds_of_stages_are_worked_out_from_the_metrics():
    run = history(**{"time/step": [0.5, None, 0.25], "time/evaluate": [None, 2.0, 3.0], "time/data": [math.nan, None, None]})
    assert stage_seconds(run) == {"step": 0.5 * 1 + 0.25 * 2, "evaluate": 5.0}


def test_several_checkpoints_between_two_records_all_count(make_trainer, tmp_path):
    """A record every 10 steps, a checkpoint every 2; the clock goes on by a second whenever it is read."""
    timer = Timer(clock=map(float, count()).__next__)
    plugins = [timer, MetricsLog(), Checkpoint(every_steps=2, at_end=False)]
    make_trainer(plugins, max_steps=20, values=(1.0,) * 20, work_dir=tmp_path / "run", log_every_steps=10).train()
    measured = {stage: seconds for stage, (_, seconds) in timer.totals.items()}
    assert timer.totals["checkpoint"][0] == 10
    assert stage_seconds(read_history(tmp_path / "run")) == pytest.approx(measured)


def test_steps_of_another_run_are_not_charged():
    """It began with the checkpoint of another run at step 1000, and logs every 10 steps."""
    table = MetricTable()
    for step in (1010, 1020):
        table.add((step, step, 0, 1000.0), {"time/step": 0.5})

    def seconds(**record):
        return stage_seconds(RunHistory(Path("run"), record, "completed", table, "metrics.jsonl"))

    assert seconds(parent="0123456789ab", resumed=[{"step": 1000}, {"step": 1015}]) == {"step": 10.0}
    assert seconds(parent=None, resumed=[{"step": 1005}]) == {"step": 510.0}


@pytest.mark.parametrize(("outcome", "step"), [("running", 3), ("killed", 3), ("failed", 2), ("completed", 2)])
def test_how_far_a_run_came(outcome, step):
    """What a checkpoint at step 2 has recorded, and metrics of step 3."""
    record = {"step": 2, "update": 2, "epoch": 0, "seconds": 5.0}
    (run,) = payload([RunHistory(Path("run"), record, outcome, table_of(a=[1.0] * 3), "metrics.jsonl")], ["run"])["runs"]
    assert (run["step"], run["update"], run["seconds"]) == (step, step, 5.0)


def test_seconds_of_plugins_the_longest_first():
    run = history({}, {"a": {"x": (2, 0.5)}, "b": {"y": (1, 0.25), "z": (3, 1.0)}}, m=[1.0])
    assert plugin_seconds(run) == [("b", 1.25, 4, [("z", 1.0, 3), ("y", 0.25, 1)]), ("a", 0.5, 2, [("x", 0.5, 2)])]


def plugin(name, version="1", **options):
    return {"name": name, "distribution": "d", "version": version, "options": options}


def test_what_differs_between_plugin_locks_comes_first():
    one = history({"plugins": [plugin("lr", warmup=1), plugin("ema", decay=0.9), plugin("timer")]})
    two = history({"plugins": [plugin("lr", warmup=2), plugin("new"), plugin("timer", "2")]})
    assert plugin_rows([one, two]) == [
        ("lr.warmup", ["1", "2"]),
        ("new", [None, "d 1"]),
        ("ema", ["d 1", None]),
        ("ema.decay", ["0.9", None]),
        ("timer", ["d 1", "d 2"]),
        ("lr", ["d 1"]),
    ]
    assert plugin_rows([history({"plugins": "damaged"})]) == []


def test_configuration_has_each_thing_once():
    record = {
        "settings": {"seed": 1, "work_dir": "x", "max_epochs": None},
        "hyperparameters": {"seed": 1, "optimizer/lr": 1e-3, "ema/decay": 0.9, "note": "</script>"},
        "plugins": [plugin("ema", decay=0.9)],
        "versions": {"torch": "2"},
        "host": "h",
    }
    rows = configuration_rows([history(record), history({**record, "host": "i", "settings": {"seed": 1, "extra": [1, "ä"]}})])
    assert rows == [
        ("extra", [None, '[1, "ä"]']),
        ("max_epochs", ["null", None]),
        ("host", ["h", "i"]),
        ("seed", ["1"]),
        ("optimizer/lr", ["0.001"]),
        ("note", ["</script>"]),
        ("version of torch", ["2"]),
    ]


# The page

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>&amp;'\"",
    "\u2028\u2029\0\x1b[31m",
    "{{data}}",
    "\ud800",
]


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_run_becomes_markup(text):
    record = {
        "reason": text,
        "host": text,
        "command": text,
        "plugins": [plugin(text, text, **{text: text})],
        "settings": {text: text},
        "versions": {"torch": text},
        "best": {text: {"value": 1.0, "step": 1}},
    }
    run = history(record, {text: {text: (1, 1.0)}}, **{text: [1.0], f"time/{text}": [2.0]})
    page = render(
        {**payload([run], [text]), "media": [{"run": 0, "kind": "text", "name": text, "step": 1, "text": text}]}, text, "today"
    )
    plain = render(payload([history(a=[1.0])], ["b"]), "c", "today")
    found, expected = Tags(), Tags()
    found.feed(page), expected.feed(plain)
    assert (found.tags, found.attributes) == (expected.tags, expected.attributes)
    assert data_of(page)["runs"][0]["name"] == text
    assert page.count(html.escape(text.encode("utf-8", "replace").decode())) >= 2  # in <title> and <h1>


def test_the_policy_names_what_the_page_has_and_nothing_else():
    page = render(payload([history(a=[1.0])], ["b"]), "c", "today")
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])

    def digest(text):
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(scripts) == 2
    assert policy.split("; ") == [
        "default-src 'none'",
        f"script-src {' '.join(map(digest, scripts))}",
        f"style-src {digest(style)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert " on" not in " ".join(re.findall(r"<[a-z][^>]*>", page.partition("<body>")[2].partition("<script")[0]))
    assert "Copyright (c) 2022 Leon Sorokin" in page


def test_the_library_is_the_one_that_its_note_says():
    note = (VENDOR / "README.md").read_text()
    hashes = dict(re.findall(r"\| `(uPlot[\w.]+)` \| `(\w{64})` \|", note))
    assert set(hashes) == {"uPlot.iife.min.js", "uPlot.min.css"}
    for name, expected in hashes.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == expected


# The command


def test_the_command_writes_one_page(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        written(tmp_path / f"runs/{i}", [1.0, 2.0], {"settings": {"seed": i}})
    assert re.fullmatch(r"report.html: 4 runs, 1 metric, \d+ kB\n", cli("report", "runs").out)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<title>4 runs</title>" in page
    assert [run["name"] for run in data_of(page)["runs"]] == ["0", "1", "2", "3"]
    assert data_of(page)["configuration"][0] == ["seed", ["0", "1", "2", "3"]]
    cli("report", "runs/1", "runs/1/", "runs/0", "--title", "a <b>")  # replaces a report, takes each run once
    assert [run["name"] for run in data_of(tmp_path / "report.html")["runs"]] == ["1", "0"]
    assert "<title>a &lt;b&gt;</title>" in (tmp_path / "report.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "runs"]


def test_the_command_imports_no_torch_and_no_plugin(tmp_path):
    written(tmp_path / "run")
    code = (
        "import sys\nfrom trainhooks.cli import main\n"
        "try:\n    main(['report', 'run', '-o', 'page.html'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'numpy', 'trainhooks.trainer', 'trainhooks_builtins.metrics_log'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[1:] == ["[]"]


def test_runs_of_one_name_are_told_apart():
    assert run_names([Path("/a/x"), Path("/b/x"), Path("/b/y")]) == ["a/x", "b/x", "b/y"]
    assert run_names([Path("/a/x")]) == ["x"]
    assert run_names([Path(os.fsdecode(b"/a/\xff"))]) == ["\ufffd"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere does not exist: name a run folder, or a folder of runs (`trainhooks runs` lists them)"),
        (["file"], "file is a file, not a run folder: name a run folder, or a folder of runs (`trainhooks runs` lists them)"),
        (["empty"], "no runs below empty: name a run folder, or a folder of runs (`trainhooks runs` lists them)"),
        (
            ["bare"],
            "no metrics in bare: metrics.jsonl and metrics.csv are missing or hold no record; the plugin metrics_log writes them while a run trains",
        ),
        (
            ["damaged"],
            "no metrics in damaged: metrics.jsonl and metrics.csv are missing or hold no record; the plugin metrics_log writes them while a run trains",
        ),
        (["run", "--metrics", "val/*"], "--metrics 'val/*': no metric has such a name; there are train/loss"),
        (["run", "-o", "empty"], "-o empty is a folder: name a file, such as empty/report.html"),
        (["run", "-o", "no/page.html"], "-o no/page.html: there is no folder {}/no"),
        (["run", "-o", "file"], "file exists and is no report: name another file with -o, or move it away"),
        (["run", "--terminal", "-o", "x"], "--terminal writes no page: leave out -o"),
        (["run", "--terminal", "--title", "x"], "--terminal writes no page: leave out --title"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(cli, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("something")
    (tmp_path / "empty").mkdir()
    written(tmp_path / "run")
    written(tmp_path / "bare", [])
    written(tmp_path / "damaged", [])
    (tmp_path / "damaged/metrics.jsonl").write_text("no\nrecord\n")
    before = sorted(tmp_path.rglob("*"))
    *warnings, last = cli("report", *words, expect=2).err.splitlines()
    assert last == f"trainhooks: {message.format(tmp_path)}"
    assert len(warnings) == (words == ["damaged"])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_page_that_cannot_be_written(cli, tmp_path):
    run = written(tmp_path / "run")
    refused = cli("report", run, "-o", "/proc/report.html", expect=2).err
    assert re.fullmatch(r"trainhooks: cannot write /proc/report.html: [\w ]+: name another file with -o\n", refused)


def test_damage_is_said_and_the_rest_is_drawn(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "runs/a")
    written(tmp_path / "runs/b")
    written(tmp_path / "runs/c", [])
    with (tmp_path / "runs/a/metrics.jsonl").open("a") as file:
        file.write("damage\n")
    (tmp_path / "runs/b/run.json").write_text("{")
    done = cli("report", "runs")
    assert done.err.splitlines() == [
        "trainhooks: a: left out a line of metrics.jsonl that is no record",
        "trainhooks: b: run.json is missing or damaged, so only the metrics are shown",
        "trainhooks: c: has no metrics",
    ]
    outcomes = {run["name"]: (run["outcome"], run["records"]) for run in data_of(tmp_path / "report.html")["runs"]}
    assert outcomes == {"a": ("completed", 3), "b": ("unknown", 3), "c": ("completed", 0)}


# The terminal


def test_curves_in_braille_are_what_a_hand_draws():
    rising = table_of(a=[float(i) for i in range(8)]).series["a"]
    assert plot(rising, (1, 8), (0.0, 7.0), 4, 2, braille=True) == ["  ⡠⠊", "⡠⠊  "]
    flat = table_of(a=[1.0, 1.0]).series["a"]
    assert plot(flat, (1, 2), (1.0, 1.0), 3, 1, braille=True) == ["⠤⠤⠤"]  # the third of four rows of dots


def test_curves_in_ascii_and_gaps():
    falling = table_of(a=[3.0, 2.0, 1.0, 0.0]).series["a"]
    assert plot(falling, (1, 4), (0.0, 3.0), 4, 2, braille=False) == ["'.  ", "  '."]
    gap = table_of(a=[1.0, math.nan, 1.0]).series["a"]
    assert plot(gap, (1, 3), (0.0, 1.0), 3, 1, braille=False) == ["' '"]


def test_the_largest_numbers_and_the_smallest():
    """Their difference is infinite, or its half is zero."""
    for low, high in ((-1.7e308, 1.7e308), (0.0, 5e-324)):
        rising = table_of(a=[low, high]).series["a"]
        assert plot(rising, (1, 2), (low, high), 2, 1, braille=False) == [".'"]
    lines = list(draw([history(a=[-1.7654e308, 1.7654e308])], ["run"], ["a"], width=60, encoding="ascii"))
    assert [line.index("|") for line in lines[2:8]] == [10] * 6
    assert lines[7].startswith("-1.8e+308 |")


def test_a_peak_of_one_record_among_many_is_drawn():
    values = [0.0] * 10_000
    values[5_000] = 1.0
    lines = plot(table_of(a=values).series["a"], (1, 10_000), (0.0, 1.0), 20, 3, braille=True)
    assert [line.strip() != "" for line in lines] == [True, True, True]


@pytest.mark.parametrize(("encoding", "braille"), [("utf-8", True), ("ascii", False), ("latin-1", False)])
@pytest.mark.parametrize("width", [10, 50, 80, 500])
def test_the_terminal_gets_lines_that_it_can_show(encoding, braille, width):
    runs = [history(**{"a\x1b[2J": [1.0, math.nan, 3.0], "ü": [math.nan] * 3}), history(**{"a\x1b[2J": [2.0, 2.0, 2.5]})]
    long = f"one\n{'x' * 300}"
    lines = list(draw(runs, [long, "zwei ü"], ["a\x1b[2J", "ü"], width=width, encoding=encoding))
    assert all(line.isprintable() for line in lines)
    assert all(line.encode(encoding) for line in lines if line)
    assert max(map(len, lines)) <= max(50, min(width, 160))
    assert any("\u2800" < character < "\u28ff" for line in lines for character in line) == braille
    assert lines[0] == "a\\x1b[2J"
    assert lines[1].startswith("  min 1  max 3  last 3  (1 not finite)  one\\n"[:50])
    assert "  nothing finite in 3 records" in " ".join(lines)


def test_report_in_the_terminal(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    written(tmp_path / "run", [4.0, 2.0, 1.0])
    done = cli("report", "--terminal", "run")
    lines = done.out.splitlines()
    assert lines[:2] == ["train/loss", "  min 1  max 4  last 1"]
    assert lines[2].startswith("        4 │")
    assert lines[7].startswith("        1 │")
    assert lines[8].split() == ["1", "step", "3"]
    assert (tmp_path / "report.html").exists() is False


# Images, text, tables


def test_media_are_embedded_within_bounds(tmp_path):
    png = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")
    (tmp_path / "media").mkdir()
    lines = []
    for step in range(1, 6):
        (tmp_path / f"media/{step}.png").write_bytes(png)
        lines.append({"kind": "image", "name": "x", "step": step, "file": f"media/{step}.png"})
    (tmp_path / "media/fake.png").write_bytes(b"<svg onload=alert(1)>")
    (tmp_path / "media/big.png").write_bytes(png + bytes(1_000_001))
    (tmp_path / "media/t.csv").write_text('a,b\n1,"2,3"\n')
    (tmp_path / "media/t.txt").write_text("é" * 5000, encoding="utf-8")
    for kind, file in (("image", "fake.png"), ("image", "big.png"), ("table", "t.csv"), ("text", "t.txt")):
        lines.append({"kind": kind, "name": file, "step": 9, "file": f"media/{file}"})
    lines.append({"kind": "histogram", "name": "h", "step": 9, "counts": [1, 2], "edges": [0, 0.5, 1]})
    lines.append({"kind": "histogram", "name": "bad", "step": 9, "counts": [1, 2], "edges": [0]})
    lines.append({"kind": "histogram", "name": "huge", "step": 9, "counts": [10**400], "edges": [0, 1]})
    lines.append({"kind": "artifact", "name": "w.pt", "time": 1.0, "file": "media/t.txt"})
    (tmp_path / "media.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = embedded([read_history(tmp_path)])
    assert [(one["name"], one["step"]) for one in found["media"]] == [
        ("x", 5),
        ("x", 4),
        ("x", 3),
        ("t.csv", 9),
        ("t.txt", 9),
        ("h", 9),
    ]
    assert found["media_left_out"] == 2 + 4  # older ones of x; fake, too big, and two damaged
    by_name = {one["name"]: one for one in found["media"]}
    assert base64.b64decode(by_name["x"]["png"]) == png
    assert (by_name["t.csv"]["columns"], by_name["t.csv"]["rows"]) == (["a", "b"], [["1", "2,3"]])
    assert len(by_name["t.txt"]["text"]) == 4001
    assert (by_name["h"]["counts"], by_name["h"]["edges"]) == ([1.0, 2.0], [0.0, 0.5, 1.0])


class Shows:
    """Logs one of each kind at every second step."""

    @hookimpl
    def after_step(self, trainer):
        if trainer.step % 2 == 0:
            trainer.log_image("val/a b", torch.full((3, 4, 5), 200, dtype=torch.uint8))
            trainer.log_text("notes", f"step {trainer.step}")
            trainer.log_histogram("h", torch.arange(4.0))
            trainer.log_table("t", ["a", "b"], [[1, "x"], [None, "y"]])


def test_what_the_run_store_keeps_is_shown(make_trainer, tmp_path):
    make_trainer([RunStore(), MetricsLog(), Shows()], max_steps=9, work_dir=tmp_path, log_every_steps=1).train()
    found = embedded([read_history(tmp_path)])
    kinds = {}
    for one in found["media"]:
        kinds.setdefault(one["kind"], []).append(one)
    assert {kind: len(items) for kind, items in kinds.items()} == {"image": 3, "text": 3, "histogram": 3, "table": 3}
    assert found["media_left_out"] == 4 * 2
    assert {one["name"] for one in kinds["image"]} == {"val/a b"}
    assert struct.unpack(">II", base64.b64decode(kinds["image"][0]["png"])[16:24]) == (5, 4)
    assert [one["text"] for one in kinds["text"]] == ["step 8", "step 6", "step 4"]
    assert sum(kinds["histogram"][0]["counts"]) == 4
    assert (kinds["table"][0]["columns"], kinds["table"][0]["rows"]) == (["a", "b"], [["1", "x"], ["", "y"]])
