"""What is run here and in CI: `nox -l` lists it, `nox -s NAME` runs it."""

import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = (
    "virtualenv"  # pip reads constraints.txt and find-links; uv would fetch a CUDA build of torch
)
nox.options.sessions = ["lint", "typing", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.needs_version = ">=2024.4.15"

ROOT = Path(__file__).parent
GROUPS = nox.project.load_toml(ROOT / "pyproject.toml")["dependency-groups"]
#: The distributions of trackers, by the name of the plugin.
SATELLITES = {
    path.parent.name.removeprefix("trainhooks-"): path.parent for path in sorted((ROOT / "plugins").glob("*/pyproject.toml"))
}
#: Those that are too large for every run of CI, and what their tests need besides.
HEAVY = {"mlflow": ["mlflow>=3.17,<4"]}
#: What the tests of the others need besides: `swanlab watch`, and a look at the processes of clearml.
LIGHT = ["swanlab[dashboard]==0.10.3", "psutil", "pillow"]


def install(session: nox.Session, *what: str) -> None:
    """Install with torch held at the version of constraints.txt."""
    session.install("-c", str(ROOT / "constraints.txt"), *what)


@nox.session
def demo(session: nox.Session) -> None:
    """Train a classifier of handwritten digits, show what ran and how it went, evaluate its checkpoint."""
    install(session, ".", "numpy", "scikit-learn")
    session.run("python", "docs/examples/digits/demo.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests but the slow ones; `nox -s tests -- -m ''` runs those too."""
    install(session, *GROUPS["test"], "-e", ".")
    session.run("python", "-m", "pytest", "-n", "2", *(session.posargs or ["-m", "not slow"]))
    session.run("python", "tests/bench/schedule_table.py")  # which a test runs too; here it shows its table


@nox.session
def slow(session: nox.Session) -> None:
    """Run the slow tests: wheels in a clean environment, processes, the demo, type checks."""
    install(session, *GROUPS["test"], *GROUPS["typing"], "-e", ".")
    session.run("python", "-m", "pytest", "-n", "2", "-m", "slow", *session.posargs)


@nox.session
def reliability(session: nox.Session) -> None:
    """Kill, damage, cut the power of and interrupt real trainings, and print the score; `-- --scale 0.1` for a part of it."""
    install(session, *GROUPS["test"], "-e", ".")
    session.run("python", "tests/reliability/score.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and layering."""
    session.install(*GROUPS["lint"])
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", env={"PYTHONPATH": "core:plugins/builtins"})


@nox.session
def typing(session: nox.Session) -> None:
    """Check types, strictly, with mypy and pyright."""
    install(session, *GROUPS["typing"], "-e", ".")
    session.run("mypy")
    session.run("pyright", "--warnings")


@nox.session
def docs(session: nox.Session) -> None:
    """Check that the pages and the hooks agree and that every example runs."""
    install(session, *GROUPS["test"], "-e", ".")
    session.run("python", "docs/generate_reference.py", "--check")
    session.run("python", "-m", "pytest", "tests/docs", *session.posargs)


@nox.session
def dist(session: nox.Session) -> None:
    """Build the sdist, the wheel from it, install only the wheel, and list its plugins."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    session.install("build")
    session.run("python", "-m", "build", "--outdir", "dist")
    install(session, *map(str, (ROOT / "dist").glob("*.whl")))
    session.chdir(session.create_tmp())
    session.run("trainhooks", "plugins", "--check")


@nox.session(python=["3.10", "3.12", "3.13"])
def compat(session: nox.Session) -> None:
    """Run what needs no torch under the other Python versions, for which this machine has no CPU build of torch."""
    session.install("pluggy>=1.7", "importlib-metadata", "click", "tomli", "exceptiongroup", "pydantic", "pytest")
    session.install("--no-deps", ".")
    session.run("python", "tests/compat_check.py")


@nox.session
def bench(session: nox.Session) -> None:
    """Print the time of a training step and the CPU of `trainhooks plugins`, as ratios in one run."""
    install(session, ".", "numpy")
    session.run("python", "tests/bench/listing_cpu.py")
    session.run("python", "tests/bench/step_time.py", *session.posargs)


@nox.session
def satellites(session: nox.Session) -> None:
    """Test the distributions under plugins/ that have a pyproject.toml of their own, but the heavy ones."""
    folders = [folder for name, folder in SATELLITES.items() if name not in HEAVY]
    install(session, *GROUPS["test"], *LIGHT, "-e", ".", *(word for folder in folders for word in ("-e", str(folder))))
    for folder in folders:
        session.run("python", "-m", "pytest", "-n", "2", str(folder / "tests"), *session.posargs)


@nox.session
@nox.parametrize("satellite", sorted(HEAVY))
def heavy(session: nox.Session, satellite: str) -> None:
    """Test a satellite whose tracker is large; CI does when its folder or the bus has changed."""
    install(session, *GROUPS["test"], "-e", ".", "-e", str(SATELLITES[satellite]), *HEAVY[satellite])
    tests = str(SATELLITES[satellite] / "tests")
    session.run("python", "-m", "pytest", "-n", "2", "--dist", "loadfile", tests, *session.posargs)  # one server, not two


@nox.session
@nox.parametrize("satellite", sorted(SATELLITES))
def trackers(session: nox.Session, satellite: str) -> None:
    """Train the digits in a clean environment with one satellite, killed and resumed too; read back with the tracker's reader."""
    install(session, ".", str(SATELLITES[satellite]), "numpy", "scikit-learn")
    session.run("python", "tests/satellite_demo.py", satellite, *session.posargs)
