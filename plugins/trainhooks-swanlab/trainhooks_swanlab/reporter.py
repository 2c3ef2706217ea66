"""The plugin."""

from __future__ import annotations

import glob
import logging
import math
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainhooks import OptionError, hookimpl

from . import sdk, values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainhooks import Outcome, Record, RunInfo
    from trainhooks.media import Media

log = logging.getLogger("trainhooks")

_STATES = {"completed": "success", "stopped": "success", "interrupted": "aborted", "failed": "crashed"}
#: Seconds that SwanLab may take to write what it got; by itself it does so every half second.
_FLUSH_S = 5.0


class SwanLab:
    """Reports metrics, media, artifacts and the outcome to SwanLab: to its cloud, a server of one's own, or files.

    The run has the id that trainhooks gave it, so that a resumed run goes on with it, and each step is there once. Without
    a way to the server the run is recorded in files, which ``swanlab sync`` sends.

    Args:
        project: Of SwanLab: letters, digits, ``_``, ``-``, ``+`` and dots.
        mode: ``"cloud"``; ``"offline"``, files for ``swanlab sync``; ``"local"``, files for ``swanlab watch``, which needs
            ``swanlab[dashboard]``; ``"disabled"``; or ``"auto"``: the cloud if an API key is there, else offline.
        name: Of the run, instead of the name that trainhooks has for it.
        workspace: Of SwanLab.
        group: SwanLab's group of runs.
        tags: Of the run.
        description: Of the run.
        log_dir: Folder of its files; ``swanlab`` in the run folder by default, ``swanlog`` without one.
        api_host: Of a server of one's own. The API key comes from ``SWANLAB_API_KEY`` or ``swanlab login``.
        console: Have SwanLab record what the process prints.
        monitor: Have it measure the hardware every 10 seconds.
        environment: Have it collect the hardware, packages, command line and Git commit.
        timeout_s: Seconds to wait for the server at the start.
        finish_timeout_s: Seconds to wait at the end until it has taken everything; ``report_timeout_s`` counts, too.
    """

    name = "swanlab"
    phase = "reporting"
    on_error = "disable"
    knows_what_arrived = True
    records_per_call = 500

    def __init__(
        self,
        project: str = "trainhooks",
        mode: Literal["auto", "cloud", "offline", "local", "disabled"] = "auto",
        name: str | None = None,
        workspace: str | None = None,
        group: str | None = None,
        tags: list[str] | None = None,
        description: str | None = None,
        log_dir: Path | None = None,
        api_host: str | None = None,
        console: bool = False,
        monitor: bool = False,
        environment: bool = False,
        timeout_s: float = 5.0,
        finish_timeout_s: float = 20.0,
    ) -> None:
        if not re.fullmatch(r"[0-9a-zA-Z_\-+.]{1,100}", project):
            message = f"project = {project!r}: must be 1 to 100 letters, digits, '_', '-', '+' and dots"
            raise OptionError(message)
        if mode not in ("auto", "cloud", "offline", "local", "disabled"):
            message = f"mode = {mode!r}: must be 'auto', 'cloud', 'offline', 'local' or 'disabled'"
            raise OptionError(message)
        if mode == "local" and find_spec("swanboard") is None:
            message = "mode = 'local' needs SwanLab's dashboard: pip install 'trainhooks-swanlab[dashboard]'"
            raise OptionError(message)
        if not (0 < timeout_s < math.inf and 0 < finish_timeout_s < math.inf):
            message = f"timeout_s = {timeout_s}, finish_timeout_s = {finish_timeout_s}: must be above 0 and finite"
            raise OptionError(message)
        self.project, self.mode, self.run_name, self.workspace = project, mode, name, workspace
        self.group, self.tags, self.description = group, tags, description
        self.log_dir = None if log_dir is None else Path(log_dir).expanduser()
        self.api_host, self.console, self.monitor, self.environment = api_host, console, monitor, environment
        self.timeout_s, self.finish_timeout_s = timeout_s, finish_timeout_s
        self._swanlab: Any = None
        self._run: Any = None
        self._flushed: Any = None
        self._known: set[tuple[int, str]] = set()  # (step, key) in the files of former processes
        self._taken: set[tuple[int, str]] = set()  # (step, key) of a call that failed
        self._folders: list[Path] = []

    @hookimpl
    def report_start(self, run: RunInfo) -> None:
        """Open the run, or go on with it; offline if the server is not there."""
        self._swanlab = import_module("swanlab")
        log_dir = (self.log_dir or (Path("swanlog") if run.work_dir is None else run.work_dir / "swanlab")).absolute()
        before = sdk.earlier(log_dir, run.id, run.offered_step) if self.mode != "disabled" else sdk.Earlier([], set(), {})
        config = values.config(run.hyperparameters)
        if before.config:
            config |= values.changes(before.config, config, run.resumed_step)
        settings = sdk.settings(
            self._swanlab,
            api_host=self.api_host,
            console=self.console,
            monitor=self.monitor,
            environment=self.environment,
        )
        mode = self.mode if self.mode != "auto" else "cloud" if settings.api_key else "offline"
        if mode == "cloud":
            try:
                sdk.check_server(settings.api_host, self.timeout_s)
                sdk.wait_for_former(self.timeout_s)
                self._open(run, "online", log_dir, config, settings)
            except Exception as error:
                mode = "offline"
                message = "swanlab: %s cannot be used (%s: %s); the run is recorded in %s, for `swanlab sync`"
                log.warning(message, settings.api_host, type(error).__name__, error, log_dir)
        if mode != "cloud":
            self._open(run, mode, log_dir, config, settings)
        self._known = set() if mode == "cloud" else before.logged  # the cloud knows what it has, and SwanLab asks it
        self._folders = [*before.folders, Path(self._run.dir)]

    def _open(self, run: RunInfo, mode: str, log_dir: Path, config: dict[str, Any], settings: Any) -> None:
        self._flushed = sdk.flushed(self._swanlab)
        self._run = sdk.start(
            self._swanlab,
            project=self.project,
            name=self.run_name or run.name,
            id=run.id,
            resume="allow",
            mode=mode,
            workspace=self.workspace,
            group=self.group,
            tags=self.tags,
            description=self.description,
            log_dir=str(log_dir),
            config=config,
            settings=settings,
            callbacks=[self._flushed],
        )
        self._flushed.run = self._run
        sdk.flush(self._run)

    @hookimpl
    def report_metrics(self, records: Sequence[Record]) -> None:
        """Log the records, without what there is already."""
        for record in records:
            self._log({values.metric_key(name): value for name, value in record.values.items()}, record.step)
        self._wait()

    @hookimpl
    def report_media(self, items: Sequence[Media]) -> None:
        """Log images, text, and histograms and tables as charts."""
        for item in items:
            key = values.metric_key(item.name)
            if (item.step, key) not in self._known:
                self._log({key: values.media(self._swanlab, item)}, item.step)
        self._wait()

    @hookimpl
    def report_artifact(self, path: Path, name: str, kind: str) -> None:
        """Save a file or the files of a folder with the run: uploaded by the cloud, linked to in files.

        Raises:
            ValueError: It is gone, which waiting does not change.
        """
        if not path.exists():
            message = f"artifact {name!r}: {path} is gone; keep it until the run ends, or log it later"
            raise ValueError(message)
        path = path.absolute()
        pattern = glob.escape(str(path))
        self._run.save(f"{pattern}/**" if path.is_dir() else pattern, base_path=path.parent, policy="now")
        self._run.config[f"artifacts/{values.plain(name)}"] = f"{values.plain(str(path))} ({values.plain(kind)})"

    @hookimpl
    def report_end(self, run: RunInfo, outcome: Outcome) -> None:
        """Close the run with its outcome."""
        opened, self._run = self._run, None
        if opened is None:
            return
        error = None if outcome.status in ("completed", "stopped") else values.plain(outcome.reason or outcome.status)
        done = sdk.finish(opened, _STATES[outcome.status], error, self.finish_timeout_s)
        commands = "; ".join(f"swanlab sync --id {run.id} {folder}" for folder in self._folders)
        if not done:
            message = "swanlab: the server did not take everything within %g s; all of it is in files: %s"
            log.warning(message, self.finish_timeout_s, commands)
        elif opened.mode == "offline":
            log.info("swanlab: recorded in files; to send them: %s", commands)

    def _log(self, logged: dict[str, Any], step: int) -> None:
        there = self._taken, self._known
        new = {key: value for key, value in logged.items() if not any((step, key) in one for one in there)}
        if new:
            self._flushed.expect((step, key) for key in new)
            self._run.log(new, step=step)
            self._taken.update((step, key) for key in new)

    def _wait(self) -> None:
        self._taken.clear()
        if self._run.mode != "disabled":
            self._flushed.wait(_FLUSH_S)
