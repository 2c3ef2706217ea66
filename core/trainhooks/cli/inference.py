"""``trainhooks evaluate`` and ``trainhooks predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trainhooks.cli.output import as_json
from trainhooks.cli.target import make_trainer, run_options
from trainhooks.errors import UsageError


@click.command()
@run_options
@click.option(
    "--checkpoint", required=True, type=click.Path(path_type=Path), help="A checkpoint, or a run folder for its newest."
)
@click.option("--split", default="val", show_default=True, help="Which loader.")
@click.option("--json", "json_wanted", is_flag=True, help="Print the metrics as JSON.")
def evaluate(target: str, checkpoint: Path, split: str, json_wanted: bool, **chosen: Any) -> None:
    """Evaluate a checkpoint of what TARGET describes; writes nothing."""
    metrics = _trainer(target, checkpoint, chosen).evaluate(split, checkpoint=checkpoint)
    if json_wanted:
        click.echo(as_json(metrics))
        return
    for name, value in metrics.items():
        click.echo(f"{name}  {value:.6g}" if isinstance(value, float) else f"{name}  {value}")


@click.command()
@run_options
@click.option(
    "--checkpoint", required=True, type=click.Path(path_type=Path), help="A checkpoint, or a run folder for its newest."
)
@click.option("--split", default="test", show_default=True, help="Which loader.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Save the predictions here with torch.save, instead of printing."
)
@click.option("--json", "json_wanted", is_flag=True, help="Print one JSON line for each batch.")
def predict(target: str, checkpoint: Path, split: str, output: Path | None, json_wanted: bool, **chosen: Any) -> None:
    """Predict with a checkpoint of what TARGET describes."""
    if output is not None and not output.absolute().parent.is_dir():
        message = f"--output {output}: there is no folder {output.absolute().parent}"
        raise UsageError(message)
    outputs = _trainer(target, checkpoint, chosen).predict(split, checkpoint=checkpoint)
    if output is not None:
        import torch

        torch.save(outputs, output)
        click.echo(f"{len(outputs)} batches of predictions: {output}")
        return
    for one in outputs:
        click.echo(as_json(one) if json_wanted else one)


def _trainer(target: str, checkpoint: Path, chosen: dict[str, Any]) -> Any:
    if not checkpoint.exists():
        message = f"--checkpoint {checkpoint}: there is no checkpoint at {checkpoint.absolute()}"
        raise UsageError(message)
    return make_trainer(target, **chosen)
