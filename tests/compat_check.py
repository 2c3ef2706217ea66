"""Runs under Pythons that have no torch here: everything compiles, the commands that need no torch work, order and options do.

Called by ``nox -s compat``; fails with a traceback.
"""

import compileall
import inspect
import subprocess
import sys
from pathlib import Path

import trainhooks
from trainhooks import hookimpl, hookspecs
from trainhooks.errors import PluginValidationError, add_note
from trainhooks.options import Given, validated
from trainhooks.order import Place, sort
from trainhooks.validation import faults, returns_nothing

for package in (Path(trainhooks.__file__).parent, Path(trainhooks.__file__).parents[1] / "trainhooks_builtins"):
    assert compileall.compile_dir(package, quiet=1, force=True), package

script = Path(sys.executable).with_name("trainhooks")
for arguments in (["--help"], ["--version"], ["plugins"], ["plugins", "--json"], ["hooks"], ["train", "--help"]):
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stderr)
assert "checkpoint" in subprocess.run([script, "plugins"], capture_output=True, text=True, check=True).stdout

assert sort([Place("a"), Place("b", after=("a",)), Place("c", before=("a",))]) == ["c", "a", "b"]


class Plugin:
    """Options of several kinds, and a wrapper that loses its result."""

    def __init__(self, rate: float | None = None, names: tuple[str, ...] = ()) -> None:
        self.rate, self.names = rate, names

    @hookimpl(wrapper=True)
    def train_step(self):
        yield

    @hookimpl(wrapper=True)
    def compute_loss(self):
        return (yield)


known = {
    name: tuple(inspect.signature(spec).parameters)
    for name, spec in vars(hookspecs).items()
    if hasattr(spec, "trainhooks_spec")
}
found = faults(Plugin(), known, frozenset({"train_step", "compute_loss"}))
assert len(found) == 1, found
assert "never returns" in found[0], found
assert returns_nothing(Plugin.train_step)
assert not returns_nothing(Plugin.compute_loss)
assert validated(Plugin, {"rate": Given("1e-5", "here"), "names": Given(["x"], "here")}, "plugin") == {
    "rate": 1e-5,
    "names": ("x",),
}

error = PluginValidationError("plugin 'x'", ["one", "two"])
add_note(error, "a note")
assert error.__notes__ == ["a note"]
print("fine under Python", sys.version.split()[0])
