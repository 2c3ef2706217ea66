"""``console``: what is printed, when, and that nothing tears it on a terminal."""

import io
import math
import os
import pty
import re
import subprocess
import sys
import textwrap

import pytest

from trainhooks import OptionError, Record, RunInfo
from trainhooks_builtins import Console

RUN = RunInfo("mine", total_steps=100)


def record(step, time=None, **values):
    return Record(step, step, 0, 1000.0 + (step if time is None else time), {"train/loss": 1.0 / step, **values})


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def out(monkeypatch):
    """Return a function that puts another stream in the place of stdout, with ``TERM`` of a usual terminal."""
    for name in ("NO_COLOR", "CI", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")

    def put(stream):
        monkeypatch.setattr(sys, "stdout", stream)
        return stream

    return put


def shown(text):
    """Return the steps of the lines."""
    return [int(step) for step in re.findall(r"^step (\d+)/100", text, flags=re.MULTILINE)]


class TestLines:
    def test_what_a_line_says(self, out):
        """The median of 1, 1/2 and 1/3 is 1/2, their mean 11/18."""
        text = out(io.StringIO())
        console = Console(every_s=0)
        console.report_metrics(RUN, [record(1), record(2, lr=0.1), record(3, **{"val/loss": math.nan})])
        assert text.getvalue().splitlines() == [
            "step 1/100  epoch 1  train/loss 1",
            "step 2/100  epoch 1  train/loss 0.5 (median 0.75, mean 0.75)  lr 0.1",
            "step 3/100  epoch 1  train/loss 0.3333 (median 0.5, mean 0.6111)  val/loss nan",
        ]

    def test_a_clock_that_is_put_back_does_not_silence_it(self, out):
        text = out(io.StringIO())
        console = Console(every_s=10)
        console.report_metrics(RUN, [record(1, time=1000), record(2, time=1011), record(3, time=400), record(4, time=405)])
        assert shown(text.getvalue()) == [1, 2, 3]

    def test_the_window_and_what_is_not_finite(self, out):
        """Of 10, inf, 2, 4 a window of 3 has 2 and 4."""
        text = out(io.StringIO())
        console = Console(every_s=0, window=3, metrics=("a",))
        console.report_metrics(RUN, [record(n, a=value) for n, value in enumerate((10.0, math.inf, 2.0, 4.0), 1)])
        assert text.getvalue().splitlines()[-1] == "step 4/100  epoch 1  a 4 (median 3, mean 3)"

    def test_a_run(self, make_trainer, capsys):
        """Weights 0, -1, ... are the losses; one line for each flush, the last one says how it ended."""
        make_trainer([Console(every_s=0)], max_steps=4, log_every_steps=2, work_dir=None).train()
        assert capsys.readouterr().out.splitlines() == [
            "step 2/4  epoch 1  train/loss -0.5",
            "step 4/4  epoch 1  train/loss -2.5 (median -1.5, mean -1.5)",
        ]

    def test_the_running_epoch_is_counted_from_1(self, make_trainer, capsys):
        """As ``progress`` does; a record counts those that are done, the last one all of them."""
        make_trainer([Console(every_s=0)], values=(1.0,) * 2, max_epochs=2, log_every_steps=1).train()
        make_trainer([Console(every_s=0)], max_steps=4, steps_per_epoch=2, log_every_steps=1).train()
        titles = [line.split("  ")[:2] for line in capsys.readouterr().out.splitlines()]
        epochs = [["step 1/4", "epoch 1"], ["step 2/4", "epoch 1"], ["step 3/4", "epoch 2"], ["step 4/4", "epoch 2"]]
        assert titles == [[step, f"{epoch}/2"] for step, epoch in epochs] + epochs

    def test_resumed_the_window_begins_anew(self, out):
        text = out(io.StringIO())
        console = Console(every_s=0)
        console.report_metrics(RUN, [record(1), record(2)])
        console.report_start()
        console.report_metrics(RUN, [record(2)])
        assert text.getvalue().splitlines()[-1] == "step 2/100  epoch 1  train/loss 0.5"

    def test_what_has_no_new_value_is_left_out(self, out):
        text = out(io.StringIO())
        console = Console(every_s=0)
        console.report_metrics(RUN, [record(1, **{"val/acc": 0.5})])
        console.report_metrics(RUN, [record(2)])
        assert "val/acc 0.5" in text.getvalue().splitlines()[0]
        assert "val/acc" not in text.getvalue().splitlines()[1]

    def test_many_metrics(self, out):
        text = out(io.StringIO())
        values = {"time/step": 0.1, **{f"layer/{number}": 1.0 for number in range(30)}, "lr": 0.1, "val/acc": 0.5}
        Console(every_s=0).report_metrics(RUN, [record(1, **values)])
        line = text.getvalue()
        assert line.startswith("step 1/100  epoch 1  train/loss 1  val/acc 0.5  lr 0.1  layer/0 1")
        assert line.endswith("  and 26 more\n")  # 34 less 8
        Console(every_s=0, metrics=("layer/*", "train/loss")).report_metrics(RUN, [record(1, **values)])
        assert text.getvalue().splitlines()[1].count("layer/") == 30

    @pytest.mark.parametrize("name", ["\x1b[31mred", "car\rriage", "new\nline", "nul\0", "\x07bell", "half \ud800", "x" * 500])
    @pytest.mark.parametrize("style", ["lines", "table"])
    def test_names_that_would_control_a_terminal(self, out, name, style):
        text = out(io.StringIO())
        Console(every_s=0, style=style).report_metrics(RUN, [record(1, **{name: 1.0})])
        assert all(character.isprintable() or character == "\n" for character in text.getvalue())
        assert text.getvalue().count("\n") == (1 if style == "lines" else 7)
        assert max(map(len, text.getvalue().splitlines())) <= 150


class TestInterval:
    def test_seconds_are_those_of_the_records(self, out):
        """All in one delivery, as after a while without a server: 0, 10, 20 s."""
        text = out(io.StringIO())
        Console().report_metrics(RUN, [record(step) for step in range(1, 26)])
        assert shown(text.getvalue()) == [1, 11, 21]

    def test_steps(self, out):
        text = out(io.StringIO())
        Console(every_s=0, every_steps=20).report_metrics(RUN, [record(step) for step in range(1, 60)])
        assert shown(text.getvalue()) == [1, 21, 41]

    def test_both_must_have_passed(self, out):
        text = out(io.StringIO())
        Console(every_s=30, every_steps=20).report_metrics(RUN, [record(step) for step in range(1, 70)])
        assert shown(text.getvalue()) == [1, 31, 61]

    def test_the_end_shows_what_was_not_shown(self, out):
        text = out(io.StringIO())
        console = Console()
        console.report_metrics(RUN, [record(step) for step in range(1, 6)])
        console.report_end(RUN)
        assert shown(text.getvalue()) == [1, 5]

    def test_the_end_shows_nothing_twice(self, out):
        text = out(io.StringIO())
        console = Console()
        console.report_metrics(RUN, [record(1)])
        console.report_end(RUN)
        assert text.getvalue() == "step 1/100  epoch 1  train/loss 1\n"

    @pytest.mark.parametrize("options", [{"every_s": -1.0}, {"every_steps": -1}, {"window": 0}, {"every_s": math.nan}])
    def test_wrong_options(self, options):
        with pytest.raises(OptionError, match="must be 0 or more, window 1 or more"):
            Console(**options)
        with pytest.raises(OptionError, match="style = 'html': must be one of auto, table, lines"):
            Console(style="html")


class TestTable:
    def test_on_a_terminal(self, out):
        text = out(Terminal())
        Console(every_s=0).report_metrics(RUN, [record(1), record(2, lr=0.1)])
        plain = re.sub(r"\x1b\[[\d;]*m", "", text.getvalue())
        assert [line.rstrip() for line in plain.splitlines()] == [
            "step 2/100  epoch 1",
            "╭────────────┬────────┬────────┬──────╮",
            "│ metric     │ latest │ median │ mean │",
            "├────────────┼────────┼────────┼──────┤",
            "│ train/loss │    0.5 │   0.75 │ 0.75 │",
            "│ lr         │    0.1 │    0.1 │  0.1 │",
            "╰────────────┴────────┴────────┴──────╯",
        ]
        assert "\x1b[" in text.getvalue()
        assert "\r" not in text.getvalue()

    def test_markup_is_no_markup(self, out):
        text = out(Terminal())
        Console(every_s=0).report_metrics(RUN, [record(1, **{"[bold]x[/bold] :smile:": 1.0})])
        assert "[bold]x[/bold] :smile:" in text.getvalue()

    def test_no_color_has_no_control_characters(self, out, monkeypatch):
        monkeypatch.setenv("NO_COLOR", "1")
        text = out(Terminal())
        Console(every_s=0).report_metrics(RUN, [record(1)])
        assert "│ train/loss │      1 │      1 │    1 │" in text.getvalue()
        assert "\x1b" not in text.getvalue()

    @pytest.mark.parametrize("variable", [("TERM", "dumb"), ("TERM", "unknown"), ("CI", "true")], ids=lambda pair: pair[1])
    def test_terminals_that_get_lines(self, out, monkeypatch, variable):
        monkeypatch.setenv(*variable)
        text = out(Terminal())
        Console(every_s=0).report_metrics(RUN, [record(1)])
        assert text.getvalue() == "step 1/100  epoch 1  train/loss 1\n"

    @pytest.mark.parametrize("variable", [("FORCE_COLOR", "1"), ("PY_COLORS", "1"), ("TTY_COMPATIBLE", "1")])
    def test_a_file_never_gets_control_characters(self, out, monkeypatch, variable):
        monkeypatch.setenv(*variable)
        text = out(io.StringIO())
        Console(every_s=0, style="table").report_metrics(RUN, [record(1)])
        assert "train/loss │" in text.getvalue()
        assert "\x1b" not in text.getvalue()

    def test_a_terminal_without_unicode(self, out):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="ascii", newline="")
        out(stream)
        Console(every_s=0, style="table").report_metrics(RUN, [record(1, größe=1.0)])
        written = raw.getvalue().decode("ascii")
        assert "| train/loss |" in written
        assert "gr\\xf6\\xdfe" in written

    def test_a_long_table(self, out):
        text = out(Terminal())
        Console(every_s=0).report_metrics(RUN, [record(1, **{f"layer/{number}": 1.0 for number in range(100)})])
        assert text.getvalue().count("layer/") == 39
        assert "and 61 more" in text.getvalue()


