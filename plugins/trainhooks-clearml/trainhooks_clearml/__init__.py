"""ClearML for trainhooks: ``pip install trainhooks-clearml`` and a run is reported, online or into a session for later."""

from __future__ import annotations

import base64
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from trainhooks import OptionError, hookimpl

from ._link import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainhooks import Outcome, Record, RunInfo
    from trainhooks.media import Media

__all__ = ["ClearML"]

log = logging.getLogger("trainhooks")

_STATUS: Final = {"completed": "completed", "stopped": "completed", "interrupted": "killed", "failed": "failed"}
#: Seconds to start the process of the SDK, which is measured at one.
_START_S: Final = 60


class ClearML:
    """Reports a run to ClearML: metrics, hyperparameters, images, text, histograms, tables, files and how it ended.

    The SDK runs in a process of its own, so that nothing of the training process is patched and nothing hangs: a request that
    is not answered in time ends that process. A resumed run goes on in its task; what a killed run reported after its
    checkpoint is replaced.

    Args:
        project: Of the task; ``/`` makes sub-projects.
        name: Of the task; by default the run's.
        mode: ``"online"`` waits for the server, ``"offline"`` writes a session that is imported later; ``"auto"`` is online
            where credentials are configured and the server answers, otherwise offline.
        tags: Of the task.
        folder: Where offline sessions go, instead of ``clearml`` in the run folder.
        timeout_s: Seconds that one request may take.
    """

    name = "clearml"
    phase = "reporting"
    on_error = "disable"
    records_per_call = 500

    def __init__(
        self,
        project: str = "trainhooks",
        name: str | None = None,
        mode: Literal["auto", "online", "offline"] = "auto",
        tags: Sequence[str] = (),
        folder: Path | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        if timeout_s <= 0:
            message = f"timeout_s = {timeout_s}: must be above 0"
            raise OptionError(message)
        self.project, self.run_name, self.mode, self.tags = project, name, mode, list(tags)
        self.folder, self.timeout_s = folder, timeout_s
        self._link: Link | None = None
        self._task_id: str | None = None
        self._run_id: str | None = None  # of trainhooks, that the task is for
        self._reports = True
        self._last_step = 0  # that has been taken
        self._changed: dict[str, str] = {}
        self._noted = False

    @hookimpl
    def report_start(self, run: RunInfo) -> None:
        """Open the run's task and send the hyperparameters.

        Raises:
            ConnectionError: ``mode`` is ``"online"`` and the server does not answer.
            OptionError: Offline, and there is no folder to write into.
        """
        folder = self._folder(run)
        if folder is None and self.mode == "offline":
            message = "clearml: mode = 'offline' needs a place for its session; give the run a work_dir, or set 'folder'"
            raise OptionError(message)
        self._reports = True
        if folder is None and self.mode == "auto" and not _may_have_credentials():
            self._report_nothing()
            return
        if self._run_id != run.id:  # the task of the run before, if its end could not be said
            self._run_id, self._task_id = run.id, None
        if self._task_id is None:
            self._last_step = run.resumed_step
            self._remember(run, folder)
        self._open(run)

    @hookimpl
    def report_metrics(self, run: RunInfo, records: Sequence[Record]) -> None:
        """Report the records as scalars."""
        if self._reports:
            self._ask(run, "metrics", records=[{"step": one.step, "values": dict(one.values)} for one in records])
            self._last_step = max(self._last_step, records[-1].step)

    @hookimpl
    def report_media(self, run: RunInfo, items: Sequence[Media]) -> None:
        """Report images as debug samples, text to the console, histograms and tables as plots."""
        if self._reports:
            self._ask(run, "media", items=[_as_message(item) for item in items])

    @hookimpl
    def report_artifact(self, run: RunInfo, path: Path, name: str, kind: str) -> None:
        """Upload a file or a folder as an artifact."""
        if self._reports:
            self._ask(run, "artifact", path=str(path.absolute()), name=name, kind=kind)

    @hookimpl
    def report_end(self, run: RunInfo, outcome: Outcome) -> None:
        """Close the task with how the run ended."""
        if not self._reports:
            return
        status = _STATUS[outcome.status]
        self._ask(run, "end", status=status, outcome=outcome.status, reason=outcome.reason or "", step=outcome.step)
        link, self._link, self._task_id = self._link, None, None
        if link is not None:
            link.close(self.timeout_s)

    def _folder(self, run: RunInfo) -> Path | None:
        if self.folder is not None:
            return Path(self.folder).absolute()
        return None if run.work_dir is None else run.work_dir.absolute() / "clearml"

    def _ask(self, run: RunInfo, command: str, **arguments: Any) -> None:
        """Have a command done, by a new process if the last one had to be ended."""
        if self._link is None or not self._link.alive:
            self._open(run)
        if self._link is not None:
            self._link.ask(command, self.timeout_s, **arguments)

    def _open(self, run: RunInfo) -> None:
        folder = self._folder(run)
        environment = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            environment["CLEARML_CACHE_DIR"] = str(folder)
        if self._link is not None:
            self._link.kill()
        self._link = link = Link(None if folder is None else folder / "clearml.log", environment)
        try:
            answer = link.ask(
                "open",
                _START_S + self.timeout_s,
                project=self.project,
                name=self.run_name or run.name,
                mode=self._sticky_mode(),
                tags=[*self.tags, f"trainhooks-{run.id}"],
                folder=None if folder is None else str(folder),
                lock=None if folder is None else str(folder / f"{run.id}.lock"),
                task_id=self._task_id,
                last_step=self._last_step,
                hyperparameters=dict(run.hyperparameters),
                changed=self._changed,
                patience_s=self.timeout_s,
            )
        except BaseException:
            link.kill()
            raise
        self._opened(run, folder, answer)

    def _opened(self, run: RunInfo, folder: Path | None, answer: dict[str, Any]) -> None:
        if answer["note"]:
            log.warning("%s", answer["note"])
        if answer.get("nothing"):
            self._report_nothing()
            if self._link is not None:
                self._link.close(self.timeout_s)
            return
        self._task_id = answer["task_id"]
        if not self._noted:
            self._noted = True
            how = "offline; import it later with: clearml-task --import-offline-session" if answer["offline"] else "online:"
            log.info("clearml: %s %s", how, answer["place"])
        if folder is not None:
            texts = {name: repr(value) for name, value in run.hyperparameters.items()}
            kept = {"task_id": self._task_id, "hyperparameters": texts}
            (folder / f"{run.id}.json").write_text(json.dumps(kept), encoding="utf-8")

    def _report_nothing(self) -> None:
        self._reports = False
        log.info("clearml: nothing is reported: no server, and neither a work_dir nor 'folder' for a session")

    def _sticky_mode(self) -> str:
        """Return the mode; a run that began offline goes on so, for its session to stay whole."""
        began_offline = self._task_id is not None and self._task_id.startswith("offline-")
        return "offline" if self.mode == "auto" and began_offline else self.mode

    def _remember(self, run: RunInfo, folder: Path | None) -> None:
        """Find the task that a former process of this run opened, and which hyperparameters are not what they were."""
        self._changed, self._noted = {}, False
        kept = None if folder is None else folder / f"{run.id}.json"
        if kept is None or not run.resumed or not kept.exists():
            return
        found = json.loads(kept.read_text(encoding="utf-8"))
        self._task_id, before = found["task_id"], found["hyperparameters"]
        now = {name: repr(value) for name, value in run.hyperparameters.items()}
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                self._changed[name] = f"{before.get(name, 'absent')} -> {now.get(name, 'absent')} at step {run.resumed_step}"


def _may_have_credentials() -> bool:
    """Return whether it is worth to ask the SDK, which starts a process."""
    given = {
        "CLEARML_API_ACCESS_KEY",
        "TRAINS_API_ACCESS_KEY",
        "CLEARML_AUTH_TOKEN",
        "CLEARML_CONFIG_FILE",
        "TRAINS_CONFIG_FILE",
    }
    return not given.isdisjoint(os.environ) or any((Path.home() / name).exists() for name in ("clearml.conf", "trains.conf"))


def _as_message(item: Media) -> dict[str, Any]:
    from trainhooks.media import Histogram, Image, Text

    message: dict[str, Any] = {"name": item.name, "step": item.step}
    if isinstance(item, Image):
        return {**message, "kind": "image", "png": base64.b64encode(item.png()).decode()}
    if isinstance(item, Text):
        return {**message, "kind": "text", "text": item.text}
    if isinstance(item, Histogram):
        return {**message, "kind": "histogram", "counts": list(item.counts), "edges": list(item.edges)}
    return {**message, "kind": "table", "columns": list(item.columns), "rows": [list(map(_plain, row)) for row in item.rows]}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
