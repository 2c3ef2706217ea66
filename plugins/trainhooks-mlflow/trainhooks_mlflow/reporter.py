"""The plugin ``mlflow``."""

from __future__ import annotations

import logging
import math
import os
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

from trainhooks import OptionError, hookimpl

from . import files
from .names import clean, cut
from .session import Session
from .tracking import address, load, open_tracking, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trainhooks import Outcome, Record, RunInfo
    from trainhooks.media import Image, Media

log = logging.getLogger("trainhooks")

_STATUS: Final = {"completed": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow:
    """Reports a run to MLflow: metrics, hyperparameters, images, text, histograms, tables, files, and how it ended.

    A resumed run goes on in the same run of MLflow, with each step once. The active run of the process and MLflow's environment
    variables are left alone.

    Args:
        tracking_uri: Where to: ``http://...``, ``sqlite:///...`` or what else MLflow takes. By default what the environment variable
            ``MLFLOW_TRACKING_URI`` or ``mlflow.set_tracking_uri`` says, otherwise ``mlflow.db`` beside the run folder, where the runs of that
            folder can be compared; without a run folder nothing is reported.
        experiment: Of which the run is one. By default what ``MLFLOW_EXPERIMENT_NAME`` or ``MLFLOW_EXPERIMENT_ID`` says, otherwise
            ``trainhooks``.
        run_name: By default that of the run.
        tags: More tags of the run.
        artifacts: Whether files that are logged are uploaded, or of which kinds.
        checkpoints: Upload the newest checkpoint when the run has ended.
        timeout_s: Seconds to wait for a server, at each request.
        telemetry: Let MLflow send its usage statistics.
    """

    name = "mlflow"  # else it would be m_lflow
    phase = "reporting"
    on_error = "disable"
    knows_what_arrived = True
    records_per_call = 500

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        run_name: str | None = None,
        tags: dict[str, str] | None = None,
        artifacts: bool | list[str] = True,
        checkpoints: bool = False,
        timeout_s: float = 10.0,
        telemetry: bool = False,
    ) -> None:
        if not 0 < timeout_s < math.inf:
            message = f"timeout_s = {timeout_s}: must be above 0, and finite"
            raise OptionError(message)
        if tracking_uri is not None and urllib.parse.urlsplit(tracking_uri).password is not None:
            message = f"tracking_uri = {shown(tracking_uri)!r}: has a password, and options are stored with the run; "
            message += "set MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            raise OptionError(message)
        for key in tags or {}:
            if clean(key) != key:
                message = f"tags: {key!r}: MLflow takes up to 200 letters, digits, spaces, and _ . - /; {clean(key)!r} would do"
                raise OptionError(message)
        self.tracking_uri, self.experiment, self.run_name = tracking_uri, experiment, run_name
        self.tags, self.artifacts, self.checkpoints = dict(tags or {}), artifacts, checkpoints
        self.timeout_s, self.telemetry = timeout_s, telemetry
        #: MLflow's id of the run, once it is open.
        self.run_id: str | None = None
        self._session: Session | None = None
        self._reports = True
        self._images: dict[str, int] | None = {}
        self._checkpoint: Path | None = None
        self._taken: tuple[Any, int] | None = None
        self._ended = False

    @hookimpl
    def report_start(self, run: RunInfo) -> None:
        """Open the run, or open it again."""
        self._session, self._ended, self._taken = None, False, None
        uri = address(self.tracking_uri, run)
        self._reports = uri is not None
        if uri is None:
            log.info("mlflow: the run has no work_dir and no tracking_uri is given, so nothing is reported")
            return
        load(telemetry=self.telemetry)
        experiment = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or ""
        tracking = open_tracking(uri, self.timeout_s)
        session = Session.open(tracking, run, uri, experiment, cut(self.run_name or run.name, 250), self.tags)
        self._images = None if run.resumed else {}
        self._session, self.run_id = session, session.tracked.id
        page = f"{shown(uri).rstrip('/')}/#/experiments/{session.tracked.experiment_id}/runs/{self.run_id}"
        log.info("mlflow: %s", page if uri.startswith("http") else f"run {self.run_id} in {shown(uri)}")

    @hookimpl
    def report_metrics(self, records: Sequence[Record]) -> None:
        """Send metrics, up to 1000 in a request."""
        if not self._reports:
            return
        session = self._opened()
        self._each(records[0], session.metrics(list(records)), session.send)

    @hookimpl
    def report_media(self, items: Sequence[Media]) -> None:
        """Send images so that they are shown by step, and the rest as files."""
        if self._reports:
            self._each(items[0], list(items), self._add)

    @hookimpl
    def report_artifact(self, path: Path, name: str, kind: str) -> None:
        """Upload a file or folder, as ``kind/name``."""
        if self._reports and (self.artifacts is True or (self.artifacts and kind in self.artifacts)):
            self._upload(path, name, kind)

    @hookimpl
    def after_save(self, path: Path) -> None:
        """Remember the newest checkpoint."""
        self._checkpoint = path

    @hookimpl
    def report_end(self, outcome: Outcome) -> None:
        """Close the run with its status; a checkpoint may take its time after that."""
        if not self._reports:
            return
        session = self._opened()
        if not self._ended:
            tags = {
                "trainhooks.status": outcome.status,
                "trainhooks.reason": outcome.reason or "",
                "trainhooks.step": str(outcome.step),
            }
            session.end(_STATUS[outcome.status], {key: value[:1000] for key, value in tags.items()})
            self._ended = True
        path, self._checkpoint = self._checkpoint, None
        if not self.checkpoints or path is None:
            return
        try:
            self._upload(path, path.name, "checkpoint")
        except Exception as error:
            log.warning("mlflow: checkpoint %s was not uploaded (%s: %s)", path, type(error).__name__, error)

    def _opened(self) -> Session:
        if self._session is None:
            message = "mlflow: report_start did not succeed"
            raise RuntimeError(message)
        return self._session

    def _each(self, first: Any, parts: list[Any], send: Callable[[Any], None]) -> None:
        """Send parts one after the other; what was taken before an error is not sent again when the same come again."""
        which = type(first), first.step, first.time, getattr(first, "name", None)  # when they come again they are copies
        done = self._taken[1] if self._taken is not None and self._taken[0] == which else 0
        for number in range(done, len(parts)):
            send(parts[number])
            self._taken = (which, number + 1)
        self._taken = None

    def _add(self, item: Media) -> None:
        from trainhooks.media import Image, Table

        if isinstance(item, Image):
            self._add_image(item)
            return
        folder, name = files.name_of(item)
        session = self._opened()
        with files.written(name, files.content_of(item)) as path:
            session.tracking.upload(session.tracked, path, folder)
        if isinstance(item, Table):
            session.set_tags({files.TABLES_TAG: files.tables_tag(session.tracked.tags.get(files.TABLES_TAG), folder, name)})

    def _add_image(self, item: Image) -> None:
        session = self._opened()
        if self._images is None:
            self._images = files.last_steps(session.tracking.files(session.tracked, files.IMAGES))
        if item.step <= self._images.get(files.image_key(item.name), -1):
            return
        with files.drawn(item) as folder:
            session.tracking.upload(session.tracked, folder, files.IMAGES)
        if files.IMAGES_TAG not in session.tracked.tags:
            session.set_tags({files.IMAGES_TAG: "True"})

    def _upload(self, path: Path, name: str, kind: str) -> None:
        session, folder = self._opened(), clean(kind)
        name = clean(name)
        if path.is_dir():
            session.tracking.upload(session.tracked, path, f"{folder}/{name}")
            return
        below, _, last = name.rpartition("/")
        with files.called(path, last) as file:
            session.tracking.upload(session.tracked, file, f"{folder}/{below}".rstrip("/"))