class TestStdout:
    def test_a_pipe_whose_reader_has_gone(self, out, messages):
        class Broken(io.StringIO):
            def write(self, text):
                raise BrokenPipeError(32, "Broken pipe")

        out(Broken())
        console = Console(every_s=0)
        console.report_metrics(RUN, [record(1)])
        console.report_metrics(RUN, [record(2)])
        console.report_end(RUN)
        (told,) = [message for message in messages() if message.startswith("console")]
        assert told == "console: stdout takes nothing more ([Errno 32] Broken pipe); nothing more is printed"

    def test_it_is_closed(self, out, messages):
        out(io.StringIO()).close()
        Console(every_s=0).report_metrics(RUN, [record(1)])
        assert any(message.startswith("console: stdout takes nothing more") for message in messages())

    def test_there_is_none(self, out):
        """As with pythonw."""
        out(None)
        console = Console(every_s=0)
        console.report_metrics(RUN, [record(1)])
        console.report_end(RUN)


class Screen:
    """What a terminal shows, scrolled lines included, of the few control sequences that rich uses."""

    def __init__(self, width):
        self.width, self.lines, self.row, self.column = width, [""], 0, 0

    def feed(self, text):
        for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.row, self.column = self.row + 1, 0  # the line discipline adds the carriage return
            elif part.startswith("\x1b["):
                self._control(part[2:-1], part[-1])
            else:
                self._write(part)
            while len(self.lines) <= self.row:
                self.lines.append("")

    def _control(self, argument, kind):
        number = int(argument or 1) if argument.isdigit() or not argument else 0
        if kind == "A":
            self.row = max(self.row - number, 0)
        elif kind == "K":
            self.lines[self.row] = "" if number == 2 else self.lines[self.row][: self.column]
        else:
            assert kind in "mhl", (argument, kind)  # colours, and whether the cursor is shown

    def _write(self, text):
        for character in text:
            if self.column >= self.width:
                self.row, self.column = self.row + 1, 0
                self.lines.append("")
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1


