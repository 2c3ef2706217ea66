"""What the loop calls: epochs, requests, and how many updates there will be. ``RunParts`` is what it works with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .data import LookAhead, generators_of, no_batches
from .errors import ControlFlow, UsageError, add_note
from .parts import RunParts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .types import Batch, Metrics

log = logging.getLogger("trainhooks")


class Driver(RunParts):
    """Carries a run through its epochs and serves what hooks ask for.

    Args:
        settings: Of the run.
    """

    # --- What the loop calls ---

    @property
    def done(self) -> bool:
        """Whether the loop is to end."""
        return self.ended or self.interruption is not None

    @property
    def _may_leave_evaluation(self) -> bool:
        return super()._may_leave_evaluation or self.session is None or not self.session.training

    @property
    def ended(self) -> bool:
        """Whether the training has come to an end of its own: by a limit, or because it was asked to stop."""
        return self.stop_reason is not None or self._stop_after_epoch is not None or self.limit_reached

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
        self.batch_index = self.position.rebatched(loader, self.batch_index)
        now = self._restored.pop("rng", None)
        batches = self.position.open(
            loader, self.epoch_length, stream=f"{self.rank},{self.epoch}", skip=self.batch_index, now=now
        )
        self._batches = batches
        self._step_at_open, self._index_at_open = self.step, self.batch_index
        self._epoch_is_cut = False
        self.plan_attention()
        self.leave_if_interrupted()
        return batches

    def batch_indices(self) -> list[Any] | None:
        """Return the dataset's indices of the batch that is running, or ``None`` where the loader does not tell."""
        return self.position.indices(self.loaders.get("train"), self.batch_index)

    def restore_random(self) -> None:
        """Set the generators at the beginning of an epoch, before its first hook; within one ``open_epoch`` does."""
        if self.batch_index == 0:
            if (state := self._restored.pop("rng", None)) is not None:
                self.rng.load_state_dict(state)
            own = [(one, one.get_state()) for one in generators_of(self.loaders.get("train"))]
            self._epoch_began = (self.rng.state_dict(), own)

    def rewind_epoch(self) -> None:
        """Take back what an epoch has drawn that was interrupted before its first batch: resumed, it begins anew."""
        if self.batch_index == 0 and self._epoch_began is not None:
            state, own = self._epoch_began
            self.rng.load_state_dict(state)
            for generator, its in own:
                generator.set_state(its)

    def drop_batch(self, batch: Batch, reason: str, *, begun: bool) -> None:
        """Pass over a batch that a hook dropped."""
        if begun and self.hooks.after_skip is not None:
            self.hooks.after_skip(trainer=self.as_trainer, batch=batch, reason=reason)
        self.batch_index += 1
        self._due = None
        self._in_update = False

    def pay_attention(self) -> bool:
        """Flush and serve what is due after a step; return whether the epoch is cut short."""
        if self.step >= self._flush_at:
            self.flush()
        if not self.ended:  # else the epoch is closed as ever
            self.leave_if_interrupted()
        if self.pending_saves:
            self.acknowledge_saves()
        self.serve_requests()
        if not self.ended:
            self.leave_if_interrupted()
        self.plan_attention()
        length = self.epoch_length
        ended = length is not None and self.batch_index >= length
        self._epoch_is_cut = not ended and (
            self.stop_reason is not None or self.step >= self._step_limit or self.update >= self._update_limit
        )
        return self._epoch_is_cut

    def serve_owed(self) -> None:
        """Serve what the checkpoint that we resume from still owes, with the generators as they were there."""
        if self._eval_requests and (state := self._restored.get("rng")) is not None:
            self.rng.load_state_dict(state)
            self.position.restore_generators(self.loaders["train"])
        self.serve_requests()

    def serve_requests(self) -> None:
        """Evaluate, then save, if that was asked for; a failing evaluation stays owed and does not cost the checkpoint."""
        self._serve_evaluations()
        if self._checkpoint_request is not None:
            kind, self._checkpoint_request = self._checkpoint_request, None
            self._save(kind)

    def _serve_evaluations(self) -> None:
        self._serves_evaluation = True
        try:
            while self._eval_requests:
                self.run_evaluation(next(iter(self._eval_requests)))
        except BaseException as error:
            self._checkpoint_request = None
            if not self.hurried:
                self._rescue(error)
            raise
        finally:
            self._serves_evaluation = False

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
        self._batches = self._epoch_began = None
        self._epoch_is_cut = not complete
        if hooks.after_train_epoch is not None:
            hooks.after_train_epoch(trainer=self.as_trainer, epoch=epoch)
        self._serve_evaluations()  # a checkpoint that one of them asks for comes last
        self.flush()
        metrics = {**self.bus.end_epoch(complete=complete), **self._evaluated}
        if complete:
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
        name = f"checkpoints/step-{self.step:08d}"
        try:
            return self.run_file(name)
        except (OSError, UsageError):
            if self.run_folder is None:
                raise
            return self.run_folder.path / name  # whoever writes it meets the same, and knows what a failure is to do
