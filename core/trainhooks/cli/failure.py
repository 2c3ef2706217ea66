"""What the command line says when something goes wrong, and the exit code of it."""

from __future__ import annotations

import os
import re
import select
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from trainhooks.cli.output import clean_lines
from trainhooks.errors import OptionError, PluginError, PluginImportError, Terminated, TrainhooksError, UsageError
from trainhooks.project import PROJECT_FILE

if TYPE_CHECKING:
    from types import TracebackType

_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141
_PROJECT: Final = Path(PROJECT_FILE).stem
#: What may be given to an option that lacks its value, where that is not plain from its name.
_VALUES: Final = {"--resume": "; write auto for the newest one"}
_QUIET: Final = (str(Path(click.__file__).parent), str(Path(__file__).parent))


def report(error: BaseException) -> int:
    """Say on stderr what went wrong and return the exit code."""
    if isinstance(error, click.ClickException):
        _show_usage(error)
        return error.exit_code
    if isinstance(error, click.exceptions.Abort):  # out of a prompt
        return _INTERRUPTED
    if isinstance(error, KeyboardInterrupt | Terminated):
        with suppress(OSError):  # whose terminal was closed has nobody to tell
            click.echo(
                f"trainhooks: {'interrupted' if isinstance(error, KeyboardInterrupt) else f'ended by {error}'}", err=True
            )
            _show_notes([note for note in getattr(error, "__notes__", ()) if not note.startswith("raised in ")])
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 128 + error.signum
    if isinstance(error, SystemExit):  # of users' code, in the middle of a run: that is no success, whatever the code
        click.echo(f"trainhooks: the run was ended by SystemExit: {error.code}", err=True)
        _show_notes(getattr(error, "__notes__", ()))
        return error.code % 256 or 1 if isinstance(error.code, int) else 1
    if isinstance(error, BrokenPipeError) and _stdout_is_gone():
        return _BROKEN_PIPE
    if isinstance(error, OSError) and _was_printing(error):
        click.echo(f"trainhooks: the output cannot be written to stdout: {error.strerror}", err=True)
        _leave_stdout()
        return 1
    if isinstance(error, TrainhooksError):
        _show_origin(error)
        click.echo(clean_lines(f"trainhooks: {error}"), err=True)
        notes = getattr(error, "__notes__", ())  # a message of a built-in plugin says enough; nobody would go on without it
        _show_notes([note for note in notes if not (note.startswith("raised in ") and " (trainhooks " in note)])
        _show_way_out(error)
        return error.exit_code
    if isinstance(error, FileNotFoundError) and not _is_somewhere():
        click.echo("trainhooks: the working directory was removed: change to another one, then run this again", err=True)
        return UsageError.exit_code
    _show_traceback(error)
    return 1


def _is_somewhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _show_usage(error: click.ClickException) -> None:
    context = getattr(error, "ctx", None) or _context_of(error)
    if context is None or type(error).__name__ == "NoArgsIsHelpError":  # the help itself
        error.show()
        return
    hint = _VALUES.get(error.option_name, "") if isinstance(error, click.BadOptionUsage) else ""
    click.echo(f"trainhooks: {error.format_message().rstrip('.')}{hint} (see `{context.command_path} -h`)", err=True)


def _context_of(error: click.ClickException) -> click.Context | None:
    """Return the command whose words were parsed: click does not say whose an option without its value is."""
    contexts = [frame.f_locals.get("ctx") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((one for one in reversed(contexts) if isinstance(one, click.Context)), None)


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
        _leave_stdout()
    return gone


def _was_printing(error: OSError) -> bool:
    """Return whether an error is that of the last write of a command to a stdout such as a file on a full disk."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].startswith(_QUIET[0])


def _leave_stdout() -> None:
    """Keep Python from complaining once more at exit of what it cannot write."""
    with suppress(OSError, ValueError, AttributeError):  # no real stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_notes(notes: Any) -> None:
    for note in notes:
        click.echo(note, err=True)


def _show_way_out(error: TrainhooksError) -> None:
    """Say how to go on without plugins that are broken, or that are active because they are installed and lack an option."""
    text = str(error)
    if isinstance(error, PluginError):
        lines = text.splitlines()
    elif isinstance(error, OptionError):
        lines = [line for line in text.splitlines() if "is missing and has no default" in line]
    else:
        return
    asked = "" if isinstance(error, PluginError) else "|-p "  # who asks for a plugin that lacks an option would give that
    named = (name for line in lines for name in re.findall(rf"^plugin '([^']+)' \((?!given to{asked})", line))
    names = [
        name for name in dict.fromkeys(named) if f"-p no:{name}" not in text and name != _PROJECT
    ]  # there is no run without
    if names:
        words = " ".join(f"-p no:{name}" for name in names)
        click.echo(f"  rerun with {words} to go on without {'it' if len(names) == 1 else 'them'}", err=True)


def _show_origin(error: TrainhooksError) -> None:
    """Show where the import of a plugin failed: the frames outside of trainhooks and of the import system."""
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
    traceback.print_exception(type(error), error, _from_the_trainer_on(error.__traceback__))
    if sys.version_info < (3, 11):
        _show_notes(getattr(error, "__notes__", ()))


def _from_the_trainer_on(frames: TracebackType | None) -> TracebackType | None:
    """Leave the frames of click and of the commands out."""
    inner = frames
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_QUIET):
        inner = inner.tb_next
    return inner or frames
