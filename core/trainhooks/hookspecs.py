"""Every hook of a run: the contract between the engine and its plugins.

    configure
    make_model, make_optimizer, make_loader      only for what was not passed to Trainer
    setup
    load_checkpoint, on_load                     when resuming
    before_train
    train
      while not done:
        before_epoch
        train_epoch
          for each batch of the loader:
            prepare_batch
            before_step
            update_due                           and count_updates, when a schedule is planned
            train_step
              compute_loss
              scale_loss
              backward
              gradients_ready                    only when an update is due
              clip_gradients
              optimizer_step
              after_update                       only if the parameters were updated
            after_step                           or after_skip, when the batch was dropped
            [evaluate, then save_checkpoint, when a plugin asked for them]
        after_train_epoch
        [evaluate when due]
        after_epoch
        [save_checkpoint when due]
    after_train
    on_exception                                 on any exception
    teardown

    evaluate: before_eval, (eval_step, after_eval_step) for each batch, after_eval
    predict: before_predict, (predict_step, after_predict_step) for each batch, after_predict
    save_checkpoint: on_save before writing, after_save afterwards
    report_start, report_metrics, report_media,
    report_artifact, report_end                  on a thread of each reporter's own

A *stage* is a piece of the engine's work: the first implementation that returns a value other than ``None`` does it, the
engine's own is asked last. An *event* is a notification: every implementation is called, return values are ignored.
An implementation names only the arguments it wants; it may wrap the hook with ``@hookimpl(wrapper=True)``, yielding once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .markers import hookspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn, optim

    from .media import Media
    from .metrics import Record
    from .run_info import RunInfo
    from .state import Outcome
    from .trainer import Trainer
    from .types import Batch, Metrics, Output, StateDict

#: Events of reporters, each called on the thread of the reporter.
REPORTS: Final = ("report_start", "report_metrics", "report_media", "report_artifact", "report_end")

#: Events that are called plugin by plugin, so that one failing plugin does not keep the others from being called.
#: They cannot be wrapped.
ONE_BY_ONE: Final = frozenset({"configure", "setup", "after_train", "on_exception", "teardown", *REPORTS})

#: Stages that may have no result.
OPTIONAL_RESULT: Final = frozenset({"clip_gradients"})

#: Stages that are hardly ever declined on purpose, most of them since they have side effects: declining one is reported once
#: when the engine's own implementation then runs.
WITH_SIDE_EFFECTS: Final = frozenset(
    {"train", "train_epoch", "train_step", "compute_loss", "backward", "optimizer_step"}
    | {"evaluate", "eval_step", "predict", "predict_step", "save_checkpoint"}
)


# --- Building a run ---------------------------------------------------------------------------------------------------


@hookspec
def configure(trainer: Trainer) -> None:
    """Settle what depends on the options, before anything is built.

    Called once for each plugin, when all options are final and before ``make_model``. A plugin may register others
    here with ``trainer.register``; each of those gets its own ``configure`` before this call goes on.

    By default nothing happens.

    Args:
        trainer: The run. Its limits may be changed; model, optimizer and loaders do not exist yet.

    Cannot be wrapped: it is called plugin by plugin.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def configure(trainer):
        ...     trainer.max_epochs = trainer.max_epochs or 10
    """


@hookspec(firstresult=True)
def make_model(trainer: Trainer) -> nn.Module | None:
    """Build the model.

    Called once, after ``configure`` and before ``make_optimizer``, only if ``Trainer`` was given no model.

    By default the run stops with an error that asks for one, unless ``train_step`` or ``train`` is replaced, which may
    need none.

    Args:
        trainer: The run. ``trainer.device`` is known; the engine moves the model there.

    Returns:
        A module. ``None`` declines.

    Wrappers see the module and may return another, for example a compiled one.

    In distributed runs every rank builds its own.

    Example:
        >>> @hookimpl
        ... def make_model(trainer):
        ...     return torch.nn.Linear(64, 10)
    """


@hookspec(firstresult=True)
def make_optimizer(trainer: Trainer) -> optim.Optimizer | Mapping[str, optim.Optimizer] | None:
    """Build the optimizer.

    Called once, after ``make_model``, when the model is on its device, only if ``Trainer`` was given no optimizer, and
    not before the first training.

    By default the run stops with an error that asks for one, unless ``train_step`` or ``train`` is replaced.

    Args:
        trainer: The run, with ``trainer.model``.

    Returns:
        An optimizer, or a mapping of named optimizers for loops that replace ``train_step``. ``None`` declines.

    Wrappers see the optimizer and may return another.

    In distributed runs every rank builds its own.

    Example:
        >>> @hookimpl
        ... def make_optimizer(trainer):
        ...     return torch.optim.AdamW(trainer.model.parameters(), lr=1e-3)
    """


@hookspec(firstresult=True)
def make_loader(trainer: Trainer, split: str) -> Iterable[Batch] | None:
    """Build the loader of one split.

    Called once for each split that is used and was not passed to ``Trainer``: ``"train"`` before the first training,
    others when they are first evaluated or predicted; what making those draws from random generators is put back.

    By default the run stops with an error that asks for one.

    Args:
        trainer: The run.
        split: ``"train"``, ``"val"``, ``"test"`` or any name that ``evaluate`` and ``predict`` are called with.

    Returns:
        Any iterable of batches; one with a length lets epochs, schedules and estimates be known. ``None`` declines.

    Wrappers see the loader and may return another.

    In distributed runs every rank builds a loader of its own share.

    Example:
        >>> @hookimpl
        ... def make_loader(trainer, split):
        ...     return torch.utils.data.DataLoader(datasets[split], batch_size=64, shuffle=split == "train")
    """


@hookspec
def setup(trainer: Trainer) -> None:
    """Open what the plugin needs for this run.

    Called once for each plugin and run, when model, optimizer and loaders exist and nothing has been restored yet. Each
    plugin whose ``setup`` returned gets ``teardown``. A plugin that is registered later gets it at once.

    By default nothing happens.

    Args:
        trainer: The run.

    Cannot be wrapped: it is called plugin by plugin.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def setup(self, trainer):
        ...     self.file = open(trainer.run_file("notes.txt"), "a")
    """


# --- Restoring --------------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def load_checkpoint(trainer: Trainer, path: Path) -> StateDict | None:
    """Read the state that is stored at ``path``.

    Called after ``setup`` and before ``before_train`` when a run is resumed, and before an evaluation from a checkpoint.

    By default the run stops with an error: the engine knows no file format, the built-in ``checkpoint`` plugin does.

    Args:
        trainer: The run. The engine hands the returned state to ``trainer.load_state_dict``.
        path: What the user named, or what was found for ``resume="auto"``.

    Returns:
        The state as ``trainer.state_dict()`` gave it. ``None`` declines, for a path that belongs to another plugin.

    Wrappers see the state and may return another.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def load_checkpoint(trainer, path):
        ...     return torch.load(path, weights_only=True) if path.suffix == ".pt" else None
    """


@hookspec
def on_load(trainer: Trainer, state: StateDict) -> None:
    """Look at the state that is about to be restored.

    Called by ``trainer.load_state_dict`` after ``load_checkpoint`` and before any object is restored.

    By default nothing happens.

    Args:
        trainer: The run, not yet restored.
        state: The whole state. It may be changed in place, for example to drop what does not fit any more.

    Wrappers surround the notification, not the restoring.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def on_load(trainer, state):
        ...     state["model"].pop("head.bias", None)
    """


# --- The run ----------------------------------------------------------------------------------------------------------


@hookspec
def before_train(trainer: Trainer) -> None:
    """Start the training.

    Called once for each training, after everything has been restored and before the first epoch, also when there is
    nothing left to do.

    By default nothing happens.

    Args:
        trainer: The run. ``trainer.step`` is the number of steps already done: 0, or that of the checkpoint.

    Wrappers surround the notification only; to surround the training, wrap ``train``.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def before_train(trainer):
        ...     print(f"training from step {trainer.step}")
    """


@hookspec(firstresult=True)
def train(trainer: Trainer) -> bool | None:
    """Train until a limit or a stop request is reached.

    Called between ``before_train`` and ``after_train``.

    By default:

    1. Evaluate or save, if the checkpoint that is resumed from still owed it.
    2. While no limit is reached: ``before_epoch``, ``train_epoch``, ``after_train_epoch``, a due evaluation,
       ``after_epoch``, a due checkpoint.

    Args:
        trainer: The run.

    Returns:
        ``True`` when it has trained. ``None`` declines.

    Wrappers surround the whole training: the place for what must be undone afterwards.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl(wrapper=True)
        ... def train(trainer):
        ...     with torch.autograd.set_detect_anomaly(True):
        ...         return (yield)
    """


@hookspec
def before_epoch(trainer: Trainer, epoch: int) -> None:
    """Start an epoch.

    Called before the train loader is opened. A run that is resumed inside an epoch calls it again for that epoch.

    By default nothing happens.

    Args:
        trainer: The run.
        epoch: Index of the epoch, from 0; ``trainer.epoch`` is the same.

    Wrappers surround the notification only; to surround the epoch, wrap ``train_epoch``.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def before_epoch(trainer, epoch):
        ...     trainer.loaders["train"].sampler.set_epoch(epoch)
    """


@hookspec(firstresult=True)
def train_epoch(trainer: Trainer, epoch: int) -> bool | None:
    """Train for one epoch.

    Called between ``before_epoch`` and ``after_train_epoch``.

    By default, for each batch of the train loader, or for ``trainer.steps_per_epoch`` of them: ``prepare_batch``,
    ``before_step``, ``update_due``, ``train_step``, ``after_step``, then what was requested, until a limit or a stop
    request ends it.

    Args:
        trainer: The run.
        epoch: Index of the epoch, from 0.

    Returns:
        ``True`` if the epoch is complete, ``False`` if it was cut short. ``None`` declines.

    Wrappers surround the training part of the epoch, without its evaluation.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl(wrapper=True)
        ... def train_epoch(trainer, epoch):
        ...     with warnings.catch_warnings(action="ignore" if epoch else "default"):
        ...         return (yield)
    """


@hookspec(firstresult=True)
def prepare_batch(trainer: Trainer, batch: Batch) -> Batch | None:
    """Make a batch ready for the model.

    Called for each batch of a loader, before ``before_step`` in training, before ``eval_step`` and ``predict_step``
    otherwise (``trainer.split`` says which).

    By default every tensor in the batch is moved to ``trainer.device``; mappings, sequences, named tuples and objects
    with ``to`` are followed.

    Args:
        trainer: The run.
        batch: What the loader gave.

    Returns:
        The batch that all later hooks see. ``None`` declines.

    Wrappers may transform the prepared batch, time the transfer, or raise ``SkipStep("why")`` to filter it.

    In distributed runs every rank calls it on its own batch.

    Example:
        >>> @hookimpl(wrapper=True)
        ... def prepare_batch(trainer, batch):
        ...     images, labels = yield
        ...     return images / 255, labels
    """


@hookspec
def before_step(trainer: Trainer, batch: Batch) -> None:
    """Start a step.

    Called after ``prepare_batch`` and before ``update_due``. A stop request made here ends the run before this batch is
    trained; ``raise SkipStep("why")`` drops it.

    By default nothing happens.

    Args:
        trainer: The run. ``trainer.step`` is the index of this step, from 0.
        batch: What ``prepare_batch`` returned.

    Wrappers surround the notification only; to surround the step, wrap ``train_step``.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def before_step(trainer, batch):
        ...     if trainer.every_n_steps(1000):
        ...         torch.cuda.empty_cache()
    """


@hookspec(firstresult=True)
def update_due(trainer: Trainer, batch: Batch) -> bool | None:
    """Decide whether this step completes an update.

    Called after ``before_step`` and before ``train_step``.

    By default every step does. Gradient accumulation replaces it.

    Args:
        trainer: The run.
        batch: What ``prepare_batch`` returned.

    Returns:
        ``True`` if the optimizer is due after this batch, else ``False``. ``None`` declines.

    Wrappers see the decision and may return another.

    In distributed runs every rank must decide the same.

    Example:
        >>> @hookimpl
        ... def update_due(trainer):
        ...     return trainer.every_n_steps(4) or trainer.end_of_epoch
    """


@hookspec(firstresult=True)
def count_updates(trainer: Trainer, epoch: int, steps: int) -> int | None:
    """Say how many updates the first steps of an epoch make, so that the length of a run is known in updates.

    Called when a schedule is planned (``trainer.total_updates``, ``trainer.updates_until``), and when a checkpoint
    is saved, not in each step.

    By default as many as there are steps. Whoever replaces ``update_due`` by a rule of its own answers here too; if nobody does,
    the number of updates is not known in advance.

    Args:
        trainer: The run.
        epoch: Index of the epoch that is asked about, from 0.
        steps: Of this epoch, after which it ends or the run does.

    Returns:
        The number of updates. ``None`` declines.

    Wrappers see the number and may return another.

    In distributed runs every rank must answer the same.

    Example:
        >>> @hookimpl
        ... def count_updates(steps):
        ...     return math.ceil(steps / 4)
    """


@hookspec(firstresult=True)
def train_step(trainer: Trainer, batch: Batch, update_due: bool) -> Output | None:
    """Train on one batch.

    Called between ``before_step`` and ``after_step``.

    By default:

    1. Clear the gradients, if the last step was an update.
    2. ``compute_loss``, ``scale_loss``, ``backward``.
    3. When an update is due: ``gradients_ready``, ``clip_gradients``, ``optimizer_step`` and, if that updated the
       parameters, ``after_update``.

    A loop of another kind (GAN, RL, several optimizers) replaces it. It may call ``trainer.update_parameters()`` for the
    third part; if it does not, each step that is due counts as one update.

    Args:
        trainer: The run.
        batch: What ``prepare_batch`` returned.
        update_due: Whether the optimizer is due after this batch.

    Returns:
        Named values, ``"loss"`` among them where there is one; ``"weight"`` says for how much the batch counts in their means.
        They may still have their graph: what ``after_step`` and the metrics get is detached. ``None`` declines.

    Wrappers surround the whole step. They cannot repeat it: for that replace the stage and use ``trainer.call_others``.

    In distributed runs every rank calls it on its own batch.

    Example:
        >>> @hookimpl
        ... def train_step(trainer, batch, update_due):
        ...     trainer.optimizer.zero_grad()
        ...     loss = trainer.model(batch).mean()
        ...     loss.backward()
        ...     trainer.optimizer.step()
        ...     return {"loss": loss}
    """


@hookspec(firstresult=True)
def compute_loss(trainer: Trainer, batch: Batch) -> Tensor | Mapping[str, Any] | Any | None:
    """Compute the training loss of one batch.

    Called inside ``train_step``, before ``scale_loss`` and ``backward``, with autocast already on when AMP is used, and
    by the default ``eval_step``.

    By default:

    1. With ``loss`` given to ``Trainer``: ``loss(model(*inputs), target)`` for a batch ``(inputs..., target)``.
    2. Without: the model is called with the batch, ``**`` for a mapping, ``*`` for a tuple or list.

    Args:
        trainer: The run. Not to be changed here.
        batch: What ``prepare_batch`` returned, already on ``trainer.device``.

    Returns:
        A scalar tensor, or named tensors: ``"loss"`` if present is the one to minimise, otherwise their sum is; or an
        object with ``.loss``. ``"weight"`` among them is no loss: it says for how much the batch counts in the means of training
        and evaluation. ``None`` declines.

    Wrappers see the returned value and may return another.

    In distributed runs every rank calls it on its own batch.

    Example:
        >>> @hookimpl
        ... def compute_loss(trainer, batch):
        ...     x, y = batch
        ...     return torch.nn.functional.cross_entropy(trainer.model(x), y)
    """


@hookspec(firstresult=True)
def scale_loss(trainer: Trainer, loss: Tensor, update_due: bool) -> Tensor | None:
    """Scale the loss for the backward pass.

    Called inside ``train_step``, between ``compute_loss`` and ``backward``. What is logged is the loss before it.

    By default the loss is returned unchanged. AMP and gradient accumulation wrap it.

    Args:
        trainer: The run.
        loss: The scalar to minimise, with its graph.
        update_due: Whether the optimizer is due after this batch.

    Returns:
        The scalar that ``backward`` starts from. ``None`` declines.

    Wrappers see the scaled loss and may scale it further; the factors multiply, whatever their order.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl(wrapper=True)
        ... def scale_loss(trainer, loss):
        ...     return (yield) / 4
    """


@hookspec(firstresult=True)
def backward(trainer: Trainer, loss: Tensor, update_due: bool) -> bool | None:
    """Add the gradients of the loss to the parameters.

    Called inside ``train_step``, after ``scale_loss``.

    By default ``loss.backward()``.

    Args:
        trainer: The run.
        loss: What ``scale_loss`` returned.
        update_due: Whether the optimizer is due after this batch.

    Returns:
        ``True`` when it has been done. ``None`` declines.

    Wrappers surround the backward pass.

    In distributed runs every rank calls it; gradients are reduced inside when an update is due.

    Example:
        >>> @hookimpl
        ... def backward(trainer, loss):
        ...     loss.backward(retain_graph=True)
        ...     return True
    """


@hookspec
def gradients_ready(trainer: Trainer) -> None:
    """Look at the complete, unscaled gradients.

    Called inside ``train_step`` when an update is due, after ``backward`` and before ``clip_gradients``.

    By default nothing happens.

    Args:
        trainer: The run. Gradients are in ``parameter.grad`` and may be changed in place.

    Wrappers surround the notification only: before its yield one with ``tryfirst`` completes the gradients, as AMP does, which
    unscales them, and accumulation, which divides them.

    In distributed runs every rank calls it, with the same gradients.

    Example:
        >>> @hookimpl
        ... def gradients_ready(trainer):
        ...     trainer.log("grad/bias", trainer.model.bias.grad.norm())
    """


@hookspec(firstresult=True)
def clip_gradients(trainer: Trainer) -> Tensor | float | None:
    """Limit the gradients.

    Called inside ``train_step`` when an update is due, after ``gradients_ready`` and before ``optimizer_step``.

    By default nothing is clipped.

    Args:
        trainer: The run. Gradients are changed in place.

    Returns:
        The norm before clipping, on the device, or ``None`` if none was computed.

    Wrappers see the norm.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def clip_gradients(trainer):
        ...     return torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    """


@hookspec(firstresult=True)
def optimizer_step(trainer: Trainer) -> bool | None:
    """Update the parameters.

    Called inside ``train_step`` when an update is due, after ``clip_gradients``.

    By default ``trainer.optimizer.step()``, or the step of each named optimizer.

    Args:
        trainer: The run.

    Returns:
        ``True`` if the parameters were updated, ``False`` if the update was skipped, as with infinite fp16 gradients.
        ``None`` declines.

    Wrappers see whether it was updated.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def optimizer_step(trainer):
        ...     for optimizer in trainer.optimizers.values():
        ...         optimizer.step()
        ...     return True
    """


@hookspec
def after_update(trainer: Trainer) -> None:
    """Follow an update of the parameters.

    Called inside ``train_step`` after ``optimizer_step``, only if it updated the parameters.

    By default nothing happens.

    Args:
        trainer: The run. ``trainer.update`` is still the index of this update, from 0.

    Wrappers surround the notification only.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def after_update(self, trainer):
        ...     self.average.update_parameters(trainer.model)
    """


@hookspec
def after_step(trainer: Trainer, batch: Batch, output: Output) -> None:
    """Follow a step.

    Called after ``train_step``, before an evaluation or a checkpoint that was asked for.

    By default nothing happens.

    Args:
        trainer: The run. ``trainer.step`` is still the index of this step, from 0; gradients are still there.
        batch: What ``prepare_batch`` returned. Not to be kept.
        output: What ``train_step`` returned, on the device.

    Wrappers surround the notification only; to surround the step, wrap ``train_step``.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def after_step(trainer, output):
        ...     if trainer.every_n_steps(100):
        ...         print(f"{trainer.step + 1}: {output['loss'].item():.3f}")
    """


@hookspec
def after_skip(trainer: Trainer, batch: Batch, reason: str) -> None:
    """Follow a batch that was dropped.

    Called instead of ``after_step`` when ``SkipStep`` was raised after ``prepare_batch``, so that what began in
    ``before_step`` can end. The step does not count; ``trainer.batch_index`` moves on.

    By default nothing happens.

    Args:
        trainer: The run.
        batch: What ``prepare_batch`` returned.
        reason: What ``SkipStep`` was raised with.

    Wrappers surround the notification only.

    In distributed runs every rank must drop its batch in the same step.

    Example:
        >>> @hookimpl
        ... def after_skip(self, trainer, reason):
        ...     self.dropped[reason] += 1
    """


@hookspec
def after_train_epoch(trainer: Trainer, epoch: int) -> None:
    """Follow the last step of an epoch.

    Called after ``train_epoch``, before the epoch's evaluation, also for an epoch that was cut short by a limit or a
    stop request; ``trainer.every_n_epochs`` is false then.

    By default nothing happens.

    Args:
        trainer: The run.
        epoch: Index of the epoch, from 0.

    Wrappers surround the notification only; to surround the epoch, wrap ``train_epoch``.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def after_train_epoch(trainer, epoch):
        ...     if trainer.every_n_epochs(5):
        ...         trainer.request_eval("test")
    """


@hookspec
def after_epoch(trainer: Trainer, epoch: int, metrics: Metrics) -> None:
    """End an epoch.

    Called after ``after_train_epoch`` and the epoch's evaluation, before its checkpoint. What is logged here is recorded at this
    step, in this epoch.

    By default nothing happens.

    Args:
        trainer: The run. ``trainer.epoch`` is still the index of this epoch.
        epoch: Index of the epoch, from 0.
        metrics: Means over the epoch of what training logged (``train/loss``) and, when it was evaluated, ``val/...``.

    Wrappers surround the notification only.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def after_epoch(trainer, epoch, metrics):
        ...     if metrics.get("val/accuracy", 0) > 0.99:
        ...         trainer.stop("good enough")
    """


@hookspec
def after_train(trainer: Trainer) -> None:
    """End the training, whatever happened.

    Called once for each plugin when ``before_train`` was reached, also after an exception. ``trainer.outcome`` says how
    it went. One plugin's error does not keep the others from being called.

    By default nothing happens.

    Args:
        trainer: The run.

    Cannot be wrapped: it is called plugin by plugin.

    In distributed runs every rank that gets here calls it; after a failure there must be no collective in it.

    Example:
        >>> @hookimpl
        ... def after_train(trainer):
        ...     if trainer.outcome.status == "completed":
        ...         torch.save(trainer.model.state_dict(), trainer.run_file("final.pt"))
    """


@hookspec
def on_exception(trainer: Trainer, exception: BaseException) -> None:
    """Hear of an exception that ends the run.

    Called after ``after_train`` and before ``teardown``, for every exception, ``KeyboardInterrupt`` included. It cannot
    swallow it; an error raised here is attached to it.

    By default nothing happens.

    Args:
        trainer: The run.
        exception: The object that will leave ``train``, ``evaluate`` or ``predict``. Not to be kept.

    Cannot be wrapped: it is called plugin by plugin.

    In distributed runs only the ranks that saw the exception call it; there must be no collective in it.

    Example:
        >>> @hookimpl
        ... def on_exception(trainer, exception):
        ...     notify(f"run failed at step {trainer.step}: {exception!r}")
    """


@hookspec
def teardown(trainer: Trainer, outcome: Outcome) -> None:
    """Close what ``setup`` opened.

    Called once for exactly those plugins whose ``setup`` succeeded, in reverse order, at the end of every run. All
    errors are collected and raised together after the last one.

    By default nothing happens.

    Args:
        trainer: The run.
        outcome: How it ended.

    Cannot be wrapped: it is called plugin by plugin.

    In distributed runs every rank that gets here calls it; after a failure there must be no collective in it.

    Example:
        >>> @hookimpl
        ... def teardown(self):
        ...     self.file.close()
    """


# --- Evaluation and prediction ----------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def evaluate(trainer: Trainer, split: str) -> Metrics | None:
    """Evaluate the model on one split.

    Called when a plugin asked for it with ``trainer.request_eval``, and by ``trainer.evaluate``.

    By default:

    1. Set the model to evaluation mode and turn gradients off.
    2. ``before_eval``; for each batch ``prepare_batch``, ``eval_step``, ``after_eval_step``.
    3. Average every scalar that ``eval_step`` returned, weighted by batch size; compute every object with ``compute`` and
       ``reset`` that was among what it returned; ``after_eval``.
    4. Reset those objects, whatever happened; leave the mode of each module and the random number generators as they were
       found.

    Args:
        trainer: The run.
        split: Which loader.

    Returns:
        Metrics, named ``split/name``. ``None`` declines.

    Wrappers surround the whole evaluation: the place to swap averaged weights in and out.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl(wrapper=True)
        ... def evaluate(self, trainer, split):
        ...     with self.averaged(trainer.model):
        ...         return (yield)
    """


@hookspec
def before_eval(trainer: Trainer, split: str) -> None:
    """Start an evaluation.

    Called inside ``evaluate``, before the first batch.

    By default nothing happens.

    Args:
        trainer: The run.
        split: Which loader.

    Wrappers surround the notification only; to surround the evaluation, wrap ``evaluate``.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def before_eval(self, split):
        ...     self.confusion.zero_()
    """


@hookspec(firstresult=True)
def eval_step(trainer: Trainer, batch: Batch, split: str) -> Output | None:
    """Evaluate one batch.

    Called inside ``evaluate`` for each batch, without gradients.

    By default ``{"loss": ...}`` of ``compute_loss`` and, if that calls the loss function of ``Trainer`` once, what it was
    called with as ``"outputs"`` and ``"target"``, for ``after_eval_step`` and metrics: the model is not called again.

    Args:
        trainer: The run.
        batch: What ``prepare_batch`` returned.
        split: Which loader.

    Returns:
        Named values. Those that are scalars are means over the batch and are averaged, weighted by ``"weight"`` if it is
        among them (a number of samples or tokens), else by the batch size. An object with ``compute()`` and ``reset()``
        (torchmetrics, torcheval, your own) measures the whole split: update it here and return it with each batch; the
        engine computes it once at the end and resets it. A mapping that ``compute()`` gives is named ``name_key``.
        Anything else is for ``after_eval_step``. ``None`` declines.

    Wrappers see the output and may add to it.

    In distributed runs every rank calls it on its own batch.

    Example:
        >>> @hookimpl
        ... def eval_step(trainer, batch):
        ...     x, y = batch
        ...     logits = trainer.model(x)
        ...     return {"accuracy": (logits.argmax(1) == y).float().mean()}
    """


@hookspec
def after_eval_step(trainer: Trainer, batch: Batch, output: Output, split: str) -> None:
    """Follow one batch of an evaluation.

    Called inside ``evaluate``, after ``eval_step``.

    By default nothing happens.

    Args:
        trainer: The run.
        batch: What ``prepare_batch`` returned. Not to be kept.
        output: What ``eval_step`` returned, on the device.
        split: Which loader.

    Wrappers surround the notification only.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def after_eval_step(self, batch, output):
        ...     self.confusion += confusion(output["logits"], batch[1])
    """


@hookspec
def after_eval(trainer: Trainer, split: str, metrics: Metrics) -> None:
    """End an evaluation.

    Called inside ``evaluate``, after the last batch, when the metrics are on the host.

    By default nothing happens.

    Args:
        trainer: The run. ``trainer.step`` is the number of steps done.
        split: Which loader.
        metrics: What was measured, named ``split/name``. May be added to.

    Wrappers surround the notification only; to change the result, wrap ``evaluate``.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def after_eval(trainer, metrics):
        ...     if metrics["val/loss"] > 10:
        ...         trainer.stop("diverged")
    """


@hookspec(firstresult=True)
def predict(trainer: Trainer, split: str) -> list[Any] | None:
    """Predict one split.

    Called by ``trainer.predict``.

    By default:

    1. Set the model to evaluation mode and turn gradients off.
    2. ``before_predict``; for each batch ``prepare_batch``, ``predict_step``, ``after_predict_step``; ``after_predict``.
    3. Leave the mode of each module and the random number generators as they were found.

    Args:
        trainer: The run.
        split: Which loader.

    Returns:
        The outputs, one for each batch, on the host. ``None`` declines.

    Wrappers surround the whole prediction.

    In distributed runs every rank calls it on its own share.

    Example:
        >>> @hookimpl(wrapper=True)
        ... def predict(trainer, split):
        ...     return torch.cat((yield))
    """


@hookspec
def before_predict(trainer: Trainer, split: str) -> None:
    """Start a prediction.

    Called inside ``predict``, before the first batch.

    By default nothing happens.

    Args:
        trainer: The run.
        split: Which loader.

    Wrappers surround the notification only; to surround the prediction, wrap ``predict``.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def before_predict(self, trainer):
        ...     self.file = open(trainer.run_file("predictions.txt"), "w")
    """


@hookspec(firstresult=True)
def predict_step(trainer: Trainer, batch: Batch, split: str) -> Any | None:
    """Predict one batch.

    Called inside ``predict`` for each batch, without gradients.

    By default the model is called as in ``compute_loss``; with ``loss`` given to ``Trainer``, the target that ends the
    batch is left out.

    Args:
        trainer: The run.
        batch: What ``prepare_batch`` returned.
        split: Which loader.

    Returns:
        The output for this batch; its tensors are moved to the host. ``None`` declines.

    Wrappers see the output and may return another.

    In distributed runs every rank calls it on its own batch.

    Example:
        >>> @hookimpl
        ... def predict_step(trainer, batch):
        ...     return trainer.model(batch[0]).softmax(1)
    """


@hookspec
def after_predict_step(trainer: Trainer, batch: Batch, output: Any, split: str) -> None:
    r"""Follow one batch of a prediction.

    Called inside ``predict``, after ``predict_step``.

    By default nothing happens.

    Args:
        trainer: The run.
        batch: What ``prepare_batch`` returned. Not to be kept.
        output: What ``predict_step`` returned, on the host.
        split: Which loader.

    Wrappers surround the notification only.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def after_predict_step(self, output):
        ...     print(*output.argmax(1).tolist(), sep="\n", file=self.file)
    """


@hookspec
def after_predict(trainer: Trainer, split: str) -> None:
    """End a prediction.

    Called inside ``predict``, after the last batch.

    By default nothing happens.

    Args:
        trainer: The run.
        split: Which loader.

    Wrappers surround the notification only.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def after_predict(self):
        ...     self.file.close()
    """


# --- Checkpoints ------------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def save_checkpoint(trainer: Trainer, path: Path, kind: str) -> Path | None:
    """Write the state of the run.

    Called when a plugin asked for it with ``trainer.request_checkpoint``, after the evaluation of the same step, and by
    ``trainer.save_checkpoint``.

    By default the run stops with an error: the engine knows no file format, the built-in ``checkpoint`` plugin does.

    Args:
        trainer: The run. ``trainer.state_dict()`` gives the state to be written, after ``on_save``.
        path: Where it belongs.
        kind: ``"periodic"``, ``"best"``, ``"pinned"``, ``"final"``, ``"rescue"`` when the run is failing, or what the caller gave.

    Returns:
        Where it was written, once it would survive a power cut. A ``concurrent.futures.Future`` of that for one that is
        written in the background, from a copy that the running training does not change: the engine waits for it before the
        next save and at the end of the run; its result is ``None`` when nothing was saved and that was reported. ``None``
        declines.

    Wrappers surround the writing, or the copying where it is written in the background.

    In distributed runs every rank calls it; plain formats write on rank 0.

    Example:
        >>> @hookimpl
        ... def save_checkpoint(trainer, path):
        ...     torch.save(trainer.state_dict(), path)
        ...     return path
    """


@hookspec
def on_save(trainer: Trainer, state: StateDict) -> None:
    """Look at the state that is about to be written.

    Called by ``trainer.state_dict`` inside ``save_checkpoint``, when every object has given its state.

    By default nothing happens.

    Args:
        trainer: The run.
        state: The whole state. Plain values and tensors may be added under a key of the plugin's own.

    Wrappers surround the notification only.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def on_save(trainer, state):
        ...     state["git_commit"] = COMMIT
    """


@hookspec
def after_save(trainer: Trainer, path: Path, kind: str) -> None:
    """Follow a checkpoint that has been written.

    Called when it is durable: after ``save_checkpoint`` returned, or, for one that is written in the background, between the
    steps after that. Not called for one that could not be written.

    By default nothing happens.

    Args:
        trainer: The run.
        path: Where it was written; it is complete, and stays until the next checkpoint is.
        kind: As in ``save_checkpoint``.

    Wrappers surround the notification only.

    In distributed runs every rank calls it.

    Example:
        >>> @hookimpl
        ... def after_save(path):
        ...     shutil.copytree(path, BACKUP / path.name)
    """


# --- Reporting --------------------------------------------------------------------------------------------------------


@hookspec
def report_start(run: RunInfo) -> None:
    """Open what is reported to: a file, or the run at a tracking server.

    Called once, before anybody's ``before_train``, in runs that train; the engine waits for it, but not longer than 10
    seconds. A plugin that is registered later is told then, of a run that is resumed from there. Called on the reporter's own thread, as are the hooks below; an error in one of them is warned of once, the call is
    repeated after a while, and the training goes on. Only a plugin with ``on_error = "raise"`` ends the run by it.

    By default nothing happens.

    Args:
        run: What a reporter needs to know of the run; immutable. A run that is resumed has the ``id`` that it had.

    Cannot be wrapped: it is called plugin by plugin.

    In distributed runs the main rank calls it.

    Example:
        >>> @hookimpl
        ... def report_start(self, run):
        ...     self.client = tracker.open(run.id, name=run.name, config=dict(run.hyperparameters))
    """


@hookspec
def report_metrics(run: RunInfo, records: Sequence[Record]) -> None:
    """Pass metrics on to a file, a terminal or a tracking server.

    Called on the reporter's thread with what was flushed, one record a call or, where the plugin has an attribute
    ``records_per_call``, with up to so many. When it raises, it gets the same records again. An ``OSError``, of which those of
    connections and time limits are kinds, means that the service is away: the records wait for it. With any other error they
    are given up after three attempts, counted, and reported at the end. What is queued at the end of the run is
    delivered before ``report_end``.

    A plugin with ``knows_what_arrived = True`` is offered again, when a run is resumed, the records that had not arrived when
    its checkpoint was saved; it leaves out those that did arrive after all.

    By default nothing happens.

    Args:
        run: What a reporter needs to know of the run; immutable.
        records: Values with the step, update, epoch and time that the engine gave them; steps never go backwards.

    Cannot be wrapped: it is called plugin by plugin.

    In distributed runs the main rank calls it.

    Example:
        >>> @hookimpl
        ... def report_metrics(self, records):
        ...     for record in records:
        ...         self.client.log(dict(record.values), step=record.step)
    """


@hookspec
def report_media(run: RunInfo, items: Sequence[Media]) -> None:
    """Pass images, text, histograms and tables on.

    Called on the reporter's thread, in order with ``report_metrics`` and under the same rules, for what ``trainer.log_image``,
    ``log_text``, ``log_histogram`` and ``log_table`` took.

    By default nothing happens.

    Args:
        run: What a reporter needs to know of the run; immutable.
        items: Objects of ``trainhooks.media``: ``Image``, ``Text``, ``Histogram``, ``Table``.

    Cannot be wrapped: it is called plugin by plugin.

    In distributed runs the main rank calls it.

    Example:
        >>> @hookimpl
        ... def report_media(self, items):
        ...     for item in items:
        ...         if isinstance(item, Image):
        ...             self.client.log_image(item.name, item.pixels.numpy(), step=item.step)
    """


@hookspec
def report_artifact(run: RunInfo, path: Path, name: str, kind: str, step: int, update: int, epoch: int, time: float) -> None:
    """Pass a file on to a tracking server.

    Called on the reporter's thread, in order with ``report_metrics`` and under the same rules, for each
    ``trainer.log_artifact``.

    By default nothing happens.

    Args:
        run: What a reporter needs to know of the run; immutable.
        path: The file or folder. It may be gone by the time of the call.
        name: How it is to be called.
        kind: ``"checkpoint"``, ``"file"``, or what the caller gave.
        step: Steps done when it was logged.
        update: Updates done.
        epoch: Epochs done.
        time: Seconds since the epoch of the clock (``time.time``).

    Cannot be wrapped: it is called plugin by plugin.

    In distributed runs the main rank calls it.

    Example:
        >>> @hookimpl
        ... def report_artifact(self, path, name, step):
        ...     self.client.upload(path, name, step=step)
    """


@hookspec
def report_end(run: RunInfo, outcome: Outcome) -> None:
    """Close what ``report_start`` opened, with how the run ended.

    Called once, after everybody's ``teardown`` and after all that was logged has been delivered, however the run ended,
    unless ``report_start`` never succeeded; at most ``report_timeout_s`` are waited for all of this together.

    By default nothing happens.

    Args:
        run: What a reporter needs to know of the run; immutable.
        outcome: ``outcome.status`` is ``"completed"``, ``"stopped"``, ``"interrupted"`` or ``"failed"``.

    Cannot be wrapped: it is called plugin by plugin.

    In distributed runs the main rank calls it.

    Example:
        >>> @hookimpl
        ... def report_end(self, outcome):
        ...     self.client.finish(failed=outcome.status == "failed")
    """
