"""The project file: a module of its own, whatever its name and place."""

import os
import pickle
import sys
from pathlib import Path

import pytest

from trainhooks import PluginImportError, PluginValidationError, UsageError
from trainhooks.project import load_project


@pytest.fixture
def write(tmp_path):
    def make(text, name="trainconf.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return make


def private(path):
    return [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == str(path)]


def test_it_has_a_private_name_and_shadows_nothing(write):
    path = write("import json\nwhere = __file__\nname = __name__\n", "json.py")
    before = list(sys.path)
    module = load_project(path)
    assert module.where == str(path)
    assert module.json.__name__ == "json"
    assert module.json.__file__ != str(path)
    assert private(path) == [module.name]
    assert module.name.startswith("_trainhooks_project_")
    assert sys.path == before
    assert "trainconf" not in sys.modules


def test_its_classes_can_be_pickled_and_made_into_dataclasses(write):
    module = load_project(
        write("from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 1\n")
    )
    again = pickle.loads(pickle.dumps(module.A(3)))
    assert again == module.A(3)


def test_a_change_is_seen_without_any_cache(write):
    path = write("x = 1\n")
    assert load_project(path).x == 1
    write("x = 2\n")
    os.utime(path, (0, 0))
    assert load_project(path).x == 2
    assert not (path.parent / "__pycache__").exists()


def test_future_imports_of_the_engine_are_not_inherited(write):
    module = load_project(write("def f(x: int): ...\n"))
    assert module.f.__annotations__ == {"x": int}


def test_a_path_that_is_no_utf_8(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py"))
    path.write_text("x = 1\n")
    assert load_project(path).x == 1


def test_a_failed_load_leaves_no_module_and_keeps_a_former_one(write):
    path = write("x = 1\n")
    module = load_project(path)
    write("1 / 0\n")
    with pytest.raises(PluginImportError):
        load_project(path)
    assert sys.modules[module.__name__] is module
    other = write("1 / 0\n", "other.py")
    with pytest.raises(PluginImportError):
        load_project(other)
    assert private(other) == []


def test_an_interrupt_passes_and_leaves_no_module(write):
    path = write("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_project(path)
    assert private(path) == []


def test_the_message_has_the_line_of_the_file_and_the_users_frames(write):
    path = write("def f():\n    return {}['key']\n\n\nf()\n")
    with pytest.raises(PluginImportError) as caught:
        load_project(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}:2: KeyError: 'key'"
    assert [line for line in lines if line.startswith("  File")] == [
        f'  File "{path}", line 5, in <module>',
        f'  File "{path}", line 2, in f',
    ]
    assert isinstance(caught.value.__cause__, KeyError)


def test_there_must_be_a_file(tmp_path):
    with pytest.raises(UsageError, match="no project file at .*trainconf.py"):
        load_project(tmp_path / "trainconf.py")


PLUGINS = """
from trainhooks import hookimpl
log = []
class Level:
    def __init__(self, level: int = 1):
        self.level = level
    @hookimpl
    def after_step(self):
        log.append(self.level)
plugins = [Level, Level(5)]
@hookimpl
def after_step():
    log.append("file")
"""


def test_it_may_list_plugins_and_be_one_itself(write, make_trainer):
    path = write(PLUGINS)
    trainer = make_trainer(values=(1.0,), conf=path, options={"level": {"level": 2}})
    trainer.train()
    assert list(trainer.plugins) == ["trainconf", "level", "level@2"]
    assert trainer.plugins["trainconf"].log == ["file", 2, 5]
    assert {record.source for record in trainer.manager.plugins.values()} == {"project"}


def test_it_can_be_taken_out(write, make_trainer):
    trainer = make_trainer(["no:trainconf", "no:level"], values=(1.0,), conf=write(PLUGINS))
    assert list(trainer.plugins) == []


def test_what_is_wrong_with_its_hooks_names_it(write, make_trainer):
    path = write("from trainhooks import hookimpl\n@hookimpl\ndef after_stepp(): ...\ndef before_step(): ...\n")
    with pytest.raises(PluginValidationError) as caught:
        make_trainer(conf=path)
    assert f"after_stepp() in {path}:2" in str(caught.value)
    assert f"before_step() in {path}:4: has a hook's name but no @hookimpl" in str(caught.value)
    assert "plugin 'trainconf' (project file)" in str(caught.value)
    path = write("plugins = 3\n")
    with pytest.raises(UsageError, match="'plugins' must be a list, not 3"):
        make_trainer(conf=path)


def test_names_that_it_imported_are_not_its_own(write, make_trainer):
    """A function of a hook's name that comes from elsewhere is no forgotten mark."""
    write("def evaluate(): ...\n", "beside.py")
    path = write("from importlib.util import find_spec as setup\nfrom shutil import copy as train\n")
    assert "trainconf" in make_trainer(conf=path).plugins
