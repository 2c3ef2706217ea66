"""The runs below a folder as rows: read from what they left on disk, nothing imported."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainhooks.run_history import METRICS
from trainhooks.run_lock import holder
from trainhooks.run_record import RECORD, checkpoints_of, is_run, outcome_of, read_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Levels of folders below the one that was named: ``runs/sweep/seed-1/lr-3``.
DEPTH: Final = 4
CRASH: Final = "crash.json"
_LONGEST: Final = 24
_LARGEST: Final = 4 * 2**20
#: Outcomes of runs whose record is as old as the last checkpoint; what has been logged since may be newer.
UNFINISHED: Final = ("running", "killed")
#: A line of metrics is looked for in so much of the end of their file.
_TAIL: Final = 2**20
_COUNTERS: Final = ("step", "update", "epoch")
#: Settings that differ in every run, or say nothing of how it trains.
_NOT_COMPARED: Final = ("work_dir", "name")


def find_runs(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yield the run folders below a folder; follows no link and looks into no run and no hidden folder."""
    try:
        entries = [Path(entry) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in sorted(entries):
        if entry.name.startswith("."):
            continue
        if is_run(entry):
            yield entry
        elif depth > 1:
            yield from find_runs(entry, depth - 1)


def row_of(folder: Path, name: str) -> dict[str, Any]:
    """Return what is known of one run; whatever its files hold, this is no error."""
    record = read_record(folder)
    saved = [path for path in checkpoints_of(folder) if not path.name.startswith(".")]
    row: dict[str, Any] = {
        "run": name,
        "path": str(folder.absolute()),
        "outcome": "damaged",
        "reason": f"{RECORD} cannot be read" if (folder / RECORD).exists() else f"{RECORD} is missing",
        "checkpoints": len(saved),
        "checkpoint": str(saved[-1].absolute()) if saved else None,
        "crash": str((folder / CRASH).absolute()) if (folder / CRASH).is_file() else None,
    }
    if record is None:
        return row
    running = holder(folder) is not None
    seconds = _number(record.get("seconds"))
    if running and seconds is not None and (seen := time_of(record.get("updated"))) is not None:
        seconds += max((datetime.now(timezone.utc) - seen).total_seconds(), 0.0)
    last = folder / str(record.get("checkpoint"))  # not the one with the most steps, if the run went back to an older one
    if last in saved:
        row["checkpoint"] = str(last.absolute())
    outcome = outcome_of(record, running=running)
    counters = {name: _number(record.get(name)) for name in ("step", "update", "epoch")}
    if outcome in UNFINISHED and (logged := _last_logged(folder)) is not None and logged["step"] > (counters["step"] or 0):
        counters = {**logged}
    return {
        **row,
        "outcome": outcome,
        "reason": record.get("reason") if isinstance(record.get("reason"), str) else "",
        **counters,
        "dropped": _number(record.get("dropped")),
        "best": _best(record),
        "started": record.get("started") if time_of(record.get("started")) else None,
        "seconds": seconds,
        "plugins": list(_plugins(record)),
    }


def add_differences(rows: Sequence[dict[str, Any]], folders: Sequence[Path]) -> None:
    """Add to each row what sets the run apart from most of them: plugins, their options and versions, settings.

    Where two values are as frequent, that of the earlier row counts.
    """
    records = [read_record(folder) or {} for folder in folders]
    parts = [{**_settings(record), **_options(record)} if _plugins(record) else None for record in records]
    known = [part for part in parts if part is not None]
    names = [list(_plugins(record)) for record in records]
    active = [each for each, part in zip(names, parts, strict=True) if part is not None]
    counts = Counter(name for each in active for name in each)
    usual_names = {name for name, count in counts.items() if 2 * count + (name in active[0]) > len(active)}
    keys = dict.fromkeys(key for part in known for key in part)
    usual = {key: _most_common(part.get(key) for part in known if _applies(key, part)) for key in keys}
    for row, part, plugins in zip(rows, parts, names, strict=True):
        row["differs"] = []
        if part is None:
            continue
        row["differs"] += [f"+{name}" for name in plugins if name not in usual_names]
        row["differs"] += [f"-{name}" for name in sorted(usual_names - set(plugins))]
        for key, value in usual.items():
            own = part.get(key)
            if _applies(key, part) and own != value:
                row["differs"].append(f"{key[1]} {_shown(value)}→{_shown(own)}")


def time_of(text: Any) -> datetime | None:
    """Return the time that an ISO 8601 text names, or ``None``."""
    try:
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo is not None and 1970 < found.year < 9000 else None  # noqa: PLR2004 - any clock shows it


def crash_of(folder: Path) -> dict[str, Any] | None:
    """Return the report of a failure, or ``None`` where there is none that can be read."""
    path = folder / CRASH
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, float) or abs(value) < 2**63 else None  # what is larger, nobody counted


