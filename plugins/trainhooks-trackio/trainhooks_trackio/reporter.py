"""The plugin."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainhooks import OptionError, hookimpl

from . import sdk, values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainhooks import Outcome, Record, RunInfo
    from trainhooks.media import Media

log = logging.getLogger("trainhooks")


class Trackio:
    """Reports metrics, media, artifacts and the outcome to Trackio: to its database on this machine, or to a server.

    A run is ``<name>-<run id>`` in its project, so that a resumed run goes on with the one it was, and each step is there once.
    The outcome is an alert (``info``, ``warn`` if the run was interrupted, ``error`` if it failed) and stands in the
    configuration as ``outcome/status``.

    Args:
        project: Of Trackio.
        name: Of the run, instead of the name that trainhooks has for it; the run's id is added to it.
        group: Trackio's group of runs.
        dir: Folder of Trackio's databases; by default what Trackio uses, ``TRACKIO_DIR`` if that is set.
        server_url: Of a Trackio server, with its ``write_token``, instead of this machine. Secrets are better in
            ``TRACKIO_SERVER_URL`` and ``TRACKIO_WRITE_TOKEN``: options are stored with the run.
        space_id: Of a Hugging Face Space, instead.
        monitor: Have Trackio measure the GPU and the processor every 10 seconds.
        timeout_s: Seconds to wait for a server to be there.
    """

    name = "trackio"
    phase = "reporting"
    on_error = "disable"
    knows_what_arrived = True
    records_per_call = 500

    def __init__(
        self,
        project: str = "trainhooks",
        name: str | None = None,
        group: str | None = None,
        dir: Path | None = None,  # noqa: A002 - the option is called as Trackio calls it
        server_url: str | None = None,
        space_id: str | None = None,
        monitor: bool = False,
        timeout_s: float = 5.0,
    ) -> None:
        if not project.strip():
            message = f"project = {project!r}: give it a name"
            raise OptionError(message)
        if server_url is not None and space_id is not None:
            message = f"server_url = {server_url.partition('?')[0]!r} and space_id = {space_id!r}: give one of them"
            raise OptionError(message)
        if not 0 < timeout_s < math.inf:
            message = f"timeout_s = {timeout_s}: must be above 0 and finite"
            raise OptionError(message)
        self.project, self.run_name, self.group = project, name, group
        self.dir = None if dir is None else Path(dir).expanduser()
        self.server_url, self.space_id, self.monitor, self.timeout_s = server_url, space_id, monitor, timeout_s
        self._run: Any = None
        self._trackio: Any = None
        self._server: str | None = None
        self._known: set[tuple[int, str]] = set()  # (step, name) that Trackio had before this process
        self._taken: set[tuple[int, str]] = set()  # (step, name) of a call that failed
        self._last_step = -1  # of a run at a server, which does not tell more

    @hookimpl
    def report_start(self, run: RunInfo) -> None:
        """Open the run, or go on with it."""
        trackio = self._trackio = sdk.load(self.dir)
        self._server = sdk.server_of(trackio, self.space_id, self.server_url)
        if self._server is not None:
            sdk.check_server(self._server, self.timeout_s)
        opened = trackio.init(
            self.project,
            name=f"{self.run_name or run.name}-{run.id}",
            group=self.group,
            space_id=self.space_id,
            server_url=self.server_url,
            config=values.config(run.hyperparameters),
            resume="allow",
            embed=False,
            auto_log_gpu=self.monitor,
            auto_log_cpu=self.monitor,
        )
        self._known, self._last_step = set(), -1
        if opened._is_local:
            before = sdk.config_of(trackio, self.project, opened)
            if before:
                opened.config.update(values.changes(before, values.config(run.hyperparameters), run.resumed_step))
                self._known = sdk.logged_after(trackio, self.project, opened, run.offered_step)
        elif run.resumed:
            if self._server is not None:
                sdk.check_resumed(opened, self.timeout_s)
            self._last_step = opened._next_step - 1
        self._run = opened

    @hookimpl
    def report_metrics(self, records: Sequence[Record]) -> None:
        """Log the records, without what Trackio has already."""
        for record in records:
            named = {values.metric_name(name): value for name, value in record.values.items()}
            new = {name: value for name, value in named.items() if self._is_new(record.step, name)}
            if new:
                self._log(new, record.step)
        self._flush()

    @hookimpl
    def report_media(self, items: Sequence[Media]) -> None:
        """Log images, text as Markdown, histograms and tables."""
        for item in items:
            name = values.metric_name(item.name)
            if self._is_new(item.step, name):
                self._log({name: values.media(self._trackio, item)}, item.step)
        self._flush()

    @hookimpl
    def report_artifact(self, path: Path, name: str, kind: str) -> None:
        """Store a file or folder; content that Trackio has under this name already makes no new version.

        Raises:
            ValueError: It is gone, which waiting does not change.
            ConnectionError: The server is away.
        """
        if not path.exists():
            message = f"artifact {name!r}: {path} is gone; keep it until the run ends, or log it later"
            raise ValueError(message)
        artifact = self._trackio.Artifact(values.artifact_name(name), type=kind, metadata={"name": values.plain(name)})
        (artifact.add_dir if path.is_dir() else artifact.add_file)(path)
        try:
            self._run.log_artifact(artifact)
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("httpx", "httpcore"):
                message = f"{self._server or self.space_id} did not take the artifact {name!r}: {error}"
                raise ConnectionError(message) from error
            raise

    @hookimpl
    def report_end(self, outcome: Outcome) -> None:
        """Note the outcome and close the run."""
        run, self._run = self._run, None
        if run is None:
            return
        levels = self._trackio.AlertLevel
        level = {"failed": levels.ERROR, "interrupted": levels.WARN}.get(outcome.status, levels.INFO)
        run.config.update({"outcome/status": outcome.status, "outcome/reason": outcome.reason, "outcome/step": outcome.step})
        run._config_logged = False  # it sends its configuration with the next values only
        run.log({}, step=outcome.step)
        run.alert(outcome.status, text=outcome.reason or None, level=level, step=outcome.step)
        sdk.finish(self._trackio, run)

    def _is_new(self, step: int, name: str) -> bool:
        return (step, name) not in self._known and (step, name) not in self._taken and step > self._last_step

    def _log(self, new: dict[str, Any], step: int) -> None:
        self._run.log(new, step=step)
        self._taken.update((step, name) for name in new)

    def _flush(self) -> None:
        sdk.flush(self._run)
        self._taken.clear()
