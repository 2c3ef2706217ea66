"""``trainhooks runs``: the runs below a folder, or one of them in full; from files alone, nothing is imported."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from trainhooks.cli.output import as_json, clean, pasted, table
from trainhooks.cli.run_table import add_differences, crash_of, find_runs, row_of, time_of
from trainhooks.errors import UsageError
from trainhooks.run_record import is_run, read_record

_RUNS: Final = Path("runs")
_COLUMNS: Final = ("run", "outcome", "step", "epoch", "best", "started", "took", "saved", "differs")
#: What a narrow terminal does without, in this order.
_FIRST_TO_GO: Final = ("took", "epoch", "saved", "started", "best", "differs")
_SHORTEST_LAST: Final = 12


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path, file_okay=False), default=str(_RUNS))
@click.option("--sort", type=click.Choice(["started", "name", "step", "best", "took"]), default="started", help="Newest first.")
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON.")
def runs(folder: Path, sort: str, json_wanted: bool) -> None:
    """List every run below DIR (default: runs): outcome, best metric, when, and what sets it apart; a run folder: all of it."""
    if not folder.is_dir():
        hint = ", and no other folder is named: `trainhooks runs DIR`" if folder == _RUNS else _below_runs(folder)
        message = f"there is no folder {pasted(folder)} in {Path.cwd()}{hint}"
        raise UsageError(message)
    if is_run(folder):
        _show_one(folder, json_wanted=json_wanted)
        return
    folders = list(find_runs(folder))
    rows = [row_of(one, str(one.relative_to(folder))) for one in folders]
    pairs = sorted(zip(rows, folders, strict=True), key=lambda pair: _rank(pair[0], "started"))
    add_differences([row for row, _ in pairs], [one for _, one in pairs])
    rows = sorted((row for row, _ in pairs), key=lambda row: _rank(row, sort))
    if json_wanted:
        click.echo(as_json(rows, indent=1))
    elif rows:
        width = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
        click.echo(fitted([_as_text(row) for row in rows], width))
    else:
        click.echo(f"trainhooks: no runs below {pasted(folder)}", err=True)


def _below_runs(folder: Path) -> str:
    """Return a hint where a name of the list was given, which stands below ``runs``."""
    path = _RUNS / folder
    return f"; did you mean {pasted(path)}?" if path.is_dir() else ""


def _rank(row: dict[str, Any], sort: str) -> tuple[Any, ...]:
    """Return what sorts the rows: the newest, longest, best or furthest first, those without such a value last."""
    name = row["run"]
    if sort == "name":
        return (name,)
    if sort == "started":
        began = time_of(row.get("started"))
        return (began is None, -began.timestamp() if began is not None else 0.0, name)
    if sort == "best":
        best = row.get("best")
        value = best["value"] * (-1 if best["mode"] == "max" else 1) if best else math.nan
        return (not math.isfinite(value), value if math.isfinite(value) else 0.0, name)
    value = row.get("seconds" if sort == "took" else sort)
    return (value is None, -value if value is not None else 0, name)


def _as_text(row: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a row for people."""
    best, seconds = row.get("best"), row.get("seconds")
    outcome = row["outcome"]
    return {
        "run": pasted(row["run"]),
        "outcome": clean(f"{outcome}: {row['reason']}" if outcome == "damaged" else f"{outcome}{_nothing(row)}"),
        "step": _number(row.get("step")),
        "epoch": _number(row.get("epoch")),
        "best": clean(f"{best['metric']} {best['value']:.4g}") if best else "",
        "started": _local(row.get("started")),
        "took": _duration(seconds),
        "saved": str(row["checkpoints"]),
        "differs": clean(" ".join(row["differs"])),
    }


def _nothing(row: dict[str, Any]) -> str:
    """Say so where every batch was dropped."""
    dropped = row.get("dropped")
    return f", 0 of {_number(dropped)} batches trained" if dropped and row.get("step") == 0 else ""


