"""``memory``: how much memory a run takes, and when what is cached is given back."""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from trainhooks import OptionError, hookimpl

if TYPE_CHECKING:
    from trainhooks import Trainer

log = logging.getLogger("trainhooks")

When = Literal["before_epoch", "after_epoch", "after_step", "before_eval", "after_eval"]

_HOOKS = ("before_epoch", "after_epoch", "after_step", "before_eval", "after_eval")
_STATM = Path("/proc/self/statm")
_MIB = 2**20


class Memory:
    """Logs the memory of the accelerator and of the process, and empties the accelerator's cache where that is asked for.

    All values are in MiB (2^20 bytes). Of the accelerator, since the last measurement: ``memory/peak_mib`` (most that tensors
    took), ``memory/peak_reserved_mib`` (most that the allocator held), and ``memory/allocated_mib`` (what tensors take now). Of
    this process: ``memory/host_mib`` (resident now) and ``memory/host_peak_mib`` (most since the process began). They are the
    allocator's and the system's own counts: reading them does not wait for the device.

    Args:
        every_steps: Measure after every n-th step; 0 for never.
        empty_cache: Hooks in which cached memory is given back to the device.
        empty_every_steps: With ``after_step`` among them, after every n-th step only.
        collect: Also run Python's garbage collection there, before it.
    """

    phase = "measurement"

    def __init__(
        self,
        every_steps: int = 50,
        empty_cache: tuple[When, ...] = (),
        empty_every_steps: int = 1,
        collect: bool = False,
    ) -> None:
        if every_steps < 0:
            message = f"every_steps = {every_steps}: must be 0 (never) or more"
            raise OptionError(message)
        if empty_every_steps < 1:
            message = (
                f"empty_every_steps = {empty_every_steps}: must be at least 1; leave after_step out of empty_cache for never"
            )
            raise OptionError(message)
        wrong = [name for name in empty_cache if name not in _HOOKS]
        if wrong or isinstance(empty_cache, str):
            message = f"empty_cache = {empty_cache!r}: must be a list of some of {', '.join(_HOOKS)}"
            raise OptionError(message)
        self.every_steps, self.empty_cache, self.empty_every_steps = every_steps, tuple(empty_cache), empty_every_steps
        self.collect = collect
        self._allocator: Allocator | None = None
        for hook in _HOOKS:
            if hook not in empty_cache and not (hook == "after_step" and every_steps):
                vars(self)[hook] = None  # nothing to do there: the hook is not even called

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Find the allocator of the run's device."""
        self._allocator = find_allocator(trainer.device)
        if self.empty_cache and self._allocator is None and not self.collect:
            log.warning("memory.empty_cache: the device %s has no cache to empty", trainer.device)

    @hookimpl
    def before_epoch(self) -> None:
        """Empty the cache."""
        self._empty()

    @hookimpl
    def after_epoch(self) -> None:
        """Empty the cache."""
        self._empty()

    @hookimpl
    def before_eval(self) -> None:
        """Empty the cache."""
        self._empty()

    @hookimpl
    def after_eval(self) -> None:
        """Empty the cache."""
        self._empty()

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """Measure, then empty the cache, when they are due."""
        if trainer.every_n_steps(self.every_steps):
            if self._allocator is not None:
                for name, value in self._allocator.measure().items():
                    trainer.log(f"memory/{name}", value / _MIB, reduce="max" if name.startswith("peak") else "last")
            for name, value in host_memory().items():
                trainer.log(f"memory/{name}", value / _MIB, reduce="last")
        if "after_step" in self.empty_cache and trainer.every_n_steps(self.empty_every_steps):
            self._empty()

    def _empty(self) -> None:
        if self.collect:
            gc.collect()
        if self._allocator is not None:
            self._allocator.empty()


class Allocator:
    """The memory of one device.

    Args:
        module: What torch offers for its kind: ``torch.cuda``, ``torch.xpu``, ``torch.accelerator``; a part may be missing.
        device: Which one.
    """

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module, self._device = module, device

    def measure(self) -> dict[str, int]:
        """Return bytes by name, and count the peaks anew."""
        functions = {"peak_mib": "max_memory_allocated", "peak_reserved_mib": "max_memory_reserved"}
        functions["allocated_mib"] = "memory_allocated"
        measured = {
            name: int(getattr(self._module, function)(self._device))
            for name, function in functions.items()
            if hasattr(self._module, function)
        }
        if hasattr(self._module, "reset_peak_memory_stats"):
            self._module.reset_peak_memory_stats(self._device)
        return measured

    def empty(self) -> None:
        """Give back what is cached."""
        if hasattr(self._module, "empty_cache"):
            self._module.empty_cache()


def find_allocator(device: torch.device, torch_module: Any = torch) -> Allocator | None:
    """Return the allocator of a device: ``torch.cuda`` and its like, else ``torch.accelerator``; ``None`` for the CPU.

    Args:
        device: Of the run.
        torch_module: Where to look.
    """
    if device.type in ("cpu", "meta"):
        return None
    for name in (device.type, "accelerator"):
        module = getattr(torch_module, name, None)
        if any(hasattr(module, function) for function in ("max_memory_allocated", "empty_cache")):
            return Allocator(module, device)
    return None


def host_memory(statm: Path = _STATM, platform: str = sys.platform) -> dict[str, int]:
    """Return the resident bytes of this process, now and at most, as far as the system tells.

    Args:
        statm: Linux: sizes in pages, the second of which is resident.
        platform: As in ``sys.platform``; the unit of the peak depends on it.
    """
    memory = {}
    if statm.is_file():
        memory["host_mib"] = int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource
    except ImportError:  # Windows
        return memory
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = peak if platform == "darwin" else peak * 1024
    memory["host_peak_mib"] = max(peak, memory.get("host_mib", 0))  # the system may not have noticed yet
    return memory
