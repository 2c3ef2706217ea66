"""The file in the run folder that says which run of MLflow belongs to a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from .tracking import shown

if TYPE_CHECKING:
    from pathlib import Path

    from trainhooks import RunInfo

NAME: Final = "mlflow.json"


def read(run: RunInfo, uri: str) -> str | None:
    """Return MLflow's id of a run, if it is known and of this address."""
    if run.work_dir is None:
        return None
    try:
        found = json.loads((run.work_dir / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("run") != run.id or found.get("tracking_uri") != shown(uri):
        return None
    return str(found["run_id"]) if "run_id" in found else None


def write(run: RunInfo, uri: str, experiment_id: str, run_id: str) -> None:
    """Keep MLflow's id of a run; where that cannot be, it is found by its tag."""
    if run.work_dir is None:
        return
    facts = {"run": run.id, "tracking_uri": shown(uri), "experiment_id": experiment_id, "run_id": run_id}
    path: Path = run.work_dir / NAME
    temporary = path.with_name(f".{NAME}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("x", encoding="utf-8") as file:  # never through a link
            file.write(json.dumps(facts, indent=2) + "\n")
        temporary.replace(path)
    except OSError:
        return
