"""Where runs are tracked: which address, what MLflow knows of a run, and what its errors mean."""

from __future__ import annotations

import os
import sys
import urllib.parse
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainhooks import RunInfo

#: The tag by which a run is found again.
RUN_ID_TAG: Final = "trainhooks.run_id"

_TELEMETRY: Final = "MLFLOW_DISABLE_TELEMETRY"
#: Too slow, too many requests; and from this one on the server's own faults.
_AWAY: Final = (408, 429)
_SERVER_FAULT: Final = 500
_LONGEST_MESSAGE: Final = 400


class Metric(NamedTuple):
    """One value; ``timestamp`` in milliseconds."""

    key: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class TrackedRun:
    """What MLflow knows of a run.

    Args:
        id: MLflow's.
        experiment_id: Of the experiment that it is in.
        artifact_uri: Where its files are.
        status: ``RUNNING``, ``FINISHED``, ``FAILED`` or ``KILLED``.
        tags: Its tags.
        params: Its parameters.
        last_steps: The highest step of each metric.
    """

    id: str
    experiment_id: str
    artifact_uri: str
    status: str
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    last_steps: dict[str, int] = field(default_factory=dict)


class Tracking(Protocol):
    """What is needed of MLflow, at a server or in a database."""

    def experiment(self, name: str) -> str:
        """Return the id of an experiment, which is made if there is none of that name."""
        ...

    def create(self, experiment_id: str, name: str, tags: dict[str, str]) -> TrackedRun:
        """Make a run."""
        ...

    def get(self, run_id: str) -> TrackedRun | None:
        """Return a run, or ``None`` if there is none or it was deleted."""
        ...

    def find(self, experiment_id: str, run: str) -> str | None:
        """Return MLflow's id of the run that has this ``RUN_ID_TAG``."""
        ...

    def log(self, run_id: str, metrics: Sequence[Metric], params: dict[str, str], tags: dict[str, str]) -> None:
        """Add so much as fits into one request."""
        ...

    def set_status(self, run_id: str, status: str, end_time: int | None) -> None:
        """Say how it is with a run."""
        ...

    def upload(self, run: TrackedRun, path: Path, folder: str) -> None:
        """Add a file, or what is in a folder, to the files of a run."""
        ...

    def files(self, run: TrackedRun, folder: str) -> list[str]:
        """Return the paths of the files in a folder of a run."""
        ...


def address(given: str | None, run: RunInfo) -> str | None:
    """Return where to track: what was given, what MLflow's own variable says, or a database beside the run folder, if there is one.

    ``mlflow.set_tracking_uri`` sets that variable, too.
    """
    uri = given or os.environ.get("MLFLOW_TRACKING_URI")
    if uri:
        return uri
    return None if run.work_dir is None else f"sqlite:///{run.work_dir.resolve().parent / 'mlflow.db'}"


def database_file(uri: str) -> Path | None:
    """Return the file that an SQLite address names."""
    file = uri.partition("?")[0].removeprefix("sqlite:///")
    return Path(file).resolve() if uri.startswith("sqlite:///") and file not in ("", ":memory:") else None


def shown(uri: str) -> str:
    """Return an address without what may be secret in it: user, password and query."""
    parts = urllib.parse.urlsplit(uri)
    if "@" not in parts.netloc and not parts.query:
        return uri
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def load(*, telemetry: bool) -> None:
    """Import MLflow; unless told otherwise without its usage statistics, of which it decides when it is imported."""
    if telemetry or "mlflow" in sys.modules or _TELEMETRY in os.environ:
        import mlflow

        return
    os.environ[_TELEMETRY] = "true"
    try:
        import mlflow  # noqa: F401
    finally:
        os.environ.pop(_TELEMETRY, None)


def open_tracking(uri: str, timeout_s: float) -> Tracking:
    """Return the server or the database at an address."""
    if uri.startswith(("http://", "https://")):
        from .server import Server

        return Server(uri, timeout_s)
    from .client import Client

    return Client(uri)


@contextmanager
def translated(uri: str) -> Iterator[None]:
    """Raise ``ConnectionError`` where MLflow could not do it now, and its own error where it never will.

    Raises:
        ConnectionError: The server is away, too slow, or has a fault; the database is locked.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        known: Any = error
        status = int(known.get_http_status_code())
        if status not in _AWAY and status < _SERVER_FAULT:
            raise
        text = " ".join(str(error).replace(uri, shown(uri)).split())
        if len(text) > _LONGEST_MESSAGE:
            text = text[:_LONGEST_MESSAGE] + "…"
        message = f"{shown(uri)}: {text}"
        raise ConnectionError(message) from None  # whose cause may show a password of the address
