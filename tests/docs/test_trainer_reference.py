"""The reference of ``Trainer`` has what is public of it, and nothing else."""

import ast
import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import trainhooks
from trainhooks import Outcome, Record, RunInfo, Trainer, hookspecs
from trainhooks.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "reference" / "trainer.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *(page for page in DOCS.rglob("*.md") if page.parent.name != "reference")]


@pytest.fixture
def contents(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import _trainer_contents

    yield _trainer_contents
    del sys.modules["_trainer_contents"]


def chapter(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)[1]


def rows(text):
    """Return the cells of tables, by the first one; a first cell may hold several names."""
    found = {}
    for first, *others in re.findall(r"^\| (`.*?`) \| (.*) \|$", text, flags=re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"`(\w+)`", first), others[0])
    return found


def methods():
    """Return the signature that each method of Trainer has on the page, by name."""
    before = PAGE.partition("\n## Markers\n")[0]
    return dict(re.findall(r"^### ([a-z]\w*)\n\n```python\n(.*?)\n```$", before, flags=re.MULTILINE | re.DOTALL))


def documented():
    """Return the names of Trainer that the page has as attributes and methods, without those of Outcome."""
    of_trainer = re.sub(r"^### Outcome\n.*?(?=^## )", "", PAGE.partition("\n## Markers\n")[0], flags=re.MULTILINE | re.DOTALL)
    making = chapter("Making one")
    return {*rows(of_trainer.replace(making, "")), *methods()}, set(rows(making))


def names_of_a_trainer():
    """Return every name without an underscore that a trainer has, whichever class of its chain it is from."""
    trainer = Trainer(torch.nn.Linear(1, 1), autoload=False)
    return {name for name in dir(trainer) if not name.startswith("_") and hasattr(trainer, name)}


def test_every_public_name_is_on_the_page_or_internal(contents):
    internal = {name for names in contents.INTERNAL.values() for name in names.split()}
    on_page, arguments = documented()
    assert not on_page & internal
    assert names_of_a_trainer() == on_page | internal | (arguments & names_of_a_trainer())
    assert {"train", "evaluate", "predict", "stop", "request_eval", "log", "log_image", "step", "is_main"} <= on_page


def test_every_public_method_is_there_with_its_arguments():
    public, _ = documented()
    shown = methods()
    assert set(shown) == {name for name in public if callable(inspect.getattr_static(Trainer, name, None))}
    for name, text in shown.items():
        (function,) = ast.parse(text).body
        given = function.args
        of = list(inspect.signature(getattr(Trainer, name)).parameters.values())[1:]
        names = [one.arg for one in (*given.args, *given.kwonlyargs, *([given.kwarg] if given.kwarg else []))]
        assert (function.name, names) == (name, [one.name for one in of])
        defaults = {one.arg: value for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}
        defaults |= dict(zip(names[len(given.args) - len(given.defaults) : len(given.args)], given.defaults, strict=True))
        assert {one: ast.literal_eval(value) for one, value in defaults.items()} == {
            one.name: one.default for one in of if one.default is not one.empty
        }


def test_constructor_has_every_argument_with_its_default():
    table = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (.+) \|$", chapter("Making one"), flags=re.MULTILINE)
    arguments = inspect.signature(Trainer).parameters.values()
    assert [name for name, _, _ in table] == [one.name for one in arguments]
    in_force = Trainer(torch.nn.Linear(1, 1), autoload=False).settings
    settings = {one.name: getattr(in_force, one.name) for one in fields(Settings)}
    for (name, default, _), one in zip(table, arguments, strict=True):
        assert ast.literal_eval(default) == settings.get(name, one.default), name


def test_texts_are_whole_sentences():
    on_page = rows(PAGE.partition("\n## Markers\n")[0])
    assert not {name: text for name, text in on_page.items() if not re.match(r"[A-Z`\"].*\.$", text)}


@pytest.mark.parametrize("thing", [Outcome, RunInfo, Record])
def test_tables_have_every_field(thing):
    section = re.search(rf"^### {thing.__name__}\n(.*?)(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)[1]
    assert list(rows(section)) == [one.name for one in fields(thing)]


def test_everything_that_is_exported_has_its_place():
    headings = re.findall(r"^### ([A-Z]\w*)$", PAGE, flags=re.MULTILINE)
    exceptions = re.findall(r"^- `(\w+)`: ", chapter("Exceptions"), flags=re.MULTILINE)
    others = re.findall(r"`@(\w+)` marks", chapter("Markers")) + re.findall(r"`trainhooks\.(\w+)` is", chapter("Version"))
    assert sorted([*headings, *exceptions, *others, "Trainer"]) == sorted(trainhooks.__all__)


def test_what_pages_and_hooks_name_of_a_trainer_is_public():
    """Whoever follows a page reads or calls nothing that may change without notice."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    named = {name for text in [*texts, inspect.getsource(hookspecs)] for name in re.findall(r"\btrainer\.(\w+)", text)}
    on_page, _ = documented()
    assert len(named & on_page) > 50
    assert named & names_of_a_trainer() <= on_page
