"""CF: the project file."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from trainhooks import PluginImportError, hookimpl
from trainhooks.project import load_project

LOGS = """
from trainhooks import hookimpl
log, mine = [], "{letter}"
@hookimpl
def after_step(trainer):
    log.append(mine)
"""


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("folder", ["a b", "a.b", "1x", "é"])
def test_cf_01_the_same_file_name_in_two_folders(folder, reverse, make_trainer, tmp_path):
    files = {}
    for letter in "AB":
        files[letter] = tmp_path / folder / f"exp{letter}" / "hooks.py"
        files[letter].parent.mkdir(parents=True)
        files[letter].write_text(LOGS.format(letter=letter))
    path = list(sys.path)
    trainers = {letter: make_trainer(values=(1.0,) * 3, conf=files[letter]) for letter in ("BA" if reverse else "AB")}
    for trainer in trainers.values():
        trainer.train()
    modules = {letter: trainer.plugins["hooks"] for letter, trainer in trainers.items()}
    assert modules["A"].log == ["A"] * 3
    assert modules["B"].log == ["B"] * 3
    assert "hooks" not in sys.modules
    assert sys.path == path
    assert not list(tmp_path.rglob("__pycache__"))


def test_cf_01_on_the_command_line(command):
    for name in ("exp1", "exp2"):
        (command.folder / name).mkdir()
        (command.folder / name / "trainconf.py").write_text(
            command.conf + f"\n@hookimpl\ndef before_train():\n    print('I am {name}')\n"
        )
    for name, other in (("exp1", "exp2"), ("exp2", "exp1"), ("exp1", "exp2")):
        code, out, err = command("train", name, "--set", "max_steps=1", "--set", f"work_dir=runs/{name}", "--overwrite")
        assert code == 0, err
        assert f"I am {name}" in out
        assert f"I am {other}" not in out
    assert "trainconf" not in sys.modules


def test_cf_03_configure_once_each_and_parents_first(make_trainer, tmp_path):
    log = []

    class Registers:
        def __init__(self, name, child=None):
            self.name, self.child = name, child

        @hookimpl
        def configure(self, trainer):
            log.append(self.name)
            if self.child is not None:
                trainer.register(self.child)

        @hookimpl
        def before_train(self):
            log.append(f"{self.name} trains")

    (tmp_path / "trainconf.py").write_text(
        "from trainhooks import hookimpl\nlog = None\n@hookimpl\ndef configure(trainer):\n    log.append('root')\n"
    )
    root = load_project(tmp_path / "trainconf.py")
    root.log = log
    trainer = make_trainer([Registers("p", Registers("q", Registers("r")))], conf=root)
    trainer.train()
    configured, trains = log[:4], log[4:]
    assert sorted(configured) == ["p", "q", "r", "root"]
    assert configured.index("p") < configured.index("q") < configured.index("r")
    assert sorted(trains) == ["p trains", "q trains", "r trains"]
    trainer.train(max_epochs=2)
    assert log.count("root") == log.count("p") == log.count("q") == log.count("r") == 1


#: Content, words of the message with PATH in place of the file, and what must not be in it.
BROKEN = {
    "syntax": ("x = 1\ndef f(:\n    pass\n", "PATH:2: SyntaxError"),
    "import": (
        "\n\nimport a_module_that_is_missing\n",
        "PATH:3: ModuleNotFoundError: No module named 'a_module_that_is_missing'",
    ),
    "name": ("x = 1\n\n\ny = undefined_name\n", "PATH:4: NameError: name 'undefined_name' is not defined"),
    "nul": (b"x = 1\n\0\n", "PATH:"),
    "not utf-8": (b"x = '\xff'\n", "PATH:1: SyntaxError"),
    "exits": ("raise SystemExit(0)\n", "PATH:1: SystemExit"),
    "deeper": ("def f():\n    1 / 0\nf()\n", "PATH:2: ZeroDivisionError"),
}


@pytest.mark.parametrize("kind", [*BROKEN, "folder", "missing"])
def test_cf_04_a_project_file_that_cannot_be_loaded(kind, command):
    path = command.folder / "my_conf.py"
    expected = "PATH: cannot be read: Is a directory"
    if kind == "folder":
        path.mkdir()
    elif kind == "missing":
        expected = "no project file at PATH"
    else:
        content, expected = BROKEN[kind]
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = command("train", "--conf", path, "--set", "max_epochs=1", conf=None)
    assert code == (2 if kind == "missing" else 3)
    assert expected.replace("PATH", str(path)) in err
    assert out == ""
    assert "Traceback" not in err
    for frame in ("trainhooks/project.py", "importlib", "click", "pluggy"):
        assert frame not in err
    assert [entry.name for entry in command.folder.iterdir()] == ([] if kind == "missing" else ["my_conf.py"])
    # what lists and explains works all the same
    assert command("--help", conf=None)[0] == 0
    assert command("plugins", conf=None)[0] == 0


def test_cf_04_a_project_file_that_must_not_be_read():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "trainconf.py"
        path.write_text("x = 1\n")
        path.chmod(0o000)
        root = os.geteuid() == 0
        if root:  # for whom every file can be read
            os.seteuid(65534)
        try:
            with pytest.raises(PluginImportError) as caught:
                load_project(path)
        finally:
            if root:
                os.seteuid(0)
    assert str(caught.value) == f"{path}: cannot be read: Permission denied"
    assert caught.value.exit_code == 3


def test_cf_04_an_empty_project_file_is_fine(make_trainer, tmp_path):
    (tmp_path / "trainconf.py").write_bytes(b"")
    trainer = make_trainer(conf=tmp_path / "trainconf.py")
    assert trainer.train().step == 10
    assert "trainconf" in trainer.plugins
    assert not trainer.manager.plugins["trainconf"].implementations


def test_cf_04_frames_of_a_module_beside_it_are_shown(command):
    (command.folder / "beside_it.py").write_text("def go():\n    raise KeyError('here')\n")
    code, _, err = command("train", conf="\nimport beside_it\nbeside_it.go()\n")
    sys.modules.pop("beside_it")
    assert code == 3
    assert f"{command.folder / 'trainconf.py'}:3: KeyError: 'here'" in err
    assert "beside_it.py" in err
    assert "project.py" not in err
