"""The hooks and their reference agree both ways, and every docstring keeps the fixed order of its sections."""

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainhooks import hookspecs

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "reference" / "hooks.md").read_text(encoding="utf-8")


def load_generator():
    spec = importlib.util.spec_from_file_location("_generate_reference", DOCS / "generate_reference.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(DOCS))  # where its modules are when it is run
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DOCS))
    return module


generator = load_generator()
example = sys.modules["_docstrings"].example
SPECS = {name: spec for name, spec in vars(hookspecs).items() if hasattr(spec, "trainhooks_spec")}
#: The text below each heading of the third level, which is one hook.
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", generator.PAGES)
def test_page_is_fresh(name):
    assert generator.PAGES[name]() == (DOCS / "reference" / name).read_text(encoding="utf-8")


def test_every_page_of_the_reference_is_generated():
    assert {page.name for page in (DOCS / "reference").iterdir()} == set(generator.PAGES)
    done = subprocess.run(
        [sys.executable, DOCS / "generate_reference.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "heading"), [("hooks.md", "### setup"), ("trainer.md", "### log_image")])
def test_check_reports_a_stale_page(name, heading, tmp_path, monkeypatch):
    pages = {one.name: one.read_text(encoding="utf-8") for one in (DOCS / "reference").iterdir()}
    for one, text in pages.items():
        (tmp_path / one).write_text(text, encoding="utf-8")
    (tmp_path / name).write_text(pages[name].replace(heading, "### renamed"), encoding="utf-8")
    monkeypatch.setattr(generator, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["generate_reference.py", "--check"])
    with pytest.raises(SystemExit) as exit_:
        generator.main()
    assert f"{name} is stale" in str(exit_.value)
    assert "### renamed" in (tmp_path / name).read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["generate_reference.py"])
    generator.main()
    assert {one.name: one.read_text(encoding="utf-8") for one in tmp_path.iterdir()} == pages


def test_hooks_and_sections_are_the_same_in_the_same_order():
    assert list(SECTIONS) == list(SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_section_has_exactly_the_arguments(name):
    arguments = re.findall(r"^- `(\w+)`: ", SECTIONS[name], flags=re.MULTILINE)
    assert arguments == list(inspect.signature(SPECS[name]).parameters)
    row = re.search(rf"^\| \[`{name}`\]\(#{name}\) \| ([\w ,-]+) \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", row[2]) == arguments
    firstresult = SPECS[name].trainhooks_spec["firstresult"]
    assert (row[1] == "stage") == bool(firstresult)


def test_loop_names_every_hook_and_nothing_else():
    loop = re.search(r"## The loop\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)[1]
    named = set(re.findall(r"\b[a-z]+_[a-z_]+\b", loop)) | {
        word
        for word in ("configure", "setup", "train", "backward", "teardown", "evaluate", "predict")
        if re.search(rf"\b{word}\b", loop)
    }
    assert named == set(SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_docstring_has_the_fixed_sections_in_order(name):
    spec = SPECS[name]
    text = inspect.getdoc(spec)
    is_stage = bool(spec.trainhooks_spec["firstresult"])
    wanted = [
        r"\A[A-Z][^\n]*\.\n\n",  # one sentence on a line of its own
        r"^Called ",
        r"^By default",
        r"^Args:\n",
        *([r"^Returns:\n"] if is_stage else []),
        r"^Cannot be wrapped: " if name in hookspecs.ONE_BY_ONE else r"^Wrappers ",
        r"^In distributed runs ",
        r"^Example:\n    >>> @hookimpl",
    ]
    found = [[match.start() for match in re.finditer(pattern, text, flags=re.MULTILINE)] for pattern in wanted]
    assert [len(places) for places in found] == [1] * len(wanted), dict(zip(wanted, found, strict=True))
    places = [one[0] for one in found]
    assert places == sorted(places)
    assert is_stage or "Returns:" not in text
    assert not is_stage or "``None``" in text  # what declining means stands there


@pytest.mark.parametrize("name", SPECS)
def test_example_compiles_and_implements_this_hook(name):
    code = example(inspect.getdoc(SPECS[name]))
    function = ast.parse(code, f"<example of {name}>").body[-1]
    assert function.name == name
    arguments = set(inspect.signature(SPECS[name]).parameters)
    given = {argument.arg for argument in function.args.args} - {"self"}
    assert given <= arguments
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    declared = {argument.arg for argument in function.args.args}
    assert used & (arguments | {"self"}) <= declared  # an example uses nothing that it does not declare
