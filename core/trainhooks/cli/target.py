"""What the commands that run something have in common: their options, and the trainer that TARGET means."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainhooks.config import Config
from trainhooks.errors import UsageError
from trainhooks.project import PROJECT_FILE

if TYPE_CHECKING:
    from trainhooks import Trainer

F = TypeVar("F", bound=Callable[..., Any])


def plugin_options(command: F) -> F:
    """Add ``-p``, ``-o``, ``--set`` and ``--conf``."""
    for option in (
        click.option("--conf", type=click.Path(path_type=Path), help="Project file, instead of TARGET/trainconf.py."),
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the run: max_epochs=10."),
        click.option("-o", "options", multiple=True, metavar="PLUGIN.KEY=VALUE", help="An option of a plugin."),
        click.option(
            "-p", "plugins", multiple=True, metavar="NAME", help="Use a plugin (NAME, module:attribute) or not (no:NAME)."
        ),
    ):
        command = option(command)
    return command


def run_options(command: F) -> F:
    """Add TARGET, ``--skip-failed`` and the options of plugins."""
    command = click.option("--skip-failed", is_flag=True, help="Go on without plugins that are broken.")(command)
    return click.argument("target", default=".")(plugin_options(command))


def read_config(directory: Path, plugins: tuple[str, ...], options: tuple[str, ...], settings: tuple[str, ...]) -> Config:
    """Layer files, environment and command line."""
    config = Config.read(directory)
    config.add_environment()
    config.add_command_line(plugins, options, settings)
    return config


def project_file(directory: Path, conf: Path | None) -> Path | None:
    """Return the project file that was named, or the one of the directory, if there is any."""
    if conf is not None:
        return conf
    return directory / PROJECT_FILE if (directory / PROJECT_FILE).exists() else None


def make_trainer(
    target: str,
    *,
    plugins: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    settings: tuple[str, ...] = (),
    conf: Path | None = None,
    skip_failed: bool = False,
    **arguments: Any,
) -> Trainer:
    """Return the trainer that TARGET means: a directory with a ``trainconf.py``, or ``module:attribute``.

    Raises:
        UsageError: TARGET is neither.
    """
    show_log()
    if ":" in target and not Path(target).exists():
        if plugins or options or settings or conf:
            message = f"TARGET {target!r} is a Trainer: -p, -o, --set and --conf belong into the code that makes it"
            raise UsageError(message)
        return _imported(target)
    directory = Path(target)
    if directory.is_file():
        conf, directory = conf or directory, directory.parent
    if not directory.is_dir():
        message = f"TARGET {target!r} is neither a directory with a {PROJECT_FILE} nor module:attribute"
        raise UsageError(message)
    file = project_file(directory, conf)
    if file is None:
        message = (
            f"no {PROJECT_FILE} in {directory.absolute()}: `trainhooks init {target}` writes one, --conf FILE names another"
        )
        raise UsageError(message)
    config = read_config(directory, plugins, options, settings)
    sys.path.append(str(file.absolute().parent))  # for modules beside it; at the end, so that it shadows nothing

    from trainhooks import Trainer

    return Trainer(conf=file, config=config, skip_failed=skip_failed, **arguments)


def _imported(target: str) -> Trainer:
    from trainhooks import Trainer
    from trainhooks.assembly import load_reference

    sys.path.append(str(Path.cwd()))
    thing = load_reference(target)
    if callable(thing):
        thing = thing()
    if not isinstance(thing, Trainer):
        message = f"TARGET {target!r} is {type(thing).__name__}, no Trainer and no function that returns one"
        raise UsageError(message)
    return thing


def show_log() -> None:
    """Print what trainhooks has to say on stderr, one line each."""
    logger = logging.getLogger("trainhooks")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("trainhooks: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def run_folder(config: Config, directory: Path, resume: str | None) -> Path | None:
    """Return the folder of a run for which none was set: a fresh one, or for a resume the one that goes on."""
    if "work_dir" in config.settings:
        return None
    if resume not in (None, "auto"):
        for parent in Path(str(resume)).absolute().parents:
            if (parent / "run.json").is_file():
                return parent
    given = config.settings.get("name")
    name = str(given.value) if given is not None else directory.absolute().name
    runs = Path("runs")
    if resume == "auto" and runs.is_dir():
        former = [path for path in runs.iterdir() if path.name[16:] == name and (path / "run.json").is_file()]
        if former:
            return max(former, key=lambda path: path.name)
    stem = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    number, path = 1, stem
    while path.exists():
        number += 1
        path = stem.with_name(f"{stem.name}-{number}")
    return path
