"""``throughput``: samples, steps and tokens a second, and how much of the device they use."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from trainhooks import OptionError, hookimpl
from trainhooks.data import batch_size

from ._paused_mark import PausedMark
from ._tokens import elements_of, tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainhooks import Trainer
    from trainhooks.types import Batch, Output

log = logging.getLogger("trainhooks")

_RATES = ("samples_per_s", "steps_per_s", "tokens_per_s", "mfu")


class Throughput(PausedMark):
    """Measures how fast a run trains.

    Logs ``throughput/samples_per_s``, ``throughput/steps_per_s``, with ``tokens`` ``throughput/tokens_per_s``, and
    ``throughput/mfu`` where the work of a sample or token and the peak of the device are known: model FLOPs utilization, the
    achieved share of the peak, ``flops_per_token * tokens_per_s / peak_flops`` (Chowdhery et al. 2022, PaLM, appendix B). Each is
    the rate over the time since the last flush, waiting for data and dropped batches included, evaluations, checkpoints and what
    is between epochs not. The device is not synchronized: work that is still queued counts as done, which evens out over the
    flushes of a run.

    Args:
        tokens: How to count tokens: ``sequence`` for the elements of the batch's first tensor, else a key of the output or of the
            batch. A number or a tensor with one element is the count, of a bool tensor the true elements count, of another one
            all.
        flops_per_sample: Operations of a whole training step for each sample.
        flops_per_token: Or for each token.
        peak_flops: Operations that the device can do in a second.
        clock: Returns seconds; only differences are used.
    """

    phase = "measurement"

    def __init__(
        self,
        tokens: str | None = None,
        flops_per_sample: float | None = None,
        flops_per_token: float | None = None,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        given = {"flops_per_sample": flops_per_sample, "flops_per_token": flops_per_token, "peak_flops": peak_flops}
        for name, value in given.items():
            if value is not None and not value > 0:
                message = f"{name} = {value}: must be above 0"
                raise OptionError(message)
        if flops_per_sample is not None and flops_per_token is not None:
            message = "give flops_per_sample or flops_per_token, not both"
            raise OptionError(message)
        if (peak_flops is None) != (flops_per_sample is None and flops_per_token is None):
            message = "throughput/mfu needs peak_flops together with flops_per_sample or flops_per_token"
            raise OptionError(message)
        if flops_per_token is not None and tokens is None:
            message = "flops_per_token needs tokens, which says how they are counted"
            raise OptionError(message)
        self.tokens, self.flops_per_sample, self.flops_per_token = tokens, flops_per_sample, flops_per_token
        self.peak_flops = peak_flops
        super().__init__(clock)
        self._window, self._total = _Count(), _Count()

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Log the rates whenever metrics are flushed."""
        super().setup(trainer)
        self._window, self._total, self._mark, self._pauses = _Count(), _Count(), None, 0
        self._series = {name: trainer.bus.series(f"throughput/{name}") for name in _RATES}
        trainer.bus.before_flush.append(self._log)

    @hookimpl
    def teardown(self, trainer: Trainer) -> None:
        """Listen no more."""
        super().teardown(trainer)
        trainer.bus.before_flush.remove(self._log)

    @hookimpl
    def before_epoch(self) -> None:
        """Begin to wait for the first batch."""
        self._begin()

    @hookimpl
    def after_step(self, batch: Batch, output: Output) -> None:
        """Count the step."""
        if self.tokens is None:
            tokens: Any = 0
        else:
            tokens = elements_of(batch) if self.tokens == "sequence" else tokens_of(self.tokens, batch, output)
        seconds = self._lap()
        if seconds is not None:  # as it is for one that came in the middle of an epoch
            self._window.add(1, batch_size(batch), tokens, seconds)

    @hookimpl
    def after_train(self) -> None:
        """Say what the whole training came to."""
        total = _Count()
        for count in (self._total, self._window):
            total.add_count(count)
        if total.seconds > 0:
            log.info(
                "throughput: %.4g samples/s, %.4g steps/s over %d steps (%.4g s)",
                total.samples / total.seconds,
                total.steps / total.seconds,
                total.steps,
                total.seconds,
            )

    def _log(self) -> None:
        window, self._window = self._window, _Count()
        seconds = window.seconds
        self._total.add_count(window)
        if not seconds > 0:
            return
        rates = {"samples_per_s": window.samples / seconds, "steps_per_s": window.steps / seconds}
        if self.tokens:
            rates["tokens_per_s"] = window.tokens / seconds
        if self.peak_flops is not None:
            per_token = self.flops_per_token
            done = per_token * window.tokens if per_token is not None else (self.flops_per_sample or 0) * window.samples
            rates["mfu"] = done / seconds / self.peak_flops
        for name, rate in rates.items():  # weighted by time, so that an epoch's mean is its samples over its seconds
            self._series[name].add(rate, seconds)


class _Count:
    """What was trained in some time."""

    def __init__(self) -> None:
        self.steps = self.samples = 0
        self.tokens: Any = 0  # a tensor where they are counted on the device
        self.seconds = 0.0

    def add(self, steps: int, samples: int, tokens: Any, seconds: float) -> None:
        self.steps += steps
        self.samples += samples
        self.tokens = self.tokens + tokens
        self.seconds += seconds

    def add_count(self, other: _Count) -> None:
        self.add(other.steps, other.samples, other.tokens, other.seconds)
