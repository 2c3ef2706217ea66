"""``trainhooks train``."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainhooks.cli.command import RunCommand
from trainhooks.cli.output import as_json
from trainhooks.cli.run_folder import removed_if_unused, run_folder, sought
from trainhooks.cli.target import directory_of, is_reference, make_trainer, read_config, run_options
from trainhooks.errors import UsageError, add_note
from trainhooks.run_record import is_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainhooks import Trainer


@click.command(cls=RunCommand)
@run_options
@click.option("--resume", metavar="auto|PATH", help="Go on from a checkpoint, or from the newest of the run folder.")
@click.option("--overwrite", is_flag=True, help="Replace a former run in work_dir; removes only what trainhooks made.")
@click.option("--strict-plugins", is_flag=True, help="Refuse to resume with other plugins than the checkpoint was made with.")
@click.option("--watch", is_flag=True, help="Show the run live on the terminal; short for -o progress.style=live.")
@click.option("--json", "json_wanted", is_flag=True, help="Print the outcome as JSON on the last line.")
def train(
    target: str, resume: str | None, overwrite: bool, strict_plugins: bool, watch: bool, json_wanted: bool, **chosen: Any
) -> None:
    """Train what TARGET describes.

    TARGET is a directory with a trainconf.py (default: this one), or module:attribute giving a Trainer.
    """
    if watch:
        _add_watch(target, chosen)
    made = _made(target, resume, overwrite, strict_plugins, chosen)
    with made as trainer, removed_if_unused(trainer.work_dir), _way_back(trainer):
        outcome = trainer.train(resume=resume)
    if not json_wanted and "progress" not in trainer.plugins:
        click.echo(f"{outcome.status} ({outcome.reason}) at step {outcome.step}")
    if json_wanted:
        click.echo(as_json({**vars(outcome), "work_dir": trainer.work_dir, "checkpoint": _checkpoint(trainer)}))
    elif trainer.work_dir is not None:
        click.echo(f"run folder: {trainer.work_dir}")
        if (path := _checkpoint(trainer)) is not None:
            click.echo(f"checkpoint: {path}")


def _add_watch(target: str, chosen: dict[str, Any]) -> None:
    """Ask the plugin ``progress`` for its live view.

    Raises:
        UsageError: TARGET is a Trainer, whose plugins are made.
    """
    if is_reference(target):
        message = f"TARGET {target!r} is a Trainer, so --watch has no effect on it; give it Progress(style='live')"
        raise UsageError(message)
    chosen["options"] = (*chosen["options"], "progress.style=live")


@contextmanager
def _way_back(trainer: Trainer) -> Iterator[None]:
    """Say where the run is and how to go on with it, when it ends in the middle."""
    try:
        yield
    except BaseException as error:
        path = _checkpoint(trainer) if trainer.step else None  # at step 0 it is one that could not be restored
        if trainer.work_dir is not None and path is not None:
            add_note(error, f"run folder: {trainer.work_dir}; --resume auto goes on from its newest checkpoint, {path.name}")
        raise


def _checkpoint(trainer: Trainer) -> Path | None:
    return getattr(trainer.plugins.get("checkpoint"), "path", None)


@contextmanager
def _made(target: str, resume: str | None, overwrite: bool, strict_plugins: bool, chosen: dict[str, Any]) -> Iterator[Trainer]:
    """Give the trainer; its folder, if it is a fresh one, goes again when nothing was done in it."""
    if resume is not None and overwrite:
        message = f"--resume {resume} goes on with a run and --overwrite replaces it; drop one"
        raise UsageError(message)
    if resume is not None and resume != "auto" and not (resume and Path(resume).exists()):  # an unset variable of a shell
        place = Path(resume).absolute() if resume else "''"
        message = f"--resume {resume or place}: there is no checkpoint at {place}; write auto for the newest one"
        raise UsageError(message)
    if is_reference(target):
        trainer = make_trainer(target, **chosen)
        trainer.overwrite |= overwrite
        trainer.strict_plugins |= strict_plugins
        yield trainer
        return
    directory = directory_of(target)
    config = read_config(directory, chosen["plugins"], chosen["options"], chosen["settings"])
    with run_folder(config, directory, resume) as work_dir:
        trainer = make_trainer(target, **chosen, work_dir=work_dir, overwrite=overwrite, strict_plugins=strict_plugins)
        if resume == "auto" and work_dir is not None and not is_run(work_dir) and trainer.run_folder is not None:
            trainer.run_folder.sought = sought(config, directory)
        yield trainer
