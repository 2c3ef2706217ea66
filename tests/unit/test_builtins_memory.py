"""``memory``: the host's as the system tells it, the accelerator's on a stand-in for what torch offers."""

import gc
import mmap
import os
import weakref
from types import SimpleNamespace

import pytest
import torch

from trainhooks import OptionError, hookimpl
from trainhooks_builtins import Evaluation, Memory
from trainhooks_builtins.memory import Allocator, find_allocator, host_memory

MIB = 2**20


class Card:
    """Counts as torch.cuda does: peaks since they were reset."""

    def __init__(self):
        self.now, self.peak, self.reserved, self.emptied, self.devices = 0, 0, 0, 0, []

    def take(self, size):
        self.now += size
        self.peak = max(self.peak, self.now)
        self.reserved = max(self.reserved, self.peak)

    def max_memory_allocated(self, device):
        self.devices.append(device)
        return self.peak

    def max_memory_reserved(self, device):
        return self.reserved

    def memory_allocated(self, device):
        return self.now

    def reset_peak_memory_stats(self, device):
        self.peak = self.now

    def empty_cache(self):
        self.emptied += 1


class WithCard(Memory):
    """Has a card whatever the run's device is."""

    def __init__(self, card, **options):
        super().__init__(**options)
        self.card = card

    @hookimpl
    def setup(self, trainer):
        self._allocator = Allocator(self.card, torch.device("cuda:1"))


class Reports:
    def __init__(self):
        self.values = []

    @hookimpl
    def report_metrics(self, records):
        self.values += [dict(record.values) for record in records]

    def of(self, name):
        return [values[name] for values in self.values if name in values]


def test_peaks_are_those_of_an_interval(make_trainer):
    """Each step takes its number times 10 MiB for a moment and keeps 1 MiB: peaks of 2 steps 21, 43, 65; kept 2, 4, 6."""
    card, reports = Card(), Reports()

    class Takes:
        @hookimpl
        def before_step(self, trainer):
            size = (trainer.step + 1) * 10 * MIB
            card.take(size)
            card.take(-size)
            card.take(MIB)

    make_trainer([WithCard(card, every_steps=2), Takes(), reports], values=(1.0,) * 6, log_every_steps=1).train()
    assert reports.of("memory/peak_mib") == [21.0, 43.0, 65.0]
    assert reports.of("memory/allocated_mib") == [2.0, 4.0, 6.0]
    assert reports.of("memory/peak_reserved_mib") == [21.0, 43.0, 65.0]
    assert set(card.devices) == {torch.device("cuda:1")}


def test_the_highest_peak_between_flushes_is_kept(make_trainer):
    """Peaks of 30, 10 and 20 MiB in one flush: 30; what is allocated is the last."""
    card = Card()

    class Takes:
        @hookimpl
        def before_step(self, trainer):
            size = (30, 10, 20)[trainer.step] * MIB
            card.take(size)
            card.take(-size)

    trainer = make_trainer([WithCard(card, every_steps=1), Takes()], values=(1.0,) * 3)
    trainer.train()
    assert (trainer.metrics["memory/peak_mib"], trainer.metrics["memory/allocated_mib"]) == (30.0, 0.0)


@pytest.mark.parametrize(
    ("hooks", "times"),
    [
        ((), 0),
        (("before_epoch",), 2),
        (("after_epoch",), 2),
        (("after_step",), 6),
        (("before_eval",), 3),
        (("after_eval",), 3),
        (("before_epoch", "after_epoch", "after_step", "before_eval", "after_eval"), 16),
    ],
)
@pytest.mark.parametrize("every_steps", [0, 50])
def test_the_cache_is_emptied_where_that_was_asked_for(make_trainer, hooks, times, every_steps):
    """2 epochs of 3 steps, an evaluation after every second step."""
    card = Card()
    plugins = [WithCard(card, every_steps=every_steps, empty_cache=hooks), Evaluation(every_steps=2)]
    make_trainer(plugins, values=(1.0,) * 3, val=(1.0,), max_epochs=2).train()
    assert card.emptied == times


def test_after_every_third_step_only(make_trainer):
    card = Card()
    plugin = WithCard(card, every_steps=0, empty_cache=("after_step",), empty_every_steps=3)
    make_trainer([plugin], values=(1.0,) * 7).train()
    assert card.emptied == 2


