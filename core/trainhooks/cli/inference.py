"""``trainhooks evaluate`` and ``trainhooks predict``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainhooks.cli.command import RunCommand
from trainhooks.cli.output import as_json, clean, pasted
from trainhooks.cli.target import make_trainer, run_options
from trainhooks.errors import UsageError
from trainhooks.markers import hookimpl

if TYPE_CHECKING:
    from trainhooks import Trainer


F = TypeVar("F", bound=Callable[..., Any])


def checkpoint_options(command: F) -> F:
    """Add ``--checkpoint`` and what says which one of a run."""
    for option in (
        click.option("--best-by", metavar="METRIC", help="The best by this metric as of each checkpoint (min:NAME, max:NAME)."),
        click.option("--best", is_flag=True, help="Of a run folder the best, by what the run recorded (checkpoint.best)."),
        click.option(
            "--checkpoint", required=True, type=click.Path(path_type=Path), help="A checkpoint, or a run folder for its newest."
        ),
    ):
        command = option(command)
    return command


@click.command(cls=RunCommand)
@run_options
@checkpoint_options
@click.option("--split", default="val", show_default=True, help="Which loader.")
@click.option("--json", "json_wanted", is_flag=True, help="Print the metrics as JSON.")
def evaluate(
    target: str, checkpoint: Path, best: bool, best_by: str | None, split: str, json_wanted: bool, **chosen: Any
) -> None:
    """Evaluate a checkpoint of what TARGET describes; writes nothing."""
    trainer, checkpoint = _prepared(target, checkpoint, best, best_by, chosen)
    with trainer.using(_Counts()) as counts:
        metrics = trainer.evaluate(split, checkpoint=checkpoint)
    click.echo(f"trainhooks: evaluated {counts.text(split)}", err=True)
    if json_wanted:
        click.echo(as_json(metrics))
        return
    for name, value in metrics.items():
        click.echo(f"{name}  {value:.6g}" if isinstance(value, float) else f"{name}  {value}")


@click.command(cls=RunCommand)
@run_options
@checkpoint_options
@click.option("--split", default="test", show_default=True, help="Which loader.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Save the predictions here with torch.save, instead of printing."
)
@click.option("--json", "json_wanted", is_flag=True, help="Print one JSON line for each batch.")
def predict(
    target: str,
    checkpoint: Path,
    best: bool,
    best_by: str | None,
    split: str,
    output: Path | None,
    json_wanted: bool,
    **chosen: Any,
) -> None:
    """Predict with a checkpoint of what TARGET describes."""
    if output is not None and (why := _unwritable(output)) is not None:
        message = f"--output {output}: {why}"
        raise UsageError(message)
    trainer, checkpoint = _prepared(target, checkpoint, best, best_by, chosen)
    with trainer.using(_Counts()) as counts:
        outputs = trainer.predict(split, checkpoint=checkpoint)
    if output is not None:
        import torch

        torch.save(outputs, output)
        click.echo(f"predicted {counts.text(split)}, saved to {pasted(output)}")
        return
    click.echo(f"trainhooks: predicted {counts.text(split)}", err=True)
    for one in outputs:
        click.echo(as_json(one) if json_wanted else one)


def _unwritable(output: Path) -> str | None:
    """Return why a file could not be written, which is to be said before anything is predicted."""
    folder = output.absolute().parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if output.is_dir():
        return "it is a folder, name a file"
    return None if os.access(output if output.exists() else folder, os.W_OK) else "it may not be written"


class _Counts:
    """Counts what was evaluated or predicted."""

    name = "counts_of_the_command"

    def __init__(self) -> None:
        self.step = self.batches = self.samples = 0

    @hookimpl
    def after_eval_step(self, trainer: Trainer, batch: Any) -> None:
        """Count a batch."""
        self._count(trainer, batch)

    @hookimpl
    def after_predict_step(self, trainer: Trainer, batch: Any) -> None:
        """Count a batch."""
        self._count(trainer, batch)

    def _count(self, trainer: Trainer, batch: Any) -> None:
        from trainhooks.data import batch_size

        self.step = trainer.step  # that of the checkpoint
        self.batches += 1
        self.samples += batch_size(batch)

    def text(self, split: str) -> str:
        """Say of which split and with which weights it was, and how much."""
        batches, samples = (_counted(count, one) for count, one in ((self.batches, "batch"), (self.samples, "sample")))
        return f"{split!r} at step {self.step}: {batches}, {samples}"


def _counted(count: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("h") else f"{word}s"
    return f"{count} {word if count == 1 else plural}"


def _prepared(target: str, checkpoint: Path, best: bool, best_by: str | None, chosen: dict[str, Any]) -> tuple[Trainer, Path]:
    """Return the trainer and the checkpoint that is meant."""
    if not checkpoint.exists():
        message = f"--checkpoint {checkpoint}: there is no checkpoint at {checkpoint.absolute()}"
        raise UsageError(message)
    trainer = make_trainer(target, **chosen)
    if not best and best_by is None:
        return trainer, checkpoint
    find_best = getattr(trainer.plugins.get("checkpoint"), "find_best", None)  # the format is the plugin's
    if find_best is None:
        message = (
            f"--best: no plugin of this run knows which checkpoint of {checkpoint} is the best; name one with --checkpoint"
        )
        raise UsageError(message)
    path, why = find_best(checkpoint, best_by)
    click.echo(f"trainhooks: the best checkpoint is {pasted(path)}: {clean(why)}", err=True)
    return trainer, path
