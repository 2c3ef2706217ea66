"""Mistakes that somebody could make in the code, each as a function that makes it in this process.

``seeded`` calls them, one in a process, and runs the check of the suite that has to notice.
"""

import functools
import os
import stat
from concurrent.futures import Future
from contextlib import nullcontext
from threading import Thread

import torch

from trainhooks import position, run_lock, state, stateful
from trainhooks.metrics import MetricBus
from trainhooks.optimizers import ByName
from trainhooks.position import LoaderPosition
from trainhooks_builtins import (
    EMA,
    Accumulate,
    Checkpoint,
    _checkpoint_files,
    _checkpoint_manifest,
    _checkpoint_rotation,
    _csv_file,
    _json_lines_file,
    checkpoint,
)
from trainhooks_builtins._loss_scale import LossScale
from trainhooks_builtins._torch_schedulers import TorchSchedulers

#: Each fault and the name of the check that finds it.
FAULTS = {}


def found_by(check):
    """Register a fault."""

    def register(function):
        FAULTS[function.__name__] = check
        return function

    return register


def replace(owner, name, make):
    """Put ``make(what is there)`` in the place of an attribute, which must be there: the code may have moved on."""
    real = getattr(owner, name)
    new = make(real)
    setattr(owner, name, functools.wraps(real)(new) if hasattr(real, "trainhooks_impl") else new)


def after(owner, name, then):
    """Have ``then(result, *arguments)`` decide what a method returns."""
    replace(owner, name, lambda real: lambda *arguments, **more: then(real(*arguments, **more), *arguments))


def with_state(owner, change):
    """Have ``load_state_dict`` of a class be given another state."""
    replace(owner, "load_state_dict", lambda real: lambda self, state: real(self, change(state)))


def nothing(*arguments, **more):
    """Do nothing."""


# --- What is restored ---


@found_by("cuts of a torch schedule")
def schedule_stepped_at_load():
    after(TorchSchedulers, "load_state_dict", lambda _, self, state: [one.step() for one in self._schedulers])


@found_by("cuts of everything")
def update_counted_once_more_at_load():
    after(state.RunState, "load_counters", lambda _, self, state: setattr(self, "update", self.update + 1))


@found_by("cuts of a scaler")
def scaler_growth_counter_lost():
    with_state(LossScale, lambda state: {**state, "growth_tracker": 0})


@found_by("cuts of everything")
def average_not_restored():
    replace(EMA, "load_state_dict", lambda real: nothing)


@found_by("cuts of everything")
def accumulated_gradients_lost():
    replace(Accumulate, "on_load", lambda real: lambda self, state: None)


@found_by("cuts of everything")
def place_in_the_window_lost():
    with_state(Accumulate, lambda state: {**state, "position": 0})


@found_by("cuts of everything")
def momentum_reset():
    with_state(ByName, lambda state: {**state, "state": {}})


@found_by("cuts of the position")
def loader_position_lost():
    replace(LoaderPosition, "open", lambda real: lambda *arguments, skip, **more: real(*arguments, skip=0, **more))


@found_by("cuts of the position")
def skipped_samples_loaded():
    replace(position, "_draws_its_order", lambda real: lambda loader: False)


@found_by("cuts of the position")
def order_of_a_generator_lost():
    replace(position, "_set_each", lambda real: nothing)


@found_by("cuts with workers")
def prefetched_batches_counted():
    after(state.RunState, "save_counters", lambda counters, self: {**counters, "batch_index": counters["batch_index"] + 2})


@found_by("cuts with workers")
def workers_seeded_once():
    def arrive(index, seed):
        return index

    arrive.__module__, arrive.__qualname__ = position.__name__, "_arrive"  # it is pickled by its name
    replace(position, "_arrive", lambda real: arrive)


@found_by("cuts of the position")
def generators_not_restored():
    replace(stateful.RandomState, "load_state_dict", lambda real: nothing)


@found_by("cuts of the position")
def numpy_generator_not_restored():
    with_state(stateful.RandomState, lambda state: {name: one for name, one in state.items() if name != "numpy"})


@found_by("cuts of everything")
def plugins_not_restored():
    with_state(stateful.StatefulRegistry, lambda state: {key: one for key, one in state.items() if "plugins/" not in key})


@found_by("cuts of the position")
def buffers_not_restored():
    def load(real, self, state, *arguments, **more):
        own = self.state_dict()
        return real(self, {key: own[key] if "running" in key else one for key, one in state.items()}, *arguments, **more)

    replace(torch.nn.Module, "load_state_dict", lambda real: functools.partialmethod(functools.partial(load, real)))


