"""What ``progress`` draws, on a terminal of the test's own, which shows what a real one would; and on a real one.

Hooks wait until the screen shows what it should, so no test depends on how long anything takes.
"""

import fcntl
import io
import logging
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest
from rich.console import Console

from trainhooks import hookimpl
from trainhooks_builtins import Checkpoint, Evaluation, Progress, Timer
from trainhooks_builtins._progress_activity import Activity
from trainhooks_builtins._progress_screen import Screen
from trainhooks_builtins._progress_view import View, bar

LONG_S = 120.0


class Terminal(io.StringIO):
    """A terminal that understands what rich writes: lines, carriage return, cursor up, erase line, cursor off and on."""

    encoding = "utf-8"

    def __init__(self):
        super().__init__()
        self.lines, self.row, self.column = [""], 0, 0
        self.cursor = True
        self._lock = threading.Lock()

    def isatty(self):
        return True

    def write(self, text):
        with self._lock:
            super().write(text)
            for part in re.split(r"(\x1b\[[0-9;?]*[a-zA-Z]|[\r\n])", text):
                self._show(part)
        return len(text)

    def _show(self, part):
        if part == "\n":
            self.row, self.column = self.row + 1, 0
            if self.row == len(self.lines):
                self.lines.append("")
        elif part == "\r":
            self.column = 0
        elif part.startswith("\x1b["):
            if part.endswith("A"):
                self.row -= int(part[2:-1] or 1)
                assert self.row >= 0, "moved above the first line"
            elif part == "\x1b[2K":
                self.lines[self.row] = ""
            elif part in ("\x1b[?25l", "\x1b[?25h"):
                self.cursor = part.endswith("h")
            else:
                assert part.endswith("m"), f"unknown to this terminal: {part!r}"
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + part + line[self.column + len(part) :]
            self.column += len(part)

    @property
    def text(self):
        return "\n".join(line.rstrip() for line in self.lines)

    def wait_for(self, pattern):
        """Wait until the screen has a line like this."""
        until = time.monotonic() + LONG_S
        while not re.search(pattern, self.text, re.MULTILINE):
            assert time.monotonic() < until, f"{pattern} was never shown:\n{self.text}"
            time.sleep(0.01)