SCRIPT = """
    import time
    import torch
    from trainhooks import Trainer, hookimpl, lane
    from trainhooks_builtins import Console, Progress

    lane._GATHER_S = 0.01  # so that there are many tables

    class Takes:
        @hookimpl
        def after_step(self, trainer):
            print(f"step {trainer.step + 1}\\n", end="", flush=True)  # at once: print writes words and line ends one by one
            time.sleep(0.03)

    model = torch.nn.Linear(1, 1)
    Trainer(
        model,
        loss=torch.nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loaders={"train": [(torch.ones(2, 1), torch.ones(2, 1))] * 60},
        max_epochs=1,
        log_every_steps=5,
        plugins=[Console(every_s=0), Progress(), Takes()],
        autoload=False,
    ).train()
"""


@pytest.mark.slow
def test_with_the_bar_of_progress_on_one_terminal(tmp_path):
    """Table, bar and the script's own lines come from three threads; each table is whole, and there is one bar at the end."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    ours, theirs = pty.openpty()
    gone = ("NO_COLOR", "CI", "FORCE_COLOR", "PYTEST_CURRENT_TEST")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, script], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=tmp_path
    )
    os.close(theirs)
    written = b""
    try:
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux says so that the other side is closed
                break
            if not part:
                break
            written += part
    finally:
        os.close(ours)
        process.wait(60)
    assert process.returncode == 0, written.decode()
    assert written.count(b"\x1b[2K") > 3  # a bar was drawn, again and again
    screen = Screen(100)
    screen.feed(written.decode().replace("\r\n", "\n"))
    lines = [line.rstrip() for line in screen.lines]
    tops = [number for number, line in enumerate(lines) if line.startswith("╭──")]
    assert len(tops) >= 3
    for top in tops:  # title, frame and row in one piece
        assert re.fullmatch(r"step \d+/60  epoch 1/1", lines[top - 1])
        assert re.fullmatch(r"│ train/loss │ +\S+ │ +\S+ │ +\S+ │", lines[top + 3])
        assert lines[top + 4].startswith("╰──")
        assert len({len(line) for line in lines[top : top + 5]}) == 1
    assert [line for line in lines if re.fullmatch(r"step \d+", line)] == [f"step {step}" for step in range(1, 61)]
    assert len([line for line in lines if "60/60" in line and "━" in line]) == 1
    assert not any("━" in line and "60/60" not in line for line in lines)
