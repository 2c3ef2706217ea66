"""``profiler``: traces of a few steps by torch's profiler."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function

from trainhooks import OptionError, hookimpl

from ._profile import Activity, pick_activities, top_rows

if TYPE_CHECKING:
    from collections.abc import Generator

    from torch import Tensor

    from trainhooks import Trainer
    from trainhooks.types import Output

T = TypeVar("T")

log = logging.getLogger("trainhooks")

_ROWS = 100


class Profiler:
    """Records what happens in some steps: operators, kernels and the stages of a step.

    After ``skip_first`` steps a cycle is ``wait`` steps without any profiling, ``warmup`` steps that are recorded and thrown away,
    since the profiler's own start would distort them, and ``active`` steps that are kept. Each cycle leaves two files in the run
    folder: ``profiler/step-XXXXXXXX.pt.trace.json.gz``, which Perfetto (ui.perfetto.dev) and ``chrome://tracing`` open, and
    ``profiler/step-XXXXXXXX.txt``, a table of the operators. The number is that of the steps done. A cycle that the end of the
    training cuts short is kept too. The stages ``train_step``, ``compute_loss``, ``backward`` and ``optimizer_step`` are labelled.

    Args:
        wait: Steps without profiling at the beginning of each cycle.
        warmup: Steps that are thrown away.
        active: Steps that are kept.
        repeat: Cycles; 0 for as many as fit into the training.
        skip_first: Steps before the first cycle.
        activities: What to record; all that torch can record here by default.
        record_shapes: Also the shapes of what operators get.
        profile_memory: Also what they allocate.
        with_stack: Also the lines of Python that call them, which costs time.
        stages: Label the stages of a step.
        top: Rows of the table that are logged at the end; 0 for none.
    """

    phase = "measurement"
    before = ("evaluation",)  # one after the training is not part of it

    def __init__(
        self,
        wait: int = 5,
        warmup: int = 2,
        active: int = 3,
        repeat: int = 1,
        skip_first: int = 0,
        activities: tuple[Activity, ...] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        stages: bool = True,
        top: int = 10,
    ) -> None:
        counts = {"wait": wait, "warmup": warmup, "repeat": repeat, "skip_first": skip_first, "top": top}
        for name, value in counts.items():
            if value < 0:
                message = f"{name} = {value}: must be 0 or more"
                raise OptionError(message)
        if active < 1:
            message = f"active = {active}: at least one step must be kept; -p no:profiler for none"
            raise OptionError(message)
        self.wait, self.warmup, self.active, self.repeat, self.skip_first = wait, warmup, active, repeat, skip_first
        self.activities = activities
        self.record_shapes, self.profile_memory, self.with_stack = record_shapes, profile_memory, with_stack
        self.top = top
        self._profile: profile | None = None  # while a cycle is warming up or being kept
        self._seen = self._cycle = 0  # steps of this training, cycles that are over
        self._position = 0  # steps of the running profile
        self._summary = ""
        self._known: list[ProfilerActivity] = []
        if not stages:
            for hook in ("train_step", "compute_loss", "backward", "optimizer_step"):
                vars(self)[hook] = None  # not to be labelled: the wrapper is not even called

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Begin to count steps."""
        self._seen = self._cycle = 0
        self._summary = ""
        self._known = pick_activities(self.activities)

    @hookimpl(trylast=True)
    def before_train(self, trainer: Trainer) -> None:
        """Start the profiler if the first step is to be profiled."""
        if not trainer.is_main:
            return
        if trainer.run_folder is None:
            log.warning("profiler: this run has no work_dir, so no trace is written; only the table is logged")
        self._begin()

    @hookimpl
    def after_train(self, trainer: Trainer) -> None:
        """Stop the profiler, whatever happened; of a training that has failed, its own error is what counts."""
        try:
            self._end(trainer, trainer.step)
        except Exception as error:
            if trainer.outcome is None or trainer.outcome.status in ("completed", "stopped"):
                raise
            log.warning("profiler: what was recorded of the failed training could not be written: %r", error)
        if self._summary:
            log.info("%s", self._summary)
        elif trainer.is_main and trainer.outcome is not None and trainer.outcome.status == "completed":
            first = self.skip_first + self.wait + self.warmup
            log.warning("profiler: nothing was recorded in %d steps, recording begins after %d", self._seen, first)

    @hookimpl
    def teardown(self) -> None:
        """Stop a profiler that is taken out of a running training; what it recorded is lost."""
        if self._profile is not None:
            ended, self._profile = self._profile, None
            ended.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """Go on to the profiler's next step."""
        self._seen += 1
        if self._profile is not None:
            self._profile.step()
            self._position += 1
            if self._position == self.warmup + self.active:
                self._end(trainer, trainer.step + 1)
        if self._profile is None and trainer.is_main:
            self._begin()

    @hookimpl(wrapper=True)
    def train_step(self) -> Generator[None, Output, Output]:
        """Label it."""
        return (yield from self._labelled("train_step"))

    @hookimpl(wrapper=True)
    def compute_loss(self) -> Generator[None, Tensor, Tensor]:
        """Label it."""
        return (yield from self._labelled("compute_loss"))

    @hookimpl(wrapper=True)
    def backward(self) -> Generator[None, bool, bool]:
        """Label it."""
        return (yield from self._labelled("backward"))

    @hookimpl(wrapper=True)
    def optimizer_step(self) -> Generator[None, bool, bool]:
        """Label it."""
        return (yield from self._labelled("optimizer_step"))

    def _labelled(self, stage: str) -> Generator[None, T, T]:
        if self._profile is None:
            return (yield)
        with record_function(stage):
            return (yield)

    def _begin(self) -> None:
        """Start the profiler where the waiting of a cycle is over."""
        if self.repeat and self._cycle >= self.repeat:
            return
        length = self.wait + self.warmup + self.active
        if self._seen == self.skip_first + self._cycle * length + self.wait:
            self._position = 0
            started = profile(
                activities=self._known,
                schedule=self._action,
                record_shapes=self.record_shapes,
                profile_memory=self.profile_memory,
                with_stack=self.with_stack,
            )
            started.__enter__()  # type: ignore[no-untyped-call]
            self._profile = started

    def _action(self, step: int) -> ProfilerAction:
        """Return what the profiler does in a step of its own; a new one is made for each cycle."""
        if step < self.warmup:
            return ProfilerAction.WARMUP
        if step >= self.warmup + self.active:
            return ProfilerAction.NONE
        return ProfilerAction.RECORD_AND_SAVE if step == self.warmup + self.active - 1 else ProfilerAction.RECORD

    def _end(self, trainer: Trainer, step: int) -> None:
        """Stop the profiler and write what it kept, if it kept any step."""
        ended, self._profile = self._profile, None
        if ended is None:
            return
        ended.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        kept = self._position - self.warmup
        if kept <= 0:
            return
        self._cycle += 1
        device = any(activity is not ProfilerActivity.CPU for activity in self._known)
        sort = "self_device_time_total" if device else "self_cpu_time_total"
        averages = ended.key_averages()
        where = ""
        if trainer.run_folder is not None:
            trace = trainer.run_file(f"profiler/step-{step:08d}.pt.trace.json.gz")
            ended.export_chrome_trace(str(trace))
            table = trainer.run_file(f"profiler/step-{step:08d}.txt")
            table.write_text(averages.table(sort_by=sort, row_limit=_ROWS) + "\n", encoding="utf-8")
            for path in (trace, table):
                trainer.log_artifact(path, kind="profile")
            where = f"; trace: {trace}"
        rows = top_rows(averages, sort, self.top)
        self._summary = "\n".join([f"profiler: {kept} steps up to step {step}{where}", *rows])
