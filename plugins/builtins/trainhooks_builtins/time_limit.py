"""``time_limit``: end the run before its time is up."""

from __future__ import annotations

import logging
import math
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from trainhooks import OptionError, hookimpl

from ._choices import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainhooks import Trainer

log = logging.getLogger("trainhooks")

At = Literal["step", "epoch"]

_CLOCK = re.compile(r"(?:(?P<days>\d+)[-:])?(?P<hours>\d+):(?P<minutes>[0-5]\d):(?P<seconds>[0-5]\d(?:\.\d+)?)")


class TimeLimit:
    """Stops the run when a time has passed, or at a time of day, early enough for a last checkpoint.

    The time runs from the set-up of this run, or of the first one if ``total`` is set. After each step (or epoch) and each
    evaluation the clock is read once; the run stops at the first that ends within ``margin_s`` of the limit.

    Args:
        duration: Seconds, or text such as ``01:30:00`` (hours, minutes, seconds) or ``1-12:00:00`` (with days).
        hours: Or hours; they and ``minutes`` add up.
        minutes: Or minutes.
        until: A time such as ``2026-12-01T08:00``, local unless it names a zone; the earlier of it and the duration counts.
        margin_s: Seconds before the limit at which to stop.
        at: Stop after the ``step`` in which the time is up, or after the ``epoch``.
        total: Count the time of the runs that this one is resumed from too.
        clock: Returns seconds; only differences are used.
        now: Returns seconds since 1970, for ``until``.
    """

    phase = "decision"

    def __init__(
        self,
        duration: float | str | None = None,
        hours: float = 0.0,
        minutes: float = 0.0,
        until: str | None = None,
        margin_s: float = 0.0,
        at: At = "step",
        total: bool = False,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        check_choice("at", at, At)
        for name, value in (("hours", hours), ("minutes", minutes), ("margin_s", margin_s)):
            if not (value >= 0 and math.isfinite(value)):
                message = f"{name} = {value}: must be 0 or more"
                raise OptionError(message)
        if duration is not None and (hours or minutes):
            message = "give duration, or hours and minutes, not both"
            raise OptionError(message)
        if duration is None and not (hours or minutes) and until is None:
            message = "time_limit needs a limit: duration, hours, minutes or until"
            raise OptionError(message)
        self.duration_s = seconds(duration) if duration is not None else hours * 3600 + minutes * 60 or math.inf
        self.until = timestamp(until) if until is not None else math.inf
        if margin_s and margin_s >= self.duration_s:
            message = (
                f"margin_s = {margin_s}: must be less than the time limit, {self.duration_s:g} s, or nothing is ever trained"
            )
            raise OptionError(message)
        self.at: At = at
        self.margin_s, self.total = margin_s, total
        if at == "epoch":
            vars(self)["after_step"] = None
        self._clock, self._now = clock, now
        self._began: float | None = None
        self._before = 0.0  # seconds of the runs that this one is resumed from
        self._deadline = math.inf

    @property
    def elapsed_s(self) -> float:
        """Seconds of this run, and of those that it is resumed from."""
        return self._before + (self._clock() - self._began if self._began is not None else 0.0)

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Begin to count."""
        if trainer.session is not None and trainer.session.training:
            self._before = self.elapsed_s
            self._began = self._clock()

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Work out when to stop; that may be at once."""
        clock = self._clock()
        left = self.duration_s - (self.elapsed_s if self.total else clock - (self._began or 0.0))
        left = min(left, self.until - self._now()) - self.margin_s
        self._deadline = clock + left
        log.info("time_limit: %s", f"{max(left, 0):.0f} s left" if left > 0 else "the time is up, nothing is trained")
        self._check(trainer)

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """Stop when the time is up."""
        if self._clock() >= self._deadline:
            self._stop(trainer)

    @hookimpl
    def after_train_epoch(self, trainer: Trainer) -> None:
        """Stop when the time is up."""
        self._check(trainer)

    @hookimpl
    def after_eval(self, trainer: Trainer) -> None:
        """Stop when the time is up; an evaluation may take longer than many steps."""
        self._check(trainer)

    def _check(self, trainer: Trainer) -> None:
        if self._clock() >= self._deadline and trainer.outcome is None:
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        limit = f"{self.duration_s:g} s" if math.isfinite(self.duration_s) else ""
        until = datetime.fromtimestamp(self.until).astimezone().isoformat() if math.isfinite(self.until) else ""
        margin = f", {self.margin_s:g} s before it" if self.margin_s else ""
        trainer.stop(f"time_limit: {' or '.join(filter(None, (limit, until)))} reached{margin}", at=self.at)

    @hookimpl
    def teardown(self) -> None:
        """Stop counting."""
        self._before, self._began, self._deadline = self.elapsed_s, None, math.inf

    def state_dict(self) -> dict[str, Any]:
        """Return how long the run has taken."""
        return {"elapsed_s": self.elapsed_s}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._before = state["elapsed_s"]


def seconds(duration: float | str) -> float:
    """Return the seconds that a duration means.

    Raises:
        OptionError: It means none, or not more than 0.
    """
    if isinstance(duration, str) and (match := _CLOCK.fullmatch(duration.strip())):
        parts = {name: float(text) for name, text in match.groupdict(default="0").items()}
        value = ((parts["days"] * 24 + parts["hours"]) * 60 + parts["minutes"]) * 60 + parts["seconds"]
    else:
        try:
            value = float(duration)
        except ValueError:
            value = math.nan
    if not (value > 0 and math.isfinite(value)):
        message = f"duration = {duration!r}: must be seconds above 0, or a text such as '01:30:00' or '1-12:00:00'"
        raise OptionError(message)
    return value


def timestamp(until: str) -> float:
    """Return the seconds since 1970 of an ISO 8601 time, local unless it names a zone.

    Raises:
        OptionError: It is none.
    """
    text = until.strip()
    try:
        return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text).timestamp()
    except ValueError:
        message = f"until = {until!r}: must be a time such as '2026-12-01T08:00' or '2026-12-01T08:00+01:00'"
        raise OptionError(message) from None
