"""What a run consists of: model, optimizers, loaders and files.

``RunState`` is what hooks may read, ``RunLog`` what they log; this is what a driver of the stages needs besides, so that ``Trainer`` is left with
what users call.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from .compiled import stateful_model
from .data import check_loader, length_of
from .errors import MissingPartError, UsageError
from .given import check_model, check_optimizer, note_foreign_parameters
from .optimizers import ByName
from .position import LoaderPosition, batch_size_of
from .run_log import RunLog
from .run_record import saved
from .settings import Settings, pick_device, seed_everything
from .state import Outcome, Status
from .stateful import RandomState, StatefulRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import optim

    from .trainer import Trainer
    from .types import Batch, Metrics, StateDict

log = logging.getLogger("trainhooks")


class RunParts(RunLog):
    """The model, data and files of a run, and what a checkpoint is told of it.

    Args:
        settings: Of the run.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.model: nn.Module = None  # type: ignore[assignment]  # hooks run when it is there
        self.optimizers: dict[str, optim.Optimizer] = {}
        #: The optimizer, or the mapping of them where there are several.
        self.optimizer: Any = None
        self.loaders: dict[str, Iterable[Batch]] = {}
        self.device = pick_device(settings.device)
        self.rng = RandomState()
        self.position = LoaderPosition(self.rng)
        self.stateful = StatefulRegistry()
        #: Whether the gradients belong to an update that is done, so that the next step clears them.
        self.gradients_spent = True
        self._seeded = False
        self._kept: dict[str, tuple[Any, tuple[Any, ...]]] = {}  # what `stateful` has by name, and for which parts
        self._epoch_length: int | None = None
        self._batches: Iterator[Batch] | None = None
        self._step_at_open = self._index_at_open = 0
        self._epoch_began: tuple[StateDict, Callable[[], None]] | None = None  # the generators, and what puts the loader's back
        self._evaluated: Metrics = {}
        #: Checkpoints that are being written in the background, and of which kind each is.
        self.pending_saves: list[tuple[Future[Path | None], str]] = []
        self._saves_now = False  # whether a checkpoint is being saved, waited for or announced
        #: What is told that this begins, and returns what is told that it has ended.
        self._save_begins: list[Callable[[Trainer], Callable[[], None]]] = []
        #: What measures each split as a whole, by name, as far as it is known.
        self.measures: dict[str, dict[str, Any]] = {}
        self._restored: StateDict = {}

    @property
    def as_trainer(self) -> Trainer:
        """This object as hooks see it."""
        return cast("Trainer", self)

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

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is being written in the background."""
        return bool(self.pending_saves)

    def save_checkpoint(self, path: str | Path, kind: str = "manual") -> Path:
        """Save a checkpoint now, whatever is half done; hooks ask with ``request_checkpoint``, so that it is resumed exactly.

        Returns:
            Where it is, or will be when a plugin that writes in the background is done: ``after_save`` tells.
        """
        if self._due is not None and self.outcome is None:
            self._warn_once(
                "save_checkpoint() was called within a step, so a run that is resumed from it trains that step again; "
                "request_checkpoint() saves when the step is done"
            )
        with self._around_save():
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
                with self._around_save():
                    self._acknowledge(written, kind)

    def settle_saves(self) -> None:
        """Wait for what is being written in the background."""
        if not self.pending_saves:
            return
        with self._around_save():
            for future, _ in list(self.pending_saves):
                wait([future])
                self.acknowledge_saves()

    def _around_save(self) -> ExitStack:
        """Tell those who measure time that a checkpoint begins, unless one is going on, and that it has ended."""
        ends = ExitStack()
        if not self._saves_now:
            for begin in self._save_begins:
                ends.callback(begin(self.as_trainer))
            self._saves_now = True
            ends.callback(setattr, self, "_saves_now", False)
        return ends

    def _acknowledge(self, path: Path, kind: str) -> None:
        if self.run_folder is not None and self.run_folder.is_open:
            self.run_folder.update(**saved(self, path))
        if self.hooks.after_save is not None:
            self.hooks.after_save(trainer=self.as_trainer, path=path, kind=kind)

    # --- Building and describing ---

    @property
    def _updates_each_step(self) -> bool:
        return not self.hooks.decides_update

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
            check_loader(self.loaders[split], f"make_loader({split!r}) gave")
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
            made = self.hooks.make_model(trainer=self.as_trainer)
            check_model(made, "make_model gave")
            self.model = made
        if self.model is not None:
            self.model.to(self.device)
        if training and not self.optimizers and (has("make_optimizer") or not own_step):
            optimizer: Any = self.hooks.make_optimizer(trainer=self.as_trainer)
            nothing = isinstance(optimizer, Mapping) and not optimizer  # which would train nothing
            check_optimizer(None if nothing else optimizer, "make_optimizer gave")
            self.take_optimizer(optimizer)
        self.keep_parts(optimizers=training)
        if training:
            self.loader("train")

    def keep_parts(self, *, optimizers: bool) -> None:
        """Have checkpoints hold what is trained now: since it was made, a hook or a script may have put something in its place.

        Args:
            optimizers: Whether these count, too.
        """
        model, loss = self.model, self.as_trainer.loss
        if model is not None:
            self._keep("model", (model,), stateful_model)
        if isinstance(loss, nn.Module):
            loss.to(self.device)
            if loss.state_dict():  # weights of classes, or parameters that are trained
                self._keep("loss", (loss,), stateful_model)
        if not optimizers:
            return
        if self.optimizer not in (None, self.optimizers, *self.optimizers.values()):  # it was assigned
            check_optimizer(self.optimizer, "trainer.optimizer is")
            self.take_optimizer(self.optimizer)
        for name, optimizer in self.optimizers.items():
            if self._keep(f"optimizers/{name}", (optimizer, model), ByName) and model is not None:
                owners = [one for one in (model, loss, *self.stateful.values()) if isinstance(one, nn.Module)]
                note_foreign_parameters(name, optimizer, owners)

    def _keep(self, name: str, parts: tuple[Any, ...], keeper: Callable[..., Any]) -> bool:
        """Register what saves these parts, unless it is there, or somebody registered another object by that name."""
        there = self.stateful.get(name)
        own, kept = self._kept.get(name, (None, parts))
        if there is not None and (there is not own or all(map(operator.is_, kept, parts))):
            return False
        self.stateful[name] = own = keeper(*parts)
        self._kept[name] = own, parts
        return True

    def make_outcome(self, status: Status, reason: str) -> Outcome:
        """Return an outcome with the present counters and metrics."""
        return Outcome(status, reason, self.step, self.update, self.epoch, dict(self.metrics))

    def given_settings(self) -> dict[str, Any]:
        """Return what a checkpoint notes of the settings, so that a resume can say what differs."""
        loader = self.loaders.get("train")
        samples = length_of(getattr(loader, "dataset", loader))
        own = {"seed": self.settings.seed, "batch_size": batch_size_of(loader), "steps_per_epoch": self.steps_per_epoch}
        return own if samples is None else {**own, "dataset_length": samples}

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