@found_by("cuts of everything")
def epoch_begun_anew_after_a_stop():
    replace(MetricBus, "end_epoch", lambda real: lambda self, *, complete: real(self))


@found_by("interrupts")
def owed_evaluation_forgotten():
    after(state.RunState, "save_counters", lambda counters, self: {**counters, "owed": []})


# --- What is wrong without a resume too ---


@found_by("cases of evaluation")
def evaluation_draws_from_the_training():
    replace(stateful.RandomState, "preserved", lambda real: lambda self: nullcontext())


@found_by("cases of accumulation")
def last_window_divided_by_all():
    def make(real):
        def gradients_ready(self, trainer):
            self._total = self.steps_in(trainer.epoch) - self._share
            return (yield from real(self, trainer))

        return gradients_ready

    replace(Accumulate, "gradients_ready", make)


@found_by("cases of checkpoints")
def best_one_evaluation_behind():
    replace(_checkpoint_rotation.Ranking, "values_after", lambda real: lambda self, step: dict(self._values))


@found_by("cases of checkpoints")
def rotated_by_name_as_text():
    def wanted(self, steps, pinned=()):
        loose = sorted(set(steps) - set(pinned), key=str, reverse=True)
        return {*pinned, *self.best, *loose[: self.keep or None]} & set(steps)

    replace(_checkpoint_rotation.Wish, "wanted", lambda real: wanted)


@found_by("tests of the lock")
def lock_not_taken():
    replace(run_lock.RunLock, "acquire", lambda real: lambda self: True)


# --- How it is written ---


def synced_if(wanted):
    real = os.fsync
    os.fsync = lambda file: real(file) if wanted(os.fstat(file if isinstance(file, int) else file.fileno()).st_mode) else None


@found_by("power cuts")
def files_not_synced():
    synced_if(stat.S_ISDIR)


@found_by("power cuts")
def folders_not_synced():
    synced_if(stat.S_ISREG)


@found_by("crashes")
def named_before_it_is_written():
    def write(path, snapshot, facts):
        _checkpoint_files.make_folder(path.parent)
        path.mkdir(exist_ok=True)
        return _checkpoint_files._fill(path, snapshot, facts, pinned=False)

    replace(checkpoint, "write_checkpoint", lambda real: write)


@found_by("crashes")
def older_ones_removed_before_the_new_one_is_durable():
    def write(real, path, snapshot, facts):
        if path.parent.is_dir():
            _checkpoint_files.remove_checkpoints(_checkpoint_files.list_checkpoints(path.parent))
        return real(path, snapshot, facts)

    replace(checkpoint, "write_checkpoint", lambda real: functools.partial(write, real))


@found_by("kills")
def acknowledged_before_it_is_renamed():
    waiting = []

    def put(real, temporary, path):
        if waiting:
            real(*waiting.pop())
        aside = temporary.with_name(f".later-{path.name}")
        temporary.rename(aside)
        waiting.append((aside, path))

    replace(_checkpoint_files, "_put_in_place", lambda real: functools.partial(put, real))


@found_by("failing operations")
def failed_sync_ignored():
    real = os.fsync

    def sync(file):
        try:
            real(file)
        except OSError:
            pass

    os.fsync = sync


@found_by("failing operations")
def half_written_ones_left():
    replace(_checkpoint_files, "discard", lambda real: nothing)


@found_by("mutations")
def digests_not_compared():
    replace(_checkpoint_files, "differences", lambda real: nothing)


@found_by("flipped manifests")
def manifest_without_a_digest():
    replace(_checkpoint_manifest, "_digest_of", lambda real: lambda content: "0")


@found_by("background saves")
def snapshot_shares_memory():
    replace(checkpoint, "take_snapshot", lambda real: lambda state, copy: real(state))


@found_by("background saves")
def acknowledged_when_the_writing_begins():
    class Early(Thread):
        def __init__(self, target, args, name):
            future, save = args
            super().__init__(target=target, args=(Future(), save), name=name)
            future.set_result(save.path)

    replace(checkpoint, "Thread", lambda real: Early)


@found_by("kills")
def log_not_cut_at_resume():
    for kind in (_csv_file.CsvFile, _json_lines_file.JsonLinesFile):
        replace(kind, "repair", lambda real: lambda self, step, records: real(self, 10**9, 10**9))


@found_by("interrupts")
def saved_twice_at_an_interrupt():
    def make(real):
        def after_train(self, trainer):
            real(self, trainer)
            if trainer.outcome.status == "interrupted":
                trainer.save_checkpoint(trainer.checkpoint_path(), "final")

        return after_train

    replace(Checkpoint, "after_train", make)
