"""The engine's own training: the last implementation of each stage, so that any plugin can wrap or replace it.

train: while no limit is reached
    before_epoch
    train_epoch: for each batch
        prepare_batch, before_step, update_due
        train_step: compute_loss, scale_loss, backward
                    [gradients_ready, clip_gradients, optimizer_step, after_update]
        after_step
        [evaluate, save_checkpoint]
    after_train_epoch, [evaluate], after_epoch, [save_checkpoint]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .data import call_model, is_call_of_model, to_device
from .errors import ControlFlow, DataError, MissingPartError, SkipEpoch, SkipStep, StageResultError, UsageError, add_note
from .markers import hookimpl
from .metrics import check_output
from .optimizers import clear_gradients

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import nn, optim

    from .trainer import Trainer
    from .types import Batch, Output, StateDict


#: After how many epochs in a row that trained nothing a run ends that has no ``max_epochs``, or whose epochs are never complete: its
#: limits come no nearer.
MOST_IDLE = 100

_TOO_LATE = "SkipStep was raised when the step had been trained: raise it in prepare_batch, before_step or a part of train_step"


@hookimpl(trylast=True)
def train(trainer: Trainer) -> bool:
    """Run epochs until a limit or a stop request is reached."""
    hooks = trainer.hooks
    trainer.leave_if_interrupted()
    trainer.serve_owed()
    idle = 0
    while not trainer.done:
        epoch, step = trainer.epoch, trainer.step
        trainer.restore_random()
        try:
            if hooks.before_epoch is not None:
                hooks.before_epoch(trainer=trainer, epoch=epoch)
            trainer.leave_if_interrupted()
            complete = trainer.stop_reason is None and hooks.train_epoch(trainer=trainer, epoch=epoch)
        except SkipEpoch:
            complete = True
        trainer.end_epoch(epoch, complete=complete)
        idle = idle + 1 if trainer.step == step and (trainer.max_epochs is None or not complete) else 0
        if idle == MOST_IDLE and not trainer.done:
            if not complete:
                message = f"train_epoch returned {complete!r} {idle} times in a row without a step: return True when an epoch is complete"
                raise StageResultError(message)
            why = f", the last one with {trainer.dropped_reason!r}" if trainer.dropped_reason else ""
            message = (
                f"{idle} epochs in a row have trained nothing: hooks skipped them, or dropped all batches{why}; look at what raises "
                "SkipEpoch or SkipStep, or set max_epochs"
            )
            raise DataError(message)
    return True


@hookimpl(trylast=True)
def train_epoch(trainer: Trainer, epoch: int) -> bool:
    """Train on each batch; return whether the epoch is complete."""
    hooks = trainer.hooks
    for raw in trainer.open_epoch():
        batch, begun, trained = raw, False, False
        try:
            batch = hooks.prepare_batch(trainer=trainer, batch=raw)
            begun = True
            if trainer.step_marks:
                trainer.step_marks.append(trainer.clock())
            if hooks.before_step is not None:
                hooks.before_step(trainer=trainer, batch=batch)
            if trainer.stop_reason is not None:
                return False
            due = trainer._due = bool(hooks.update_due(trainer=trainer, batch=batch)) if hooks.decides_update else True
            trainer._updated = trainer._optimizer_stepped = False
            output = trainer._output = hooks.train_step(trainer=trainer, batch=batch, update_due=due)
            trained = True
            if due and not trainer._optimizer_stepped:  # a train_step that updates in its own way
                count_update(trainer)
            if trainer._collecting:
                trainer.bus.add_output(output, batch)
            if hooks.after_step is not None:
                if hooks.shows_output:
                    output = detached(output)
                hooks.after_step(trainer=trainer, batch=batch, output=output)
            if trainer.step_marks is not None:
                trainer.step_marks.append(trainer.clock())
        except SkipStep as skip:
            if note_used(trainer, trained):
                raise UsageError(_TOO_LATE) from skip
            trainer.drop_batch(batch, skip.reason, begun=begun)
        except SkipEpoch:
            if note_used(trainer, trained) and trainer.step_marks is not None:
                trainer.step_marks.append(trainer.clock())
            trainer.count_failed_step()
            raise
        except BaseException:
            note_used(trainer, trained)
            raise
        else:
            trainer.step += 1
            trainer.batch_index += 1
            trainer._due = None
        if trainer.step >= trainer._attention_at and trainer.pay_attention():
            return False
    return trainer.close_epoch()


def note_used(trainer: Trainer, trained: bool) -> bool:
    """Note whether a step that an exception ends has used its batch: it has been trained, or the optimizers have stepped."""
    used = trained or trainer._optimizer_stepped or trainer._in_update
    trainer._batch_used = trainer._due is not None and used  # before update_due the other two are of the step before
    return trainer._batch_used


@hookimpl(trylast=True)
def train_step(trainer: Trainer, batch: Batch, update_due: bool) -> Output:
    """Compute the loss and its gradients; update the parameters when that is due."""
    hooks = trainer.hooks
    if trainer.gradients_spent:
        for optimizer in trainer.optimizers.values():
            clear_gradients(optimizer)
    loss = hooks.compute_loss(trainer=trainer, batch=batch)
    if type(loss) is Tensor and loss.ndim == 0:
        output: Output = {"loss": loss}
    else:
        loss, output = named_loss(loss)
    if hooks.scales_loss:
        loss = hooks.scale_loss(trainer=trainer, loss=loss, update_due=update_due)
    try:
        if hooks.shares_backward:
            hooks.backward(trainer=trainer, loss=loss, update_due=update_due)
        else:
            loss.backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if not loss.requires_grad:
            add_note(error, _why_no_gradients(trainer))
        raise
    trainer.gradients_spent = False
    if update_due:
        update_parameters(trainer)
    return output


def _why_no_gradients(trainer: Trainer) -> str:
    parameters = [] if trainer.model is None else list(trainer.model.parameters())
    frozen = trainer.model is not None and not any(parameter.requires_grad for parameter in parameters)
    if not torch.is_grad_enabled():
        why = "gradients are off, so train() was called within torch.no_grad(), or a hook has turned them off"
    elif frozen:
        why = "all parameters of the model are frozen" if parameters else "the model has no parameters"
    else:
        why = "compute_loss gave one that was detached, or made under no_grad()"
    return f"the loss depends on nothing that is trained: {why}"


def update_parameters(trainer: Trainer) -> bool:
    """Use the gradients, which are complete; return whether the parameters were updated."""
    hooks = trainer.hooks
    trainer.gradients_spent = True
    if hooks.gradients_ready is not None:
        hooks.gradients_ready(trainer=trainer)
    if hooks.clip_gradients is not None:
        hooks.clip_gradients(trainer=trainer)
    if hooks.shares_optimizer_step:
        try:
            updated = hooks.optimizer_step(trainer=trainer)
        except ControlFlow as request:
            if not trainer._in_update:
                raise
            if isinstance(request, SkipStep):
                raise UsageError(_TOO_LATE) from request
            trainer._optimizer_stepped = True
            count_update(trainer)  # a wrapper has asked for it when the update had been made
            raise
        trainer._in_update = False
    else:
        for optimizer in trainer.optimizers.values():
            optimizer.step()
        updated = True
    trainer._optimizer_stepped = True
    if updated:
        if hooks.after_update is not None or trainer.update + 1 >= trainer._update_limit:
            count_update(trainer)
        else:
            trainer.update += 1
            trainer._updated = True
    return updated


def count_update(trainer: Trainer) -> None:
    """Notify of an update, then count it, and have the loop look up when it was the last."""
    if trainer.hooks.after_update is not None:
        trainer._in_update = True
        try:
            trainer.hooks.after_update(trainer=trainer)
        except SkipStep as skip:
            raise UsageError(_TOO_LATE) from skip
        trainer._in_update = False
    trainer.update += 1
    trainer._updated = True
    if trainer.update >= trainer._update_limit:
        trainer._attention_at = 0


@hookimpl(trylast=True)
def prepare_batch(trainer: Trainer, batch: Batch) -> Batch:
    """Move every tensor to the device."""
    device = trainer.device
    if type(batch) is tuple or type(batch) is list:
        for item in batch:
            if type(item) is not Tensor or item.device != device:
                break
        else:
            return batch  # the usual batch on the CPU, without another call
    return to_device(batch, device)


@hookimpl(trylast=True)
def update_due(trainer: Trainer, batch: Batch) -> bool:
    """Update after every step."""
    return True


@hookimpl(trylast=True)
def count_updates(trainer: Trainer, epoch: int, steps: int) -> int:
    """Every step is an update."""
    return steps


@hookimpl(trylast=True)
def compute_loss(trainer: Trainer, batch: Batch) -> Any:
    """Apply the loss function to the model's output, or let the model compute it."""
    if trainer.loss is None:
        try:
            return call_model(trainer.model, batch)
        except TypeError as error:
            if is_call_of_model(error):
                add_note(error, "no loss= was given, so the model is called with the whole batch and returns its loss")
            raise
    if not isinstance(batch, tuple | list) or len(batch) < 2:  # noqa: PLR2004 - inputs and a target
        message = (
            f"loss= was given, so a batch must be (inputs..., target), not {type(batch).__name__}; implement compute_loss, "
            "or let the model compute its loss and give no loss="
        )
        raise UsageError(message)
    return trainer.loss(trainer.model(*batch[:-1]), batch[-1])


