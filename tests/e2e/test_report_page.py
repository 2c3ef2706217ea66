"""The report in a real headless Chromium: what it draws, that it asks nobody for anything, and that no run can harm it."""

import importlib.util
import json
import math
import re
import shutil
import socket
import struct
import zlib
from pathlib import Path

import pytest

from trainhooks import hookimpl
from trainhooks_builtins import Checkpoint, HookTime, LRMonitor, MetricsLog, Timer

pytestmark = pytest.mark.slow

_spec = importlib.util.spec_from_file_location("report_browser", Path(__file__).with_name("browser.py"))
report_browser = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(report_browser)

BLUE, DARK_BLUE = (0x00, 0x72, 0xB2), (0x4A, 0xA8, 0xF0)  # of the first run, light and dark
CHART = "[...document.querySelectorAll('.card')].find((card) => card.querySelector('h4')?.textContent === {0})"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Return one window for all tests."""
    one = report_browser.Browser(tmp_path_factory.mktemp("browser"))
    yield one
    one.close()


@pytest.fixture
def opened(cli, browser, tmp_path):
    """Return a function that makes a report and opens it; afterwards nothing was asked for and nothing went wrong."""
    pages = []

    def open_(*words, dark=False, width=1280, height=900):
        page = tmp_path / f"page-{len(pages)}.html"
        cli("report", *words, "-o", page)
        pages.append(page)
        browser.size(width, height)
        browser.theme(dark=dark)
        browser.load(page)
        browser.wait("document.querySelector('.plot canvas') !== null || document.querySelector('.plot p') !== null")
        return browser

    yield open_
    asked = {url for url in browser.requests() if not url.startswith("data:")}
    assert asked <= {page.absolute().as_uri() for page in pages}
    assert browser.console() == []
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"


def written(folder, rows, **record):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.json").write_text(json.dumps({"status": "completed", **record}))
    return folder


def rows_of(steps, every=1, **metrics):
    """Return records; a metric is a function of the step."""
    return [
        {
            "step": s,
            "update": s // 2,
            "epoch": (s - 1) // 10,
            "time": 1e9 + 2 * s,
            **{name: of(s) for name, of in metrics.items()},
        }
        for s in range(every, steps + 1, every)
    ]


def chart(name):
    return CHART.format(json.dumps(name))


def readout(browser, name):
    return browser.run(f"return {chart(name)}.querySelector('.readout').textContent")


def area(browser, name):
    """Return where a chart's curves are drawn: left, top, width, height."""
    browser.run(f"{chart(name)}.scrollIntoView({{block: 'center'}})")
    browser.wait(f"{chart(name)}.querySelector('.u-over') !== null")
    return browser.run(
        f"const r = {chart(name)}.querySelector('.u-over').getBoundingClientRect(); return [r.x, r.y, r.width, r.height]"
    )


def hover(browser, name, share):
    """Put the mouse into a chart, at a share of its width."""
    left, top, width, height = area(browser, name)
    for nudge in (1, 0):
        browser.mouse("mouseMoved", left + width * share + nudge, top + height / 2)
    browser.frames()


def drag(browser, name, begin, end):
    left, top, width, height = area(browser, name)
    browser.mouse("mouseMoved", left + width * begin, top + height / 2)
    browser.mouse("mousePressed", left + width * begin, top + height / 2, buttons=1, clicks=1)
    for share in (begin + (end - begin) / 2, end):
        browser.mouse("mouseMoved", left + width * share, top + height / 2, buttons=1)
    browser.mouse("mouseReleased", left + width * end, top + height / 2, clicks=1)
    browser.frames()


def coloured(browser, name, colour, begin, end, top=0.0, bottom=1.0, alpha=200):
    """Return how many pixels of a colour a part of a chart has, given in shares of where curves are drawn."""
    browser.frames()
    return browser.run(
        f"const card = {chart(name)}, canvas = card.querySelector('canvas'), over = card.querySelector('.u-over');"
        "const a = canvas.getBoundingClientRect(), b = over.getBoundingClientRect(), k = canvas.width / a.width;"
        "const [begin, end, top, bottom, colour, alpha] = arguments;"
        "const x = Math.round((b.x - a.x + b.width * begin) * k), y = Math.round((b.y - a.y + b.height * top) * k);"
        "const w = Math.max(Math.round(b.width * (end - begin) * k), 1), h = Math.round(b.height * (bottom - top) * k);"
        "const pixels = canvas.getContext('2d').getImageData(x, y, w, h).data; let found = 0;"
        "for (let i = 0; i < pixels.length; i += 4)"
        " if (pixels[i + 3] > alpha && Math.max(...colour.map((c, j) => Math.abs(c - pixels[i + j]))) < 12) found++;"
        "return found;",
        begin,
        end,
        top,
        bottom,
        list(colour),
        alpha,
    )


