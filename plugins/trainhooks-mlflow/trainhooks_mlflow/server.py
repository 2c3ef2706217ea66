"""Tracking at a server, by its REST API.

MLflow waits for a server up to 4 minutes in each call, and takes other limits from environment variables only, which count for the
whole process. Here each request has its own limit, so that nobody else's use of MLflow changes. Addresses, credentials and certificates
are MLflow's matter still.
"""

from __future__ import annotations

import math
import mimetypes
import os
import time
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

from .tracking import RUN_ID_TAG, TrackedRun, shown, translated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .tracking import Metric

_API: Final = "/api/2.0/mlflow/"
_ARTIFACTS: Final = "/api/2.0/mlflow-artifacts/artifacts/"
#: With which a server that passes files on to where they are kept is given time.
_BYTES_PER_S: Final = 1_000_000


class Server:
    """A tracking server.

    Args:
        uri: Its address.
        timeout_s: Seconds to wait for it, at each request.
    """

    def __init__(self, uri: str, timeout_s: float) -> None:
        self._uri = uri
        self._timeout_s = timeout_s

    def experiment(self, name: str) -> str:
        """Return the id of an experiment, which is made if there is none of that name."""
        from mlflow.exceptions import MlflowException

        found = self._experiment(name)
        if found is not None:
            return found
        try:
            return str(self._post("experiments/create", name=name)["experiment_id"])
        except MlflowException:  # another run has made it in the meantime, or it cannot be made
            found = self._experiment(name)
            if found is None:
                raise
            return found

    def create(self, experiment_id: str, name: str, tags: dict[str, str]) -> TrackedRun:
        """Make a run."""
        body = {"experiment_id": experiment_id, "run_name": name, "start_time": int(time.time() * 1000), "tags": _pairs(tags)}
        return _tracked(self._post("runs/create", **body)["run"])

    def get(self, run_id: str) -> TrackedRun | None:
        """Return a run, or ``None`` if there is none or it was deleted."""
        found = self._get_or_none("runs/get", run_id=run_id)
        if found is None or found["run"]["info"]["lifecycle_stage"] != "active":
            return None
        return _tracked(found["run"])

    def find(self, experiment_id: str, run: str) -> str | None:
        """Return MLflow's id of a run."""
        body = {"experiment_ids": [experiment_id], "filter": f"tags.`{RUN_ID_TAG}` = '{run}'", "max_results": 1}
        found = self._post("runs/search", **body).get("runs")
        return str(found[0]["info"]["run_id"]) if found else None

    def log(self, run_id: str, metrics: Sequence[Metric], params: dict[str, str], tags: dict[str, str]) -> None:
        """Add metrics, parameters and tags."""
        values = [{**metric._asdict(), "value": _number(metric.value)} for metric in metrics]
        self._post("runs/log-batch", run_id=run_id, metrics=values, params=_pairs(params), tags=_pairs(tags))

    def set_status(self, run_id: str, status: str, end_time: int | None) -> None:
        """Say how it is with a run."""
        self._post("runs/update", run_id=run_id, status=status, **({} if end_time is None else {"end_time": end_time}))

    def upload(self, run: TrackedRun, path: Path, folder: str) -> None:
        """Add a file, or what is in a folder, to the files of a run: by the server, or where the server says that files are."""
        location = urllib.parse.urlsplit(run.artifact_uri)
        if location.scheme != "mlflow-artifacts" or location.netloc:
            self._store(run, path, folder)
            return
        files = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]
        for file in files:
            name = file.relative_to(path if path.is_dir() else path.parent).as_posix()
            parts = [part for part in (location.path.strip("/"), folder, name) if part]
            self._put(_ARTIFACTS + urllib.parse.quote("/".join(parts)), file)

    def files(self, run: TrackedRun, folder: str) -> list[str]:
        """Return the paths of the files in a folder of a run."""
        found = self._get("artifacts/list", run_id=run.id, path=folder).get("files", [])
        return [str(file["path"]) for file in found]

    def _store(self, run: TrackedRun, path: Path, folder: str) -> None:
        """Add files where the server only says where: MLflow's packages for that place do it, without asking the server again."""
        from mlflow.store.artifact import artifact_repository_registry

        registry: Any = artifact_repository_registry
        with translated(self._uri):
            store = registry.get_artifact_repository(run.artifact_uri, tracking_uri=self._uri)
            add = store.log_artifacts if path.is_dir() else store.log_artifact
            add(str(path), folder or None)

    def _experiment(self, name: str) -> str | None:
        found = self._get_or_none("experiments/get-by-name", experiment_name=name)
        return None if found is None else str(found["experiment"]["experiment_id"])

    def _get_or_none(self, endpoint: str, **query: str) -> dict[str, Any] | None:
        from mlflow.exceptions import MlflowException

        try:
            return self._get(endpoint, **query)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def _get(self, endpoint: str, **query: str) -> dict[str, Any]:
        return self._call("GET", _API + endpoint, self._timeout_s, params=query)

    def _post(self, endpoint: str, **body: Any) -> dict[str, Any]:
        return self._call("POST", _API + endpoint, self._timeout_s, json=body)

    def _put(self, endpoint: str, path: Path) -> None:
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        with path.open("rb") as file:
            timeout_s = self._timeout_s + os.fstat(file.fileno()).st_size / _BYTES_PER_S
            self._call("PUT", endpoint, timeout_s, data=file, extra_headers={"Content-Type": kind})

    def _call(self, method: str, endpoint: str, timeout_s: float, **content: Any) -> dict[str, Any]:
        from mlflow.utils import credentials, rest_utils

        rest: Any = rest_utils
        identity: Any = credentials
        with translated(self._uri):
            patience = {"timeout": timeout_s, "max_retries": 0, "raise_on_status": False}
            response = rest.http_request(identity.get_default_host_creds(self._uri), endpoint, method, **patience, **content)
            found = rest.verify_rest_response(response, endpoint).json()
        if not isinstance(found, dict):
            message = (
                f"{shown(self._uri)}: {endpoint} gave {type(found).__name__}, no object; is it a tracking server of MLflow?"
            )
            raise TypeError(message)
        return found


def _number(value: float) -> float | str:
    """Return a number as JSON has it: as text where JSON has none."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _pairs(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _tracked(run: dict[str, Any]) -> TrackedRun:
    info, data = run["info"], run.get("data", {})
    return TrackedRun(
        str(info["run_id"]),
        str(info["experiment_id"]),
        info.get("artifact_uri", ""),
        info.get("status", ""),
        {tag["key"]: tag.get("value", "") for tag in data.get("tags", [])},
        {param["key"]: param.get("value", "") for param in data.get("params", [])},
        {metric["key"]: int(metric.get("step", 0)) for metric in data.get("metrics", [])},
    )
