"""The command line; each command is a module of its own that is imported when it is used."""

from __future__ import annotations

import atexit
import codecs
import io
import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import click
from importlib_metadata import entry_points

from trainhooks.errors import PluginImportError, Terminated

_COMMANDS: Final = {
    "plugins": ("listing", "List every plugin: its state and why, distribution and version."),
    "hooks": ("hooks", "Show the loop with its hooks, or who implements one of them."),
    "train": ("train", "Train what a trainconf.py or a Trainer describes."),
    "evaluate": ("inference", "Evaluate a checkpoint."),
    "predict": ("inference", "Predict with a checkpoint."),
    "trace": ("trace", "Run a few real steps and show every hook call with its time."),
    "runs": ("runs", "List the runs below a folder, or show one of them."),
    "init": ("init", "Write a starter trainconf.py that trains at once."),
}
#: Those that run users' code, for which to exit is no way to succeed.
_RUNNING: Final = ("train", "evaluate", "predict", "trace")
#: Help lines of the commands that this distribution brings as plugins may, so that ``--help`` need not import them.
_BUILT_IN: Final = {
    "checkpoints": "List, verify, prune, pin and export the checkpoints of a run.",
    "report": "Draw and compare runs, as one page or in the terminal.",
}


class _Passed(Exception):  # noqa: N818 - carries an error past click
    """Carries an error past ``click``, which would take an EOFError of the training for Ctrl-D and silence a broken pipe."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(error)


class _LazyGroup(click.Group):
    """Knows the names and help lines of its commands without importing them; plugins bring commands of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *(name for name in _found() if name not in _COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            module = import_module(f"{__name__}.{_COMMANDS[cmd_name][0]}")
            command: click.Command = getattr(module, cmd_name)
            return command
        point = _found().get(cmd_name)
        return _plugin_command(point) if point is not None else None

    def invoke(self, ctx: click.Context) -> None:
        try:
            super().invoke(ctx)
        except (EOFError, OSError, KeyboardInterrupt, Terminated) as error:
            raise _Passed(error) from error
        except SystemExit as error:
            if ctx.invoked_subcommand not in _RUNNING:  # it is how a command ends
                raise
            raise _Passed(error) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, text) in _COMMANDS.items()]
        rows += [(name, _help_line(point)) for name, point in _found().items() if name not in _COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from trainhooks.suggest import suggestion

            hint = suggestion(args[0], self.list_commands(ctx))
            raise click.UsageError(f"{error.message.rstrip('.')}{hint}", ctx) from None


def _found() -> dict[str, Any]:
    """Return the entry points of commands by name: sorted, those of this distribution first, whose names nobody else can take."""
    points: dict[str, Any] = {}
    for point in sorted(
        entry_points(group="trainhooks.commands"), key=lambda one: (not _is_ours(one), one.name, one.dist.name)
    ):
        points.setdefault(point.name, point)
    return points


def _is_ours(point: Any) -> bool:
    return point.name in _BUILT_IN and bool(point.dist.name == "trainhooks")


def _help_line(point: Any) -> str:
    return _BUILT_IN[point.name] if _is_ours(point) else f"(from {point.dist.name} {point.dist.version})"


def _plugin_command(point: Any) -> click.Command:
    """Import a command that a plugin brings.

    Raises:
        PluginImportError: It cannot be imported or is no command.
    """
    who = f"command {point.name!r} ({point.dist.name} {point.dist.version})"
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:
        message = f"{who}: entry point {point.value!r} cannot be imported: {type(error).__name__}: {error}"
        raise PluginImportError(message) from error
    if not isinstance(loaded, click.Command):
        message = f"{who}: entry point {point.value!r} is {type(loaded).__name__}, not a click command"
        raise PluginImportError(message)
    return loaded


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from trainhooks import __version__

        click.echo(f"trainhooks {__version__}")
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version.")
def cli() -> None:
    """Train PyTorch models with an engine in which every stage is a hook."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the training failed, 2 wrong usage, 3 a broken plugin, 128 + n ended by signal n."""
    _let_any_path_be_printed()
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)  # of torch, where NumPy is not installed
    ending: list[int] = []
    if arguments is None:  # else it is not our process
        atexit.register(_end_past_threads, ending)  # before everybody else, so that it comes last
    try:
        code = cli.main(args=arguments, prog_name="trainhooks", standalone_mode=False)
    except Exception as error:
        from trainhooks.cli.failure import report

        code = report(error.error if isinstance(error, _Passed) else error)
    ending.append(code or 0)
    sys.exit(code or 0)


def _end_past_threads(ending: list[int]) -> None:
    """End at once, with the code that is due, if a thread of ours is left: Python's own end may abort the process then."""
    module = sys.modules.get("trainhooks.left_behind")
    if ending and module is not None and module.left_behind():
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(ending[0])


def _let_any_path_be_printed() -> None:
    """Keep a name that is no text in the terminal's encoding from failing a run at its last line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        plain = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if plain else "backslashreplace")