def fitted(rows: list[dict[str, str]], width: int | None) -> str:
    """Return the table, no wider than a terminal: columns that say less are left out, then lines are cut."""
    columns = [column for column in _COLUMNS if any(row[column] for row in rows)]
    if width is None:
        return table(columns, rows)

    def needed() -> int:
        return sum(max(len(column), *(len(row[column]) for row in rows)) + 2 for column in columns[:-1]) + _SHORTEST_LAST

    for column in _FIRST_TO_GO:
        if needed() > width and column in columns:
            columns.remove(column)
    lines = table(columns, rows).split("\n")
    return "\n".join(line if len(line) <= width else f"{line[: max(width - 1, 0)]}…" for line in lines)


def _show_one(folder: Path, *, json_wanted: bool) -> None:
    """Print everything that is known of one run."""
    row, record, crash = row_of(folder, str(folder)), read_record(folder) or {}, crash_of(folder)
    if json_wanted:
        click.echo(as_json({**record, **row, "crash": crash}, indent=1))
        return
    reason = f" ({row['reason']})" if row["reason"] else ""
    lines = [("run", pasted(folder)), ("outcome", f"{row['outcome']}{reason}")]
    if record:
        lines.append(("done", _done(row)))
    if best := row.get("best"):
        lines.append(("best", f"{best['metric']} {best['value']:.6g} ({best['mode']}) at step {_number(best['step'])}"))
    if row.get("started"):
        lines.append(("started", f"{_local(row['started'])}, took {_duration(row['seconds']) or 'an unknown time'}"))
    resumed = record.get("resumed")
    times = [one for one in resumed if isinstance(one, dict)] if isinstance(resumed, list) else []
    lines += [("resumed", f"{_local(one.get('time'))} at step {_number(one.get('step'))}") for one in times]
    newest = f", the newest is {pasted(row['checkpoint'])}" if row["checkpoint"] else ""
    lines.append(("checkpoints", f"{row['checkpoints']}{newest}"))
    lines += [(name, _pairs(record.get(name))) for name in ("metrics", "settings", "versions")]
    lines.append(("plugins", " ".join(map(_plugin, record["plugins"])) if isinstance(record.get("plugins"), list) else ""))
    lines += [(name, str(record.get(name) or "")) for name in ("device", "host", "command")]
    if row["crash"]:
        lines.append(("crash", f"{_crash(crash)}; {pasted(row['crash'])} has the rest"))
    width = max(len(name) for name, _ in lines) + 2
    for name, text in lines:
        if text:
            click.echo(f"{name:{width}}{clean(text)}")


def _done(row: dict[str, Any]) -> str:
    """Return what has been trained: ``64 steps, 64 updates, 2 epochs``, and what was dropped."""
    counts = [(row[name], name if row[name] == 1 else f"{name}s") for name in ("step", "update", "epoch")]
    words = [f"{_number(count)} {word}" for count, word in counts if count is not None]
    if dropped := row["dropped"]:
        words.append(f"{_number(dropped)} {'batch' if dropped == 1 else 'batches'} dropped")
    return ", ".join(words)


def _crash(crash: dict[str, Any] | None) -> str:
    """Say in one line what failed where."""
    if crash is None:
        return "cannot be read"
    error, plugin = crash.get("exception"), crash.get("plugin")
    words = f"{error.get('type')}: {error.get('message')}" if isinstance(error, dict) else "unknown"
    who = f" in {plugin.get('hook')}() of {plugin.get('name')!r}" if isinstance(plugin, dict) else ""
    return f"{_local(crash.get('time'))} {words}{who} at step {_number(crash.get('step'))}"


def _plugin(entry: Any) -> str:
    if not isinstance(entry, dict):
        return "?"
    options = _pairs(entry.get("options"), ", ")
    return f"{entry.get('name')}({options})" if options else str(entry.get("name"))


def _pairs(values: Any, between: str = " ") -> str:
    found = values.items() if isinstance(values, dict) else ()
    return between.join(f"{name}={_value(value)}" for name, value in found if value is not None)


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else shlex.quote(value) if isinstance(value, str) else str(value)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, int) else ""


def _local(text: Any) -> str:
    found = time_of(text)
    return found.astimezone().strftime("%Y-%m-%d %H:%M") if found is not None else ""


def _duration(seconds: float | None) -> str:
    if seconds is None or not 0 <= seconds < 1e9:  # noqa: PLR2004 - thirty years
        return ""
    return str(timedelta(seconds=round(seconds)))
