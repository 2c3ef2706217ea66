"""The engine's own evaluation and prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .data import batch_size, call_model, no_batches, to_device
from .errors import DataError, SkipStep, UsageError
from .loop import named_loss
from .markers import hookimpl
from .metrics import Series, is_scalar, to_host

if TYPE_CHECKING:
    from .trainer import Trainer
    from .types import Batch, Metrics, Output


@hookimpl(trylast=True)
def evaluate(trainer: Trainer, split: str) -> Metrics:
    """Average what ``eval_step`` returns over a split, weighted by batch size."""
    hooks = trainer.hooks
    loader = trainer.loader(split)
    means: dict[str, Series] = {}
    with inference_mode(trainer, split):
        if hooks.before_eval is not None:
            hooks.before_eval(trainer=trainer, split=split)
        batches = dropped = 0
        for raw in loader:
            try:
                batch = hooks.prepare_batch(trainer=trainer, batch=raw)
            except SkipStep:  # a filter of batches; what it keeps is what is measured
                dropped += 1
                continue
            output = hooks.eval_step(trainer=trainer, batch=batch, split=split)
            add_weighted(means, output, batch)
            if hooks.after_eval_step is not None:
                hooks.after_eval_step(trainer=trainer, batch=batch, output=output, split=split)
            batches += 1
        if batches == 0:
            if dropped:
                message = f"evaluation of {split!r}: prepare_batch dropped all of its {dropped} batches"
                raise DataError(message)
            raise no_batches(loader, f"evaluation of {split!r}")
        metrics = to_host({f"{split}/{name}": series.result()[0] for name, series in means.items()})
        if hooks.after_eval is not None:
            hooks.after_eval(trainer=trainer, split=split, metrics=metrics)
    return metrics


@hookimpl(trylast=True)
def eval_step(trainer: Trainer, batch: Batch, split: str) -> Output:
    """Compute the loss as in training."""
    return named_loss(trainer.hooks.compute_loss(trainer=trainer, batch=batch))[1]


@hookimpl(trylast=True)
def predict(trainer: Trainer, split: str) -> list[Any]:
    """Collect what ``predict_step`` returns, on the host; a batch that ``prepare_batch`` dropped has no output."""
    hooks = trainer.hooks
    loader = trainer.loader(split)
    outputs = []
    host = torch.device("cpu")
    with inference_mode(trainer, split):
        if hooks.before_predict is not None:
            hooks.before_predict(trainer=trainer, split=split)
        for raw in loader:
            try:
                batch = hooks.prepare_batch(trainer=trainer, batch=raw)
            except SkipStep:
                continue
            output = to_device(hooks.predict_step(trainer=trainer, batch=batch, split=split), host)
            outputs.append(output)
            if hooks.after_predict_step is not None:
                hooks.after_predict_step(trainer=trainer, batch=batch, output=output, split=split)
        if hooks.after_predict is not None:
            hooks.after_predict(trainer=trainer, split=split)
    return outputs


@hookimpl(trylast=True)
def predict_step(trainer: Trainer, batch: Batch, split: str) -> Any:
    """Call the model with the inputs."""
    if trainer.loss is not None and isinstance(batch, tuple | list) and len(batch) > 1:
        batch = batch[:-1]
    return call_model(trainer.model, batch)


@contextmanager
def inference_mode(trainer: Trainer, split: str) -> Iterator[None]:
    """Turn gradients off and modules to evaluation; leave modes, generators and ``trainer.split`` as they were found."""
    modes = [(module, module.training) for module in trainer.model.modules()] if trainer.model is not None else []
    outer, trainer.split = trainer.split, split
    try:
        if trainer.model is not None:
            trainer.model.eval()
        with torch.no_grad(), trainer.rng.preserved():
            yield
    finally:
        trainer.split = outer
        for module, training in modes:
            module.training = training


def add_weighted(means: dict[str, Series], output: Output, batch: Batch) -> None:
    """Add the scalars of one batch's output to the means.

    Raises:
        UsageError: The output is no mapping.
    """
    if not isinstance(output, Mapping):
        message = f"eval_step must return a mapping of named values, not {type(output).__name__}"
        raise UsageError(message)
    weight = output.get("weight")
    if weight is None:
        weight = batch_size(batch)
    for name, value in output.items():
        if name != "weight" and is_scalar(value):
            number = value.detach() if isinstance(value, torch.Tensor) else float(value)
            means.setdefault(name, Series("mean")).add(number, float(weight))
