"""PB: console and progress bars."""

import io
import os
import re
import sys
import types
from importlib.machinery import ModuleSpec

import pytest

from trainhooks import hookimpl
from trainhooks_builtins import Evaluation, Progress

CONTROL = re.compile(r"[\r\x1b\b]")

SCRIPT = """
import sys, torch
from trainhooks import Trainer, hookimpl
from trainhooks_builtins import Progress

now = 0.0

class Takes:
    "Lets a step take a millisecond of the clock."
    @hookimpl
    def before_step(self):
        global now
        now += 0.001

class Rank:
    @hookimpl
    def configure(self, trainer):
        trainer.rank = int(sys.argv[1])

w = torch.zeros((), requires_grad=True)

class Step:
    @hookimpl
    def train_step(self):
        return {"loss": w.detach()}

trainer = Trainer(plugins=[Step(), Takes(), Rank(), Progress(clock=lambda: now)], max_steps=10_000, autoload=False)
trainer.train()
"""


class TestPB01:
    """Flood in log files. 10,000 its of 1 ms of the progress's clock, in a process with that stdout."""

    @pytest.mark.parametrize(
        ("target", "environment", "rank"),
        [
            ("file", {"TERM": "dumb"}, 0),
            ("pipe", {"TERM": "xterm-256color", "NO_COLOR": "1"}, 0),
            ("pipe", {"TERM": "xterm-256color", "FORCE_COLOR": "1"}, 0),
            ("file", {"TERM": "dumb"}, 1),
        ],
    )
    def test_pb_01_lines(self, fork, tmp_path, target, environment, rank):
        def work():
            os.environ.update(environment)
            sys.argv = ["-c", str(rank)]
            exec(SCRIPT, {"__name__": "__main__"})

        out = tmp_path / "out.txt"
        if target == "file":
            with out.open("w") as file:
                process = fork(work, file.fileno())
                process.join()
            text = out.read_text()
        else:
            process = fork(work)
            text = process.said.read()
            process.join()
        assert process.exitcode == 0, text
        if rank == 1:
            assert text == ""
            return
        assert not CONTROL.search(text)
        lines = text.splitlines()
        assert len(lines) <= 24  # a twentieth of the run each, the first, and how it ended
        assert "10000/10000" in lines[-1]
        assert [int(line.split()[1].partition("/")[0]) for line in lines[:-1]] == list(range(0, 10_001, 500))

    def test_pb_01_a_terminal_that_is_dumb(self, make_trainer, monkeypatch):
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("TERM", "dumb")
        make_trainer([Progress()]).train()
        assert not CONTROL.search(screen.getvalue())
        assert "step 10/10" in screen.getvalue().splitlines()[-1]

    @pytest.mark.parametrize(("total", "most"), [(1, 3), (19, 21), (20, 22), (39, 22), (41, 22), (1001, 22)])
    def test_pb_01_never_more_lines_than_documented(self, make_trainer, capsys, total, most):
        """About 20 in a run whose length is known, the first and the last beside them; a clock that stands still."""
        make_trainer([Progress(style="lines", clock=lambda: 0.0)], values=(1.0,) * total).train()
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= most
        assert f"step {total}/{total}" in lines[-1]

    def test_pb_01_unknown_length(self, make_trainer, capsys):
        """Once a minute: a clock of one second a step gives steps 0, 60, 120, ..., 300."""
        seconds = iter(range(10_000))
        now = [0]

        class Takes:
            @hookimpl
            def before_step(self):
                now[0] = next(seconds) + 1

        trainer = make_trainer([Progress(clock=lambda: now[0]), Takes()], max_epochs=1)
        batch = trainer.loaders["train"][0]

        class Stream:
            def __iter__(self):
                return iter([batch] * 301)

        trainer.loaders["train"] = Stream()
        trainer.train()
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in lines[:-1]] == ["0", "60", "120", "180", "240", "300", "301"]
        assert lines[-1] == "completed (max_epochs=1 reached) at step 301"


class Terminal(io.StringIO):
    def isatty(self):
        return True


class TestBarOnATerminal:
    @staticmethod
    def screen(monkeypatch):
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.delenv("NO_COLOR", raising=False)
        return screen

    def test_pb_01_is_drawn_and_closed(self, make_trainer, monkeypatch):
        screen = self.screen(monkeypatch)
        make_trainer([Progress(), Evaluation()], val=(2.0,)).train()
        text = screen.getvalue()
        assert "10/10" in text
        assert "val at step 10: val/loss -20" in text
        assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is hidden once and comes back once
        assert text.splitlines()[-1].removeprefix("\x1b[?25h") == "completed (max_epochs=1 reached) at step 10/10"

    def test_pb_02_is_closed_after_an_exception(self, make_trainer, monkeypatch):
        screen = self.screen(monkeypatch)

        class Fails:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 2:
                    raise ValueError("it 3")

        trainer = make_trainer([Progress(), Fails()])
        with pytest.raises(ValueError, match="it 3"):
            trainer.train()
        assert screen.getvalue().count("\x1b[?25h") == 1
        assert "failed (ValueError: it 3) at step 2/10" in screen.getvalue()
        assert trainer.plugins["progress"]._bar is None

    def test_pb_02_is_closed_when_nothing_came_to_its_end(self, make_trainer, monkeypatch):
        screen = self.screen(monkeypatch)

        class Fails:
            after = ("progress",)

            @hookimpl
            def before_train(self):
                raise ValueError("early")

        with pytest.raises(ValueError, match="early"):
            make_trainer([Progress(), Fails()]).train()
        assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h")


