"""The command line; each command is a module of its own that is imported when it is used."""

from __future__ import annotations

import os
import re
import select
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from importlib_metadata import entry_points

from trainhooks.errors import OptionError, PluginError, PluginImportError, TrainhooksError

if TYPE_CHECKING:
    from types import TracebackType

_COMMANDS: Final = {
    "plugins": ("listing", "List every plugin: its state and why, distribution and version."),
    "hooks": ("hooks", "Show the loop with its hooks, or one hook and who implements it."),
    "train": ("train", "Train what a trainconf.py or a Trainer describes."),
    "evaluate": ("inference", "Evaluate a checkpoint."),
    "predict": ("inference", "Predict with a checkpoint."),
    "trace": ("trace", "Run a few real steps and show every hook call with its time."),
    "init": ("init", "Write a starter trainconf.py that trains at once."),
}


_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141
_QUIET: Final = (str(Path(click.__file__).parent), str(Path(__file__).parent))


class _Passed(Exception):  # noqa: N818 - carries an error past click
    """Carries an error past ``click``, which would take an EOFError of the training for Ctrl-D and silence a broken pipe."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(error)


class _LazyGroup(click.Group):
    """Knows the names and help lines of its commands without importing them; plugins bring commands of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *sorted({point.name for point in entry_points(group="trainhooks.commands")} - set(_COMMANDS))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            module = import_module(f"{__name__}.{_COMMANDS[cmd_name][0]}")
            command: click.Command = getattr(module, cmd_name)
            return command
        for point in entry_points(group="trainhooks.commands"):
            if point.name == cmd_name:
                return _plugin_command(point)
        return None

    def invoke(self, ctx: click.Context) -> None:
        try:
            super().invoke(ctx)
        except (EOFError, OSError, KeyboardInterrupt) as error:
            raise _Passed(error) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [(name, text) for name, (_, text) in _COMMANDS.items()]
        others = [(name, "(from a plugin)") for name in self.list_commands(ctx) if name not in _COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(own + others)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from trainhooks.validation import suggestion

            hint = suggestion(args[0], self.list_commands(ctx))
            raise click.UsageError(f"{error.message.rstrip('.')}{hint}", ctx) from None


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
    """Run the command line and exit: 0 done, 1 the training failed, 2 wrong usage, 3 a broken plugin, 130 interrupted."""
    try:
        code = cli.main(args=arguments, prog_name="trainhooks", standalone_mode=False)
    except _Passed as passed:
        code = _report(passed.error)
    except click.exceptions.Abort:
        code = _INTERRUPTED
    except Exception as error:
        code = _report(error)
    sys.exit(code or 0)


def _report(error: BaseException) -> int:
    """Say on stderr what went wrong and return the exit code."""
    if isinstance(error, click.ClickException):
        _show_usage(error)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        click.echo("trainhooks: interrupted", err=True)
        _show_notes([note for note in getattr(error, "__notes__", ()) if not note.startswith("raised in ")])
        return _INTERRUPTED
    if isinstance(error, BrokenPipeError) and _stdout_is_gone():
        return _BROKEN_PIPE
    if isinstance(error, TrainhooksError):
        _show_origin(error)
        click.echo(f"trainhooks: {error}", err=True)
        _show_notes(getattr(error, "__notes__", ()))
        _show_way_out(error)
        return error.exit_code
    _show_traceback(error)
    return 1


def _show_usage(error: click.ClickException) -> None:
    context = getattr(error, "ctx", None)
    if context is None or type(error).__name__ == "NoArgsIsHelpError":  # the help itself
        error.show()
        return
    click.echo(f"trainhooks: {error.format_message().rstrip('.')} (see `{context.command_path} -h`)", err=True)


def _stdout_is_gone() -> bool:
    """Return whether nobody reads stdout any more, and keep Python from complaining of it once more at exit."""
    try:
        out = sys.stdout.fileno()
        poll = select.poll()
    except (OSError, ValueError, AttributeError):  # no real stdout, or a system without poll
        return False
    poll.register(out, select.POLLOUT)
    gone = any(events & select.POLLERR for _, events in poll.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out)
    return gone


def _show_notes(notes: Any) -> None:
    for note in notes:
        click.echo(note, err=True)


def _show_way_out(error: TrainhooksError) -> None:
    """Say how to go on without plugins that are broken, or that are active because they are installed and lack an option."""
    text = str(error)
    if not isinstance(error, PluginError | OptionError) or "-p no:" in text:
        return
    lines = [line for line in text.splitlines() if isinstance(error, PluginError) or "is missing and has no default" in line]
    names = dict.fromkeys(name for line in lines for name in re.findall(r"^plugin '([^']+)' \((?!given to|-p )", line))
    if names:
        words = " ".join(f"-p no:{name}" for name in names)
        click.echo(f"  rerun with {words} to go on without {'it' if len(names) == 1 else 'them'}", err=True)


def _show_origin(error: TrainhooksError) -> None:
    """Show where the import of a plugin failed: the frames outside of trainhooks and of the import system."""
    import traceback

    at: BaseException | None = error
    while at is not None and not isinstance(at, PluginImportError):
        at = at.__cause__
    cause = at.__cause__ if at is not None else None
    if cause is None or '  File "' in str(error):  # that of a project file is in the message
        return
    ours = str(Path(__file__).parent.parent)
    frames = [
        frame
        for frame in traceback.extract_tb(cause.__traceback__)
        if not frame.filename.startswith(("<frozen", ours)) and "importlib" not in frame.filename
    ]
    if frames or isinstance(cause, SyntaxError):
        lines = ("Traceback (most recent call last):\n", *traceback.format_list(frames)) if frames else ()
        click.echo("".join([*lines, *traceback.format_exception_only(type(cause), cause)]), err=True, nl=False)


def _show_traceback(error: BaseException) -> None:
    import traceback

    traceback.print_exception(type(error), error, _from_the_trainer_on(error.__traceback__))
    if sys.version_info < (3, 11):
        _show_notes(getattr(error, "__notes__", ()))


def _from_the_trainer_on(frames: TracebackType | None) -> TracebackType | None:
    """Leave the frames of click and of the commands out."""
    inner = frames
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_QUIET):
        inner = inner.tb_next
    return inner or frames
