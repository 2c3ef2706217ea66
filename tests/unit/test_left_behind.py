"""A process whose reporter is left behind in torch ends with the exit code that its run has."""

import subprocess
import sys

import pytest

PLUGIN = """
import torch
from trainhooks import hookimpl

class Loops:
    phase = "reporting"
    stubborn = False

    @hookimpl
    def report_metrics(self):
        values = torch.randn(200, 200)
        while True:
            try:
                values = (values @ values).tanh()
            except BaseException:
                if not self.stubborn:
                    raise
"""
SCRIPT = """
from trainhooks import Trainer

model = torch.nn.Linear(1, 1)
trainer = Trainer(
    model, loss=torch.nn.functional.mse_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    loaders={"train": [(torch.ones(1, 1), torch.ones(1, 1))]}, max_epochs=1, report_timeout_s=0, plugins=[Loops()], autoload=False,
)
trainer.train()
print("done")
"""
PROJECT = """
class Stubborn(Loops):
    stubborn = True

plugins = [Stubborn()]

@hookimpl
def after_train(trainer):
    if trainer.settings.name == "fails":
        raise ValueError("of mine")
"""
MAIN = "from trainhooks.cli import main; main()"


def run(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=300)


def test_a_script(tmp_path):
    (tmp_path / "script.py").write_text(PLUGIN + SCRIPT)
    done = run(tmp_path / "script.py")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "did not finish in time (it is in report_metrics())" in done.stderr
    assert "SystemExit" not in done.stderr


@pytest.mark.parametrize(("name", "code"), [("completes", 0), ("fails", 1)])
def test_the_command_line_even_if_nothing_ends_the_thread(project, name, code):
    """What was printed is there, and so is what others do at the exit of the process."""
    own = (project / "trainconf.py").read_text()
    at_exit = "\nimport atexit\natexit.register(print, 'at exit')\n"
    (project / "trainconf.py").write_text(own + PLUGIN + PROJECT + at_exit)
    done = run("-c", MAIN, "train", "--set", f"name={name}", "--set", "report_timeout_s=0", "--set", "log_every_steps=1")
    assert done.returncode == code, done.stderr
    assert "plugin 'stubborn' (project file): " in done.stderr
    assert ("ValueError: of mine" in done.stderr) is (code == 1)
    assert ("run folder: " in done.stdout) is (code == 0)
    assert done.stdout.endswith("at exit\n")