def named_loss(result: Any) -> tuple[Tensor, Output]:
    """Return the scalar to minimise and what ``train_step`` returns.

    Accepts a scalar tensor, a mapping with ``"loss"`` or of losses to be summed (a ``"weight"`` among them is none), or an object
    with ``.loss``.

    Raises:
        UsageError: Anything else.
    """
    loss: Any
    others: Any = {}
    cause: Exception | None = None
    if isinstance(result, Tensor):
        loss = result
    elif isinstance(result, Mapping):
        others = result
        try:
            loss = result["loss"] if "loss" in result else sum([result[name] for name in result if name != "weight"])
        except (TypeError, RuntimeError) as error:  # there are texts in it, or shapes that do not go together
            loss, cause = None, error
    else:
        loss = getattr(result, "loss", None)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        message = (
            f"compute_loss gave {_described(result)}; it must be a scalar tensor, a mapping with 'loss' or of losses to be summed, "
            "or an object with .loss"
        )
        raise UsageError(message) from cause
    return loss, {**others, "loss": loss}


def _described(result: Any) -> str:
    if isinstance(result, Tensor):
        return f"a tensor of shape {tuple(result.shape)}"
    if isinstance(result, Mapping):
        parts = ", ".join(f"{name} ({_described(value)})" for name, value in result.items())
        return f"a mapping of {parts}" if parts else "an empty mapping"
    loss = getattr(result, "loss", None)
    return type(result).__name__ + (f" with .loss = {_described(loss)}" if loss is not None else "")