@pytest.fixture
def screen(monkeypatch):
    """Return the terminal of this test; ``make_trainer`` installs it, since pytest has its own streams until the test begins."""
    for name in ("NO_COLOR", "FORCE_COLOR", "CI", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    yield Terminal()
    assert not [one for one in threading.enumerate() if one.name == "trainhooks-progress"]


@pytest.fixture
def make_trainer(make_trainer, request, monkeypatch):
    terminal = request.getfixturevalue("screen") if "screen" in request.fixturenames else None

    def make(plugins, *, stderr=None, **arguments):
        if terminal is not None and not made:
            monkeypatch.setattr(sys, "stdout", terminal)
            monkeypatch.setattr(sys, "stderr", stderr or terminal)
        trainer = make_trainer(plugins, **arguments)
        if not made and terminal is not None:
            train = trainer.train

            def train_and_look(**limits):
                try:
                    return train(**limits)
                finally:
                    assert sys.stdout is terminal, "the streams were not given back"
                    assert sys.stderr is (stderr or terminal)

            trainer.train = train_and_look
        made.append(trainer)
        return trainer

    made = []
    return make


def hook(name, work):
    """Return a plugin that does ``work`` in one hook."""

    class Does:
        def __init__(self):
            setattr(self, name, hookimpl(specname=name)(work))

    return Does()


# --- What is being waited for ---


def shows(screen, name, pattern, *, at=1):
    """Return a plugin that stays in a hook until the screen shows a line like ``pattern``; the ``at``-th time."""
    calls = []

    def stay():
        calls.append(name)
        if len(calls) == at:
            screen.wait_for(pattern)

    return hook(name, lambda: stay())


@pytest.mark.parametrize("style", ["live", "bar"])
def test_waiting_for_data(make_trainer, screen, style):
    class Loader:
        def __init__(self, batches):
            self.batches = batches

        def __iter__(self):
            for number, batch in enumerate(self.batches):
                if number == 3:
                    screen.wait_for(r"waiting for data \([1-9]\d*\.\d s\)")
                    screen.wait_for(r"step 3|\b3/")
                yield batch

    trainer = make_trainer([Progress(style=style)], max_steps=5)
    trainer.loaders["train"] = Loader(trainer.loaders["train"])
    trainer.train()
    assert "waiting" not in screen.text
    assert "completed (max_steps=5 reached) at step 5/5" in screen.text


@pytest.mark.parametrize("style", ["live", "bar"])
def test_evaluating(make_trainer, screen, style):
    plugins = [Progress(style=style), Evaluation(), shows(screen, "after_eval_step", r"evaluating val, batch 2/3 \(", at=2)]
    make_trainer(plugins, val=(1.0, 2.0, 3.0), max_steps=2).train()


def test_waiting_for_data_of_an_evaluation(make_trainer, screen):
    class Loader:
        def __init__(self, batches):
            self.batches = batches

        def __iter__(self):
            yield self.batches[0]
            screen.wait_for(r"evaluating val, batch 2: waiting for data \([1-9]")
            yield self.batches[0]

    trainer = make_trainer([Progress(style="live"), Evaluation()], val=(1.0,), max_steps=2)
    trainer.loaders["val"] = Loader(trainer.loaders["val"])
    trainer.train()


def test_saving(make_trainer, screen, tmp_path):
    plugins = [Progress(style="live"), Checkpoint(), shows(screen, "on_save", r"saving a checkpoint \([1-9]")]
    make_trainer(plugins, max_steps=2, work_dir=tmp_path / "run").train()


def test_a_checkpoint_that_is_written_in_the_background(make_trainer, screen, tmp_path):
    written = threading.Event()

    class Slow:
        """Writes in the background, until the screen has said so."""

        name = "checkpoint"

        @hookimpl
        def save_checkpoint(self, path):
            from concurrent.futures import ThreadPoolExecutor

            self.pool = ThreadPoolExecutor(1)

            def work():
                assert written.wait(LONG_S)
                return path

            return self.pool.submit(work)

        @hookimpl
        def teardown(self):
            self.pool.shutdown()

    def after_step(trainer):
        if trainer.step == 0:
            trainer.request_checkpoint()
        if trainer.step == 2:
            screen.wait_for("a checkpoint is being written in the background")
            threading.Thread(
                target=lambda: (screen.wait_for("waiting for the checkpoint that is being"), written.set())
            ).start()

    trainer = make_trainer([Progress(style="live"), Slow(), hook("after_step", after_step)], max_steps=4, work_dir=tmp_path)
    trainer.train()
    assert written.is_set()


def test_a_hook_that_takes_long_is_named(make_trainer, screen):
    class Slow:
        @hookimpl
        def after_step(self, trainer):
            if trainer.step == 1:
                screen.wait_for(r"after_step\(\) of 'slow' \([1-9]")

    make_trainer([Progress(style="live"), Slow()], max_steps=3).train()


def test_reporters_at_the_end(make_trainer, screen):
    class Tracker:
        on_error = "disable"

        @hookimpl
        def report_metrics(self):
            screen.wait_for(r"waiting for reporters: tracker \(report_metrics, \d+ left\)")

    make_trainer([Progress(style="live"), Tracker()], max_steps=3).train()
    assert screen.text.rstrip().endswith("completed (max_steps=3 reached) at step 3/3")


def test_an_interruption_is_said(make_trainer, screen):
    def after_step(trainer):
        if trainer.step == 1:
            trainer.interrupt(KeyboardInterrupt(), "Ctrl-C")
            screen.wait_for("ending: Ctrl-C")

    with pytest.raises(KeyboardInterrupt):
        make_trainer([Progress(style="live"), hook("after_step", after_step)]).train()
    assert screen.cursor
    assert screen.text.rstrip().endswith("interrupted (Ctrl-C) at step 2/10")


def test_nothing_is_drawn_while_somebody_debugs(make_trainer, screen):
    """A function of the module pdb is on the stack: the prompt would be drawn over."""
    namespace, seen = {"__name__": "pdb"}, []
    exec("def prompt(wait):\n    wait()\n", namespace)

    def after_step(trainer):
        if trainer.step != 1:
            return
        activity = Activity(threading.get_ident())

        def look():
            seen.append(activity.look(trainer, 0.0))

        def wait():
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()

        wait()
        namespace["prompt"](wait)

    make_trainer([Progress(style="live"), hook("after_step", after_step)], max_steps=3).train()
    assert seen[0] is not None
    assert seen[1] is None


def test_what_is_there_stays_where_there_is_nothing_to_draw(make_trainer, screen):
    make_trainer([], max_steps=1)  # installs the terminal
    drawn = []
    bar = Screen(lambda console: drawn.append(1) or None, notebook=False, every_s=0.01)
    bar.start()
    until = time.monotonic() + LONG_S
    while len(drawn) < 5:
        assert time.monotonic() < until
        time.sleep(0.01)
    bar.close()
    assert screen.text.strip() == ""
    assert screen.cursor


# --- The bar ---

ITEMS = ["100/400", "25%", "0:00:39 left", "12.9 steps/s", "train/loss 0.2534", "epoch 2/4", "val/loss 0.1235"]


@pytest.mark.parametrize(("width", "shown"), [(20, 2), (30, 2), (40, 3), (60, 4), (80, 5), (90, 6), (100, 6), (120, 7)])
def test_what_a_narrow_terminal_leaves_out(width, shown):
    """Whole items, from the right."""
    view = View("run", 100, 400, ["epoch 2/4"], ["0:00:39 left"], ["12.9 steps/s", "99 samples/s"])
    assert re.split("  +", drawn(view, ["train/loss 0.2534", "val/loss 0.1235"], width)) == ITEMS[:shown]


def test_what_is_being_waited_for_takes_the_place_of_the_speed():
    view = View("run", 100, 400, ["epoch 2/4"], ["0:00:39 left"], ["12.9 steps/s"], activity="after_step() of 'plugin' (1.4 s)")
    after = {
        60: "0:00:39 left  after_step() of 'pl…",
        80: "0:00:39 left  after_step() of 'plugin' (1.4 s)",
        100: "0:00:39 left  12.9 steps/s  after_step() of 'plugin' (1.4 s)",
        120: "0:00:39 left  12.9 steps/s  after_step() of 'plugin' (1.4 s)  train/loss 1  epoch 2/4",
    }
    assert {width: drawn(view, ["train/loss 1"], width) for width in after} == {
        width: f"100/400   25%  {text}" for width, text in after.items()
    }


def test_the_share_is_full_when_all_is_done():
    for step, share in ((0, "  0%"), (9, "  0%"), (999, " 99%"), (1000, "100%"), (1001, "100%")):
        assert drawn(View("run", step, 1000, [], [], []), [], 80).endswith(f"/1000  {share}")
    assert drawn(View("run", 7, None, [], [], []), [], 80) == "7/?"
    assert drawn(View("run", 0, 0, [], [], []), [], 80) == "0/0  100%"


def drawn(view, metrics, width):
    """Return what stands behind the bar; three columns are free."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(bar(view, metrics, console), end="")
    line = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).rstrip()
    assert len(line) <= width - 3
    return line.lstrip("━╸╺ ")


# --- The panel ---


def test_the_panel(make_trainer, screen, tmp_path):
    """Steps with the losses 0, -1, -2, -3 are flushed one by one; evaluations measure -4 at step 2 and -8 at step 4."""

    class Final:
        after = ("evaluation",)

        @hookimpl
        def after_eval(self, trainer):
            if trainer.step == 4:
                screen.wait_for(r"val/loss +-4 ")

    plugins = [Progress(style="live"), Timer(), Evaluation(every_steps=2), Final(), hook("report_metrics", lambda: None)]
    arguments = {"val": (2.0,), "max_epochs": 2, "steps_per_epoch": 2, "log_every_steps": 1, "name": "my run"}
    make_trainer(plugins, **arguments).train()
    text = screen.text
    assert "─ my run ─" in text
    assert re.search(r"^│ step 4/4  epoch 2/2 +│$", text, re.MULTILINE)
    assert re.search(r"^│ 0:00:00 left  \S+ steps/s +│$", text, re.MULTILINE)
    rows = {line.split()[1]: line.strip("│ ").split()[1:] for line in text.splitlines() if re.match(r"│ (train|val)/", line)}
    assert rows == {"train/loss": ["-3", "-1.5"], "val/loss": ["-8", "-6", "-8", "at", "step", "4"]}
    assert re.search(r"time  step \d+%  data \d+%  evaluate \d+%", text)
    assert text.count("╭") == text.count("╰") == 1  # nothing stale is left
    assert screen.cursor
    assert screen.text.rstrip().endswith("completed (max_epochs=2 reached) at step 4/4")


def test_best_of_the_runs_before(make_trainer, screen, tmp_path):
    """The best value of a resumed run may be one of before; which step that was is not known any more."""
    arguments = {"val": (2.0,), "work_dir": tmp_path / "run"}
    make_trainer([Checkpoint(), Evaluation()], **arguments, max_steps=4).train()  # -8 is best
    worse = {**arguments, "val": (1.0,)}
    trainer = make_trainer([Progress(style="live"), Checkpoint(), Evaluation()], **worse, max_steps=5)
    trainer.train(resume="auto")  # -5
    assert re.search(r"│ val/loss +-5 +-6.5 +-8 +│", screen.text)


@pytest.mark.parametrize("columns", ["0", "1", "5", "20", "39", "300"])
@pytest.mark.parametrize("lines", ["0", "1", "5", "12"])
@pytest.mark.parametrize("style", ["live", "bar"])
def test_any_size(make_trainer, screen, monkeypatch, columns, lines, style):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", lines)
    logs = hook("after_step", lambda trainer: trainer.log_dict({f"value {number}": number for number in range(30)}))
    trainer = make_trainer([Progress(style=style), logs, Evaluation()], val=(1.0,), max_steps=3)
    trainer.train()
    assert "progress" in trainer.plugins  # else it has failed
    width = int(columns) or 80
    drawn = [line for line in screen.text.splitlines() if line.startswith(("│", "╭", "╰", "━"))]
    assert max([len(line) for line in drawn], default=0) <= width
    if width >= 60:
        assert "3/3" in screen.text


@pytest.mark.parametrize("style", ["live", "bar"])
def test_a_terminal_that_has_only_ascii(make_trainer, screen, style):
    screen.encoding = "ascii"
    logs = hook("after_step", lambda trainer: trainer.log("Genauigkeit/größe", 1.0))
    trainer = make_trainer([Progress(style=style, metrics=("Genauigkeit/größe",)), logs, Evaluation()], val=(1.0,), max_steps=3)
    trainer.train()
    assert "progress" in trainer.plugins
    assert screen.getvalue().isascii()
    assert re.search(r"gr\\xf6\\xdfe +1", screen.text)
    assert len({len(line) for line in screen.text.splitlines() if line.startswith(("|", "+"))}) <= 1


@pytest.mark.parametrize("style", ["live", "bar"])
def test_no_color(make_trainer, screen, monkeypatch, style):
    monkeypatch.setenv("NO_COLOR", "1")
    gate = shows(screen, "after_step", r"1/10", at=2)
    make_trainer([Progress(style=style), gate]).train()
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m|38;", screen.getvalue())
    assert "10/10" in screen.text


@pytest.mark.parametrize("style", ["live", "bar"])
def test_unknown_length(make_trainer, screen, style):
    trainer = make_trainer([Progress(style=style)], max_epochs=1)
    batches = trainer.loaders["train"]

    class Stream:
        def __iter__(self):
            return iter(batches)

    trainer.loaders["train"] = Stream()
    trainer.train()
    assert " left" not in screen.text
    assert screen.text.rstrip().endswith("completed (max_epochs=1 reached) at step 10")


# --- What others print ---


def test_what_is_printed_and_logged_meanwhile_stands_above(make_trainer, screen):
    """Each line once and whole, in order, with one panel below them; handlers that were there before and that come."""
    early, late = logging.getLogger("of.the.user"), logging.getLogger("of.a.library")
    handler, later = logging.StreamHandler(screen), None
    early.addHandler(handler)

    def after_step(trainer):
        nonlocal later
        screen.wait_for(rf"step {trainer.step}/")
        print(f"print {trainer.step}")
        early.error("log %d", trainer.step)
        if later is None:
            later = logging.StreamHandler()
            late.addHandler(later)
        late.error("late %d", trainer.step)
        print("no", "end", trainer.step, sep="\n", end="")
        print(" yet")

    try:
        make_trainer([Progress(style="live"), hook("after_step", after_step)], max_steps=3).train()
        assert handler.stream is later.stream is screen
        early.error("afterwards")
    finally:
        early.removeHandler(handler)
        late.removeHandler(later)
    lines = screen.text.splitlines()
    expected = [
        f"{line}" for step in range(3) for line in (f"print {step}", f"log {step}", f"late {step}", "no", "end", f"{step} yet")
    ]
    assert lines[: len(expected)] == expected
    assert lines[len(expected)].startswith("╭")
    assert screen.text.count("╭") == screen.text.count("╰") == 1
    assert lines[-1] == "afterwards"


def test_lines_that_are_longer_than_the_terminal_are_not_broken(make_trainer, screen):
    make_trainer([Progress(style="bar"), hook("before_train", lambda: print("x" * 250))], max_steps=3).train()
    assert "x" * 250 in screen.text.splitlines()


def test_markup_colours_and_bars_of_others(make_trainer, screen):
    """Brackets are no markup; colours stay; of a line that is written over again and again the last version stays."""

    def before_train():
        sys.stdout.writelines(["[bold]not markup[/bold] :smile: [1, 2]\n", "\x1b[31mred\x1b[0m\n"])
        for share in range(0, 101, 10):
            print(f"\r{share:3d}%", end="", flush=True)
        print()
        print("name? ", end="", flush=True)
        assert sys.stdout.encoding == "utf-8"
        assert sys.stdout.isatty()

    plugin = hook("before_train", before_train)
    plugin.after = ("progress",)
    make_trainer([Progress(style="bar"), plugin], max_steps=3).train()
    assert screen.text.splitlines()[:4] == ["[bold]not markup[/bold] :smile: [1, 2]", "red", "100%", "name?"]
    assert "\x1b[31mred" in screen.getvalue()


def test_stderr_that_is_no_terminal_is_left_alone(make_trainer, screen):
    file = io.StringIO()
    logger, handler = logging.getLogger("of.the.user"), logging.StreamHandler(file)
    logger.addHandler(handler)

    def after_step():
        logger.error("logged")
        print("written", file=sys.stderr)

    try:
        make_trainer([Progress(style="live"), hook("after_step", after_step)], max_steps=1, stderr=file).train()
    finally:
        logger.removeHandler(handler)
    assert file.getvalue() == "logged\nwritten\n"
    assert "logged" not in screen.text


def test_a_forked_process_writes_by_itself(make_trainer, screen):
    """It may have been forked while another thread had the console's lock."""
    out = []

    def after_step(trainer):
        if trainer.step:
            return
        from trainhooks_builtins._progress_screen import Above

        proxy = sys.stdout
        assert isinstance(proxy, Above)
        read, write = os.pipe()
        with proxy._console._lock:
            child = os.fork()
            if child == 0:
                thread = threading.Thread(target=lambda: (print("from the child"), os.write(write, screen.getvalue().encode())))
                thread.start()
                thread.join(LONG_S)
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read) as file:
            out.append(file.read())

    make_trainer([Progress(style="bar"), hook("after_step", after_step)], max_steps=2).train()
    assert out[0].endswith("from the child\n")


