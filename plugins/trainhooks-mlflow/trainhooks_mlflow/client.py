"""Tracking through ``MlflowClient``: a local SQLite file, another database, or a service that MLflow has a plugin for."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from .tracking import RUN_ID_TAG, TrackedRun, database_file, translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .tracking import Metric

#: Says that it makes tables; that a database is new is no news.
_TALKATIVE: Final = "mlflow.store.db.utils"


class Client:
    """Where an address leads that is none of a server.

    Args:
        uri: The address.
    """

    def __init__(self, uri: str) -> None:
        from mlflow import MlflowClient

        self._uri = uri
        with _quiet(), translated(uri):
            file = database_file(uri)
            if file is not None and not file.exists():
                _make_database(file)
            self._client = MlflowClient(uri)

    def experiment(self, name: str) -> str:
        """Return the id of an experiment; what it has of files is put beside an SQLite file."""
        from mlflow.exceptions import MlflowException

        with translated(self._uri):
            found = self._client.get_experiment_by_name(name)
            if found is not None:
                return str(found.experiment_id)
            file = database_file(self._uri)
            location = None if file is None else _files_beside(file)
            try:
                return str(self._client.create_experiment(name, artifact_location=location))
            except MlflowException:  # another run has made it in the meantime, or it cannot be made
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
                return str(found.experiment_id)

    def create(self, experiment_id: str, name: str, tags: dict[str, str]) -> TrackedRun:
        """Make a run."""
        with translated(self._uri):
            return _tracked(self._client.create_run(experiment_id, run_name=name, tags=tags))

    def get(self, run_id: str) -> TrackedRun | None:
        """Return a run, or ``None`` if there is none or it was deleted."""
        from mlflow.exceptions import MlflowException

        with translated(self._uri):
            try:
                run = self._client.get_run(run_id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                return None
        return _tracked(run) if run.info.lifecycle_stage == "active" else None

    def find(self, experiment_id: str, run: str) -> str | None:
        """Return MLflow's id of a run."""
        with translated(self._uri):
            found = self._client.search_runs([experiment_id], f"tags.`{RUN_ID_TAG}` = '{run}'", max_results=1)
        return str(found[0].info.run_id) if found else None

    def log(self, run_id: str, metrics: Sequence[Metric], params: dict[str, str], tags: dict[str, str]) -> None:
        """Add metrics, parameters and tags."""
        from mlflow.entities import Metric as MlflowMetric
        from mlflow.entities import Param, RunTag

        with translated(self._uri):
            self._client.log_batch(
                run_id,
                [MlflowMetric(*metric) for metric in metrics],
                [Param(key, value) for key, value in params.items()],
                [RunTag(key, value) for key, value in tags.items()],
                synchronous=True,
            )

    def set_status(self, run_id: str, status: str, end_time: int | None) -> None:
        """Say how it is with a run."""
        with translated(self._uri):
            if end_time is None:
                self._client.update_run(run_id, status)
            else:
                self._client.set_terminated(run_id, status, end_time)

    def upload(self, run: TrackedRun, path: Path, folder: str) -> None:
        """Add a file, or what is in a folder, to the files of a run."""
        with translated(self._uri):
            add = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
            add(run.id, str(path), folder or None)

    def files(self, run: TrackedRun, folder: str) -> list[str]:
        """Return the paths of the files in a folder of a run."""
        with translated(self._uri):
            return [file.path for file in self._client.list_artifacts(run.id, folder)]


def _make_database(file: Path) -> None:
    """Make an SQLite file with MLflow's tables, whole or not at all.

    MLflow makes some sixty changes one after the other: two runs that begin at the same time, or one that is killed meanwhile, would
    leave a file that nobody can use any more.
    """
    from mlflow.store.tracking import sqlalchemy_store

    stores: Any = sqlalchemy_store
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        store = stores.SqlAlchemyStore(f"sqlite:///{temporary}", _files_beside(file))
        store.engine.dispose()
        os.link(temporary, file)  # unlike a renaming it never replaces what another run has made
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not file.exists():
            temporary.rename(file)
    finally:
        temporary.unlink(missing_ok=True)


def _files_beside(database: Path) -> str:
    return (database.parent / "mlartifacts").as_uri()


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger(_TALKATIVE)
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _tracked(run: Any) -> TrackedRun:
    data = run.data.to_proto()
    return TrackedRun(
        str(run.info.run_id),
        str(run.info.experiment_id),
        run.info.artifact_uri,
        run.info.status,
        dict(run.data.tags),
        dict(run.data.params),
        {metric.key: int(metric.step) for metric in data.metrics},
    )
