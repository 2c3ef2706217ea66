"""Objects that measure a whole evaluation: what they must be, and where their predictions and targets are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from trainhooks import OptionError, UsageError

if TYPE_CHECKING:
    from trainhooks.types import Batch, Output

_PREDICTIONS: Final = ("logits", "preds", "outputs")
_TARGETS: Final = ("target", "targets", "labels", "label")


def checked_metrics(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metrics by name.

    Raises:
        OptionError: One of them cannot be updated, computed and reset.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        message = f"metrics is a {type(metrics).__name__}: give a mapping of names to objects, such as {{'f1': MulticlassF1Score(10)}}"
        raise OptionError(message)
    for name, metric in (metrics or {}).items():
        missing = [method for method in ("update", "compute", "reset") if not callable(getattr(metric, method, None))]
        if isinstance(metric, type) or missing:
            what = (
                f"the class {metric.__name__}"
                if isinstance(metric, type)
                else f"{type(metric).__name__} without {missing[0]}()"
            )
            message = f"metrics[{name!r}] is {what}: give an object with update(predictions, target), compute() and reset()"
            raise OptionError(message)
    return dict(metrics or {})


def predictions_and_target(output: Output, batch: Batch) -> tuple[Any, Any]:
    """Return what a metric is updated with; half precision becomes float32.

    Predictions are the first of ``logits``, ``preds``, ``outputs`` in the output. The target is the output's or the batch's
    ``target`` or ``labels``, or the last item of a batch ``(inputs..., target)``.

    Raises:
        UsageError: Either is not found.
    """
    found = [output[name] for name in _PREDICTIONS if name in output]
    if not found:
        message = (
            f"evaluation.metrics: no predictions in what eval_step returned ({', '.join(map(str, output))}); return them as one "
            f"of {', '.join(_PREDICTIONS)}"
        )
        raise UsageError(message)
    predictions = found[0]
    if isinstance(predictions, Tensor) and predictions.is_floating_point() and predictions.itemsize < 4:  # noqa: PLR2004 - bytes
        predictions = predictions.float()
    return predictions, _target(output, batch)


def find_target(batch: Batch) -> Any:
    """Return the target in a batch, ``None`` if there is none."""
    if isinstance(batch, Mapping):
        return next((batch[name] for name in _TARGETS if name in batch), None)
    return batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None


def _target(output: Output, batch: Batch) -> Any:
    target = next((output[name] for name in _TARGETS if name in output), None)
    if target is None:
        target = find_target(batch)
    if target is None:
        message = (
            "evaluation.metrics: no target in what eval_step returned, nor in the batch: return it as 'target', or let the batch "
            "be (inputs..., target)"
        )
        raise UsageError(message)
    return target
