"""Curves in the terminal: braille dots, two by four to a character, or plain ASCII where the encoding has none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainhooks.run_history import MetricSeries, RunHistory

_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bits of a braille character: column, row
_ASCII: Final = " .'|"  # nothing, the lower half, the upper half, both
_NARROWEST, _WIDEST = 50, 160
_HEIGHT: Final = 6
_LABEL: Final = 9


def draw(
    runs: Sequence[RunHistory], names: Sequence[str], metrics: Sequence[str], *, width: int, encoding: str
) -> Iterator[str]:
    """Yield the lines: each metric with its curves, one below another, all of a metric in the same range.

    Args:
        runs: Whose curves are drawn.
        names: Of the runs.
        metrics: Which.
        width: Of the terminal, in characters.
        encoding: Of the terminal.
    """
    width = max(_NARROWEST, min(width, _WIDEST))
    braille = _can(encoding)
    for metric in metrics:
        curves = [(name, run.series[metric]) for run, name in zip(runs, names, strict=True) if metric in run.series]
        finite = [value for _, series in curves for value in series.values if math.isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
        first = min((series.steps[0] for _, series in curves if len(series)), default=0)
        last = max((series.steps[-1] for _, series in curves if len(series)), default=0)
        yield _plain(metric, encoding)[:width]
        for name, series in curves:
            yield f"  {_facts(series)}{'  ' + _plain(name, encoding) if len(runs) > 1 else ''}"[:width]
            if not finite:
                continue
            height = _HEIGHT if len(curves) <= 2 else _HEIGHT // 2  # noqa: PLR2004 - few
            picture = plot(series, (first, last), (low, high), width - 12, height, braille=braille)
            labels = [_short(high), *[""] * (height - 2), _short(low)]
            bar = "│" if braille else "|"
            yield from (f"{label:>{_LABEL}} {bar}{line}".rstrip() for label, line in zip(labels, picture, strict=True))
        if finite:
            end = f"step {last}"
            yield f"{'':11}{first}{end:>{max(width - 12 - len(str(first)), len(end) + 1)}}"
        yield ""


def plot(
    series: MetricSeries,
    steps: tuple[int, int],
    values: tuple[float, float],
    width: int,
    height: int,
    *,
    braille: bool,
) -> list[str]:
    """Return a curve as lines of characters: each column of dots spans its values, neighbours are joined.

    Args:
        series: The curve.
        steps: First and last step of the picture.
        values: Lowest and highest value of the picture.
        width: In characters.
        height: In characters.
        braille: Whether to draw with braille characters.
    """
    across, down = (2, 4) if braille else (1, 2)
    columns, rows = width * across, height * down
    (first, last), (low, high) = steps, values
    spans: dict[int, list[float]] = {}
    for step, value in zip(series.steps, series.values, strict=True):
        column = (step - first) * (columns - 1) // max(last - first, 1)
        span = spans.setdefault(column, [math.inf, -math.inf, math.nan])  # lowest, highest, last
        if math.isfinite(value):
            span[0], span[1] = min(span[0], value), max(span[1], value)
        span[2] = value
    grid = [[False] * columns for _ in range(rows)]
    scale = 1.0 if math.isfinite(high - low) else 0.5  # the largest numbers have differences that are none

    def row_of(value: float) -> int:
        return round((rows - 1) * (0.5 if high == low else (high * scale - value * scale) / (high * scale - low * scale)))

    before: tuple[int, float] | None = None
    for column, (lowest, highest, end) in sorted(spans.items()):
        if math.isfinite(lowest):
            for row in range(row_of(highest), row_of(lowest) + 1):
                grid[row][column] = True
            if before is not None:
                _join(grid, (before[0], row_of(before[1])), (column, row_of(min(max(before[1], lowest), highest))))
        before = (column, end) if math.isfinite(end) else None
    return ["".join(_character(grid, x * across, y * down, braille=braille) for x in range(width)) for y in range(height)]


def _join(grid: list[list[bool]], begin: tuple[int, int], end: tuple[int, int]) -> None:
    length = max(abs(end[0] - begin[0]), abs(end[1] - begin[1]), 1)
    for i in range(length + 1):
        column = begin[0] + (end[0] - begin[0]) * i / length
        grid[round(begin[1] + (end[1] - begin[1]) * i / length)][round(column)] = True


def _character(grid: list[list[bool]], x: int, y: int, *, braille: bool) -> str:
    if not braille:
        return _ASCII[2 * grid[y][x] + grid[y + 1][x]]
    bits = sum(_DOTS[i][j] for i in range(2) for j in range(4) if grid[y + j][x + i])
    return chr(0x2800 + bits) if bits else " "


def _facts(series: MetricSeries) -> str:
    finite = [value for value in series.values if math.isfinite(value)]
    missing = len(series) - len(finite)
    if not finite:
        return f"nothing finite in {len(series)} records"
    last = series.values[-1]
    text = f"min {min(finite):.6g}  max {max(finite):.6g}  last {f'{last:.6g}' if math.isfinite(last) else 'not finite'}"
    return f"{text}  ({missing} not finite)" if missing else text


def _short(value: float) -> str:
    return next((text for digits in (4, 3) if len(text := f"{value:.{digits}g}") <= _LABEL), f"{value:.2g}")


def _can(encoding: str) -> bool:
    try:
        "⠿│".encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def _plain(text: str, encoding: str) -> str:
    """Return text that no file can move the cursor with, as the terminal can write it."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)