def detached(output: Output) -> Output:
    """Cut what leaves the step off from its graph, so that nobody who keeps it keeps the graph.

    Raises:
        StageResultError: ``train_step`` gave no mapping.
    """
    check_output(output)
    cut = {}
    for name, value in output.items():  # no comprehension, which is one more call under Python 3.11
        cut[name] = value.detach() if isinstance(value, Tensor) else value
    return cut


@hookimpl(trylast=True)
def scale_loss(trainer: Trainer, loss: Tensor, update_due: bool) -> Tensor:
    """Leave the loss as it is."""
    return loss


@hookimpl(trylast=True)
def backward(trainer: Trainer, loss: Tensor, update_due: bool) -> bool:
    """Add the gradients to the parameters."""
    loss.backward()  # type: ignore[no-untyped-call]
    return True


@hookimpl(trylast=True)
def optimizer_step(trainer: Trainer) -> bool:
    """Step every optimizer."""
    for optimizer in trainer.optimizers.values():
        optimizer.step()
    return True


@hookimpl(trylast=True)
def make_model(trainer: Trainer) -> nn.Module:
    """Ask for a model."""
    message = "no model: pass it to Trainer(model) or implement make_model in trainconf.py"
    raise MissingPartError(message)


@hookimpl(trylast=True)
def make_optimizer(trainer: Trainer) -> optim.Optimizer:
    """Ask for an optimizer."""
    message = "no optimizer: pass Trainer(optimizer=...) or implement make_optimizer in trainconf.py"
    raise MissingPartError(message)


@hookimpl(trylast=True)
def make_loader(trainer: Trainer, split: str) -> Iterable[Batch]:
    """Ask for a loader."""
    known = ", ".join(trainer.loaders) or "none"
    message = (
        f"no loader for split {split!r} (given: {known}): pass Trainer(loaders={{{split!r}: ...}}) or implement "
        "make_loader in trainconf.py"
    )
    raise MissingPartError(message)


@hookimpl(trylast=True)
def save_checkpoint(trainer: Trainer, path: Path, kind: str) -> Path:
    """Ask for a plugin that can write."""
    message = "no active plugin can write a checkpoint: enable the built-in one with -p checkpoint"
    raise UsageError(message)


@hookimpl(trylast=True)
def load_checkpoint(trainer: Trainer, path: Path) -> StateDict:
    """Ask for a plugin that can read it."""
    if trainer.manager.has("load_checkpoint"):
        message = f"{path} is no checkpoint that an active plugin knows"
    else:
        message = f"{path} needs a plugin that reads it: -p checkpoint"
    raise UsageError(message)