def test_a_run_within_a_run_prints_lines_above_the_bar(make_trainer, screen):
    def after_step(trainer):
        if trainer.step == 1:
            make_trainer([Progress()], max_steps=2, name="inner").train()

    make_trainer([Progress(style="live"), hook("after_step", after_step)], max_steps=3).train()
    lines = screen.text.splitlines()
    assert lines[0] == "step 0/2"
    assert lines[3] == "completed (max_steps=2 reached) at step 2/2"
    assert lines[4].startswith("╭")
    assert lines[-2 if not lines[-1] else -1] == "completed (max_steps=3 reached) at step 3/3"


def test_one_run_after_another(make_trainer, screen):
    progress = Progress(style="bar")
    trainer = make_trainer([progress], max_steps=2)
    trainer.train()
    trainer.train(max_steps=4)
    make_trainer([Progress(style="bar")], max_steps=5).train()
    assert [line for line in screen.text.splitlines() if line.startswith("completed")] == [
        f"completed (max_steps={steps} reached) at step {steps}/{steps}" for steps in (2, 4, 5)
    ]
    assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h") == 3


# --- When it cannot be shown ---


def test_without_a_terminal_it_is_lines_and_that_is_said_once(make_trainer, monkeypatch, capsys, messages):
    trainer = make_trainer([Progress(style="live")], max_steps=2)
    trainer.train()
    trainer.train(max_steps=4)
    said = "progress.style = 'live': there is no terminal here that could show it, so it is plain lines"
    assert [text for text in messages() if "progress.style" in text] == [said]
    assert "completed (max_steps=4 reached) at step 4/4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("term", "ci", "style", "bar"),
    [
        ("xterm", "", "auto", True),
        ("xterm", "false", "auto", True),
        ("xterm", "1", "auto", False),
        ("xterm", "true", "live", True),
        ("unknown", "", "live", False),
        ("dumb", "", "bar", False),
    ],
)
def test_terminals(make_trainer, screen, monkeypatch, term, ci, style, bar):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("CI", ci)
    make_trainer([Progress(style=style)], max_steps=2).train()
    assert ("\x1b" in screen.getvalue()) is bar
    assert screen.text.rstrip().endswith("completed (max_steps=2 reached) at step 2/2")


