"""What the loop and the session call: the state of a run together with the plugins, metrics and files that it works with.

``RunState`` is what hooks may read; this is what a driver of the stages needs besides, so that ``Trainer`` is left with
what users call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .data import LookAhead, generators_of, length_of, no_batches, read_epoch
from .errors import ControlFlow, MissingPartError, UsageError, add_note
from .manager import PluginManager
from .metrics import MetricBus, Record, Reduce
from .reporter import Artifact, Reporter, RunInfo
from .settings import Settings, pick_device, plain, seed_everything
from .state import NEVER, Outcome, RunState, Status
from .stateful import RandomState, StatefulRegistry
from .workdir import RunFolder
from .workers import with_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn, optim

    from .session import Session
    from .trainer import Trainer
    from .types import Batch, Metrics, Output, StateDict

log = logging.getLogger("trainhooks")


class Driver(RunState):
    """Carries a run: its model, data, metrics, files and requests.

    Args:
        settings: Of the run.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.max_epochs, settings.max_steps, settings.max_updates, settings.steps_per_epoch)
        self.settings = settings
        self.model: nn.Module = None  # type: ignore[assignment]  # hooks run when it is there
        self.optimizers: dict[str, optim.Optimizer] = {}
        #: The optimizer, or the mapping of them where there are several.
        self.optimizer: Any = None
        self.loaders: dict[str, Iterable[Batch]] = {}
        self.device = pick_device(settings.device)
        self.manager = PluginManager()
        self.hooks = self.manager.hooks
        self.bus = MetricBus()
        self.rng = RandomState()
        self.stateful = StatefulRegistry()
        self.run_folder = RunFolder(settings.work_dir) if settings.work_dir is not None else None
        self.reporter: Reporter | None = None
        self.session: Session | None = None
        #: Whether the gradients belong to an update that is done, so that the next step clears them.
        self.gradients_spent = True
        #: When the last step ended, the next one began, it ended, ...; ``None`` while nobody wants to know.
        self.step_marks: list[float] | None = None
        #: Returns seconds, for ``step_marks``.
        self.clock: Callable[[], float] = time.perf_counter
        self._seeded = False
        self._epoch_length: int | None = None
        self._batches: Iterator[Batch] | None = None
        self._step_at_open = self._index_at_open = 0
        self._output: Output = {}
        self._collecting = False  # whether anybody wants what train_step returns as train/...
        self._evaluated: Metrics = {}
        #: What measures each split as a whole, by name, as far as it is known.
        self.measures: dict[str, dict[str, Any]] = {}
        self._epoch_start: StateDict | None = None
        self._restored: StateDict = {}
        self._flush_at = NEVER

    @property
    def as_trainer(self) -> Trainer:
        """This object as hooks see it."""
        return cast("Trainer", self)

    # --- Metrics ---

    def log(self, name: str, value: Any, reduce: Reduce = "mean") -> None:
        """Log one value; a tensor stays on its device until the next flush.

        Args:
            name: For example ``train/loss``, ``lr``, ``time/step``.
            value: A number or a tensor with one element; detached.
            reduce: What becomes of several values between two flushes.
        """
        self.bus.add(name, value, reduce=reduce)

    def log_dict(self, values: Mapping[str, Any], reduce: Reduce = "mean") -> None:
        """Log several values."""
        for name, value in values.items():
            self.bus.add(name, value, reduce=reduce)

    def log_artifact(self, path: str | Path, name: str | None = None, kind: str = "file") -> None:
        """Pass a file to the reporters."""
        if self.reporter is not None:
            self.reporter.put(Artifact(Path(path), name or Path(path).name, kind))

    def flush(self, extra: Mapping[str, float] | None = None) -> Metrics:
        """Bring what was logged to the host, into ``trainer.metrics`` and to the reporters.

        Args:
            extra: Values that are on the host already.

        Returns:
            What was flushed.
        """
        if (
            not self._collecting and isinstance(self._output, Mapping) and self._output
        ):  # nobody wants means: the last step's values do
            self.bus.add_output(self._output)
            self._output = {}
        values = {**self.bus.flush(), **(extra or {})}
        if values:
            self.metrics.update(values)
            if self.reporter is not None:
                self.records += 1
                self.reporter.put(Record(self.step, self.update, self.epoch, time.time(), values))
        if self.reporter is not None:
            self.reporter.check()
        if self.reporter is not None or self.step_marks is not None:
            self._flush_at = self.step + self.settings.log_every_steps
        self.plan_attention()
        return values

    def mark_steps(self, clock: Callable[[], float]) -> list[float]:
        """Have the loop note when each step begins and ends, which costs less than a hook.

        Args:
            clock: Returns seconds.

        Returns:
            A list to which the loop appends: end of a step, begin of the next, its end, ... Whoever asked takes out what it has
            used, at each flush for example; a step is running where the length is even.

        Raises:
            UsageError: Somebody else marks them.
        """
        if self.step_marks is not None:
            message = "the steps of this run are timed already: a run has one timer, take the other one out"
            raise UsageError(message)
        self.clock, self.step_marks = clock, []
        return self.step_marks

    # --- Files ---

    @property
    def work_dir(self) -> Path | None:
        """Absolute path of the run folder, or ``None`` if nothing is written."""
        return self.run_folder.path if self.run_folder is not None else None

    @property
    def saves(self) -> bool:
        """Whether the run can write checkpoints."""
        return self.run_folder is not None

    def run_file(self, name: str) -> Path:
        """Return the path of a file in the run folder, listed as made by this run.

        Raises:
            UsageError: There is no run folder, or a file of that name is not ours.
        """
        if self.run_folder is None:
            message = f"run_file({name!r}): this run has no work_dir, so nothing is written; pass Trainer(work_dir=...)"
            raise UsageError(message)
        return self.run_folder.file(name)

    def save_checkpoint(self, path: str | Path, kind: str = "manual") -> Path:
        """Save a checkpoint now; hooks rather ask with ``request_checkpoint``."""
        written = self.hooks.save_checkpoint(trainer=self.as_trainer, path=Path(path), kind=kind)
        if self.hooks.after_save is not None:
            self.hooks.after_save(trainer=self.as_trainer, path=written, kind=kind)
        return written

    # --- What the loop calls ---

    @property
    def done(self) -> bool:
        """Whether the loop is to end."""
        return self.stop_reason is not None or self._stop_after_epoch is not None or self.limit_reached

    @property
    def epoch_length(self) -> int | None:
        """Batches in an epoch: ``steps_per_epoch``, else the length of the train loader, else unknown."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        if self._epoch_length is None and "train" in self.loaders:
            self._epoch_length = length_of(self.loaders["train"])
        return self._epoch_length

    @property
    def total_updates(self) -> int | None:
        """Updates of the whole run as far as they are known: from ``max_updates``, or those that ``total_steps`` make."""
        steps, length = self.total_steps, self.epoch_length
        if steps is None or not self.hooks.plans_updates:
            return self.max_updates
        if not self.manager.has("count_updates"):
            updates = steps
        elif length is None:
            return self.max_updates
        else:
            epochs = steps // length
            updates = self._updates(epochs, length) + self._updates_in(epochs, steps - epochs * length)
        return updates if self.max_updates is None else min(updates, self.max_updates)

    def updates_until(self, epoch: float) -> int | None:
        """Return the updates that the first ``epoch`` epochs make, or ``None`` where that is not known in advance.

        Args:
            epoch: May be a fraction; the updates of a part of an epoch are rounded.
        """
        length = self.epoch_length
        if length is None or not self.hooks.plans_updates:
            return None
        whole = int(epoch)
        part = round((epoch - whole) * self._updates_in(whole, length)) if epoch > whole else 0
        return self._updates(whole, length) + part

    def _updates(self, epochs: int, length: int) -> int:
        if not self.manager.has("count_updates"):
            return epochs * length
        return sum([self._updates_in(epoch, length) for epoch in range(epochs)])  # a generator would change a StopIteration

    def _updates_in(self, epoch: int, steps: int) -> int:
        return self.hooks.count_updates(trainer=self.as_trainer, epoch=epoch, steps=steps) if steps else 0

    @property
    def end_of_epoch(self) -> bool:
        """Whether the running batch is the last of its epoch; for a loader without length, by fetching the next one."""
        if isinstance(self._batches, LookAhead):
            return self._batches.exhausted
        return super().end_of_epoch

    def open_epoch(self) -> Iterator[Batch]:
        """Return the batches that are left of an epoch, with the random state that belongs to them."""
        loader = self.loaders["train"]
        self._epoch_length = None  # a sampler may change it from epoch to epoch
        skip = 0 if isinstance(loader, Iterator) else self.batch_index
        now = self._restored.pop("rng", None) or (self.rng.state_dict() if skip else None)
        states = self._restored.pop("generators", None)
        generators = generators_of(loader)
        if skip and self._epoch_start is not None:
            self.rng.load_state_dict(self._epoch_start["rng"])
            states = self._epoch_start["generators"]
        elif now is not None:
            self.rng.load_state_dict(now)
        for generator, state in zip(generators, states or (), strict=False):
            generator.set_state(state)
        if not skip or self._epoch_start is None:
            self._epoch_start = {"rng": self.rng.state_dict(), "generators": [one.get_state() for one in generators]}
        batches = self._batches = read_epoch(with_timeout(loader), self._left(loader), skip)
        if skip and now is not None:
            self.rng.load_state_dict(now)
        self._step_at_open, self._index_at_open = self.step, self.batch_index
        self._epoch_is_cut = False
        self.plan_attention()
        return batches

    def _left(self, loader: Iterable[Batch]) -> int | None:
        length = self.epoch_length
        return max(length - self.batch_index, 0) if length is not None and isinstance(loader, Iterator) else length

    def restore_random(self) -> None:
        """Set the generators at the beginning of an epoch, before its first hook; within one ``open_epoch`` does it."""
        if self.batch_index == 0 and (state := self._restored.pop("rng", None)) is not None:
            self.rng.load_state_dict(state)

    def drop_batch(self, batch: Batch, reason: str, *, begun: bool) -> None:
        """Pass over a batch that a hook dropped."""
        if begun and self.hooks.after_skip is not None:
            self.hooks.after_skip(trainer=self.as_trainer, batch=batch, reason=reason)
        self.batch_index += 1
        self._due = None
        self._in_update = False

    def plan_attention(self) -> None:
        """Work out the next step at which the loop must look at more than the next batch, so that it compares one number."""
        self._collecting = self.reporter is not None or self.hooks.after_epoch is not None
        requested = self._checkpoint_request is not None or bool(self._eval_requests)
        asked = requested or self.stop_reason is not None or self.update >= self._update_limit
        self._attention_at = 0 if asked else min(self._flush_at, self._step_limit)

    def pay_attention(self) -> bool:
        """Flush and serve what is due after a step; return whether the epoch is cut short."""
        if self.step >= self._flush_at:
            self.flush()
        self.serve_requests()
        self.plan_attention()
        length = self.epoch_length
        ended = length is not None and self.batch_index >= length
        self._epoch_is_cut = not ended and (
            self.stop_reason is not None or self.step >= self._step_limit or self.update >= self._update_limit
        )
        return self._epoch_is_cut

    def serve_requests(self) -> None:
        """Evaluate, then save, if that was asked for; a failing evaluation stays owed and does not cost the checkpoint."""
        self._serve_evaluations()
        if self._checkpoint_request is not None:
            kind, self._checkpoint_request = self._checkpoint_request, None
            self._save(kind)

    def _serve_evaluations(self) -> None:
        try:
            while self._eval_requests:
                self.run_evaluation(next(iter(self._eval_requests)))
        except BaseException as error:
            self._checkpoint_request = None
            self._rescue(error)
            raise

    def run_evaluation(self, split: str) -> Metrics:
        """Evaluate one split and log the result."""
        try:
            metrics = self.hooks.evaluate(trainer=self.as_trainer, split=split)
        except ControlFlow as request:
            message = f"{type(request).__name__} was raised in the evaluation of {split!r}; it steers training only"
            raise UsageError(message) from request
        self._eval_requests.pop(split, None)
        self._evaluated.update(metrics)
        self.flush(metrics)
        return metrics

    def close_epoch(self) -> bool:
        """Check that an epoch that ran to the end of its loader was one.

        Raises:
            DataError: It had no batches, or all of them were dropped.
        """
        self._batches = None
        length = self.epoch_length
        if self.batch_index == 0:
            raise no_batches(self.loaders["train"], f"epoch {self.epoch}")
        dropped = self.step == self._step_at_open and self.batch_index > self._index_at_open
        if dropped and self.max_epochs is None and not self.done:
            self._warn_once(f"every batch of epoch {self.epoch} was dropped; without max_epochs this may never end")
        if length is not None and self.batch_index < length and self.steps_per_epoch is None:
            self._warn_once(f"the train loader says that it has {length} batches, but gave {self.batch_index}")
        return not self._epoch_is_cut

    def end_epoch(self, epoch: int, *, complete: bool) -> None:
        """Close an epoch: events, a due evaluation, the counters, a due checkpoint."""
        hooks = self.hooks
        self._batches = None
        self._epoch_is_cut = not complete
        if hooks.after_train_epoch is not None:
            hooks.after_train_epoch(trainer=self.as_trainer, epoch=epoch)
        self._serve_evaluations()  # a checkpoint that one of them asks for comes last
        self.flush()
        metrics = {**self.bus.end_epoch(), **self._evaluated}
        self._evaluated = {}
        if hooks.after_epoch is not None:
            hooks.after_epoch(trainer=self.as_trainer, epoch=epoch, metrics=metrics)
        if complete:
            self.epoch += 1
            self.batch_index = 0
        if self._stop_after_epoch is not None and self.stop_reason is None:
            self.stop_reason = self._stop_after_epoch
        self.serve_requests()

    def _save(self, kind: str) -> None:
        self.save_checkpoint(self.checkpoint_path(), kind)

    def _rescue(self, error: BaseException) -> None:
        """Save what has been trained, if anybody can, since an evaluation failed."""
        if self.run_folder is not None and self.manager.has("save_checkpoint"):
            try:
                self._save("rescue")
            except Exception as second:
                add_note(error, f"the checkpoint that should keep what was trained failed too: {second!r}")

    def checkpoint_path(self) -> Path:
        """Return where a checkpoint of this step belongs."""
        return self.run_file(f"checkpoints/step-{self.step:08d}")

    # --- What a session calls ---

    def loader(self, split: str) -> Iterable[Batch]:
        """Return the loader of a split, made when it is first needed."""
        if split not in self.loaders:
            if split == "train" and self._makes_its_own_step() and not self.manager.has("make_loader"):
                self.loaders[split] = repeat(())  # a training that knows no loader
            elif split == "train":
                self.loaders[split] = self.hooks.make_loader(trainer=self.as_trainer, split=split)
            else:
                with self.rng.preserved():  # whether and when it is made must not change the training
                    self.loaders[split] = self.hooks.make_loader(trainer=self.as_trainer, split=split)
        return self.loaders[split]

    def find_loader(self, split: str) -> Iterable[Batch] | None:
        """Return the loader of a split, or ``None`` if nobody gave or makes one."""
        try:
            return self.loader(split)
        except MissingPartError:
            return None

    def build(self, *, training: bool) -> None:
        """Make what was not passed."""
        if self.settings.seed is not None and not self._seeded:
            self._seeded = True
            seed_everything(self.settings.seed)
        own_step = self._makes_its_own_step()
        has = self.manager.has
        if self.model is None and (has("make_model") or not (own_step if training else has("eval_step") or has("evaluate"))):
            self.model = self.hooks.make_model(trainer=self.as_trainer)
        if self.model is not None:
            self.model.to(self.device)
            self.stateful.setdefault("model", self.model)
        if not training:
            return
        if not self.optimizers and (has("make_optimizer") or not own_step):
            self.take_optimizer(cast("Any", self.hooks.make_optimizer(trainer=self.as_trainer)))
        for name, optimizer in self.optimizers.items():
            self.stateful.setdefault(f"optimizers/{name}", optimizer)
        self.loader("train")

    def make_outcome(self, status: Status, reason: str) -> Outcome:
        """Return an outcome with the present counters and metrics."""
        return Outcome(status, reason, self.step, self.update, self.epoch, dict(self.metrics))

    def plugin_lock(self) -> list[dict[str, Any]]:
        """Return name, distribution, version and options of every active plugin, in order, as plain values."""
        return [
            {
                "name": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "options": {key: value if plain(value) else repr(value) for key, value in plugin.options.items()},
            }
            for plugin in self.manager.plugins.values()
        ]

    def run_info(self) -> RunInfo:
        """Describe the run for reporters."""
        name = self.settings.name or (self.work_dir.name if self.work_dir is not None else "run")
        settings = {field.name: getattr(self.settings, field.name) for field in fields(self.settings)}
        settings = {key: value if plain(value) else str(value) for key, value in settings.items()}
        return RunInfo(name, self.work_dir, {**settings, "plugins": self.plugin_lock()}, self.step, self.total_steps)

    def open_reporter(self) -> None:
        """Start the reporter thread, if anybody reports."""
        if self.is_main and (self.manager.has("report_metrics") or self.manager.has("report_artifact")):
            self.reporter = Reporter(self.manager, self.run_info())
            self._flush_at = self.step + self.settings.log_every_steps

    def close_reporter(self) -> None:
        """Deliver what is left; raise what a reporter's policy does not forgive."""
        reporter = self.reporter
        if reporter is not None:
            try:
                self.flush()
            finally:
                self.reporter, self._flush_at = None, NEVER
                reporter.close(self.settings.report_timeout_s)
            reporter.check()

    def _makes_its_own_step(self) -> bool:
        return any(self.manager.has(hook) for hook in ("train_step", "train_epoch", "train"))

    def take_optimizer(self, optimizer: optim.Optimizer | Mapping[str, optim.Optimizer]) -> None:
        """Use an optimizer, or a mapping of named ones."""
        self.optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"optimizer": optimizer}
        self.optimizer = next(iter(self.optimizers.values())) if len(self.optimizers) == 1 else self.optimizers

    def _warn_once(self, sentence: str) -> None:
        if self.session is not None and sentence not in self.session.said:
            self.session.said.add(sentence)
            log.warning(sentence)