def test_what_is_not_wanted_is_no_hook(make_trainer):
    trainer = make_trainer([Memory(every_steps=0, empty_cache=("before_epoch",), collect=True)])
    assert trainer.hooks.before_epoch is not None
    assert (
        trainer.hooks.after_step is trainer.hooks.after_epoch is trainer.hooks.before_eval is trainer.hooks.after_eval is None
    )


def test_garbage_is_collected_on_any_device(make_trainer):
    class Knot:
        pass

    knot = Knot()
    knot.itself = knot
    gone = weakref.ref(knot)
    del knot
    gc.disable()
    try:
        make_trainer([Memory(empty_cache=("before_epoch",), collect=True)]).train()
        assert gone() is None
    finally:
        gc.enable()


def test_a_cpu_has_no_cache(make_trainer, messages):
    make_trainer([Memory(empty_cache=("after_epoch",))]).train()
    assert "memory.empty_cache: the device cpu has no cache to empty" in messages()


def test_the_host(make_trainer):
    """64 MiB that are written to are resident: the process has at least 60 MiB more than before."""
    before = host_memory()["host_mib"]
    reports = Reports()

    class Takes:
        @hookimpl
        def before_train(self):
            self.kept = mmap.mmap(-1, 64 * MIB)
            for offset in range(0, 64 * MIB, mmap.PAGESIZE):
                self.kept[offset] = 1

    make_trainer([Memory(every_steps=5), Takes(), reports], log_every_steps=5).train()
    now, peak = reports.of("memory/host_mib"), reports.of("memory/host_peak_mib")
    assert len(now) == 2
    assert now[0] >= before / MIB + 60
    assert peak[1] >= now[0] - 1  # the kernel adds up its counts of each thread a little late


def test_units_of_the_system(tmp_path):
    """Pages in statm (the second number); the peak is in KiB on Linux, in bytes on macOS."""
    statm = tmp_path / "statm"
    statm.write_text("900 300 100 1 0 200 0\n")
    linux, mac = host_memory(statm, "linux"), host_memory(tmp_path / "none", "darwin")
    assert linux["host_mib"] == 300 * os.sysconf("SC_PAGE_SIZE")
    assert "host_mib" not in mac
    assert linux["host_peak_mib"] / mac["host_peak_mib"] == pytest.approx(1024, rel=0.05)


def test_the_peak_is_not_below_what_is_taken_now(tmp_path):
    """The kernel brings its peak up to date a little late."""
    statm = tmp_path / "statm"
    statm.write_text(f"0 {2**40} 0\n")
    memory = host_memory(statm, "linux")
    assert memory["host_peak_mib"] == memory["host_mib"] == 2**40 * os.sysconf("SC_PAGE_SIZE")


def test_the_allocator_of_a_device():
    cuda, accelerator = Card(), Card()
    of_torch = SimpleNamespace(cuda=cuda, mtia=SimpleNamespace(), accelerator=accelerator)
    assert find_allocator(torch.device("cpu"), of_torch) is None
    assert find_allocator(torch.device("cuda", 0), of_torch)._module is cuda
    assert find_allocator(torch.device("mtia"), of_torch)._module is accelerator
    assert find_allocator(torch.device("mtia"), SimpleNamespace()) is None


def test_an_allocator_without_peaks():
    """What torch offers for a device may be less."""
    emptied = []
    allocator = Allocator(SimpleNamespace(empty_cache=lambda: emptied.append(1)), torch.device("mps"))
    assert allocator.measure() == {}
    allocator.empty()
    assert emptied == [1]
    Allocator(SimpleNamespace(), torch.device("mps")).empty()


def test_torch_has_what_is_looked_for():
    for module in (torch.cuda, torch.xpu):
        for name in (
            "max_memory_allocated",
            "max_memory_reserved",
            "memory_allocated",
            "reset_peak_memory_stats",
            "empty_cache",
        ):
            assert callable(getattr(module, name))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_steps": -1}, "every_steps = -1"),
        ({"empty_every_steps": 0}, "empty_every_steps = 0"),
        ({"empty_cache": ("after_update",)}, "must be a list of some of before_epoch"),
        ({"empty_cache": "after_epoch"}, "must be a list of some of before_epoch"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(OptionError, match=message):
        Memory(**options)