def test_without_stdout_nothing_is_shown(make_trainer, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    trainer = make_trainer([Progress(style="live")], val=(1.0,), max_steps=2)
    assert trainer.train().step == 2
    assert "progress" in trainer.plugins


@pytest.mark.parametrize("style", ["live", "bar"])
def test_a_terminal_that_goes_away_costs_the_drawing_only(make_trainer, screen, messages, style, monkeypatch):
    gone = threading.Event()
    write = screen.write

    def writes(text):
        if gone.is_set() and threading.current_thread() is not threading.main_thread():
            raise OSError(5, "Input/output error")
        return write(text)

    screen.write = writes

    def after_step(trainer):
        if trainer.step == 1:
            gone.set()
            until = time.monotonic() + LONG_S
            while trainer.plugins["progress"]._bar.error is None:
                assert time.monotonic() < until
                time.sleep(0.01)
            assert sys.stdout is screen  # what is printed from here on does not pass through what is broken

    trainer = make_trainer([Progress(style=style), hook("after_step", after_step)], max_steps=4)
    assert trainer.train().step == 4
    assert [text for text in messages() if text.startswith("progress")] == [
        "progress: stdout takes nothing more ([Errno 5] Input/output error); nothing more is printed"
    ]
    assert screen.cursor or gone.is_set()


@pytest.mark.parametrize("error", [ValueError("it 2"), KeyboardInterrupt()])
@pytest.mark.parametrize("style", ["live", "bar"])
def test_the_cursor_comes_back_after(make_trainer, screen, style, error):
    def after_step(trainer):
        if trainer.step == 1:
            raise error

    with pytest.raises(type(error)):
        make_trainer([Progress(style=style), hook("after_step", after_step)]).train()
    assert screen.cursor
    assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h") == 1
    status = "failed" if isinstance(error, ValueError) else "interrupted"
    assert screen.text.rstrip().splitlines()[-1].startswith(f"{status} ({type(error).__name__}")


def test_an_evaluation_that_fails(make_trainer, screen):
    def eval_step():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        make_trainer([Progress(style="live"), Evaluation(), hook("eval_step", eval_step)], val=(1.0,)).train()
    assert "failed (ValueError: no) at step 10/10" in screen.text


def test_an_unregistered_bar_is_closed(make_trainer, screen):
    def after_step(trainer):
        if trainer.step == 1:
            trainer.unregister("progress")
            assert sys.stdout is screen

    make_trainer([Progress(style="live"), hook("after_step", after_step)], max_steps=3).train()
    assert screen.cursor
    assert "stopped" not in screen.text


# --- A real terminal ---

FORKS = """
import os, sys, time, warnings, torch
from trainhooks import Trainer, hookimpl
from trainhooks_builtins import Progress

warnings.formatwarning = lambda message, *_: f"{message}\\nof a worker\\n"


class Step:
    @hookimpl
    def train_step(self, trainer):
        trainer.log("metric of step %d" % trainer.step, 1.0)  # the panel grows
        trainer.flush()
        time.sleep(0.6)  # it is drawn
        print("begun ", end="")  # by this process: not for the other to end
        if os.fork() == 0:
            print("print", trainer.step)
            warnings.warn(f"warn {trainer.step}")
            sys.stdout.write("no end")
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        time.sleep(0.6)
        print("and ended")
        return {"loss": torch.zeros(())}

Trainer(plugins=[Step(), Progress(style=sys.argv[1])], max_steps=3, autoload=False).train()
"""


@pytest.mark.parametrize("style", ["bar", "live"])
def test_what_forked_processes_print_stands_above_too(style):
    terminal = Terminal()
    terminal.write(on_a_terminal([sys.executable, "-c", FORKS, style]).replace("\r\n", "\n"))
    lines = [line for line in terminal.text.splitlines() if line]
    expected = [
        line for step in range(3) for line in (f"print {step}", f"warn {step}", "of a worker", "no end", "begun and ended")
    ]
    assert lines[: len(expected)] == expected
    assert lines[len(expected)].startswith("╭" if style == "live" else "━")
    assert terminal.text.count("╭") == (style == "live")
    assert lines[-1] == "completed (max_steps=3 reached) at step 3/3"


SCRIPT = """
import sys, time, torch
from trainhooks import Trainer, hookimpl
from trainhooks_builtins import Progress, Signals

class Step:
    @hookimpl
    def train_step(self, trainer):
        time.sleep(0.02)
        if trainer.step == 3:
            print("MARK", flush=True)
        return {"loss": torch.zeros(())}

Trainer(plugins=[Step(), Progress(style="live"), Signals()], max_steps=100_000, autoload=False).train()
"""


def test_ctrl_c_on_a_real_terminal():
    """The cursor is on again and the last line says how it ended."""
    text = on_a_terminal([sys.executable, "-c", SCRIPT], interrupt_at=b"MARK")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert text.rindex("\x1b[?25h") < text.rindex("interrupted (Ctrl-C) at step")
    terminal = Terminal()
    terminal.write(text.replace("\r\n", "\n"))
    assert terminal.text.count("╭") == 1  # what was said at once has taken the place of the panel
    assert re.search(r"^trainhooks: Ctrl-C: ending after this step; ", terminal.text, re.MULTILINE)


def on_a_terminal(command, *, interrupt_at=None):
    """Run a program on a terminal of its own and return what it has written; it gets a SIGINT when it has written a mark."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("CI", "NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR"):
        environment.pop(name, None)
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=environment)
    os.close(side)
    out = b""
    try:
        while True:
            try:
                data = os.read(main, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            before, out = out, out + data
            if interrupt_at is not None and interrupt_at in out and interrupt_at not in before:
                process.send_signal(signal.SIGINT)
        assert (process.wait(LONG_S) != 0) is (interrupt_at is not None), out.decode()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(main)
    return out.decode()
