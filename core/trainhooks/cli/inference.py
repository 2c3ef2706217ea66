"""``trainhooks evaluate`` and ``trainhooks predict``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from trainhooks.cli.target import make_trainer, run_options
from trainhooks.errors import UsageError


@click.command()
@run_options
@click.option(
    "--checkpoint", required=True, type=click.Path(path_type=Path), help="A checkpoint, or a run folder for its newest."
)
@click.option("--split", default="val", show_default=True, help="Which loader.")
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as JSON.")
def evaluate(target: str, checkpoint: Path, split: str, as_json: bool, **chosen: Any) -> None:
    """Evaluate a checkpoint of what TARGET describes; writes nothing."""
    metrics = _trainer(target, checkpoint, chosen).evaluate(split, checkpoint=checkpoint)
    if as_json:
        click.echo(json.dumps(metrics))
        return
    for name, value in metrics.items():
        click.echo(f"{name}  {value:.6g}")


@click.command()
@run_options
@click.option(
    "--checkpoint", required=True, type=click.Path(path_type=Path), help="A checkpoint, or a run folder for its newest."
)
@click.option("--split", default="test", show_default=True, help="Which loader.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Save the predictions here with torch.save, instead of printing."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line for each batch.")
def predict(target: str, checkpoint: Path, split: str, output: Path | None, as_json: bool, **chosen: Any) -> None:
    """Predict with a checkpoint of what TARGET describes."""
    outputs = _trainer(target, checkpoint, chosen).predict(split, checkpoint=checkpoint)
    if output is not None:
        import torch

        torch.save(outputs, output)
        click.echo(f"{len(outputs)} batches of predictions: {output}")
        return
    for one in outputs:
        click.echo(json.dumps(_plain(one)) if as_json else one)


def _trainer(target: str, checkpoint: Path, chosen: dict[str, Any]) -> Any:
    if not checkpoint.exists():
        message = f"no checkpoint at {checkpoint}"
        raise UsageError(message)
    return make_trainer(target, **chosen)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