def _last_logged(folder: Path) -> dict[str, Any] | None:
    """Return the counters of the last record of metrics, or ``None`` where there is none that can be read."""
    path = next((folder / name for name in METRICS if (folder / name).is_file()), None)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _TAIL, 0))
            lines = file.read().split(b"\n")[:-1]  # a kill may have cut what comes after the last
        line = lines[-1].decode("utf-8", "replace") if lines else ""
        found = (
            json.loads(line) if path.suffix == ".jsonl" else dict(zip(_COUNTERS, map(int, line.split(",")[:3]), strict=True))
        )
        counters = {name: found[name] for name in _COUNTERS}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return counters if all(type(one) is int and 0 <= one < 2**63 for one in counters.values()) else None


def _best(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the best value of the metric that checkpoints are kept by, else of the first that is watched."""
    found = record.get("best")
    if not isinstance(found, dict):
        return None
    options = [one.get("best") for name, one in _plugins(record).items() if name.startswith("checkpoint")]
    for metric in [str(record.get("checkpoint_best")), *map(str, options), *found]:
        entry = found.get(metric)
        if isinstance(entry, dict) and _number(entry.get("value")) is not None:
            mode = "max" if entry.get("mode") == "max" else "min"
            return {"metric": metric, "value": entry["value"], "mode": mode, "step": _number(entry.get("step"))}
    return None


def _plugins(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options by plugin."""
    lock = record.get("plugins")
    entries = [entry for entry in lock if isinstance(entry, dict)] if isinstance(lock, list) else []
    return {str(one.get("name")): one["options"] if isinstance(one.get("options"), dict) else {} for one in entries}


#: What is compared is found under the plugin that it belongs to, ``""`` for the run, and its name.
_Key = tuple[str, str]


def _options(record: dict[str, Any]) -> dict[_Key, str | None]:
    found: dict[_Key, str | None] = {}
    for name, options in _plugins(record).items():
        found |= {(name, f"{name}.{option}"): json.dumps(value, ensure_ascii=False) for option, value in options.items()}
    for entry in record["plugins"]:
        if isinstance(entry, dict) and entry.get("version") is not None:
            found[str(entry.get("name")), f"{entry.get('name')} version"] = str(entry["version"])
    return found


def _settings(record: dict[str, Any]) -> dict[_Key, str | None]:
    settings = record.get("settings")
    if not isinstance(settings, dict):
        return {}
    return {("", str(key)): json.dumps(value) for key, value in settings.items() if key not in _NOT_COMPARED}


def _applies(key: _Key, part: dict[_Key, str | None]) -> bool:
    return key[0] == "" or any(owner == key[0] for owner, _ in part)


def _most_common(values: Iterable[str | None]) -> str | None:
    return Counter(values).most_common(1)[0][0]  # of several as frequent ones the first


def _shown(value: str | None) -> str:
    text = "default" if value is None else "none" if value == "null" else value.strip('"')
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
