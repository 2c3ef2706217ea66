"""Metrics as text: a table for a terminal, or one line."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_IN_LINE, _IN_TABLE = 8, 40
_LONGEST: Final = 60
_NARROWEST: Final = 30
_NAME, _NUMBER = 16, 13  # columns of the terminal that the names need, and each number


class Shown(NamedTuple):
    """What is shown of a metric.

    Args:
        name: Of it.
        latest: Its latest value.
        median: Of those in the window.
        mean: Of them.
        size: How many they are.
    """

    name: str
    latest: float
    median: float
    mean: float
    size: int


def line(title: str, rows: Sequence[Shown], *, limit: bool) -> str:
    """Return one line.

    Args:
        title: Where the training is.
        rows: Of the metrics.
        limit: Leave out what would make it too long.
    """
    shown = rows[:_IN_LINE] if limit else rows
    parts = [title]
    for row in shown:
        window = f" (median {short(row.median)}, mean {short(row.mean)})" if row.size > 1 else ""
        parts.append(f"{printable(row.name)} {short(row.latest)}{window}")
    if len(shown) < len(rows):
        parts.append(f"and {len(rows) - len(shown)} more")
    return "  ".join(parts) + "\n"


def table(title: str, rows: Sequence[Shown], *, color: bool, unicode: bool) -> str:
    """Return a table, as wide as the terminal at most; a narrow one gets no mean, then no median either.

    Args:
        title: Where the training is.
        rows: Of the metrics.
        color: Whether control characters may be used.
        unicode: Whether the frame may be of characters that ASCII does not have.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    columns = min(max((width - _NAME) // _NUMBER, 1), 3)
    made = Table(title=Text(title), title_justify="left", box=box.ROUNDED if unicode else box.ASCII)
    made.add_column("metric", overflow="fold")
    for name in ("latest", "median", "mean")[:columns]:
        made.add_column(name, justify="right", no_wrap=True)
    for row in rows[:_IN_TABLE]:
        made.add_row(Text(printable(row.name)), *map(short, (row.latest, row.median, row.mean)[:columns]))
    if len(rows) > _IN_TABLE:
        made.caption = Text(f"and {len(rows) - _IN_TABLE} more")
    text = io.StringIO()
    console = Console(
        file=text,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        force_jupyter=False,
        legacy_windows=False,
        no_color=False,  # NO_COLOR has been looked at
    )
    console.print(made)
    lines = text.getvalue().split("\n")
    return "\n".join(lines if color else [one.rstrip() for one in lines])


def printable(name: str) -> str:
    """Return a name without control characters, and not longer than fits on a screen."""
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in name)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."


def short(value: float) -> str:
    """Return four digits of a number: enough to follow a run."""
    return f"{value:.4g}"
