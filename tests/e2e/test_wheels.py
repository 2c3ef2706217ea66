"""Two third-party plugins, built as wheels, in an environment that holds nothing but wheels: found, run, ordered, taken out, gone."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "tests/data/plugins"

# One weight w with loss w * x and x = 1: its gradient is 1, so SGD with rate 1 takes 1 off at each update, and 2 where the
# plugin `wraps` doubles the loss. Losses before the updates: w = 0, -1, -2
# without it; with it w = 0, -2, -4, doubled 0, -4, -8.
TRAINCONF = """
import sys
import torch
from torch import nn
from trainhooks import hookimpl


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.w * x.mean()


@hookimpl
def configure(trainer):
    trainer.max_steps = 3


@hookimpl
def make_model():
    return Scalar()


@hookimpl
def make_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters(), lr=1.0)


@hookimpl
def make_loader():
    return [torch.ones(1)] * 3


@hookimpl
def after_train(trainer):
    theirs = sorted(name for name in sys.modules if name in ("trainhooks_listens", "trainhooks_wraps"))
    trainer.run_file("seen.txt").write_text(f"{trainer.model.w.item()} {' '.join(theirs)}")
"""


def clean_environment(**more):
    """Return an environment without anything that leads Python to the checkout."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TRAINHOOKS", "VIRTUAL_ENV", "COV_"))
    }
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NO_COLOR": "1", **more}


