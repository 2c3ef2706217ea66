"""The command line; each command is a module of its own that is imported when it is used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

import click
from importlib_metadata import entry_points

from trainhooks.errors import TrainhooksError

_COMMANDS: Final = {
    "plugins": ("listing", "List every plugin: its state and why, distribution and version."),
    "hooks": ("hooks", "Show the loop with its hooks, or one hook and who implements it."),
    "train": ("train", "Train what a trainconf.py or a Trainer describes."),
    "evaluate": ("inference", "Evaluate a checkpoint."),
    "predict": ("inference", "Predict with a checkpoint."),
    "trace": ("trace", "Run a few real steps and show every hook call with its time."),
    "init": ("init", "Write a starter trainconf.py that trains at once."),
}


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
                loaded: click.Command = point.load()
                return loaded
        return None

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

            raise click.UsageError(error.message + suggestion(args[0], self.list_commands(ctx)), ctx) from None


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
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.exceptions.Abort:
        code = 130
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        code = 130
    except TrainhooksError as error:
        _show(error)
        code = error.exit_code
    except Exception as error:
        _show_traceback(error)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _show(error: TrainhooksError) -> None:
    click.echo(f"trainhooks: {error}", err=True)
    for note in getattr(error, "__notes__", ()):
        click.echo(note, err=True)


def _show_traceback(error: BaseException) -> None:
    import traceback

    traceback.print_exception(type(error), error, error.__traceback__)
    if sys.version_info < (3, 11):
        for note in getattr(error, "__notes__", ()):
            click.echo(note, err=True)