def choose(browser, identifier, value):
    script = "const one = document.getElementById(arguments[0]); one.value = arguments[1];"
    browser.run(script + "one.dispatchEvent(new Event('input')); one.dispatchEvent(new Event('change'))", identifier, value)
    browser.frames()


class Measures:
    """Logs what validation would, and shows text of its own."""

    @hookimpl
    def after_step(self, trainer):
        trainer.log("val/accuracy", 1 - 1 / (trainer.step + 1))


def test_a_run_that_was_trained_killed_and_resumed(make_trainer, tmp_path, opened):
    plugins = lambda: [MetricsLog(), Timer(), HookTime(), LRMonitor(), Checkpoint(every_steps=4), Measures()]  # noqa: E731
    make_trainer(plugins(), max_steps=8, work_dir=tmp_path / "run", log_every_steps=1).train()
    make_trainer(plugins(), max_steps=20, work_dir=tmp_path / "run", log_every_steps=1).train(resume="auto")
    browser = opened(tmp_path / "run")
    assert browser.run("return document.title") == "run"
    row = browser.run("return document.querySelector('#runs-table tbody tr').textContent")
    assert "completed" in row
    assert "resumed at step 8" in row
    names = browser.run("return [...document.querySelectorAll('.card h4')].map((one) => one.textContent)")
    assert {"train/loss", "val/accuracy", "lr/optimizer/0", "time/step", "time/checkpoint"} <= set(names)
    groups = browser.run("return [...document.querySelectorAll('.group summary strong')].map((one) => one.textContent)")
    assert groups == ["train", "val", "lr", "time"]
    # The loss is w before the update: 0, -1, ... -19, a straight line, drawn from one end to the other, resume marked between.
    assert readout(browser, "train/loss") == "last -19min -19max 0"
    for i in range(10):
        assert coloured(browser, "train/loss", BLUE, i / 10, (i + 1) / 10) > 10
    assert coloured(browser, "train/loss", BLUE, 0.0, 0.3, 0.5, 1.0) == 0
    at = (8 - 1) / 19  # step 8 on an axis from 1 to 20
    assert coloured(browser, "train/loss", BLUE, at - 0.01, at + 0.01, 0.55, 1.0) > 5
    assert coloured(browser, "train/loss", BLUE, at + 0.03, at + 0.05, 0.55, 1.0) == 0
    hover(browser, "train/loss", (5 - 1) / 19)
    assert readout(browser, "train/loss") == "step 5-4"
    time = browser.run("return document.getElementById('time').textContent")
    assert "By stage" in time
    assert "after_step" in time
    lock = browser.run("return document.getElementById('plugins').textContent")
    assert "checkpointtrainhooks 0.1.0" in lock
    assert "hook_time" in lock
    assert "max_steps20" in browser.run("return document.getElementById('configuration').textContent")


def test_without_hook_time_lr_and_memory_it_says_how_to_get_them(tmp_path, opened):
    browser = opened(written(tmp_path / "run", rows_of(5, **{"train/loss": float})))
    assert "train with -p hook_time to have" in browser.run("return document.getElementById('plugin-time').textContent")
    hints = browser.run("return document.getElementById('groups').textContent")
    assert "-p lr_monitor" in hints
    assert "-p memory" in hints
    assert browser.run("return document.getElementById('media').hidden") is True