class Notebook:
    """Stands for IPython with a kernel, and for ipywidgets: what they were asked to display."""

    def __init__(self, monkeypatch, *, widgets=True):
        self.shown, self.entered, self.printed = [], 0, []
        monkeypatch.setattr(sys, "stdout", out := io.StringIO())
        self.out = out
        ipython = types.ModuleType("IPython")
        ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
        display = types.ModuleType("IPython.display")
        display.display = lambda *things, **_: self.shown.append(things)
        ipython.display = display
        for name, module in (("IPython", ipython), ("IPython.display", display)):
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delitem(sys.modules, "ipywidgets", raising=False)
        if widgets:
            module = types.ModuleType("ipywidgets")
            module.__spec__ = ModuleSpec("ipywidgets", None)
            notebook = self

            class Output:
                def clear_output(self, wait=False):
                    pass

                def __enter__(self):
                    notebook.entered += 1

                def __exit__(self, *exception):
                    return None

            module.Output = Output
            self.widget = Output
            monkeypatch.setitem(sys.modules, "ipywidgets", module)

    @property
    def bars(self):
        return [things for things in self.shown if isinstance(things[0], self.widget)]


class TestPB02:
    """Notebook detection: stdout is no terminal, IPython has a kernel."""

    def test_pb_02_one_bar_for_a_run(self, make_trainer, monkeypatch):
        notebook = Notebook(monkeypatch)
        make_trainer([Progress(), Evaluation(every_steps=2)], val=(1.0,)).train()
        assert len(notebook.bars) == 1
        assert notebook.entered > 0  # it was drawn
        assert notebook.out.getvalue() == "completed (max_epochs=1 reached) at step 10/10\n"  # no plain lines beside it
        make_trainer([Progress()]).train()  # the cell is run again
        assert len(notebook.bars) == 2

    def test_pb_02_closed_after_an_exception(self, make_trainer, monkeypatch):
        class Fails:
            @hookimpl
            def after_step(self):
                raise ValueError("it 1")

        notebook = Notebook(monkeypatch)
        trainer = make_trainer([Progress(), Fails()])
        with pytest.raises(ValueError, match="it 1"):
            trainer.train()
        assert trainer.plugins["progress"]._bar is None
        assert len(notebook.bars) == 1

    def test_pb_02_without_ipywidgets_plain_lines(self, make_trainer, monkeypatch):
        """The bar of rich would show nothing there, and warn."""
        notebook = Notebook(monkeypatch, widgets=False)
        monkeypatch.setattr("trainhooks_builtins.progress.find_spec", lambda name: None)
        make_trainer([Progress()]).train()
        assert notebook.shown == []
        assert "step 10/10" in notebook.out.getvalue()

    def test_pb_02_ipython_in_a_terminal_is_no_notebook(self, make_trainer, monkeypatch, capsys):
        ipython = types.ModuleType("IPython")
        ipython.get_ipython = lambda: types.SimpleNamespace()
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        make_trainer([Progress()]).train()
        assert "step 10/10" in capsys.readouterr().out


class TestWatch:
    """``trainhooks train --watch``, where there is no terminal and where it cannot have an effect."""

    def test_pb_01_plain_lines_and_one_warning(self, command):
        code, out, err = command("train", "--watch", "--set", "max_steps=5")
        assert code == 0
        assert not CONTROL.search(out + err)
        assert err.count("there is no terminal here that could show it, so it is plain lines") == 1
        assert "completed (max_steps=5 reached) at step 5/5" in out

    def test_pb_01_not_with_another_style(self, command):
        code, out, err = command("train", "-o", "progress.style=off", "--watch", "--set", "max_steps=5")
        assert (code, out) == (2, "")
        assert "-o progress.style=live" in err
        assert "-o progress.style=off" in err

    def test_pb_01_not_for_a_trainer(self, command):
        source = "from trainhooks import Trainer\ntrainer = Trainer(max_steps=1, autoload=False)\n"
        (command.folder / "of_mine.py").write_text(source)
        code, out, err = command("train", "of_mine:trainer", "--watch")
        assert (code, out) == (2, "")
        assert err == (
            "trainhooks: TARGET 'of_mine:trainer' is a Trainer, so --watch has no effect on it; give it Progress(style='live')\n"
        )

    def test_pb_01_not_without_the_plugin(self, command):
        code, out, err = command("train", "-p", "no:progress", "--watch", "--set", "max_steps=5")
        assert code == 2
        assert "progress" in err
