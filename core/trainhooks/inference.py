"""The engine's own evaluation and prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .data import batch_size, call_model, generators_of, length_of, no_batches, to_device, twin_of
from .errors import ControlFlow, DataError, SkipStep, UsageError
from .loop import named_loss
from .markers import hookimpl
from .scalars import has_one_element, is_scalar, kept, number_of, output_weight
from .series import Series, to_host
from .workers import reader_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .trainer import Trainer
    from .types import Batch, Metrics, Output


@hookimpl(trylast=True)
def evaluate(trainer: Trainer, split: str) -> Metrics:
    """Average the scalars that ``eval_step`` returns, weighted by batch size; what has ``compute`` is computed once, at the end."""
    hooks = trainer.hooks
    loader = trainer.loader(split)
    means: dict[str, Series] = {}
    with inference_mode(trainer, split), measuring(trainer, split) as measures:
        if hooks.before_eval is not None:
            hooks.before_eval(trainer=trainer, split=split)
        batches = dropped = 0
        for raw in reader_of(unshared(trainer, loader)):
            if trainer.interruption is not None:
                trainer.leave_evaluation()
            try:
                batch = hooks.prepare_batch(trainer=trainer, batch=raw)
            except SkipStep:  # a filter of batches; what it keeps is what is measured
                dropped += 1
                continue
            output = hooks.eval_step(trainer=trainer, batch=batch, split=split)
            add_output(means, measures, output, batch)
            if hooks.after_eval_step is not None:
                hooks.after_eval_step(trainer=trainer, batch=batch, output=output, split=split)
            batches += 1
        note_early_end(trainer, loader, f"evaluation of {split!r}", batches + dropped)
        if batches == 0:
            if dropped:
                message = f"evaluation of {split!r}: prepare_batch dropped all of its {dropped} batches"
                raise DataError(message)
            raise no_batches(loader, f"evaluation of {split!r}")
        if means and not any(series.result()[1] for series in means.values()):
            message = f"evaluation of {split!r}: none of its {batches} batches has a sample, or a weight above 0"
            raise DataError(message)
        values = {name: series.result()[0] for name, series in means.items()}
        for name, measure in measures.items():
            values = merged(values, computed(trainer, name, measure))
        metrics = to_host({f"{split}/{name}": value for name, value in values.items()})
        if hooks.after_eval is not None:
            hooks.after_eval(trainer=trainer, split=split, metrics=metrics)
    return metrics


@hookimpl(trylast=True)
def eval_step(trainer: Trainer, batch: Batch, split: str) -> Output:
    """Compute the loss as in training; with ``loss=`` add the outputs and the target that it was called with."""
    loss = trainer.loss
    if loss is None:
        return named_loss(trainer.hooks.compute_loss(trainer=trainer, batch=batch))[1]
    trainer.loss = watched = WatchedLoss(loss)
    try:
        output = named_loss(trainer.hooks.compute_loss(trainer=trainer, batch=batch))[1]
    finally:
        trainer.loss = loss
    return {**watched.arguments(), **output}


@hookimpl(trylast=True)
def predict(trainer: Trainer, split: str) -> list[Any]:
    """Collect what ``predict_step`` returns, on the host; a batch that ``prepare_batch`` dropped has no output."""
    hooks = trainer.hooks
    loader = trainer.loader(split)
    outputs = []
    host = torch.device("cpu")
    with inference_mode(trainer, split), no_steering(f"prediction of {split!r}"):
        if hooks.before_predict is not None:
            hooks.before_predict(trainer=trainer, split=split)
        read = 0
        for read, raw in enumerate(reader_of(unshared(trainer, loader)), 1):  # noqa: B007 - it is how many there were
            if trainer.interruption is not None:
                trainer.leave_evaluation()
            try:
                batch = hooks.prepare_batch(trainer=trainer, batch=raw)
            except SkipStep:
                continue
            output = to_device(hooks.predict_step(trainer=trainer, batch=batch, split=split), host)
            outputs.append(output)
            if hooks.after_predict_step is not None:
                hooks.after_predict_step(trainer=trainer, batch=batch, output=output, split=split)
        note_early_end(trainer, loader, f"prediction of {split!r}", read)
        if hooks.after_predict is not None:
            hooks.after_predict(trainer=trainer, split=split)
    return outputs


@hookimpl(trylast=True)
def predict_step(trainer: Trainer, batch: Batch, split: str) -> Any:
    """Call the model with the inputs."""
    if trainer.loss is not None and isinstance(batch, tuple | list) and len(batch) > 1:
        batch = batch[:-1]
    return call_model(trainer.model, batch)


def unshared(trainer: Trainer, loader: Iterable[Batch]) -> Iterable[Batch]:
    """Return what reads a loader from its beginning, and leaves an epoch that is being trained with it where it is.

    A loader whose workers persist has one iterator, which every ``iter()`` sets back.
    """
    training = trainer._batches is not None and loader is trainer.loaders.get("train")
    return twin_of(loader) if training else loader


def note_early_end(trainer: Trainer, loader: Iterable[Batch], what: str, batches: int) -> None:
    """Say once that a loader gave fewer batches than its length says, so that what was measured is of a part of the data."""
    declared = length_of(loader)
    if declared is not None and 0 < batches < declared:
        trainer._warn_once(f"{what}: its loader ended after {batches} of {declared} batches")


@contextmanager
def inference_mode(trainer: Trainer, split: str) -> Iterator[None]:
    """Turn gradients off and modules to evaluation; leave modes, generators and ``trainer.split`` as they were found."""
    roots = [one for one in (trainer.model, trainer.loss) if isinstance(one, torch.nn.Module)]
    modes = [(module, module.training) for root in roots for module in root.modules()]
    generators = [(one, one.get_state()) for one in generators_of(trainer.loaders.get(split))]  # may be shared with training
    outer, trainer.split = trainer.split, split
    try:
        for root in roots:
            root.eval()
        with torch.no_grad(), trainer.rng.preserved():
            yield
    finally:
        trainer.split = outer
        for generator, state in generators:
            generator.set_state(state)
        for module, training in modes:
            module.training = training


@contextmanager
def no_steering(what: str) -> Iterator[None]:
    """Turn a request to skip a step or an epoch, which would reach a training that runs around this, into an error.

    Raises:
        UsageError: There was one.
    """
    try:
        yield
    except ControlFlow as request:
        message = f"{type(request).__name__} was raised in the {what}; it steers training only"
        raise UsageError(message) from request


class WatchedLoss:
    """A loss function that remembers what it was called with, so that metrics need no second forward pass.

    ``compute_loss`` calls it like the function itself, also where it is replaced or wrapped.

    Args:
        loss: The function.
    """

    def __init__(self, loss: Callable[..., Any]) -> None:
        self._loss = loss
        self._calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return the loss."""
        self._calls.append(arguments)
        return self._loss(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        """Be like the function in everything else."""
        return getattr(self._loss, name)

    def arguments(self) -> dict[str, Any]:
        """Return ``outputs`` and ``target``; nothing if there were several calls. Scalars, which would be averaged, are left out."""
        if len(self._calls) != 1:
            return {}
        return {name: value for name, value in zip(("outputs", "target"), self._calls[0], strict=False) if not is_scalar(value)}


@contextmanager
def measuring(trainer: Trainer, split: str) -> Iterator[dict[str, Any]]:
    """Collect the objects that measure a split, and reset them: those of its last evaluation before it, all of them after it.

    An object is known from the first output that it is in, when it has seen a batch. So it is the reset at the end, after a
    failure as well, that makes each evaluation begin with nothing; the one before is for what was updated in between.
    """
    for measure in trainer.measures.get(split, {}).values():
        measure.reset()
    measures: dict[str, Any] = {}
    try:
        yield measures
    finally:
        if measures:
            trainer.measures[split] = measures
        for measure in measures.values():
            measure.reset()


def is_measure(value: Any) -> bool:
    """Return whether a value of an output measures the whole evaluation: an object with ``compute`` and ``reset``."""
    has_both = callable(getattr(value, "compute", None)) and callable(getattr(value, "reset", None))
    return has_both and not isinstance(value, type)


def add_output(means: dict[str, Series], measures: dict[str, Any], output: Output, batch: Batch) -> None:
    """Add the scalars of one batch's output to the means, and the objects in it to the measures.

    Raises:
        UsageError: The output is no mapping, its weight is none, or it has another object of the same name than before.
    """
    if not isinstance(output, Mapping):
        message = f"eval_step must return a mapping of named values, not {type(output).__name__}"
        raise UsageError(message)
    weight = float(output_weight(output, batch_size(batch) if output.get("weight") is None else 1, "eval_step"))
    for name, value in output.items():
        if is_scalar(value) or (has_one_element(value) and _is_mean(name, batch, means)):
            if name != "weight":
                series = means.setdefault(name, Series("mean"))
                if weight > 0:  # else it counts for nothing, and is often NaN: the mean of no samples
                    series.add(kept(value) if isinstance(value, torch.Tensor) else number_of(value), weight)
        elif not isinstance(value, torch.Tensor) and is_measure(value) and measures.setdefault(name, value) is not value:
            message = (
                f"eval_step returned another {type(value).__name__} as {name!r} than before; make it once, update it with each "
                "batch and return it each time"
            )
            raise UsageError(message)


def _is_mean(name: str, batch: Batch, means: Mapping[str, Series]) -> bool:
    """Return whether a tensor with one element but with dimensions is a mean: of a batch with one sample it may be its output."""
    return name == "loss" or name in means or (name not in ("outputs", "target") and batch_size(batch) > 1)


def computed(trainer: Trainer, name: str, measure: Any) -> dict[str, Any]:
    """Return what an object has measured, by name; a mapping gives several values, of which those that are numbers count.

    Raises:
        UsageError: It is no number.
    """
    result = measure.compute()
    values = dict(_leaves(name, result))
    numbers = {
        key: value if isinstance(value, torch.Tensor) else number_of(value)
        for key, value in values.items()
        if is_scalar(value) or has_one_element(value)
    }
    left_out = [f"{key} ({_described(value)})" for key, value in values.items() if key not in numbers]
    if not numbers:
        message = (
            f"eval_step: compute() of {type(measure).__name__} {name!r} gave {_described(result)}; a metric is one number, or a "
            "mapping of named numbers"
        )
        raise UsageError(message)
    if left_out:
        trainer._warn_once(f"metrics that are no number are left out: {', '.join(left_out)}")
    return numbers


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return both.

    Raises:
        UsageError: They have a name in common.
    """
    if common := values.keys() & more.keys():
        message = f"eval_step gives two metrics the name {min(common)!r}; rename one of them"
        raise UsageError(message)
    return {**values, **more}


def _leaves(name: str, result: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(result, Mapping):
        for key, value in result.items():
            yield from _leaves(f"{name}_{key}", value)
    else:
        yield name, result


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "an empty mapping" if isinstance(value, Mapping) and not value else type(value).__name__