def test_text_of_runs_is_text(tmp_path, opened):
    bad = "</script><img src=x onerror=\"document.title='owned'\">"
    more = "<svg onload=document.title='owned'>"
    plugins = [{"name": bad, "distribution": bad, "version": bad, "options": {bad: bad}}]
    record = {
        "reason": bad,
        "host": more,
        "device": bad,
        "command": bad,
        "plugins": plugins,
        "settings": {bad: more},
        "best": {bad: {"value": 1, "step": 2}},
    }
    for name in ("<img src=x onerror=document.title='owned'>", "'\"><script>document.title='owned'<"):
        folder = written(
            tmp_path / "runs" / name, rows_of(5, **{bad: float, f"time/{more}": float}), **record, versions={"torch": bad}
        )
        hooks = {bad: {"hooks": {more: {"calls": 1, "seconds": 1.0}}}}
        (folder / "hook_time.json").write_text(json.dumps({"plugins": hooks}))
        (folder / "media").mkdir()
        (folder / "media/t.txt").write_text(bad)
        (folder / "media/t.csv").write_text(f"{more}\n{more}\n")
        items = [
            {"kind": "text", "name": bad, "step": 1, "file": "media/t.txt"},
            {"kind": "table", "name": more, "step": 1, "file": "media/t.csv"},
        ]
        (folder / "media.jsonl").write_text("".join(json.dumps(one) + "\n" for one in items))
    browser = opened(tmp_path / "runs", "--title", bad)
    hover(browser, bad, 0.5)
    assert browser.run("return document.title") == bad
    assert browser.run("return document.querySelectorAll('img, svg[onload], iframe').length") == 0
    assert browser.run("return document.querySelector('h1').textContent") == bad
    assert bad in browser.run("return document.getElementById('media').textContent")
    assert browser.run("return document.scripts.length") == 3


