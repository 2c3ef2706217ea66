"""What the README and the metadata of each satellite say agrees with its class; no tracker's SDK is imported for that."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
SATELLITES = sorted((ROOT / "plugins").glob("trainhooks-*"))
NAMES = [folder.name.removeprefix("trainhooks-") for folder in SATELLITES]
SDKS = ("tensorboard", "dvclive", "wandb", "mlflow", "comet_ml", "clearml", "trackio", "swanlab", "PIL", "requests")
WORDS = {"true": True, "false": False}


def readme(name):
    return (ROOT / "plugins" / f"trainhooks-{name}" / "README.md").read_text(encoding="utf-8")


def project(name):
    text = (ROOT / "plugins" / f"trainhooks-{name}" / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]


@pytest.fixture
def plugin_class(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "plugins" / f"trainhooks-{name}")
    module, _, attribute = project(name)["entry-points"]["trainhooks"][name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def parameters(plugin_class):
    return inspect.signature(plugin_class).parameters


def options_of(text):
    """Return the rows of the table of options: each name with what stands under ``default``."""
    lines = iter(text.splitlines())
    assert any(line.startswith("| option | default |") for line in lines), "no table of options"
    next(lines)
    found = {}
    for line in lines:
        if not line.startswith("|"):
            break
        names, default = (cell.strip() for cell in line.split("|")[1:3])
        found |= dict.fromkeys(re.findall(r"`(\w+)`", names), default)
    return found


def literal(cell):
    """Return the value that a cell is, or ``None`` if it says in words what an option is that was not given."""
    cell = cell.strip("`")
    try:
        return WORDS[cell] if cell in WORDS else ast.literal_eval(cell)
    except (ValueError, SyntaxError):
        return None


@pytest.mark.parametrize("name", NAMES)
def test_the_table_has_the_options_and_their_defaults(name, plugin_class):
    signature = {one.name: one.default for one in parameters(plugin_class).values()}
    said = options_of(readme(name))

    assert list(said) == list(signature)
    assert {option: literal(cell) for option, cell in said.items()} == {
        option: None if default == () else default for option, default in signature.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_class_describes_the_options(name, plugin_class):
    described = re.findall(r"^    (\w+): ", inspect.cleandoc(plugin_class.__doc__), re.MULTILINE)

    assert described == list(parameters(plugin_class))


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_use_options_that_there_are(name, plugin_class):
    text, options = readme(name), parameters(plugin_class)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)

    tables = [tomllib.loads(block)["tool"]["trainhooks"]["plugins"] for language, block in blocks if language == "toml"]
    calls = [
        node
        for language, block in blocks
        if language == "python"
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == plugin_class.__name__
    ]

    assert calls
    for call in calls:
        inspect.signature(plugin_class).bind(*call.args, **{keyword.arg: None for keyword in call.keywords})
    for table in tables:
        assert list(table) == [name]
        plugin_class(**table[name])
    for plugin, option in re.findall(r"-o '?(\w+)\.(\w+)=", text):
        assert plugin == name
        assert option in options


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_has_what_the_others_have(name):
    text = readme(name)

    assert text.startswith(f"# trainhooks-{name}\n")
    assert f"    pip install trainhooks-{name}\n" in text
    assert f"`-p no:{name}`" in text
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert {"What is where", "Options", "Limits"} <= {*headings}
    assert any("esume" in heading for heading in headings)
    assert any("network" in heading or "server" in heading for heading in headings)


@pytest.mark.parametrize("name", NAMES)
def test_the_metadata_is_whole(name, plugin_class):
    facts, package = project(name), f"trainhooks_{name}"
    main = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert facts["name"] == f"trainhooks-{name}"
    assert facts["license"] == "Apache-2.0"
    assert {key: facts[key] for key in ("requires-python", "authors")} == {
        key: main[key] for key in ("requires-python", "authors")
    }
    assert "Typing :: Typed" in facts["classifiers"]
    assert (ROOT / "plugins" / facts["name"] / package / "py.typed").exists()
    assert "trainhooks>=0.1" in facts["dependencies"]
    assert (plugin_class.phase, plugin_class.on_error) == ("reporting", "disable")


@pytest.mark.parametrize("name", NAMES)
def test_an_object_has_the_name_of_the_entry_point(name, plugin_class):
    """Otherwise the object that is given to the trainer and the installed plugin would report the run twice."""
    assert plugin_class().name == name
    if "name" in parameters(plugin_class):
        assert plugin_class(name="of the run").name == name


def test_importing_all_of_them_imports_no_sdk():
    paths = [str(folder) for folder in SATELLITES]
    modules = [f"trainhooks_{name}" for name in NAMES]
    code = (
        f"import sys, importlib; sys.path[:0] = {paths!r}\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(sorted({{*{SDKS!r}}} & {{*sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)

    assert done.stdout.strip() == "[]"
