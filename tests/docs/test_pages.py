"""What the pages say is true: their files, scripts and commands are run in order, and what they print is compared.

How a page says what is to be done with a block, on the line above it:

    <!-- file: NAME -->     write the block to that file
    <!-- append: NAME -->   add the block to the end of that file
    <!-- run -->            run the block of Python
    <!-- output -->         what the last script printed
    <!-- not run: WHY -->   leave the block of commands out

A block ```console is a session: ``$ command``, then what it prints; ``$ echo $?`` shows the exit code where it is not 0. In
output a line ``...`` stands for any lines, ``…`` for any text, numbers for any numbers, ``/home/you`` for the directory of the page.
"""

import ast
import contextlib
import glob
import importlib
import importlib.metadata
import inspect
import io
import logging
import os
import re
import runpy
import shlex
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import trainhooks_builtins
from trainhooks import errors
from trainhooks.cli import main
from trainhooks.manager import snake_case

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "built-ins").glob("*.md"))]
EVERY_PAGE = [*PAGES, *sorted((ROOT / "docs" / "reference").glob("*.md"))]
FENCE = re.compile(r"(?:^<!-- (?P<mark>[^\n]*) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page):
    return page.relative_to(ROOT).as_posix()


@dataclass
class Command:
    text: str
    output: list = field(default_factory=list)
    code: int = 0


def commands_of(session):
    """Return the commands of a console block with the output and the exit code that it shows."""
    commands = []
    asks_code = False
    for line in session.replace("\\\n", " ").splitlines():
        if line == "$ echo $?":
            asks_code = True
        elif line.startswith("$ "):
            commands.append(Command(line[2:]))
        elif asks_code:
            commands[-1].code, asks_code = int(line), False
        else:
            commands[-1].output.append(line)
    return commands


def normalized(line, place):
    """Replace what differs from run to run: the directory, numbers, where trainhooks is installed, widths of columns."""
    line = re.sub(r"\S*/(trainhooks\w*/\w+\.py)", r"…/\1", line.replace(str(place), "/home/you"))
    return " ".join(re.sub(r"\d[\d.:,]*(?:e[+-]?\d+)?", "#", line).split())


def check_output(shown, printed, place, what):
    """Compare whole outputs; a line ``...`` stands for any number of lines."""
    lines = [normalized(line, place) for line in shown]
    pattern = "".join("(?:.*\n)*?" if line == "..." else re.escape(line).replace("…", ".*") + "\n" for line in lines)
    text = "".join(normalized(line, place) + "\n" for line in printed.rstrip().splitlines())
    assert re.fullmatch(pattern, text), f"{what}\n--- the page shows\n{chr(10).join(shown)}\n--- it printed\n{printed}"


class Shell:
    """Does what a page says, in a directory of its own; trainhooks and scripts run in this process."""

    def __init__(self, place, monkeypatch):
        self.place, self.monkeypatch = place, monkeypatch
        monkeypatch.chdir(place)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        self.printed = ""

    def command(self, text):
        """Run one command and return its exit code; what it prints is kept."""
        words = shlex.split(text)
        with self.monkeypatch.context() as patch:
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("=", 1))
            words = [match for word in words for match in (sorted(glob.glob(word)) if "*" in word else [word])]
            if words[0] == "trainhooks":
                return self.captured(lambda: main(words[1:]))
            if words[:3] == ["python", "-m", "pytest"]:
                patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
                words = [sys.executable, *words[1:], "-p", "no:cacheprovider"]
            elif words[0] == "python":
                sys.path.insert(0, str(Path.cwd()))
                return self.captured(lambda: runpy.run_path(words[1], run_name="__main__"))
            if words[0] == "pip":
                return self.pip(words[1:])
            if words[0] == "cd":
                self.monkeypatch.chdir(words[1])
                self.printed = ""
                return 0
            assert words[0] in (sys.executable, "cat", "head", "ls", "mkdir"), f"not a command that pages use: {text}"
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            self.printed = done.stdout + done.stderr
            return done.returncode

    def captured(self, work):
        stream = io.StringIO()
        logger, root = logging.getLogger("trainhooks"), logging.getLogger()
        level, propagate = logger.level, logger.propagate
        handlers, root_level = list(root.handlers), root.level
        last_resort, logging.lastResort = logging.lastResort, logging.NullHandler()  # pages show warnings that they ask for
        root.handlers.clear()  # those of pytest: a script that asks for its log gets it
        code = 0
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            try:
                work()
            except SystemExit as exit_:
                code = exit_.code or 0
            except Exception:
                traceback.print_exc(file=stream)
                code = 1
        logger.handlers.clear()
        logger.setLevel(level)
        logger.propagate = propagate
        root.handlers[:], logging.lastResort = handlers, last_resort
        root.setLevel(root_level)
        self.printed = stream.getvalue()
        return code

    def pip(self, words):
        """Install or remove a distribution for real, in a folder of its own instead of the environment of the tests."""
        site = self.place / ".site"
        self.printed = ""
        if words[0] == "install":
            flags = [
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
                "--no-index",
                "--disable-pip-version-check",
                "--target",
                site,
            ]
            place = next(word for word in words[1:] if not word.startswith("-"))
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", *flags, place], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            if str(site) not in sys.path:
                sys.path.append(str(site))
        else:
            assert words[:2] == ["uninstall", "-y"], words
            for file in importlib.metadata.distribution(words[2]).files:
                Path(file.locate()).unlink(missing_ok=True)
        importlib.invalidate_caches()
        return 0