def test_even_a_script_of_its_own_could_reach_nobody(tmp_path, opened):
    """The policy forbids the page what it does not do anyway: nobody connects to a server that listens."""
    browser = opened(written(tmp_path / "run", rows_of(5, a=float)))
    assert [url.rpartition("/")[2] for url in browser.requests() if not url.startswith("data:")] == ["page-0.html"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        found = browser.run(
            "const seen = [], address = arguments[0];"
            "document.addEventListener('securitypolicyviolation', (event) => seen.push(event.effectiveDirective));"
            "const script = document.createElement('script'); script.textContent = 'document.title = \"owned\"';"
            "const image = new Image(); image.src = address + 'image'; document.body.append(script, image);"
            "return fetch(address + 'data').then(() => 'sent', () => new Promise((done) => setTimeout(() => done(seen.sort()), 200)));",
            f"http://127.0.0.1:{server.getsockname()[1]}/",
        )
        assert found == ["connect-src", "img-src", "script-src-elem"]
        with pytest.raises(TimeoutError):
            server.accept()
    assert browser.run("return document.title") == "run"
    assert all("Content Security Policy" in one or "127.0.0.1" in one for one in browser.console())
    browser.requests()  # those that were blocked are listed there too


def test_zoom_and_cursor_are_those_of_all_charts(tmp_path, opened):
    browser = opened(written(tmp_path / "run", rows_of(101, **{"train/loss": float, "val/loss": lambda s: -s})))
    hover(browser, "train/loss", 0.25)
    assert [readout(browser, name) for name in ("train/loss", "val/loss")] == ["step 2626", "step 26-26"]
    drag(browser, "train/loss", 0.5, 0.75)  # steps 51 to 76
    assert browser.run("return document.getElementById('reset').disabled") is False
    hover(browser, "val/loss", 0.0)
    first = readout(browser, "val/loss")
    hover(browser, "val/loss", 0.999)
    last = readout(browser, "val/loss")
    assert first in ("step 51-51", "step 52-52", "step 50-50")
    assert last in ("step 76-76", "step 76-75", "step 75-75")
    left, top, width, height = area(browser, "val/loss")
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            browser.mouse(kind, left + width / 2, top + height / 2, buttons=int(kind == "mousePressed"), clicks=count)
    browser.frames()
    assert browser.run("return document.getElementById('reset').disabled") is True
    hover(browser, "train/loss", 0.25)
    assert readout(browser, "train/loss") == "step 2626"


def test_each_axis_shows_the_same_record_at_its_own_place(tmp_path, opened):
    """100 steps, ten an epoch, two for an update, each of two seconds; in the middle of each axis is step 51 or its neighbour."""
    browser = opened(written(tmp_path / "run", rows_of(101, a=float)))
    shown = {}
    for axis in ("step", "epoch", "update", "time"):
        choose(browser, "x", axis)
        hover(browser, "a", 0.5)
        shown[axis] = readout(browser, "a")
    assert shown["step"] == "step 5151"
    assert re.fullmatch(r"epoch 5\.09\d51", shown["epoch"])  # the axis begins at 0.1 and ends at 10.1
    assert shown["update"] in ("update 2550", "update 2551", "update 2552")
    assert shown["time"] == "1 min 40 s51"


def test_an_axis_that_no_run_has_cannot_be_chosen(tmp_path, opened):
    rows = [{**row, "epoch": 0} for row in rows_of(5, a=float)]
    browser = opened(written(tmp_path / "run", rows))
    disabled = browser.run(
        "return [...document.getElementById('x').options].filter((one) => one.disabled).map((one) => one.value)"
    )
    assert disabled == ["epoch"]


def test_gaps_smoothing_and_log_scale(tmp_path, opened):
    value = lambda s: None if 40 <= s <= 60 else 10.0 if s % 2 else 0.1  # noqa: E731
    browser = opened(written(tmp_path / "run", rows_of(101, noisy=value, negative=lambda s: -1.0)))
    assert readout(browser, "noisy") == "last 10min 0.1max 1021 not finite"
    assert coloured(browser, "noisy", BLUE, 0.42, 0.57) == 0
    assert coloured(browser, "noisy", BLUE, 0.1, 0.25) > 100
    before = coloured(browser, "noisy", BLUE, 0.1, 0.25)
    choose(browser, "smooth", "0.95")
    hover(browser, "noisy", 0.3)
    smooth = float(readout(browser, "noisy").partition("≈ ")[2])
    assert 4 < smooth < 6  # the mean of 10 and 0.1 is 5.05
    assert coloured(browser, "noisy", BLUE, 0.1, 0.25) < before / 2  # one calm line; what is behind it is faint
    choose(browser, "smooth", "0")
    browser.run("document.getElementById('log').click()")
    browser.mouse("mouseMoved", 1, 1)
    browser.frames()
    assert readout(browser, "negative").endswith("no positive values: linear")
    assert coloured(browser, "noisy", BLUE, 0.1, 0.25) > 100


def test_a_metric_that_is_never_finite_and_one_of_one_record(tmp_path, opened):
    rows = rows_of(20, nothing=lambda s: None)
    rows[9]["once"] = 3.0
    browser = opened(written(tmp_path / "run", rows))
    assert "No value is finite." in browser.run(f"return {chart('nothing')}.textContent")
    browser.frames()
    assert readout(browser, "once") == "last 3min 3max 3"
    assert coloured(browser, "once", BLUE, 0.4, 0.55) > 10
    assert coloured(browser, "once", BLUE, 0.6, 1.0) == 0


def test_a_hundred_thousand_points(tmp_path, opened):
    values = lambda s: None if 50_000 <= s < 55_000 else 7.0 if s == 77_777 else math.sin(s / 3) / 10  # noqa: E731
    rows = [{**row, "epoch": row["step"] // 1000} for row in rows_of(100_000, **{f"m/{i}": values for i in range(5)})]
    browser = opened(written(tmp_path / "run", rows, resumed=[{"step": 30_000}]))
    assert (tmp_path / "page-0.html").stat().st_size < 5_000_000
    assert readout(browser, "m/0").endswith("min -0.1max 75000 not finite")
    assert coloured(browser, "m/0", BLUE, 0.51, 0.54) == 0  # the gap
    assert coloured(browser, "m/0", BLUE, 0.774, 0.782, 0.1, 0.8, alpha=40) > 30  # the one of 100,000 values that stands out
    assert coloured(browser, "m/0", BLUE, 0.8, 0.95, 0.1, 0.8, alpha=40) == 0
    assert "too many points" in browser.run("return document.getElementById('how').textContent")


def test_twenty_runs(tmp_path, opened):
    for i in range(20):
        outcome = "failed" if i == 3 else "completed"
        settings = {"seed": i, "device": "cpu"}
        written(
            tmp_path / f"runs/run-{i:02d}",
            rows_of(200, **{"train/loss": lambda s, i=i: i + 1 / s}),
            status=outcome,
            settings=settings,
            host="h",
        )
    browser = opened(tmp_path / "runs")
    lines = browser.run(
        "return [...document.querySelectorAll('.chip line')].map((one) => getComputedStyle(one).stroke + one.getAttribute('stroke-dasharray'))"
    )
    assert len(set(lines)) == 20
    hover(browser, "train/loss", 0.5)
    tip = browser.run(f"return [...{chart('train/loss')}.querySelectorAll('.tip div')].map((one) => one.textContent)")
    assert len(tip) == 21
    assert [line[:6] for line in tip[1:4]] == ["run-19", "run-18", "run-17"]  # the highest first
    assert readout(browser, "train/loss").startswith("step 10")
    browser.run("document.querySelectorAll('.chip')[19].click()")
    assert coloured(browser, "train/loss", BLUE, 0.3, 0.6) > 0  # the first run
    browser.run(
        "document.querySelectorAll('.chip')[0].click(); document.querySelectorAll('.chip')[7].click(); document.querySelectorAll('.chip')[14].click()"
    )
    assert coloured(browser, "train/loss", BLUE, 0.3, 0.6) == 0  # all three that have its colour are hidden
    assert browser.run("return document.querySelectorAll('.chip[aria-pressed=false]').length") == 4
    first = browser.run("return [...document.querySelectorAll('#configuration tr.differs th')].map((one) => one.textContent)")
    assert first == ["seed"]
    assert "All: h" in browser.run("return document.getElementById('runs').textContent")
    browser.run(
        "document.querySelectorAll('.chip').forEach((chip) => chip.getAttribute('aria-pressed') === 'true' && chip.click())"
    )
    assert "Nothing to draw" in browser.run(f"return {chart('train/loss')}.textContent")


def test_dark_and_light(tmp_path, opened):
    browser = opened(written(tmp_path / "run", rows_of(50, a=float)), dark=True)
    colours = "return [getComputedStyle(document.body).backgroundColor, document.getElementById('theme-name').textContent]"
    assert browser.run(colours) == ["rgb(14, 16, 19)", "dark"]
    assert coloured(browser, "a", DARK_BLUE, 0, 1) > 100
    browser.theme(dark=False)
    browser.wait("document.getElementById('theme-name').textContent === 'light'")
    browser.run("document.getElementById('theme').click()")
    assert browser.run(colours) == ["rgb(14, 16, 19)", "dark"]
    browser.run("document.getElementById('theme').click()")
    assert browser.run(colours) == ["rgb(246, 247, 249)", "light"]
    assert coloured(browser, "a", BLUE, 0, 1) > 100


@pytest.mark.parametrize("width", [320, 390, 768, 1920])
def test_every_width(tmp_path, opened, width):
    """The fixture looks whether the page is wider than its window."""
    for i in range(3):
        plugins = [{"name": "long", "distribution": "d", "version": "1", "options": {"value": f"{i}" * 300}}]
        written(
            tmp_path / f"runs/{i}-{'x' * 80}",
            rows_of(30, **{f"train/{'y' * 90}": float, "lr": float}),
            plugins=plugins,
            host="h" * 60,
        )
    browser = opened(tmp_path / "runs", width=width)
    widths = browser.run(
        "return [...document.querySelectorAll('.plot canvas')].map((one) => one.getBoundingClientRect().right <= innerWidth)"
    )
    assert widths
    assert all(widths)


def test_the_keyboard(tmp_path, opened):
    browser = opened(written(tmp_path / "run", rows_of(101, a=float)))
    area(browser, "a")
    browser.run(f"{chart('a')}.querySelector('.plot').focus()")
    browser.keys("ArrowRight")
    browser.wait("document.getElementById('said').textContent.startsWith('a, step 5')")
    browser.keys("Home")
    browser.wait("document.getElementById('said').textContent === 'a, step 1: run 1'")
    browser.keys("+")
    browser.wait("!document.getElementById('reset').disabled")
    browser.keys("Escape")
    browser.wait("document.getElementById('reset').disabled")
    unnamed = browser.run(
        "return [...document.querySelectorAll('button, select, input, [tabindex]')].filter((one) =>"
        " !(one.getAttribute('aria-label') || one.textContent.trim() || one.closest('label'))).length"
    )
    assert unnamed == 0
    label = browser.run(f"return {chart('a')}.querySelector('.plot').getAttribute('aria-label')")
    assert label == "Curve of a. run: last 101, lowest 1, highest 101"


def test_find_and_enlarge(tmp_path, opened):
    browser = opened(written(tmp_path / "run", rows_of(20, **{"train/loss": float, "val/loss": float, "lr": float})))
    choose(browser, "find", "VAL")
    visible = "return [...document.querySelectorAll('.card')].filter((one) => one.offsetParent).map((one) => one.querySelector('h4').textContent)"
    assert browser.run(visible) == ["val/loss"]
    choose(browser, "find", "")
    small = area(browser, "lr")
    browser.run(f"{chart('lr')}.querySelector('button').click()")
    browser.frames()
    large = area(browser, "lr")
    assert large[2] > small[2]
    assert large[3] > 1.5 * small[3]


def test_images_of_the_run_store(tmp_path, opened):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = (b"\0" + bytes(3 * 5)) * 4
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 4, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(pixels))
        + chunk(b"IEND", b"")
    )
    folder = written(tmp_path / "run", rows_of(3, a=float))
    (folder / "media").mkdir()
    (folder / "media/1.png").write_bytes(png)
    items = [
        {"kind": "image", "name": "samples", "step": 2, "file": "media/1.png"},
        {"kind": "histogram", "name": "weights", "step": 2, "counts": [1, 4], "edges": [0, 1, 2]},
    ]
    (folder / "media.jsonl").write_text("".join(json.dumps(one) + "\n" for one in items))
    browser = opened(folder)
    browser.run("document.getElementById('media').scrollIntoView()")
    browser.wait("document.querySelector('#media img').complete")
    assert browser.run("const i = document.querySelector('#media img'); return [i.naturalWidth, i.naturalHeight, i.alt]") == [
        5,
        4,
        "samples at step 2",
    ]
    assert browser.run("return [...document.querySelectorAll('.bars i')].map((one) => one.style.height)") == ["25%", "100%"]


BOXES = "return [...document.querySelectorAll(arguments[0])].map((one) => { const r = one.getBoundingClientRect(); return [Math.round(r.left), Math.round(r.top), Math.round(r.right)]; })"


@pytest.mark.parametrize("metrics", [1, 3, 4, 5, 7])
@pytest.mark.parametrize("width", [500, 1000, 1280, 1900])
def test_rows_of_charts_are_full(tmp_path, opened, metrics, width):
    """A group of one chart stands beside another such group; whatever their number, the last row reaches to the right."""
    values = {f"{group}/loss": float for group in ("train", "val", "test")} | {f"many/{n}": float for n in range(metrics)}
    browser = opened(written(tmp_path / "run", rows_of(4, **values)), width=width)
    left, _, right = browser.run(BOXES, "#groups")[0]
    for selector in (".single .card", ".group:not(.single) .card"):
        rows = {}
        for begin, top, end in browser.run(BOXES, selector):
            rows.setdefault(top, []).append((begin, end))
        for row in rows.values():
            assert (row[0][0], row[-1][1]) == (pytest.approx(left, abs=2), pytest.approx(right, abs=2))
        assert max((len(row) for row in rows.values()), default=0) - min((len(row) for row in rows.values()), default=0) <= 2
    assert browser.run("return document.querySelectorAll('.single').length") == (4 if metrics == 1 else 3)
    browser.run("const b = document.querySelector('.card button'); b.click(); b.scrollIntoView()")
    assert browser.run(BOXES, ".card.wide")[0][::2] == [pytest.approx(left, abs=2), pytest.approx(right, abs=2)]


def test_what_runs_have_of_one_name_stands_side_by_side(tmp_path, opened):
    """The newest of each run first; one that a run does not have leaves its place free."""
    for run, steps in (("a", (1, 2)), ("b", (2,)), ("c", (1, 2))):
        folder = written(tmp_path / "runs" / run, rows_of(3, loss=float))
        items = [{"kind": "histogram", "name": "weights", "step": step, "counts": [1], "edges": [0, 1]} for step in steps]
        (folder / "media.jsonl").write_text("".join(json.dumps(one) + "\n" for one in items))
    browser = opened(tmp_path / "runs")
    captions = browser.run("return [...document.querySelectorAll('#media figcaption')].map((one) => one.textContent.trim())")
    assert captions == ["a, step 2", "b, step 2", "c, step 2", "a, step 1", "c, step 1"]
    (a, b, c, old_a, old_c) = browser.run(BOXES, "#media figure")
    assert a[1] == b[1] == c[1] < old_a[1] == old_c[1]
    assert a[0] == old_a[0] < b[0] < c[0] == old_c[0]
    assert browser.run("return [...document.querySelectorAll('#media h3')].map((one) => one.textContent)") == ["weights"]


def test_a_missing_browser_is_a_failure_that_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium chromium-driver"):
        report_browser.Browser(tmp_path)
