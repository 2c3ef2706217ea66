"""What a terminal shows of a training: one line with a bar, or a panel; no plugin.

Lines are laid out by hand: the thread that draws keeps Python from the training meanwhile, and rich's tables take five times as
long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ._terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

_BAR = 16  # columns at most, and this share of a terminal:
_BAR_SHARE = 1 / 8
_FREE = 3
_AROUND = 9  # lines of the panel besides those of metrics
_GAP = "  "


@dataclass
class View:
    """What there is to show at one moment.

    Args:
        name: Of the run.
        step: Steps done.
        total: Where it will end, if that is known.
        counts: Epoch and update, where they are counted.
        left: Time left, in words, if that is known.
        speed: Steps and samples a second.
        metrics: Rows of name, latest value, median and best.
        split: Stages and their share of the time.
        activity: What is being done or waited for.
        notes: What else is to be known.
    """

    name: str
    step: int
    total: int | None
    counts: list[str]
    left: list[str]
    speed: list[str]
    metrics: Sequence[tuple[str, str, str, str]] = ()
    split: Sequence[tuple[str, float]] = ()
    activity: str = ""
    notes: list[str] = field(default_factory=list)


def bar(view: View, metrics: Sequence[str], console: Console) -> RenderableType:
    """Return one line, the most important first: a bar, the steps, the time left, the speed, the first metric, counts, metrics.

    What is being waited for and notes stand before the metrics. What does not fit is left out from the right, as a whole; the speed
    makes room for what is being waited for, and only of that the end is cut. The last columns stay free: Ctrl-C, which shows there as ^C, would break the line.
    """
    width = max(min(_BAR, int(console.width * _BAR_SHARE)), 1)
    of = "?" if view.total is None else str(view.total)
    counts = [f"{view.step:>{len(of)}d}/{of}"]
    if view.total is not None:
        counts.append(f"{min(100 * view.step // view.total, 100) if view.total else 100:3d}%")
    line = Text(_GAP.join(counts), style="progress.download", no_wrap=True, overflow="crop")
    room = console.width - width - 1 - line.cell_len - _FREE
    facts = [*view.left, *view.speed[:1]]
    if view.activity:
        facts.append(activity := _printable(view.activity, console))
        if cell_len(_GAP.join(["", *facts])) > room:
            facts = [*view.left, _cut(activity, room - cell_len(_GAP.join(["", *view.left, ""])), console)]
    facts += [*view.notes, *metrics[:1], *view.counts, *metrics[1:]]
    line.append("".join(_fitting([_GAP + _printable(fact, console) for fact in facts], room)), style="default")
    grid = Table.grid(Column(width=width), Column(), padding=(0, 1))
    grid.add_row(_bar(view, width), line)
    return grid


def _fitting(facts: Sequence[str], room: int) -> list[str]:
    """Return the first facts, as many as there is room for."""
    shown: list[str] = []
    for fact in facts:
        room -= cell_len(fact)
        if room < 0:
            break
        shown.append(fact)
    return shown


def _cut(text: str, room: int, console: Console) -> str:
    """Return a text without its end, if there is no room for that."""
    if cell_len(text) <= room:
        return text
    dots = "..." if console.options.ascii_only else "…"
    return set_cell_size(text, max(room - len(dots), 0)).rstrip() + dots


def panel(view: View, console: Console) -> RenderableType:
    """Return the panel, with as many metrics as the terminal is high."""
    width, height = console.size
    ascii_only = console.options.ascii_only
    inner = max(width - 4, 1)
    of = "" if view.total is None else f"/{view.total}"
    lines = [_GAP.join([f"step {view.step}{of}", *view.counts]), _GAP.join([*view.left, *view.speed]), ""]
    rows = [(_printable(name, console), *values) for name, *values in view.metrics]
    lines += _table(rows, max(height - _AROUND, 1))
    if view.split:
        lines += ["", _GAP.join(["time", *(f"{stage} {share:.0%}" for stage, share in view.split)])]
    lines += [_printable(note, console) for note in view.notes]
    body = Text("" if view.total is None else "\n", no_wrap=True, overflow="crop" if ascii_only else "ellipsis")
    body.append("\n".join(lines))
    if view.activity:
        body.append(f"\n{_printable(view.activity, console)}", "bold")
    if view.total is not None:
        plain = console.no_color or console.color_system is None
        body = _line(view, inner, full="#" if ascii_only else "━", rest=" " if plain else "-" if ascii_only else "━") + body
    return Panel(body, title=Text(_printable(view.name, console)), title_align="left", width=width)


def _printable(text: str, console: Console) -> str:
    """Return a text as it will be written, so that it is as wide as it seems, in one line."""
    return one_line(text.encode(console.encoding, "backslashreplace").decode(console.encoding))


def _line(view: View, width: int, *, full: str, rest: str) -> Text:
    """Return a bar as text."""
    share = min(view.step / view.total, 1.0) if view.total else 1.0
    done = int(share * width)
    return Text.assemble((full * done, "bar.complete"), (rest * (width - done), "bar.back"), no_wrap=True)


def _bar(view: View, width: int) -> ProgressBar:
    if view.total is None:
        return ProgressBar(total=None, width=width, pulse=True)
    done, total = (view.step, view.total) if view.total else (1, 1)  # an empty run is done
    return ProgressBar(total=total, completed=done, width=width)


def _table(rows: Sequence[tuple[str, ...]], most: int) -> list[str]:
    """Return rows in columns of equal width; the last one says how many found no place."""
    if not rows:
        return ["no metrics yet"]
    left_out = len(rows) - most
    shown = [("metric", "latest", "median", "best"), *(rows if left_out <= 0 else rows[: most - 1])]
    widths = [max([cell_len(row[column]) for row in shown]) for column in range(4)]
    lines = [_GAP.join([set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True)]).rstrip() for row in shown]
    return lines if left_out <= 0 else [*lines, f"and {left_out + 1} more"]