def run(*command, cwd, expect=0):
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == expect, f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def build(source, out):
    """Build an sdist, and the wheel from that sdist."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, cwd=out.parent)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return wheel and sdist of trainhooks and of both plugins."""
    place = tmp_path_factory.mktemp("dist")
    sources = {"trainhooks": ROOT, **{name: PLUGINS / name for name in ("trainhooks-listens", "trainhooks-wraps")}}
    made = {}
    for name, source in sources.items():
        (place / name).mkdir()
        made[name] = build(source, place / name)
    return made


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Return an environment into which only the three wheels were installed.

    Torch and the other dependencies come from the environment of the tests: a .pth file puts its site-packages behind the new
    one's. Python does not read the .pth files of a folder that was added so, thus the editable checkout is not on its path.
    """
    place = tmp_path_factory.mktemp("wheels")
    venv.create(place / "venv", with_pip=False, symlinks=True)
    python = place / "venv/bin/python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).stdout.strip())
    theirs = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in theirs))

    def pip(*words):
        return run(sys.executable, "-m", "pip", "--python", python, *words, cwd=place)

    pip("install", "--no-index", "--no-deps", "--ignore-installed", *(wheel for wheel, _ in built.values()))

    project = place / "project"
    project.mkdir()
    (project / "trainconf.py").write_text(TRAINCONF)
    count = iter(range(100))

    def trainhooks(*words, expect=0):
        return run(place / "venv/bin/trainhooks", *words, cwd=project, expect=expect)

    def train(*words):
        """Train, and return what the listener wrote and what the project file saw."""
        out = place / f"run-{next(count)}"
        trainhooks("train", "--set", f"work_dir={out}", *words)
        listened = (out / "listens.txt").read_text().splitlines() if (out / "listens.txt").exists() else None
        return SimpleNamespace(listened=listened, seen=(out / "seen.txt").read_text())

    return SimpleNamespace(place=place, site=site, python=python, pip=pip, trainhooks=trainhooks, train=train)


def plugin_rows(installed):
    return {row["name"]: row for row in json.loads(installed.trainhooks("plugins", "--json").stdout)}


def test_the_wheel_is_what_runs(installed):
    """Nothing below tests the checkout by accident."""
    code = (
        "import sys, trainhooks, trainhooks_builtins, importlib_metadata as m\n"
        "print(trainhooks.__file__, trainhooks_builtins.__file__, m.distribution('trainhooks')._path, trainhooks.__version__)\n"
        "print([path for path in sys.path])"
    )
    first, path = run(installed.python, "-c", code, cwd=installed.place).stdout.splitlines()
    *places, version = first.split()
    assert [str(installed.site) in place for place in places] == [True, True, True]
    assert version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert str(ROOT / "core") not in path


def test_both_are_listed_with_distribution_and_version(installed):
    rows = plugin_rows(installed)
    assert [(rows[name]["state"], rows[name]["distribution"], rows[name]["version"]) for name in ("listens", "wraps")] == [
        ("active", "trainhooks-listens", "1.2.3"),
        ("active", "trainhooks-wraps", "0.4.0"),
    ]


def test_the_next_run_has_both_hooks_with_no_other_change(installed):
    run = installed.train()
    assert run.listened == ["step 1: 0.0000", "step 2: -4.0000", "step 3: -8.0000"]
    assert run.seen == "-6.0 trainhooks_listens trainhooks_wraps"


def test_their_options_are_typed(installed):
    run = installed.train("-o", "listens.every_steps=2", "-o", "listens.prefix=at", "-o", "wraps.factor=3")
    assert run.listened == ["at 2: -9.0000"]  # w = -3 after the first update, times 3
    refused = installed.trainhooks("train", "-o", "wraps.factor=twice", expect=2)
    assert "plugin 'wraps' (trainhooks-wraps 0.4.0): option 'factor' in -o wraps.factor=twice" in refused.stderr
    listed = installed.trainhooks("plugins", "--options", "listens").stdout
    assert [line.split() for line in listed.splitlines()[1:3]] == [["every_steps", "int", "1"], ["prefix", "str", "'step'"]]


def test_the_listener_stands_where_it_declared(installed):
    every_step = ("-o", "evaluation.every_steps=1", "-o", "checkpoint.every_steps=1")
    facts = json.loads(installed.trainhooks("hooks", "after_step", "--json", *every_step).stdout)
    order = [one["plugin"] for one in facts["implementations"]]
    # Phases: measurement, persistence, reporting. Within measurement an installed plugin goes before a built-in one, being
    # closer to the user, but this one declares `after = ("evaluation",)`, which always holds.
    known = ("evaluation", "listens", "checkpoint", "progress")
    assert [name for name in order if name in known] == list(known)
    (listener,) = [one for one in facts["implementations"] if one["plugin"] == "listens"]
    assert (listener["distribution"], listener["version"], listener["phase"]) == ("trainhooks-listens", "1.2.3", "measurement")
    assert listener["place"].startswith(str(installed.site))
    without = installed.trainhooks("hooks", "after_step", "-p", "no:listens").stdout
    assert "listens  (" not in without
    assert "  progress  (trainhooks " in without
    wrapped = installed.trainhooks("hooks", "compute_loss").stdout
    assert "  wraps  (trainhooks-wraps 0.4.0, algorithm, wraps)  " in wrapped


@pytest.mark.parametrize("word", ["no:listens", "no:trainhooks-listens"])
def test_a_plugin_that_is_taken_out_is_not_imported(installed, word):
    run = installed.train("-p", word)
    assert run.listened is None
    assert run.seen == "-6.0 trainhooks_wraps"


def test_the_wheel_has_two_packages_and_their_types(built):
    wheel, _ = built["trainhooks"]
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"trainhooks", "trainhooks_builtins"}
    assert {"trainhooks/py.typed", "trainhooks_builtins/py.typed"} <= set(names)
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    checkout = {
        f"{package.name}/{file.relative_to(package)}"
        for package in (ROOT / "core/trainhooks", ROOT / "plugins/builtins/trainhooks_builtins")
        for file in package.rglob("*")
        if file.is_file() and not re.search(r"/(__pycache__|\.\w+)/", file.as_posix())
    }
    assert checkout <= set(names)


def test_the_sdist_has_no_satellite(built):
    _, sdist = built["trainhooks"]
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert "plugins/builtins/trainhooks_builtins/__init__.py" in names
    assert [name for name in names if name.startswith("plugins/trainhooks-")] == []
    assert [name for name in names if "/runs/" in name or name.endswith((".pyc", ".pt"))] == []


def test_every_entry_point_loads_and_requirements_hold(installed):
    code = (
        "import importlib_metadata as m\n"
        "points = [p for g in ('trainhooks', 'trainhooks.optional', 'trainhooks.commands') for p in m.entry_points(group=g)]\n"
        "[p.load() for p in points]\n"
        "print(len(points))"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    expected = sum(len(project.get(group, {})) for group in ("trainhooks", "trainhooks.optional", "trainhooks.commands")) + 2
    assert run(installed.python, "-c", code, cwd=installed.place).stdout.strip() == str(expected)
    assert installed.trainhooks("plugins", "--check").returncode == 0
    assert "No broken requirements" in installed.pip("check").stdout


def test_uninstalled_plugins_are_gone(installed):
    """Runs last: it takes the plugins out of the environment that this module shares."""
    installed.pip("uninstall", "-y", "trainhooks-listens", "trainhooks-wraps")
    assert {"listens", "wraps"} & set(plugin_rows(installed)) == set()
    run = installed.train()
    assert run.listened is None
    assert run.seen == "-3.0 "
    refused = installed.trainhooks("train", "-o", "listens.every_steps=2", expect=2)
    assert "no plugin is named 'listens'" in refused.stderr
