"""``trainhooks train``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainhooks.cli.target import make_trainer, read_config, run_folder, run_options

if TYPE_CHECKING:
    from trainhooks import Trainer


@click.command()
@run_options
@click.option("--resume", metavar="auto|PATH", help="Go on from a checkpoint, or from the newest of the run folder.")
@click.option("--overwrite", is_flag=True, help="Replace a former run in work_dir; removes only what trainhooks made.")
@click.option("--strict-plugins", is_flag=True, help="Refuse to resume with other plugins than the checkpoint was made with.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON on the last line.")
def train(target: str, resume: str | None, overwrite: bool, strict_plugins: bool, as_json: bool, **chosen: Any) -> None:
    """Train what TARGET describes.

    TARGET is a directory with a trainconf.py (default: this one), or module:attribute giving a Trainer.
    """
    trainer = _trainer(target, resume, overwrite, strict_plugins, chosen)
    outcome = trainer.train(resume=resume)
    if as_json:
        click.echo(json.dumps(vars(outcome)))
    elif trainer.work_dir is not None:
        click.echo(f"run folder: {trainer.work_dir}")
        path = getattr(trainer.plugins.get("checkpoint"), "path", None)
        if path is not None:
            click.echo(f"checkpoint: {path}")


def _trainer(target: str, resume: str | None, overwrite: bool, strict_plugins: bool, chosen: dict[str, Any]) -> Trainer:
    directory = Path(target)
    directory = directory.parent if directory.is_file() else directory
    if not directory.is_dir():  # module:attribute, or an error that make_trainer reports
        return make_trainer(target, **chosen)
    config = read_config(directory, chosen["plugins"], chosen["options"], chosen["settings"])
    work_dir = run_folder(config, directory, resume)
    return make_trainer(target, **chosen, work_dir=work_dir, overwrite=overwrite, strict_plugins=strict_plugins)
