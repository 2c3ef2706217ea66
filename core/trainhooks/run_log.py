"""What a run logs: values, media and files on their way from hooks to reporters, and when they are flushed."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal

from . import media
from .backlog import Artifact
from .call_site import calling_line
from .errors import UsageError
from .hookspecs import REPORTS
from .manager import PluginManager
from .metrics import MetricBus, Record, check_name
from .reporter import Reporter
from .run_info import RunInfo, flat, hyperparameters, new_id, plain, settings_of
from .series import mean_of
from .state import NEVER, Outcome, RunState
from .workdir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .manager import Plugin
    from .parts import RunParts
    from .run_info import Plain
    from .series import Ranks, Reduce
    from .session import Session
    from .settings import Settings
    from .types import Metrics, Output

log = logging.getLogger("trainhooks")

#: Flushed values of a metric that are kept for ``smoothed``.
WINDOW: Final = 20
#: What reporters get at least to close: one that hangs has used the time up that others need to tell how the run ended.
_CLOSING_S: Final = 2.0
#: Media that may wait for the reporters to be opened, or for a flush, and what they may take; one that is larger waits alone.
_EARLY, _EARLY_MIB = 100, 64


class RunLog(RunState):
    """The one way in for what is logged, and who reports it.

    Args:
        settings: Of the run.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.max_epochs, settings.max_steps, settings.max_updates, settings.steps_per_epoch)
        self.settings = settings
        self.manager = PluginManager()
        self.hooks = self.manager.hooks
        self.run_folder = RunFolder(settings.work_dir) if settings.work_dir is not None else None
        self.session: Session | None = None
        self.bus = MetricBus()
        self.reporter: Reporter | None = None
        #: The same over all resumes of a run, and that of the run whose checkpoint it began with elsewhere.
        self.run_id = new_id()
        self.parent_id: str | None = None
        #: That of the run which wrote the checkpoint that was loaded last; who loads it says so, if the file does.
        self.loaded_run_id = ""
        #: What the user gave ``log_hyperparameters``.
        self.own_hyperparameters: dict[str, Plain] = {}
        #: When the last step ended, the next one began, it ended, ...; ``None`` while nobody wants to know.
        self.step_marks: list[float] | None = None
        #: Returns seconds, for ``step_marks``.
        self.clock: Callable[[], float] = time.perf_counter
        self._recent: dict[str, deque[float]] = {}
        self._undelivered: dict[str, Any] = {}  # records by plugin that the checkpoint says have not arrived
        self._media: list[media.Pending] = []
        self._media_bytes = 0
        self._left_out = 0  # media that were logged before that, too many of them
        self._artifacts: list[Artifact] = []  # that were logged before the reporters were opened
        self._output: Output = {}
        self._collecting = False  # whether anybody wants what train_step returns as train/...
        self._steps_before: int | None = 0  # those whose outputs the bus was not given; None while that is not known
        self._metrics_shown = False  # whether a plugin shows them, so that they are flushed though nobody reports them
        self._flush_at = NEVER
        self._report_until: float | None = None  # when the reporters have had their time at the end

    # --- Logging ---

    def log(self, name: str, value: Any, reduce: Reduce = "mean", ranks: Ranks = "main") -> None:
        """Log one value; a tensor stays on its device until the next flush.

        Args:
            name: For example ``train/loss``, ``lr``, ``time/step``.
            value: A number or a tensor with one element; detached.
            reduce: What becomes of several values between two flushes.
            ranks: Whose values count in a distributed run: the main one's, the mean over all, or all, as ``name/rank0``, ...
                Every rank must log such a name.

        Raises:
            UsageError: The value is no scalar, or the name was logged with another ``reduce`` or ``ranks``.
        """
        self.bus.add(name, value, 1, reduce, ranks)

    def log_dict(self, values: Mapping[str, Any], reduce: Reduce = "mean", ranks: Ranks = "main") -> None:
        """Log several values."""
        for name, value in values.items():
            self.bus.add(name, value, 1, reduce, ranks)

    def log_image(self, name: str, image: Any) -> None:
        """Log an image, or several in a grid.

        Args:
            name: For example ``val/samples``.
            image: ``(H, W)``, ``(C, H, W)`` or ``(N, C, H, W)`` with 1, 3 or 4 channels: uint8, bool, or floating point from 0 to 1.

        Raises:
            UsageError: It is no image.
        """
        self._log_media(name, lambda place: media.image(name, image, place))
        if media.is_clipped(image):
            self._warn_once(
                f"log_image({name!r}): values outside of 0 to 1 are clipped; divide by 255, or undo the normalization"
            )

    def log_text(self, name: str, text: str) -> None:
        """Log a text."""
        self._log_media(name, lambda place: media.text(name, text, place))

    def log_histogram(self, name: str, values: Any, bins: int = 64) -> None:
        """Log how values are distributed.

        Args:
            name: For example ``weights/fc1``.
            values: A tensor of any shape; NaN and infinity are left out.
            bins: Of equal width, between the lowest value and the highest.

        Raises:
            UsageError: There are no values, or no bins.
        """
        self._log_media(name, lambda place: media.histogram(name, values, bins, place))

    def log_table(self, name: str, columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> None:
        """Log rows of values under named columns.

        Raises:
            UsageError: A row has more or fewer values than there are columns.
        """
        self._log_media(name, lambda place: media.table(name, columns, rows, place))

    def log_artifact(self, path: str | Path, name: str | None = None, kind: str = "file") -> None:
        """Pass a file to the reporters; it must stay as it is until they have taken it.

        One that is not there is warned of at once, with the line that logs it, and left out.

        Args:
            path: A file or folder.
            name: How it is to be called.
            kind: ``"file"``, ``"checkpoint"``, or a word of one's own.
        """
        place = Path(path).absolute()
        check_name(name or place.name)
        if not self._may_report:
            return
        if not os.path.exists(place):  # noqa: PTH110 - which is no error where it may not be looked at
            self._warn_once(f"log_artifact(): there is no file or folder {place}, so it is left out", f" ({calling_line()})")
            return
        artifact = Artifact(place, name or place.name, kind, **self._now())
        if self.reporter is not None:
            self.reporter.put(artifact)
        else:
            self._artifacts.append(artifact)

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Add to what reporters are told of the run, once, when they are opened; nested names get a ``/`` between them.

        Raises:
            UsageError: They are open already, or these are no names with values.
        """
        if self.reporter is not None:
            message = "log_hyperparameters() came after the reporters were opened: call it in configure or setup"
            raise UsageError(message)
        if not isinstance(values, Mapping):
            message = f"log_hyperparameters(): {type(values).__name__} is no mapping of names to values; vars() or dict() may make one"
            raise UsageError(message)
        self.own_hyperparameters |= flat(values)

    def smoothed(self, name: str, window: int = WINDOW, how: Literal["median", "mean"] = "median") -> float | None:
        """Return the median or the mean of a metric's latest flushed values, or ``None`` where there is none yet.

        Values that are not finite are left out; NaN where there are no others.

        Args:
            name: Of the metric.
            window: How many values, at most 20.
            how: ``"median"`` is not moved by single outliers.

        Raises:
            UsageError: The window is empty or longer than what is kept.
        """
        if not 0 < window <= WINDOW or how not in ("median", "mean"):
            message = f"smoothed({name!r}, window={window}, how={how!r}): 1 to {WINDOW} values are kept; 'median' or 'mean'"
            raise UsageError(message)
        values = list(self._recent.get(name, ()))[-window:]
        if not values:
            return None
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return math.nan
        return float(median(finite)) if how == "median" else mean_of(finite)

    def _warn_once(self, sentence: str, where: str = "") -> None:
        said = self.session.said if self.session is not None else set()
        if sentence not in said:
            said.add(sentence)
            log.warning("%s%s", sentence, where)

    def _log_media(self, name: str, take: Callable[[dict[str, Any]], media.Pending]) -> None:
        check_name(name)
        pending = take(self._now())
        if not self._may_report:
            return
        self._media.append(pending)
        self._media_bytes += pending.size_bytes
        if len(self._media) >= _EARLY or self._media_bytes > _EARLY_MIB * 2**20:
            self._pass_media_on()

    def _now(self) -> dict[str, Any]:
        """Return counters and time; within a step what its record will say, so that a resume can tell."""
        step = self.step + (self._due is not None)
        return {"step": step, "update": self.update, "epoch": self.epoch, "time": time.time()}

    @property
    def _may_report(self) -> bool:
        """Whether somebody takes what is logged, or will when the reporters are opened."""
        session = self.session
        return self.is_main and (self.reporter is not None or session is None or (session.training and not session.reports))

    def _pass_media_on(self) -> None:
        if self.reporter is not None:
            waiting, self._media, self._media_bytes = self._media, [], 0
            for pending in waiting:
                self.reporter.put(pending.finish())
            return
        while len(self._media) > _EARLY or (len(self._media) > 1 and self._media_bytes > _EARLY_MIB * 2**20):
            self._media_bytes -= self._media.pop().size_bytes
            self._left_out += 1

    # --- Flushing ---

    @property
    def _reporting(self) -> bool:
        """Whether this is a training whose reporters, if there are any, have been opened: else what is pending waits for them."""
        return self.session is not None and self.session.training and self.session.reports

    @property
    def _trained_steps(self) -> int:
        """The steps that are done, with the running one as soon as its ``train_step`` has returned."""
        if self._due is None or self._steps_before is None:
            return self.step
        return self.step + (self.bus.outputs + self._steps_before > self.step)

    def flush(self, extra: Mapping[str, float] | None = None, *, collective: bool = False) -> Metrics:
        """Bring what was logged to the host, into ``trainer.metrics`` and to the reporters.

        Args:
            extra: Values that are on the host already.
            collective: Whether all ranks flush here, so that values can be exchanged; others wait for the next such flush.

        Returns:
            What was flushed.
        """
        self._take_output()
        pending = self.bus.flush(self.world_size, collective=collective) if self._reporting else {}
        return self._record({**pending, **(extra or {})})

    def flush_evaluation(self, split: str, metrics: Metrics, logged: Metrics) -> None:
        """Flush with what an evaluation has measured, and what was logged in it; that of one name which was measured counts."""
        self._take_output()
        pending = self.bus.flush(self.world_size, collective=False) if self._reporting else {}
        if not self._reporting:
            self.metrics.update(self.bus.peek())
        for name in [*(pending.keys() & (logged.keys() | metrics.keys())), *(logged.keys() & metrics.keys())]:
            self._warn_once(
                f"the evaluation of {split!r} gives {name!r}, which was logged as well, and is left out there: log it under "
                f"another name, or evaluate the data under another one, such as loaders={{'{split}_eval': ...}}"
            )
        trained = {name: value for name, value in pending.items() if name.startswith("train/") and name not in logged}
        others = {name: value for name, value in pending.items() if name not in trained}
        self._record({**others, **logged, **trained, **metrics})

    def _record(self, values: Metrics) -> Metrics:
        if values:
            self.metrics.update(values)
            for name, value in values.items():
                recent = self._recent.get(name)
                if recent is None:
                    recent = self._recent[name] = deque(maxlen=WINDOW)
                recent.append(value)
            if self.reporter is not None:
                self.records += 1
                self.reporter.put(Record(self._trained_steps, self.update, self.epoch, time.time(), dict(values)))
        if self._media:
            self._pass_media_on()
        if self.reporter is not None:
            self.reporter.check()
        self.plan_flush()
        self.plan_attention()
        return values

    def _take_output(self) -> None:
        """Have the last step's values stand for its interval where nobody wants means."""
        if not self._collecting and isinstance(self._output, Mapping) and self._output:
            self.bus.add_output(self._output)
            self._output = {}

    def peek(self) -> None:
        """Bring ``trainer.metrics`` up to date without a flush: what is pending stays so."""
        self._take_output()
        self.metrics.update(self.bus.peek())

    def plan_flush(self) -> None:
        """Plan the next flush, if anybody needs one: at a multiple of ``log_every_steps``, whatever was flushed in between."""
        if self.reporter is not None or self.step_marks is not None or self._metrics_shown or self.world_size > 1:
            every = self.settings.log_every_steps
            self._flush_at = (self.step // every + 1) * every

    def plan_attention(self) -> None:
        """Work out the next step at which the loop must look at more than the next batch, so that it compares one number."""
        collecting = self.reporter is not None or self.hooks.after_epoch is not None
        if self._due is None:
            self._steps_before = self.step - self.bus.outputs
        elif collecting and not self._collecting:
            self._steps_before = None
        self._collecting = collecting
        requested = self._checkpoint_request is not None or bool(self._eval_requests)
        asked = requested or self.saving or self.stop_reason is not None or self.update >= self._update_limit
        self._attention_at = 0 if asked else min(self._flush_at, self._step_limit)
        if self.interruption is not None:  # looked up last: a signal handler may have set it anywhere above
            self._attention_at = 0

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is being written in the background."""
        return False

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

    # --- Reporters ---

    def run_info(self) -> RunInfo:
        """Describe the run for reporters."""
        run: RunParts = self  # type: ignore[assignment]  # what is described is there when this is called
        name = self.settings.name or (run.work_dir.name if run.work_dir is not None else "run")
        settings = {**settings_of(run), "plugins": self.plugin_lock()}
        resumed = self.step > 0 or (self.session is not None and self.session.restored_from is not None)
        return RunInfo(
            name,
            run.work_dir,
            settings,
            resumed_step=self.step,
            total_steps=self.total_steps,
            id=self.run_id,
            parent=self.parent_id,
            resumed=resumed,
            resumed_records=self.records,
            offered_step=self.step,
            hyperparameters=hyperparameters(run),
        )

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

    def open_reporter(self) -> None:
        """Open the reporters, if there are any, and pass on what was logged before."""
        if not self.is_main or self.reporter is not None:
            return
        if any(self.manager.has(hook) for hook in REPORTS):
            self._report_until = None
            self.reporter = Reporter(self.manager, self.run_info(), self._undelivered)
            self.reporter.wait_until_open()
            self.reporter.offer_again()
            self._undelivered = {}
            for artifact in self._artifacts:
                self.reporter.put(artifact)
            self._pass_media_on()
            if self._left_out:
                message = "%d images, texts, ... were left out: no more than %d, or %d MiB, are kept until the training begins"
                log.warning(message, self._left_out, _EARLY, _EARLY_MIB)
            self.plan_flush()
            self.reporter.check()
        self._artifacts, self._media, self._media_bytes, self._left_out = [], [], 0, 0

    def add_reporter(self, plugin: Plugin) -> None:
        """Let a plugin that comes late report, too."""
        if self.reporter is not None:
            self.reporter.add(plugin, since=(self._now()["step"], self.records))
        elif self.session is not None and self.session.reports:
            self.open_reporter()

    def drain_reporter(self) -> None:
        """Deliver what has been logged; raise what a reporter's policy does not forgive."""
        if self.reporter is not None:
            self.flush()
            self.reporter.drain(self._report_time())
            self.reporter.check()

    def close_reporter(self, outcome: Outcome) -> None:
        """Deliver what is left and tell how the run ended; raise what a reporter's policy does not forgive."""
        reporter = self.reporter
        if reporter is not None:
            try:
                self.flush()
            finally:
                self.reporter, self._flush_at = None, NEVER
                try:
                    reporter.close(outcome, max(self._report_time(), _CLOSING_S))
                except KeyboardInterrupt:
                    if outcome.status not in ("failed", "interrupted"):
                        raise
                    log.warning("the reporters were not waited for")  # the error that ends the run says the rest
            reporter.check()

    def _report_time(self) -> float:
        """Return the seconds that reporters may still take at the end."""
        if self.hurried:
            return 0.0
        now = time.monotonic()
        if self._report_until is None:
            self._report_until = now + self.settings.report_timeout_s
        return max(self._report_until - now, 0.0)

    # --- State ---

    def log_state(self) -> dict[str, Any]:
        """Return what has been logged and is not flushed, and what later values are compared with."""
        recent = {name: list(values) for name, values in self._recent.items()}
        undelivered = {**self._undelivered, **(self.reporter.undelivered() if self.reporter is not None else {})}
        return {**self.bus.state_dict(), "latest": dict(self.metrics), "recent": recent, "undelivered": undelivered}

    def load_log_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``log_state`` returned."""
        self.bus.load_state_dict(state)
        self.metrics = dict(state["latest"])
        self._recent = {name: deque(values, maxlen=WINDOW) for name, values in state.get("recent", {}).items()}
        self._undelivered = state.get("undelivered", {})
        self.plan_flush()

    def forget_undelivered(self) -> None:
        """Owe reporters nothing from before the checkpoint: it is of another run, which reports that itself."""
        self._undelivered = {}
