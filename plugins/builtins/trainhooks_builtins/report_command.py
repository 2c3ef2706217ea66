"""``trainhooks report``: the curves and the making of runs as one page, or in the terminal; from files alone."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from trainhooks import UsageError
from trainhooks.cli.output import pasted
from trainhooks.cli.run_table import find_runs
from trainhooks.durable import replace_text
from trainhooks.run_history import METRICS, RunHistory, read_history
from trainhooks.run_record import is_run

from ._report.payload import metric_names, payload

if TYPE_CHECKING:
    from collections.abc import Sequence

_PATH: Final = click.Path(path_type=Path)
_OUTPUT: Final = Path("report.html")
_MARK: Final = b'<meta name="generator" content="trainhooks report">'


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folders", metavar="RUN...", type=_PATH, nargs=-1, required=True)
@click.option(
    "-o", "--output", type=_PATH, metavar="FILE", help="The page; report.html by default. A former report is replaced."
)
@click.option("--title", metavar="TEXT", help="Of the page; the names of the runs by default.")
@click.option("--metrics", "patterns", multiple=True, metavar="GLOB", help="Draw only these, such as 'val/*'; may be repeated.")
@click.option("--terminal", is_flag=True, help="Draw in the terminal and write no page.")
def report(
    folders: tuple[Path, ...], output: Path | None, title: str | None, patterns: tuple[str, ...], terminal: bool
) -> None:
    """Draw the curves of runs and compare what they were made with, in one page that opens anywhere without a network.

    RUN is a run folder, or a folder of runs, all of which are taken.
    """
    if terminal and (output is not None or title is not None):
        message = f"--terminal writes no page: leave out {'-o' if output is not None else '--title'}"
        raise UsageError(message)
    found = _runs(folders)
    histories = [read_history(folder) for folder in found]
    names = run_names(found)
    _warn(histories, names)
    if not any(history.series for history in histories):
        message = (
            f"no metrics in {', '.join(map(pasted, found[:3]))}{' and others' * (len(found) > 3)}: "  # noqa: PLR2004 - few
            f"{' and '.join(METRICS)} are missing or hold no record; the plugin metrics_log writes them while a run trains"
        )
        raise UsageError(message)
    wanted = metric_names(histories, patterns)
    if not wanted:
        known = ", ".join(metric_names(histories)[:10])
        message = f"--metrics {' '.join(map(pasted, patterns))}: no metric has such a name; there are {known}"
        raise UsageError(message)
    if terminal:
        from ._report.terminal import draw

        size = shutil.get_terminal_size()
        for line in draw(histories, names, wanted, width=size.columns, encoding=sys.stdout.encoding or "ascii"):
            click.echo(line)
        return
    output = output if output is not None else _OUTPUT
    _check(output)
    size_bytes = _write(output, _page(histories, names, patterns, title))
    what = f"{len(found)} run{'s' * (len(found) > 1)}, {len(wanted)} metric{'s' * (len(wanted) > 1)}"
    click.echo(f"{pasted(output)}: {what}, {size_bytes / 1000:.0f} kB")


def _runs(folders: Sequence[Path]) -> list[Path]:
    """Return the run folders that are meant, each once."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            what = "is a file, not a run folder" if folder.exists() else "does not exist"
            message = f"{pasted(folder)} {what}: name a run folder, or a folder of runs (`trainhooks runs` lists them)"
            raise UsageError(message)
        is_one = is_run(folder) or any((folder / name).is_file() for name in METRICS)
        some = [folder] if is_one else list(find_runs(folder))
        if not some:
            message = f"no runs below {pasted(folder)}: name a run folder, or a folder of runs (`trainhooks runs` lists them)"
            raise UsageError(message)
        for one in some:
            found.setdefault(one.resolve(), one)
    return list(found.values())


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return a short name for each run: the last parts of its path, as many as it takes to tell them apart."""
    parts = [os.fsencode(one.resolve()).decode("utf-8", "replace").split("/") for one in folders]
    depth = 1
    while len({tuple(one[-depth:]) for one in parts}) < len(parts) and depth < max(map(len, parts)):
        depth += 1
    return ["/".join(one[-depth:]) or "/" for one in parts]


def _warn(histories: Sequence[RunHistory], names: Sequence[str]) -> None:
    """Say what of the runs is left out."""
    for history, name in zip(histories, names, strict=True):
        words = []
        if history.damaged:
            lines = f"{history.damaged} lines" if history.damaged > 1 else "a line"
            words.append(
                f"left out {lines} of {history.source} that {'are no records' if history.damaged > 1 else 'is no record'}"
            )
        if not history.record:
            words.append("run.json is missing or damaged, so only the metrics are shown")
        if not history.series and any(one.series for one in histories):
            words.append("has no metrics")
        for text in words:
            click.echo(f"trainhooks: {pasted(name)}: {text}", err=True)


def _page(histories: Sequence[RunHistory], names: Sequence[str], patterns: Sequence[str], title: str | None) -> str:
    from ._report.media import embedded
    from ._report.page import render

    data = payload(histories, names, patterns)
    data |= embedded(histories)
    data["all_metrics"] = not patterns
    few = ", ".join(names) if len(names) <= 3 else f"{len(names)} runs"  # noqa: PLR2004 - few
    made = datetime.now(timezone.utc).astimezone().strftime("Made %Y-%m-%d %H:%M")
    return render(data, title if title is not None else few, made)


def _check(output: Path) -> None:
    """Refuse to write where no page can be, or over what is no report.

    Raises:
        UsageError: With the remedy.
    """
    if output.is_dir():
        message = f"-o {pasted(output)} is a folder: name a file, such as {pasted(output / _OUTPUT)}"
        raise UsageError(message)
    if not output.absolute().parent.is_dir():
        message = f"-o {pasted(output)}: there is no folder {pasted(output.absolute().parent)}"
        raise UsageError(message)
    if not output.exists():
        return
    try:
        with output.open("rb") as file:
            is_report = _MARK in file.read(500)
    except OSError:
        is_report = False
    if not is_report:
        message = f"{pasted(output)} exists and is no report: name another file with -o, or move it away"
        raise UsageError(message)


def _write(output: Path, page: str) -> int:
    """Write the page in one go and return its size in bytes."""
    try:
        replace_text(output, page)
        return output.stat().st_size
    except OSError as error:
        message = f"cannot write {pasted(output)}: {error.strerror}: name another file with -o"
        raise UsageError(message) from error
