"""What an option that names a metric of an evaluation can get wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainhooks.suggest import suggestion

from ._stages import replaced

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainhooks import Trainer


def may_evaluate(trainer: Trainer, split: str) -> bool:
    """Return whether there can be an evaluation of a split: it has a loader, or somebody makes loaders or evaluates in its own way."""
    return split in trainer.loaders or trainer.manager.has("make_loader") or replaced(trainer, "evaluate")


def missing_metric(trainer: Trainer, option: str, metric: str, split: str, metrics: Iterable[str]) -> str | None:
    """Return what is wrong with a metric that the evaluation of ``split`` did not give, or ``None`` if that of another one may.

    Args:
        trainer: That evaluates.
        option: Which names the metric, with its plugin.
        metric: The name.
        split: That was evaluated.
        metrics: What that gave.
    """
    wanted, slash, _ = metric.partition("/")
    if slash and wanted != split and may_evaluate(trainer, wanted):
        return None
    return not_among(option, metric, metrics)


def not_among(option: str, metric: str, metrics: Iterable[str]) -> str:
    """Return in words that a metric was not measured, with those that were."""
    names = ", ".join(metrics) or "of which there are none"
    return f"{option} = {metric!r} is not among the metrics {names}{suggestion(metric, metrics)}"
