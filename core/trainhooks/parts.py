"""What a run consists of: model, optimizers, loaders, metrics and files, and what is told of them.

``RunState`` is what hooks may read; this is what a driver of the stages needs besides, so that ``Trainer`` is left with
what users call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import fields
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .data import length_of
from .errors import MissingPartError, UsageError
from .manager import PluginManager
from .metrics import MetricBus, Record, Reduce
from .optimizers import ByName
from .position import LoaderPosition
from .reporter import Artifact, Reporter, RunInfo
from .run_record import saved
from .settings import Settings, pick_device, plain, seed_everything
from .state import NEVER, Outcome, RunState, Status
from .stateful import RandomState, StatefulRegistry
from .workdir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from torch import nn, optim

    from .session import Session
    from .trainer import Trainer
    from .types import Batch, Metrics, Output, StateDict

log = logging.getLogger("trainhooks")


class RunParts(RunState):
    """The model, data, metrics and files of a run, and what a checkpoint and the reporters are told of it.

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
        self.position = LoaderPosition(self.rng)
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
        self._epoch_began: tuple[StateDict, list[tuple[torch.Generator, torch.Tensor]]] | None = None
        self._output: Output = {}
        self._collecting = False  # whether anybody wants what train_step returns as train/...
        self._evaluated: Metrics = {}
        #: Checkpoints that are being written in the background, and of which kind each is.
        self.pending_saves: list[tuple[Future[Path | None], str]] = []
        #: What measures each split as a whole, by name, as far as it is known.
        self.measures: dict[str, dict[str, Any]] = {}
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
        self.plan_flush()
        self.plan_attention()
        return values

    def plan_flush(self) -> None:
        """Plan the next flush, if anybody needs one."""
        if self.reporter is not None or self.step_marks is not None:
            self._flush_at = self.step + self.settings.log_every_steps

    def plan_attention(self) -> None:
        """Work out the next step at which the loop must look at more than the next batch, so that it compares one number."""
        self._collecting = self.reporter is not None or self.hooks.after_epoch is not None
        requested = self._checkpoint_request is not None or bool(self._eval_requests)
        asked = requested or bool(self.pending_saves) or self.stop_reason is not None or self.update >= self._update_limit
        self._attention_at = 0 if asked else min(self._flush_at, self._step_limit)
        if self.interruption is not None:  # looked up last: a signal handler may have set it anywhere above
            self._attention_at = 0

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
        """Save a checkpoint now, whatever is half done; hooks ask with ``request_checkpoint``, so that it is resumed exactly.

        Returns:
            Where it is, or will be when a plugin that writes in the background is done: ``after_save`` tells.
        """
        self.settle_saves()  # one at a time
        written: Any = self.hooks.save_checkpoint(trainer=self.as_trainer, path=Path(path), kind=kind)
        if isinstance(written, Future):
            self.pending_saves.append((written, kind))
            self.acknowledge_saves()
            self._attention_at = 0
            return Path(path)
        self._acknowledge(written, kind)
        return Path(written)

    def acknowledge_saves(self) -> None:
        """Tell of the checkpoints that have been written in the background; raise what went wrong."""
        while self.pending_saves and self.pending_saves[0][0].done():
            future, kind = self.pending_saves.pop(0)
            if (written := future.result()) is not None:
                self._acknowledge(written, kind)

    def settle_saves(self) -> None:
        """Wait for what is being written in the background."""
        for future, _ in list(self.pending_saves):
            wait([future])
            self.acknowledge_saves()

    def _acknowledge(self, path: Path, kind: str) -> None:
        if self.run_folder is not None and self.run_folder.is_open:
            self.run_folder.update(**saved(self, path))
        if self.hooks.after_save is not None:
            self.hooks.after_save(trainer=self.as_trainer, path=path, kind=kind)

    # --- Building and describing ---

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
            compiled = getattr(self.model, "_modules", {}).get("_orig_mod")  # torch.compile(model) holds the model
            self.stateful.setdefault("model", self.model if compiled is None else compiled)
        if not training:
            return
        if not self.optimizers and (has("make_optimizer") or not own_step):
            self.take_optimizer(cast("Any", self.hooks.make_optimizer(trainer=self.as_trainer)))
        for name, optimizer in self.optimizers.items():
            self.stateful.setdefault(f"optimizers/{name}", ByName(optimizer, self.model))
        self.loader("train")

    def make_outcome(self, status: Status, reason: str) -> Outcome:
        """Return an outcome with the present counters and metrics."""
        return Outcome(status, reason, self.step, self.update, self.epoch, dict(self.metrics))

    def plugin_lock(self) -> list[dict[str, Any]]:
        """Return name, distribution, version, options and policy of every active plugin, in order, as plain values."""
        return [
            {
                "name": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "options": {key: value if plain(value) else repr(value) for key, value in plugin.options.items()},
                "on_error": plugin.on_error,
            }
            for plugin in self.manager.plugins.values()
        ]

    def given_settings(self) -> dict[str, Any]:
        """Return what a checkpoint notes of the settings, so that a resume can say what differs."""
        loader = self.loaders.get("train")
        batch_size, samples = getattr(loader, "batch_size", None), length_of(getattr(loader, "dataset", loader))
        own = {"seed": self.settings.seed, "batch_size": batch_size, "steps_per_epoch": self.steps_per_epoch}
        return own if samples is None else {**own, "dataset_length": samples}

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
            self.plan_flush()

    def close_reporter(self) -> None:
        """Deliver what is left; raise what a reporter's policy does not forgive."""
        reporter = self.reporter
        if reporter is not None:
            try:
                self.flush()
            finally:
                self.reporter, self._flush_at = None, NEVER
                reporter.close(0 if self.hurried else self.settings.report_timeout_s)
            reporter.check()

    def _makes_its_own_step(self) -> bool:
        return any(self.manager.has(hook) for hook in ("train_step", "train_epoch", "train"))

    def take_optimizer(self, optimizer: optim.Optimizer | Mapping[str, optim.Optimizer]) -> None:
        """Use an optimizer, or a mapping of named ones."""
        self.optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"optimizer": optimizer}
        self.optimizer = next(iter(self.optimizers.values())) if len(self.optimizers) == 1 else self.optimizers

    @property
    def epoch_length(self) -> int | None:
        """Batches in an epoch: ``steps_per_epoch``, else the length of the train loader, else unknown."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        if self._epoch_length is None and "train" in self.loaders:
            self._epoch_length = length_of(self.loaders["train"])
        return self._epoch_length

    def _warn_once(self, sentence: str) -> None:
        if self.session is not None and sentence not in self.session.said:
            self.session.said.add(sentence)
            log.warning(sentence)
