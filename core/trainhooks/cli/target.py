"""What the commands that run something have in common: their options, and the trainer that TARGET means."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from trainhooks.cli.output import clean_lines
from trainhooks.config import Config
from trainhooks.errors import PluginImportError, UsageError
from trainhooks.options import parameters
from trainhooks.project import PROJECT_FILE
from trainhooks.suggest import suggestion

if TYPE_CHECKING:
    from trainhooks import Trainer

#: Names of the settings, for the help, which must not load torch as ``settings.py`` does.
SETTINGS: Final = (
    *("max_epochs", "max_steps", "max_updates", "steps_per_epoch", "device", "seed", "work_dir", "name"),
    *("log_every_steps", "report_timeout_s"),
)

F = TypeVar("F", bound=Callable[..., Any])


def plugin_options(command: F) -> F:
    """Add ``-p``, ``-o``, ``--set`` and ``--conf``."""
    for option in (
        click.option("--conf", type=click.Path(path_type=Path), help="Project file, instead of TARGET/trainconf.py."),
        click.option(
            "--set", "settings", multiple=True, metavar="KEY=VALUE", help=f"A setting of the run: {', '.join(SETTINGS)}."
        ),
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
        UsageError: TARGET is neither, or a script and no project file.
    """
    show_log()
    if is_reference(target):
        given = {"-p": plugins, "-o": options, "--set": settings, "--conf": conf, "--skip-failed": skip_failed}
        if words := [word for word, value in given.items() if value]:
            message = (
                f"TARGET {target!r} is a Trainer, so {words[0]} has no effect on it; it belongs into the code that makes it"
            )
            raise UsageError(message)
        return _imported(target)
    directory = directory_of(target)
    file = Path(target) if conf is None and Path(target).is_file() else project_file(directory, conf)
    if file is None:
        message = (
            f"no {PROJECT_FILE} in {directory.absolute()}: `trainhooks init{_argument(directory)}` writes one, "
            "--conf FILE names another"
        )
        raise UsageError(message)
    config = read_config(directory, plugins, options, settings)
    from trainhooks.cli.script import refuse_without_hooks, script_of

    if (script := script_of(file)) is not None:
        raise UsageError(script)
    make_importable(file.absolute().parent)

    import_torch()
    from trainhooks import Trainer

    trainer = Trainer(conf=file, config=config, skip_failed=skip_failed, **arguments)
    refuse_without_hooks(file, trainer)
    return trainer


def is_reference(target: str) -> bool:
    """Return whether TARGET is ``module:attribute``; a path of that name goes first."""
    return ":" in target and not Path(target).exists()


def directory_of(target: str) -> Path:
    """Return the directory of the run that TARGET names, itself or by a project file in it.

    Raises:
        UsageError: TARGET is neither.
    """
    path = Path(target)
    directory = path.parent if path.is_file() else path
    if not target or not directory.is_dir():  # an unset variable of a shell is not the current directory
        message = f"TARGET {target!r} is neither a directory with a {PROJECT_FILE}, nor a project file, nor module:attribute"
        raise UsageError(message)
    return directory


def _argument(directory: Path) -> str:
    return "" if directory == Path() else f" {shlex.quote(str(directory))}"


def import_torch() -> None:
    """Import torch, and have Ctrl-C end the process meanwhile: an import that it interrupts may swallow it, or leave halves."""
    if "torch" in sys.modules or threading.current_thread() is not threading.main_thread():
        return
    found = signal.getsignal(signal.SIGINT)
    if found is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        import torch  # noqa: F401 - what all that follows needs
    finally:
        if found is signal.default_int_handler:
            signal.signal(signal.SIGINT, found)


def make_importable(directory: Path) -> None:
    """Let modules beside the project be imported; last, so that they shadow nothing."""
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


def _imported(target: str) -> Trainer:
    import_torch()
    from trainhooks import Trainer
    from trainhooks.assembly import load_reference

    make_importable(Path.cwd())
    try:
        thing = load_reference(target)
    except PluginImportError as error:
        message = _no_such_target(target, error.__cause__)
        if message is None:  # the module is there and broken
            raise
        raise UsageError(message) from None
    if not isinstance(thing, Trainer) and callable(thing):
        needed = [name for name, one in parameters(thing).items() if one.default is one.empty]
        if needed:
            message = f"TARGET {target!r} cannot be called without arguments, it needs {', '.join(needed)}"
            raise UsageError(message)
        thing = thing()
    if not isinstance(thing, Trainer):
        message = f"TARGET {target!r} gives {type(thing).__name__}, it must be a Trainer or a function that returns one"
        raise UsageError(message)
    return thing


def _no_such_target(target: str, cause: BaseException | None) -> str | None:
    """Return what is wrong with the words of TARGET itself, ``None`` if its module fails."""
    name, _, attribute = target.partition(":")
    if isinstance(cause, ModuleNotFoundError) and cause.name and (name == cause.name or name.startswith(f"{cause.name}.")):
        return f"TARGET {target!r}: there is no module {cause.name!r} here or among what is installed"
    if isinstance(cause, AttributeError) and name in sys.modules:
        return f"TARGET {target!r}: module {name!r} has no {attribute!r}{suggestion(attribute, vars(sys.modules[name]))}"
    if isinstance(cause, ValueError | TypeError) and not name.strip("."):
        return f"TARGET {target!r}: the name of the module is missing; write module:attribute"
    return None


class _Lines(logging.Formatter):
    """Shows what a checkpoint of somebody else says in a way that steers no terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return clean_lines(super().format(record))


def show_log() -> None:
    """Print what trainhooks has to say on stderr, one line each."""
    logger = logging.getLogger("trainhooks")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_Lines("trainhooks: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