@pytest.fixture
def shell(tmp_path, monkeypatch):
    place = tmp_path / "you"
    place.mkdir()
    known = "TORCHINDUCTOR_CACHE_DIR" in os.environ
    yield Shell(place, monkeypatch)
    if not known:
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch sets it when an optimizer steps for the first time
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(place)):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_does_what_it_says(page, shell):
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        mark, language, text = block["mark"] or "", block["language"], block["text"]
        line = page.read_text(encoding="utf-8")[: block.start("text")].count("\n") + 1
        where = f"{name_of(page)}:{line}"
        if mark.startswith(("file: ", "append: ")):
            how, _, name = mark.partition(": ")
            (shell.place / name).parent.mkdir(parents=True, exist_ok=True)
            with (shell.place / name).open("w" if how == "file" else "a", encoding="utf-8") as file:
                file.write(text)
        elif mark == "run":
            script = shell.place / ".script.py"
            script.write_text(text, encoding="utf-8")
            assert shell.captured(lambda: runpy.run_path(str(script), run_name="__main__")) == 0, f"{where}\n{shell.printed}"
        elif mark == "output":
            check_output(text.splitlines(), shell.printed, shell.place, where)
        elif language == "console" and not mark.startswith("not run: "):
            for command in commands_of(text):
                code = shell.command(command.text)
                assert code == command.code, f"{where}: {command.text} gave {code}\n{shell.printed}"
                check_output(command.output, shell.printed, shell.place, f"{where}: {command.text}")


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name_of)
def test_every_block_of_python_compiles_and_says_what_it_is(page):
    text = page.read_text(encoding="utf-8")
    blocks = list(FENCE.finditer(text))
    assert len(re.findall(r"^```", text, flags=re.MULTILINE)) == 2 * len(blocks)
    for block in blocks:
        assert block["language"] in ("python", "console", "toml", "text"), f"{name_of(page)}: {block['language']!r}"
        assert not block["mark"] or re.match(r"(file|append): \S+$|run$|output$|not run: .+|Written by", block["mark"]), block[
            "mark"
        ]
        if block["language"] == "python":
            compile(block["text"], name_of(page), "exec")


