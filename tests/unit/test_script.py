"""A script is no project file: it is refused before it trains on import, and with what runs it."""

import sys

import pytest

SCRIPT = """
import torch
from torch import nn

from trainhooks import Trainer, hookimpl

print("it runs")
train, val = [(torch.ones(1, 1), torch.ones(1, 1))], []


class Accuracy:
    @hookimpl
    def after_step(self):
        pass


@torch.no_grad()
def measured():
    pass


model = nn.Linear(1, 1)
trainer = Trainer(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loaders={"train": train},
                  loss=nn.functional.mse_loss, max_epochs=1, plugins=[Accuracy()])
trainer.train()
"""
GUARD = 'if __name__ == "__main__":\n    '


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "begin.py"

    def make(text):
        path.write_text(text)
        return path

    yield make
    sys.modules.pop("begin", None)


REFUSED = "begin.py has no hooks, so it is no project file: "
RUN_IT = f"{REFUSED}run it with python begin.py, or name a Trainer in it as begin:trainer"


@pytest.mark.parametrize(
    "words",
    [["train"], ["trace"], ["evaluate", "--checkpoint", "."], ["predict", "--checkpoint", "."], ["train", ".", "--conf"]],
)
def test_a_script_is_refused_before_it_runs(cli, write, words, tmp_path):
    write(SCRIPT)
    run = cli(*words, "begin.py", expect=2)
    assert run.err == f'trainhooks: {RUN_IT}, with its train() under if __name__ == "__main__"\n'
    assert run.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["begin.py"]


def test_what_is_advised_works(cli, write, tmp_path):
    write(SCRIPT.replace("trainer.train()", f"{GUARD}trainer.train()"))
    assert cli("train", "begin.py", expect=2).err == f"trainhooks: {RUN_IT}\n"
    assert cli("train", "begin:trainer").out.startswith("it runs\n")


def test_a_function_that_makes_a_trainer_is_named(write):
    from trainhooks.cli.script import script_of

    said = script_of(write("from trainhooks import Trainer\n\n\ndef make():\n    return Trainer()\n"))
    assert said.endswith(" or name a Trainer in it as begin:make")


def test_a_list_of_plugins_for_its_own_trainer_makes_it_none(cli, write):
    write(SCRIPT.replace("model =", "plugins = [Accuracy()]\nmodel =").replace("[Accuracy()])", "plugins)"))
    assert RUN_IT in cli("train", "begin.py", expect=2).err


def test_hooks_shows_the_rest(cli, write):
    write(SCRIPT)
    run = cli("hooks", "after_step", "--conf", "begin.py")
    assert run.err.startswith(f"trainhooks: not shown: {RUN_IT}")
    assert "it runs" not in run.out
    assert "progress  (trainhooks " in run.out


@pytest.mark.parametrize("source", ["", "x = 1\n", "class Accuracy:\n    pass\n", "import json\nprint('it runs')\n"])
def test_a_file_without_hooks_is_refused_once_it_has_run(cli, write, source):
    write(source)
    what = "mark functions with @hookimpl, as the trainconf.py does that `trainhooks init` writes, or list classes in plugins = [...]"
    assert cli("train", "begin.py", expect=2).err == f"trainhooks: {REFUSED}{what}\n"
    assert cli("hooks", "after_step", "--conf", "begin.py").err == f"trainhooks: not shown: {REFUSED}{what}\n"


def test_a_script_that_hides_it_is_refused_once_it_has_run(cli, write):
    """Its functions and names may be hooks, as far as the source tells."""
    write(SCRIPT.replace("@torch.no_grad()", "from contextlib import contextmanager\n\n\n@contextmanager"))
    run = cli("train", "begin.py", expect=2)
    assert run.out.startswith("it runs\n")
    assert RUN_IT in run.err


HOOKS = (
    "from trainhooks import hookimpl as mark\n\n\n@mark\ndef configure(trainer):\n    trainer.max_steps = 1\n",
    "from trainhooks import hookimpl\n\nconfigure = hookimpl(lambda trainer: setattr(trainer, 'max_steps', 1))\n",
    "from theirs import *\n",
    "from theirs import begin as make_model\n",
    "import theirs\n\nmake_model = theirs.begin\n",
    "import theirs\n\nglobals().update(vars(theirs))\n",
    "plugins = []\n",
)


@pytest.mark.parametrize("source", HOOKS)
def test_a_project_file_may_make_trainers_of_its_own(write, source):
    from trainhooks.cli.script import script_of

    inner = "\n\ndef ready():\n    from trainhooks import Trainer\n\n    return Trainer()\n"
    assert script_of(write(source + inner)) is None
    assert "run it with python" in script_of(write(inner))


def test_a_plugin_may_be_all_that_there_is(cli, project):
    """A project file may do no more than set something up, where an installed plugin makes what is trained."""
    (project / "theirs.py").write_text((project / "trainconf.py").read_text())
    (project / "trainconf.py").write_text("import os\n")
    assert "completed" in cli("train", "-p", "theirs:", "-p", "no:progress").out
    sys.modules.pop("theirs", None)
