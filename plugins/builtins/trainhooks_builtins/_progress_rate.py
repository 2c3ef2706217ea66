"""How fast a training is of late, and how long it still takes; no plugin."""

from __future__ import annotations

from collections import deque

_WINDOW_S = 60.0  # at least so much is looked back
_SHARE = 0.2  # and at least this share of the time that was trained
_GRAINS = 60  # parts of the window
_FEW = 4  # parts below which each counts as it is


class Rate:
    """Steps per second of late, and the time left; what was done before this process does not count.

    The longest part of the window counts like the second longest: a stall that happened once says nothing of what is to come,
    while what happens again and again, such as opening the loader, is in several parts. Evaluations and checkpoints are no
    part of the speed; how long they take for each step, as often as they came so far, is added to the time left.

    Args:
        step: Steps done when the clock starts.
        now: Seconds. A clock that is set back loses the time since it was last read.
        update: Updates done when the clock starts.
    """

    def __init__(self, step: int, now: float, update: int = 0) -> None:
        #: Steps and updates that were done when the clock started.
        self.began_at = step, update
        self._step, self._now, self._paused_before = step, now, 0.0
        self._parts: deque[tuple[int, float]] = deque()  # steps and the seconds that they took
        self._seconds = 0.0  # of all steps
        self._in_parts = 0.0
        self._pauses: dict[str, _Pause] = {}
        self._paused = 0.0
        self._began: float | None = None
        self._depth = 0

    def observe(self, step: int, now: float) -> None:
        """Take note of where the training is; seldom is enough."""
        part = self._since(step, now)
        if part is None:
            if now < self._now:
                self._step, self._now, self._paused_before = step, now, self._paused_until(now)
            return
        self._step, self._now, self._paused_before = step, now, self._paused_until(now)
        self._seconds += part[1]
        self._in_parts += part[1]
        window = max(_WINDOW_S, _SHARE * self._seconds)
        if self._parts and self._parts[-1][1] < window / _GRAINS:
            last = self._parts.pop()
            part = (last[0] + part[0], last[1] + part[1])
        self._parts.append(part)
        while len(self._parts) > _FEW and self._in_parts - self._parts[0][1] >= window:  # a stall may be longer than that
            self._in_parts -= self._parts.popleft()[1]

    def per_second(self, step: int, now: float) -> float | None:
        """Return steps per second, or ``None`` while nothing has been done."""
        seconds = self._per_step(step, now)
        return 1 / seconds if seconds else None

    def seconds_left(self, step: int, total: int | None, now: float) -> float | None:
        """Return the estimated time to ``total`` steps, or ``None`` where it cannot be known."""
        seconds = self._per_step(step, now)
        if seconds is None or total is None:
            return None
        pauses = sum([pause.per_step(step) for pause in list(self._pauses.values())])
        return max(total - step, 0) * (seconds + pauses)

    def begin_pause(self, now: float) -> None:
        """Begin an evaluation or a checkpoint."""
        self._depth += 1
        if self._depth == 1:
            self._began = now

    def end_pause(self, kind: str, step: int, now: float) -> None:
        """End it; one within another belongs to that."""
        self._depth -= 1
        began = self._began
        if self._depth == 0 and began is not None:
            seconds = max(now - began, 0.0)
            self._paused += seconds
            self._began = None
            self._pauses.setdefault(kind, _Pause(self.began_at[0])).add(step, seconds)

    def _per_step(self, step: int, now: float) -> float | None:
        part = self._since(step, now)
        parts = [*self._parts, part] if part is not None else list(self._parts)
        steps, seconds = sum([part[0] for part in parts]), sum([part[1] for part in parts])
        if len(parts) >= _FEW:
            slowest = max(parts, key=_seconds_per_step)
            parts.remove(slowest)
            seconds -= slowest[0] * (_seconds_per_step(slowest) - max(map(_seconds_per_step, parts)))
        return seconds / steps if steps and seconds > 0 else None

    def _since(self, step: int, now: float) -> tuple[int, float] | None:
        """Return what was done since the last note, if anything."""
        steps, seconds = step - self._step, now - self._now - (self._paused_until(now) - self._paused_before)
        return (steps, seconds) if steps > 0 and seconds >= 0 and now > self._now else None

    def _paused_until(self, now: float) -> float:
        began = self._began
        return self._paused + (max(now - began, 0.0) if began is not None else 0.0)


class _Pause:
    """How often one kind of pause came, and how long it took.

    Args:
        start: Steps done when the clock started.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._times = 0
        self._seconds = 0.0
        self._first = self._last = 0

    def add(self, step: int, seconds: float) -> None:
        """Count one; several at the same step are one."""
        self._seconds += seconds
        if self._times and step == self._last:
            return
        self._first = self._first if self._times else step
        self._last = step
        self._times += 1

    def per_step(self, step: int) -> float:
        """Return seconds for each step.

        A single pause is taken to come again after as many steps as it took to come, or as there have been since if these are
        more; one before the first step tells nothing.

        Args:
            step: Steps done.
        """
        if self._times > 1:
            between = (self._last - self._first) / (self._times - 1)
        else:
            between = max(self._last - self._start, step - self._last) if self._last > self._start else 0
        return self._seconds / self._times / between if between > 0 else 0.0


def _seconds_per_step(part: tuple[int, float]) -> float:
    return part[1] / part[0]
