"""What the loop calls: epochs, requests, and how many updates there will be. ``RunParts`` is what it works with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .data import LookAhead, keep_generators, no_batches
from .errors import ControlFlow, UsageError, add_note
from .metrics import measured
from .parts import RunParts
from .position import is_unordered
from .state import TakenUp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .types import Batch, Metrics

log = logging.getLogger("trainhooks")

_UNORDERED = (
    "the train loader gives batches as they are ready (in_order=False), not in the order of its sampler: a run that is resumed within "
    "an epoch trains some of its samples twice and others not at all; leave in_order out for one that is exact"
)


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
        """Updates of the whole run as far as they are known: from ``max_updates``, or those that its steps make.

        As they are planned: an update that is skipped, or steps that are dropped, change nothing.
        """
        steps, length = self._planned_steps, self.epoch_length
        if steps is None or not self.hooks.plans_updates:
            return self.max_updates
        if length is not None:
            before, now = self._until_taken_up(length)
            whole, part = divmod(max(steps - self._taken_up.steps + before, 0), max(length, 1))
            updates = self._updates(whole, length) + self._updates_in(whole, part) + self._taken_up.updates - now
        elif not self.manager.has("count_updates"):
            updates = steps
        else:
            return self.max_updates
        return updates if self.max_updates is None else min(updates, self.max_updates)

    @property
    def _planned_steps(self) -> int | None:
        """Steps of the whole run as they are planned: ``total_steps``, if hooks drop none."""
        length, epochs = self.epoch_length, self.max_epochs
        if length is None or epochs is None:
            return self.max_steps
        return min(epochs * length + self._taken_up.steps - self._until_taken_up(length)[0], self._step_limit)

    def updates_until(self, epoch: float) -> int | None:
        """Return the updates that the first ``epoch`` epochs make, or ``None`` where that is not known in advance.

        Args:
            epoch: May be a fraction; the updates of a part of an epoch are rounded, as are those of epochs that another process
                trained with other settings.
        """
        length = self.epoch_length
        if length is None or not self.hooks.plans_updates:
            return None
        whole = int(epoch)
        part = round((epoch - whole) * self._updates_in(whole, length)) if epoch > whole else 0
        updates, made, now = self._updates(whole, length) + part, self._taken_up.updates, self._until_taken_up(length)[1]
        return updates + made - now if updates >= now else round(updates * made / now)

    def _until_taken_up(self, length: int) -> tuple[int, int]:
        """Return the steps and updates that the present settings make of what this process found done."""
        epoch, index = self._taken_up.epoch, self._rebatched(self._taken_up.batch_index)
        return epoch * length + index, self._updates(epoch, length) + self._updates_within(epoch, index, length)

    def _planned_until_here(self) -> tuple[int, int]:
        length = self.epoch_length if self._length_at_start is None else self._length_at_start
        if length is None:
            return self.step, self.update
        epoch, index, steps, updates = self._taken_up
        steps += (self.epoch - epoch) * length + self.batch_index - index
        if not self.hooks.plans_updates:
            return steps, self.update
        updates += self._updates(self.epoch, length) + self._updates_within(self.epoch, self.batch_index, length)
        return steps, updates - self._updates(epoch, length) - self._updates_within(epoch, index, length)

    def _updates(self, epochs: int, length: int) -> int:
        if not self.manager.has("count_updates"):
            return epochs * length
        return sum([self._updates_in(epoch, length) for epoch in range(epochs)])  # a generator would change a StopIteration

    def _updates_in(self, epoch: int, steps: int) -> int:
        return self.hooks.count_updates(trainer=self.as_trainer, epoch=epoch, steps=steps) if steps else 0

    def _updates_within(self, epoch: int, steps: int, length: int) -> int:
        """Return the updates of the first steps of an epoch that goes on: one that only its end would make is not among them."""
        updates = self._updates_in(epoch, steps)
        if not 0 < steps < length or not self.manager.has("count_updates"):
            return updates
        is_open = self._updates_in(epoch, 1) and self._updates_in(epoch, steps + 1) == updates
        return updates - 1 if is_open else updates

    @property
    def _batches_over(self) -> int:
        return self._rebatched(self.batch_index)

    def _rebatched(self, batch_index: int) -> int:
        """Return it in batches of the loader, where a checkpoint counted others and the epoch has not been opened yet."""
        return self.position.converted(self.loaders.get("train"), batch_index)

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
        index = self.position.rebatched(loader, self.batch_index)
        if index != self.batch_index:
            self._taken_up = self._taken_up._replace(batch_index=index)
            self.batch_index = index
        now = self._restored.pop("rng", None)
        batches = self.position.open(
            loader, self.epoch_length, stream=f"{self.rank},{self.epoch}", skip=self.batch_index, now=now
        )
        self._batches = batches
        if self.saves and is_unordered(loader) and self.manager.has("save_checkpoint"):
            self._warn_once(_UNORDERED)
        self._step_at_open, self._index_at_open = self.step, self.batch_index
        self._epoch_is_cut = False
        self.plan_attention()
        self.leave_if_interrupted()
        return batches

    def batch_indices(self) -> list[Any] | None:
        """Return the dataset's indices of the batch that is running, or ``None`` where the loader does not tell."""
        return self.position.indices(self.loaders.get("train"), self.batch_index)

    def restore_random(self) -> None:
        """Set the generators at the beginning of an epoch, before its first hook; within one ``open_epoch`` does.

        What a checkpoint knows of a stop at the end of this epoch is asked for again.
        """
        if self._stop_after_epoch is None:
            self._stop_after_epoch, self._stop_restored = self._stop_restored, None
        self._step_at_open, self._index_at_open = self.step, self.batch_index
        if self.batch_index == 0:
            if (state := self._restored.pop("rng", None)) is not None:
                self.rng.load_state_dict(state)
            self._epoch_began = (self.rng.state_dict(), keep_generators(self.loaders.get("train")))

    def rewind_epoch(self) -> None:
        """Take back what an epoch has drawn that was interrupted before its first batch: resumed, it begins anew."""
        if self.batch_index == 0 and self._epoch_began is not None:
            state, put_generators_back = self._epoch_began
            self.rng.load_state_dict(state)
            put_generators_back()

    def drop_batch(self, batch: Batch, reason: str, *, begun: bool) -> None:
        """Pass over a batch that a hook dropped."""
        if begun and self.hooks.after_skip is not None:
            self.hooks.after_skip(trainer=self.as_trainer, batch=batch, reason=reason)
        self.batch_index += 1
        self.dropped, self.dropped_reason = self.dropped + 1, reason
        self._due = None
        self._in_update = False

    def pay_attention(self) -> bool:
        """Flush and serve what is due after a step; return whether the epoch is cut short."""
        if self.step >= self._flush_at:
            self.flush(collective=True)
        if self.stop_reason is None and not self.limit_reached:  # else the epoch is closed as ever
            self.leave_if_interrupted()
        if self.pending_saves:
            self.acknowledge_saves()
        self.serve_requests()
        if self.stop_reason is None and not self.limit_reached:
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
        if self.epoch_length != self._length_at_start:
            if self._length_at_start is not None:  # a second training, with another loader
                self._taken_up = TakenUp(self.epoch, self.batch_index, *self._planned_until_here())
            self._length_at_start = self.epoch_length
        self._give_up_evaluations()
        if self._eval_requests and (state := self._restored.get("rng")) is not None:
            self.rng.load_state_dict(state)
            self.position.restore_generators(self.loaders["train"])
        self.serve_requests()

    def _give_up_evaluations(self) -> None:
        """Owe no longer what cannot be evaluated any more, and nothing if who asks for evaluations was taken out."""
        owed, self._owed = [split for split in self._eval_requests if split in self._owed], set()
        names = [name.partition("@")[0] for name in (*self.as_trainer.plugins, *self._restored)]
        taken_out = "plugins/evaluation" in names and "evaluation" not in names
        replaced = sum(not one.wrapper for one in self.manager.implementations("evaluate")) > 1
        for split in owed:
            if taken_out or not (replaced or self.find_loader(split) is not None):
                why = "the plugin 'evaluation' was taken out" if taken_out else "it has no loader any more"
                log.warning("the evaluation of %r that the checkpoint owes is given up: %s", split, why)
                del self._eval_requests[split]

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
            if not self.hurried:
                self._rescue(error)
            self._checkpoint_request = None
            raise
        finally:
            self._serves_evaluation = False

    def run_evaluation(self, split: str) -> Metrics:
        """Evaluate one split and log the result."""
        try:
            with self.bus.apart(split, self.world_size, settle=self._reporting) as logged:
                metrics = measured(self.hooks.evaluate(trainer=self.as_trainer, split=split))
        except ControlFlow as request:
            message = f"{type(request).__name__} was raised in the evaluation of {split!r}; it steers training only"
            raise UsageError(message) from request
        self._eval_requests.pop(split, None)
        self._evaluated.update(metrics)
        self.flush_evaluation(split, metrics, logged)
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
        if length is not None and self.batch_index < length:
            if self.steps_per_epoch is None:
                self._warn_once(f"the train loader says that it has {length} batches, but gave {self.batch_index}")
            else:
                self._warn_once(f"steps_per_epoch = {length}, but the train loader gave {self.batch_index} batches in an epoch")
        return not self._epoch_is_cut

    def end_epoch(self, epoch: int, *, complete: bool) -> None:
        """Close an epoch: events, a due evaluation, the counters, a due checkpoint."""
        hooks = self.hooks
        self._batches = self._epoch_began = None
        self._epoch_is_cut = not complete
        idle = complete and self.step == self._step_at_open and self._index_at_open == 0
        if idle and self.max_epochs is None and not self.done:
            self._warn_once(
                "an epoch has trained nothing: it was skipped, or every batch was dropped; without max_epochs this may never end"
            )
        if hooks.after_train_epoch is not None:
            hooks.after_train_epoch(trainer=self.as_trainer, epoch=epoch)
        self._serve_evaluations()  # a checkpoint that one of them asks for comes last
        self.flush(collective=True)
        metrics = {**self.bus.end_epoch(complete=False), **self._evaluated}
        if complete:
            self._evaluated = {}
        if hooks.after_epoch is not None:
            hooks.after_epoch(trainer=self.as_trainer, epoch=epoch, metrics=metrics)
        if self.bus.pending or self._media or self.world_size > 1:
            self.flush(collective=True)  # what after_epoch has logged belongs to the epoch that ends
        if complete:
            self.bus.end_epoch(complete=True)
            self.epoch += 1
            self.batch_index = 0
        if self._stop_after_epoch is not None and self.stop_reason is None:
            self.stop_reason = self._stop_after_epoch
        self.serve_requests()

    def _save(self, kind: str) -> None:
        with self._around_save():  # to list it in the run folder takes time, too
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