def slug(heading):
    """Return the anchor that GitHub and MkDocs give a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")


def anchors(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name_of)
def test_every_relative_link_resolves(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"\w+://", link)]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{name_of(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)}: {link}"


def test_every_page_is_reachable_from_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", index)}
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in EVERY_PAGE[1:]} - {"index.md"}
    assert pages <= linked
    assert "docs/index.md" in (ROOT / "README.md").read_text(encoding="utf-8")


PLUGINS = [snake_case(name) for name in trainhooks_builtins.__all__]


def built_ins_pages():
    """Return the text of the pages with a section for each built-in plugin."""
    pages = [ROOT / "docs" / "built-ins.md", *sorted((ROOT / "docs" / "built-ins").glob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def test_built_ins_pages_have_a_section_for_each_plugin():
    assert sorted(re.findall(r"^## `(\w+)`$", built_ins_pages(), flags=re.MULTILINE)) == sorted(PLUGINS)


def test_the_table_of_peers_names_plugins_that_there_are():
    """In each row of the second column a word in code is a built-in, or something else that the page may name."""
    text = (ROOT / "docs" / "built-ins" / "peers.md").read_text(encoding="utf-8")
    ours = [row.split(" | ")[1] for row in re.findall(r"^\| (`.*|[a-z].*) \|$", text, flags=re.MULTILINE)]
    first = [re.match(r"`(\w+)`", cell) for cell in ours]
    assert len(ours) > 100
    known = {*PLUGINS, "make_model"}
    assert {match[1] for match in first if match} <= known
    nobody_else = {"crash_report", "slurm", "seed", "starvation", "freeze_gc"}
    assert set(PLUGINS) - set(re.findall(r"`(\w+)`", " ".join(ours))) == nobody_else


@pytest.mark.parametrize("name", PLUGINS)
def test_built_ins_pages_list_every_option_with_its_default(name):
    section = re.search(rf"^## `{name}`\n(.*?)(?=^## |\Z)", built_ins_pages(), flags=re.MULTILINE | re.DOTALL)[1]
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", section, flags=re.MULTILINE))
    plugin = next(getattr(trainhooks_builtins, one) for one in trainhooks_builtins.__all__ if snake_case(one) == name)
    defaults = {one.name: one.default for one in inspect.signature(plugin).parameters.values()}
    assert list(rows) == list(defaults)
    for option, shown in rows.items():
        default = defaults[option]
        wanted = default.__module__ + "." + default.__name__ if callable(default) else default
        assert (shown if callable(default) else ast.literal_eval(shown)) == wanted, option


def sources():
    for folder in (ROOT / "core" / "trainhooks", *(ROOT / "plugins").glob("*/trainhooks_*")):
        for file in folder.rglob("*.py"):
            yield ast.parse(file.read_text(encoding="utf-8"))


def text_of(node):
    """Return the text of an expression with ``…`` for each value that is put into it."""
    if isinstance(node, ast.Constant):
        return re.sub(r"%\.?\d*[srdgf]", "…", node.value) if isinstance(node.value, str) else "…"
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return "…"


def message_texts():
    """Return every text in the packages, each on a line of its own."""
    return "\n".join({" ".join(text_of(node).split()) for tree in sources() for node in ast.walk(tree)})


def raised_texts():
    """Return the text of every error that is raised with one: in place, or by the variable ``message`` set before it."""
    for tree in sources():
        for node in ast.walk(tree):
            for body in (getattr(node, name, []) for name in ("body", "orelse", "finalbody")):
                message = None
                for statement in body if isinstance(body, list) else []:
                    if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "message":
                        message = statement.value
                    if isinstance(statement, ast.Raise) and isinstance(statement.exc, ast.Call) and statement.exc.args:
                        first = statement.exc.args[0]
                        text = text_of(message if getattr(first, "id", "") == "message" and message is not None else first)
                        if hasattr(errors, getattr(statement.exc.func, "id", "")) and len(fixed(text)) >= 10:
                            yield " ".join(text.split())


def fixed(text):
    """Return what a message has besides the values that are put into it."""
    return re.sub(r"[…\s\W]", "", text)


def troubleshooting_patterns():
    """Return a pattern for each message that the page quotes, in a heading or at the beginning of an item of a list."""
    page = FENCE.sub("", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"))
    quoted = [one[1] for one in re.findall(r"^(?:###|-) (`+) ?(.+?) ?\1(?:$|: )", page, flags=re.MULTILINE)]
    assert len(quoted) == len(set(quoted)) > 100
    return {message: re.escape(message.lstrip("…")).replace("…", ".*") for message in quoted}  # to be searched for


def test_troubleshooting_begins_with_its_sections():
    page = FENCE.sub("", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"))
    begin = page.partition("\n## ")[0]
    headings = re.findall(r"^## (.+)$", page, flags=re.MULTILINE)
    assert re.findall(r"^- \[(.+)\]\(#(.+)\)$", begin, flags=re.MULTILINE) == [(one, slug(one)) for one in headings]


def test_troubleshooting_quotes_messages_as_they_are():
    texts = message_texts()
    patterns = troubleshooting_patterns()
    unknown = [heading for heading, pattern in patterns.items() if not re.search(pattern, texts)]
    assert not unknown, "no message in the packages reads like these"


def test_troubleshooting_has_every_error():
    patterns = [pattern for message, pattern in troubleshooting_patterns().items() if len(fixed(message)) >= 10]
    missing = [text for text in dict.fromkeys(raised_texts()) if not any(re.search(pattern, text) for pattern in patterns)]
    assert not missing, "docs/troubleshooting.md does not have these"


def test_environment_variables_and_settings_are_documented():
    from dataclasses import fields

    from trainhooks.settings import Settings

    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    section = re.search(r"^## Settings of a run\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)[1]
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", section, flags=re.MULTILINE))
    assert {name: ast.literal_eval(value) for name, value in rows.items()} == {
        one.name: one.default for one in fields(Settings)
    }
    assert {"TRAINHOOKS_PLUGINS", "TRAINHOOKS_DISABLE_AUTOLOAD"} <= set(re.findall(r"`(TRAINHOOKS_\w+)", page))
    assert not os.environ.get("TRAINHOOKS_PLUGINS")


def test_command_line_page_names_every_command_and_flag():
    import click

    from trainhooks.cli import cli

    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    context = click.Context(cli)
    for name in cli.list_commands(context):
        section = re.search(rf"^## `trainhooks {name}`\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
        assert section, name
        command = cli.get_command(context, name)
        several = command.commands.values() if isinstance(command, click.Group) else [command]
        flags = {flag for one in several for parameter in one.params for flag in parameter.opts if flag.startswith("-")}
        shared = {"-p", "-o", "--set", "--conf", "--skip-failed"} & flags if "shared options" in section[1] else set()
        shown = set(re.findall(r"`(--?[a-zA-Z][\w-]*)", section[1]))
        assert shown | shared == flags, name
