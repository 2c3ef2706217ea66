"""``console``: metrics as a table on a terminal, as one plain line elsewhere, once in an interval."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Literal

from trainhooks import OptionError, hookimpl

from ._choices import check_choice
from ._console_text import Shown, line, table
from ._recent_values import RecentValues
from ._terminal import can_move_cursor, in_ci, is_terminal, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainhooks import Record, RunInfo

log = logging.getLogger("trainhooks")

Style = Literal["auto", "table", "lines"]


class Console:
    """Prints metrics: the latest value of each, and the median and mean over the latest ``window`` of them.

    On a terminal it is a table, elsewhere (files, pipes, notebooks, ``TERM=dumb``, terminals of CI) one line, without control
    characters. ``epoch 3/10`` is the running one: the third. What ``progress`` draws stays below it. Metrics that have no new value since the last time are left out.

    Args:
        every_s: Seconds between two of them, by the time of the records; the first record is shown at once, the last one at the end.
        every_steps: Steps between two of them; both must have passed.
        window: How many values of a metric its median and mean are taken over; what is not finite does not count.
        metrics: Which to show, as names or patterns such as ``val/*``; by default all, but not more than there is room for.
        style: ``table``, ``lines``, or what fits (``auto``).
    """

    phase = "reporting"
    on_error = "disable"
    records_per_call = 500

    def __init__(
        self,
        every_s: float = 10.0,
        every_steps: int = 0,
        window: int = 20,
        metrics: tuple[str, ...] = (),
        style: Style = "auto",
    ) -> None:
        check_choice("style", style, Style)
        if not (every_s >= 0 and every_steps >= 0 and window >= 1):
            message = (
                f"every_s = {every_s}, every_steps = {every_steps}, window = {window}: must be 0 or more, window 1 or more"
            )
            raise OptionError(message)
        self.every_s, self.every_steps, self.window, self.metrics, self.style = every_s, every_steps, window, metrics, style
        self._begin()

    def _begin(self) -> None:
        self._values = RecentValues(self.window, self.metrics)
        self._last: Record | None = None  # that was shown
        self._waiting: Record | None = None  # the newest, if it has not been shown
        self._step, self._done = -1, 0  # the step of the newest record, and the epochs that were done before it
        self._closed = False  # whether nobody is there to read

    @hookimpl
    def report_start(self) -> None:
        """Begin anew: values of before a resume are not here."""
        self._begin()

    @hookimpl
    def report_metrics(self, run: RunInfo, records: Sequence[Record]) -> None:
        """Take the values, and print what is due; of tables that are due at once only the last one."""
        as_table = self._as_table()
        due: str | None = None
        for record in records:
            if record.step != self._step:
                self._step, self._done = record.step, record.epoch
            self._values.add(record.values)
            self._waiting = record
            if self._is_due(record) and (fresh := self._values.take_fresh()):
                self._last, self._waiting = record, None
                text = self._text(run, record, fresh, as_table=as_table)
                due = text if as_table or due is None else due + text
        if due is not None:
            self._print(due)

    @hookimpl
    def report_end(self, run: RunInfo) -> None:
        """Print what has not been shown yet."""
        record, self._waiting = self._waiting, None
        if record is not None and (fresh := self._values.take_fresh()):
            self._print(self._text(run, record, fresh, as_table=self._as_table()))

    def _as_table(self) -> bool:
        return self.style == "table" or (self.style == "auto" and _is_interactive())

    def _is_due(self, record: Record) -> bool:
        last = self._last
        if last is None:
            return True
        passed_s = abs(record.time - last.time)  # a clock that was put back would silence it until it has caught up
        return passed_s >= self.every_s and record.step - last.step >= self.every_steps

    def _text(self, run: RunInfo, record: Record, fresh: list[str], *, as_table: bool) -> str:
        total = f"/{run.total_steps}" if run.total_steps is not None else ""
        title = f"step {record.step}{total}  {self._epoch(run)}"
        rows = [Shown(name, *self._values.summary(name)) for name in fresh]
        if not as_table:
            return line(title, rows, limit=not self.metrics)
        return table(title, rows, color=_is_interactive() and not os.environ.get("NO_COLOR"), unicode=_has_unicode())

    def _epoch(self, run: RunInfo) -> str:
        """Return the running epoch, counted from 1, and of how many; where one has just ended, that one."""
        epochs = run.hyperparameters.get("max_epochs")
        return f"epoch {min(self._done + 1, epochs)}/{epochs}" if isinstance(epochs, int) else f"epoch {self._done + 1}"

    def _print(self, text: str) -> None:
        """Write to whatever stands for stdout now: the bar of ``progress`` has it print above itself."""
        out = sys.stdout
        if out is None or self._closed:
            return
        try:
            write(out, text)
        except (OSError, ValueError) as error:  # what reads the pipe has gone, or the stream is closed
            self._closed = True
            log.warning("console: stdout takes nothing more (%s); nothing more is printed", error)


def _is_interactive() -> bool:
    """Return whether stdout is a terminal that knows control characters, and is not one of CI, whose output is kept as it is."""
    return is_terminal(sys.stdout) and can_move_cursor() and not in_ci()


def _has_unicode() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
