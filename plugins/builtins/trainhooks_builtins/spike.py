"""``spike``: notice when the loss of a step is far above those before it."""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from trainhooks import OptionError, TrainingError, hookimpl

from ._choices import check_choice
from ._step_values import Place, StepValues, picked, place_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from trainhooks import Trainer
    from trainhooks.types import Output

log = logging.getLogger("trainhooks")

Action = Literal["warn", "stop", "raise"]
Method = Literal["median", "mean"]

#: Spikes that are kept for the file.
KEPT = 1000


class Spike:
    """Notices steps whose loss is far above that of the steps before it.

    With the ``window`` losses before a step, their centre ``c`` and spread ``s``, a loss ``x`` is a spike if
    ``x - c > threshold * s`` and ``x - c > min_rise * |c|``. For ``median``, ``c`` is the median and ``s`` the median of
    ``|x_i - c|`` times 1.4826, which makes ``(x - c) / s`` the modified z-score of Iglewicz and Hoaglin (How to Detect and Handle
    Outliers, 1993, section 3.3; 1.4826 is 1 / 0.6745). For ``mean`` they are the mean and the standard deviation (of the
    population). NaN and infinity always are spikes and never enter the window; other spikes do.

    Each step leaves its loss on the device; every ``every_steps`` steps they are brought over together.

    Args:
        action: ``warn``, ``stop`` the run, or ``raise`` a TrainingError.
        method: What centre and spread are: ``median`` or ``mean``.
        window: How many steps before are compared with.
        threshold: How many spreads above the centre is too far.
        min_rise: Share of the centre that the loss must also be above it; keeps a nearly constant loss from giving spikes.
        warmup_steps: Losses that must be in the window before anything is judged.
        every_steps: After how many steps to look.
        metric: Which value of what ``train_step`` returned.
    """

    phase = "decision"

    def __init__(
        self,
        action: Action = "warn",
        method: Method = "median",
        window: int = 100,
        threshold: float = 5.0,
        min_rise: float = 0.1,
        warmup_steps: int = 20,
        every_steps: int = 50,
        metric: str = "loss",
    ) -> None:
        check_choice("action", action, Action)
        check_choice("method", method, Method)
        for name, number in (("window", window), ("warmup_steps", warmup_steps), ("every_steps", every_steps)):
            if number < 1:
                message = f"{name} = {number}: must be at least 1"
                raise OptionError(message)
        if warmup_steps > window:
            message = f"warmup_steps = {warmup_steps}: must not be more than window = {window}, or nothing is ever judged"
            raise OptionError(message)
        for name, value in (("threshold", threshold), ("min_rise", min_rise)):
            if not (value >= 0 and math.isfinite(value)):
                message = f"{name} = {value}: must be 0 or more"
                raise OptionError(message)
        self.action, self.method, self.threshold, self.min_rise = action, method, threshold, min_rise
        self.warmup_steps, self.every_steps, self.metric = warmup_steps, every_steps, metric
        #: Spikes so far, resumed runs included.
        self.count = 0
        self._window: deque[float] = deque(maxlen=window)
        self._spikes: list[dict[str, Any]] = []
        self._values = StepValues()
        self._update = 0  # updates before the running step

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Begin to count updates where the run does."""
        self._update = trainer.update

    @hookimpl
    def after_step(self, trainer: Trainer, output: Output) -> None:
        """Keep the loss and look at what was kept, when that is due."""
        self._values.add(place_of(trainer, self._update), self.metric, picked(output, self.metric, "spike.metric"))
        self._update = trainer.update
        if trainer.every_n_steps(self.every_steps):
            self._look(trainer)

    @hookimpl(wrapper=True)
    def train(self, trainer: Trainer) -> Generator[None, bool, bool]:
        """Look at the last steps."""
        trained = yield
        self._look(trainer)
        return trained

    def _look(self, trainer: Trainer) -> None:
        found = [spike for place, _, value in self._values.take() if (spike := self._judge(place, value)) is not None]
        trainer.log("spike/count", self.count, reduce="last")
        if not found:
            return
        self._spikes = [*self._spikes, *found][-KEPT:]
        where = ""
        if trainer.work_dir is not None:
            path = trainer.run_file("spike.json")
            path.write_text(json.dumps({"count": self.count, "spikes": self._spikes}, indent=1), encoding="utf-8")
            where = f"; all are in {path}"
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        value, center = (one if isinstance(one, str) else f"{one:g}" for one in (found[0]["value"], found[0]["center"]))
        reason = f"spike: {self.metric} {value} at step {found[0]['step']}, around {center} before{more}"
        if self.action == "raise":
            raise TrainingError(reason + where)
        log.warning("%s%s", reason, where)
        if self.action == "stop" and not trainer.done:
            trainer.stop(reason)

    def _judge(self, place: Place, value: float) -> dict[str, Any] | None:
        """Return what is known about a loss that is a spike, and take it into the window."""
        window = self._window
        center, spread = center_and_spread(window, self.method) if window else (math.nan, math.nan)
        if math.isfinite(value):
            judged = len(window) >= self.warmup_steps
            window.append(value)
            rise = value - center
            if not (judged and rise > self.threshold * spread and rise > self.min_rise * abs(center)):
                return None
        self.count += 1
        numbers = {"value": value, "center": center, "spread": spread}
        return {**place._asdict(), **{key: one if math.isfinite(one) else str(one) for key, one in numbers.items()}}

    def state_dict(self) -> dict[str, Any]:
        """Return the window, the spikes, and the losses that were not looked at, which are brought over for it."""
        waiting = self._values.take()
        self._values.put_back(waiting)
        return {
            "count": self.count,
            "window": list(self._window),
            "spikes": list(self._spikes),
            "waiting": [[list(place), value] for place, _, value in waiting],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.count, self._spikes = state["count"], list(state["spikes"])
        self._window = deque(state["window"], maxlen=self._window.maxlen)
        self._values.put_back([(Place(*place), self.metric, value) for place, value in state["waiting"]])


def center_and_spread(values: Sequence[float], method: str) -> tuple[float, float]:
    """Return the median and the scaled median deviation from it, or the mean and the standard deviation."""
    if method == "mean":
        return statistics.fmean(values), statistics.pstdev(values)
    center = statistics.median(values)
    return center, 1.4826 * statistics.median(abs(value - center) for value in values)
