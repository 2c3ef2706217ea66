"""The folder of DVCLive: whose it is, and how it is cut back when a run is resumed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from trainhooks import UsageError

if TYPE_CHECKING:
    from pathlib import Path

NOTE: Final = "trainhooks.json"
#: What DVCLive removes from its folder when a run begins.
_OWN: Final = ("params.yaml", "metrics.json", "dvc.yaml", "plots", "report.html", "report.md")
#: Folders with files that are named by a step.
_BY_STEP: Final = ("plots/images", "plots/custom", "texts", "tables")


def read_note(folder: Path) -> dict[str, Any]:
    """Return what an earlier process noted of the run in a folder; nothing if there is no such note, or it is damaged."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def write(path: Path, text: str) -> None:
    """Replace a file in one go, so that a kill leaves the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8", errors="replace", newline="")
    temporary.replace(path)


def check(folder: Path) -> None:
    """Refuse a folder in which DVCLive would remove what trainhooks did not make.

    Raises:
        UsageError: With the path and the remedy.
    """
    if not (folder / NOTE).exists() and (found := next((name for name in _OWN if (folder / name).exists()), None)):
        message = f"{folder / found} was not made by trainhooks, and DVCLive would replace it: move it away or give another dir"
        raise UsageError(message)


def cut_back(folder: Path, step: int) -> None:
    """Drop what was logged after a step, and lines and files that a kill has left incomplete."""
    summary: dict[str, Any] = {"step": step}
    metrics = folder / "plots/metrics"
    for path in sorted(metrics.rglob("*.tsv")):
        lines = path.read_bytes().decode("utf-8", "replace").splitlines(keepends=True)
        rows = [line for line in lines[1:] if line.endswith("\n") and _step_of(line) <= step]
        if not rows:
            path.unlink()
            continue
        if len(rows) + 1 < len(lines):
            write(path, "".join([lines[0], *rows]))
        _put(summary, path.relative_to(metrics).with_suffix("").parts, rows[-1].rstrip("\r\n").partition("\t")[2])
    for name in _BY_STEP:
        for path in (folder / name).rglob("*"):
            if path.is_file() and path.stem.isdigit() and int(path.stem) > step:
                path.unlink()
    write(folder / "metrics.json", json.dumps(summary, indent=4) + "\n")


def paths_of_metrics(folder: Path) -> list[str]:
    """Return the paths of the metrics that have been logged."""
    metrics = folder / "plots/metrics"
    return [path.relative_to(metrics).as_posix()[: -len(".tsv")] for path in metrics.rglob("*.tsv")]


def _step_of(line: str) -> float:
    text = line.partition("\t")[0]
    return int(text) if text.isdigit() else float("inf")


def _put(summary: dict[str, Any], parts: tuple[str, ...], value: str) -> None:
    for part in parts[:-1]:
        summary = summary.setdefault(part, {})
    try:
        number = float(value)
    except ValueError:
        return
    summary[parts[-1]] = number if number - number == 0 else value  # NaN and infinity are text, as DVCLive has them
