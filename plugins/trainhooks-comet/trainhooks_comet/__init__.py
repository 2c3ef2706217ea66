"""Comet for trainhooks: ``pip install trainhooks-comet`` and a run is reported, online or into archives for later."""

from __future__ import annotations

import io
import json
import logging
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from trainhooks import OptionError, hookimpl

from . import _archives, _sdk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainhooks import Outcome, Record, RunInfo
    from trainhooks.media import Histogram, Media, Table

__all__ = ["Comet"]

log = logging.getLogger("trainhooks")

#: Characters of a text value that Comet keeps.
_LONGEST: Final = 1000
_STATUS: Final = {"completed": "finished", "stopped": "finished", "interrupted": "killed", "failed": "failed"}


class Comet:
    """Reports a run to Comet: metrics, hyperparameters, images, text, histograms, tables, files and how it ended.

    The experiment's key is made of the run's id, so that a resumed run goes on in its experiment. Offline, each process of a
    run writes an archive into ``comet`` in the run folder, from the first record on; ``comet upload`` takes them in any number
    and order. What a killed run reported after its checkpoint is dropped when it is resumed.

    Args:
        project: Of the experiment; by default what Comet's configuration says.
        workspace: Of the project; likewise.
        mode: ``"online"`` waits for the server, ``"offline"`` writes archives; ``"auto"`` is online where an API key is
            configured and the server answers, otherwise offline.
        name: Of the experiment; by default the run's.
        tags: Of the experiment.
        folder: Where archives go, instead of ``comet`` in the run folder.
        url: Of a server of one's own, for example ``https://comet.example.org/clientlib/``.
        timeout_s: Seconds to wait for the server, at the start for its answer, at the end for what is still to be sent.
    """

    name = "comet"
    phase = "reporting"
    on_error = "disable"
    records_per_call = 500

    def __init__(
        self,
        project: str | None = None,
        workspace: str | None = None,
        mode: Literal["auto", "online", "offline"] = "auto",
        name: str | None = None,
        tags: Sequence[str] = (),
        folder: Path | None = None,
        url: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        if timeout_s <= 0:
            message = f"timeout_s = {timeout_s}: must be above 0"
            raise OptionError(message)
        self.project, self.workspace, self.mode, self.run_name = project, workspace, mode, name
        self.tags, self.folder, self.url, self.timeout_s = list(tags), folder, url, timeout_s
        self._experiment: Any = None
        self._offline = False
        self._known: dict[str, int] = {}
        self._confirmed = 0  # messages that the server took

    @hookimpl
    def report_start(self, run: RunInfo) -> None:
        """Open the run's experiment and send the hyperparameters.

        Raises:
            ConnectionError: ``mode`` is ``"online"`` and the server does not answer.
            OptionError: Offline, and there is no folder to write into.
        """
        comet_ml = _sdk.load(self.url, self.timeout_s)
        folder, key = self._folder(run), _key(run)
        self._known, self._confirmed = {}, 0
        if folder is not None and run.resumed:
            _archives.recover(folder, key, run.resumed_step)
        experiment = self._open_online(comet_ml, run) if self._wants_server(comet_ml) else None
        self._offline = experiment is None
        if experiment is None:
            if folder is None:
                self._report_nothing()
                return
            experiment = _sdk.open_offline(comet_ml, key, self.project, self.workspace, _archives.new_folder(folder, key))
            log.info("comet: offline; upload later with: comet upload %s", folder / f"{key}-*.zip")
        try:
            experiment.set_name(self.run_name or run.name)
            for tag in self.tags:
                experiment.add_tag(tag)
            experiment.log_other("status", "running")
            _log_hyperparameters(experiment, run, None if folder is None else folder / f"{key}.json")
        except BaseException:
            experiment.end()  # the next attempt opens it again
            raise
        self._experiment = experiment
        self._settle()

    @hookimpl
    def report_metrics(self, records: Sequence[Record]) -> None:
        """Log the records, without what the server has already."""
        experiment = self._experiment
        if experiment is None:
            return
        _check_alive(experiment)
        for record in records:
            values = {name: value for name, value in record.values.items() if record.step > self._known.get(name, -1)}
            experiment.log_metrics(values, step=record.step, epoch=record.epoch)
        self._settle()

    @hookimpl
    def report_media(self, items: Sequence[Media]) -> None:
        """Log images, text, histograms and tables as assets of their kind."""
        if self._experiment is None:
            return
        _check_alive(self._experiment)
        for item in items:
            _log_media(self._experiment, item)
        self._settle()

    @hookimpl
    def report_artifact(self, path: Path, name: str, kind: str) -> None:
        """Log a file, or each file of a folder, as an asset."""
        experiment = self._experiment
        if experiment is None:
            return
        _check_alive(experiment)
        files = [(path, name)]
        if path.is_dir():
            files = [
                (file, f"{name}/{file.relative_to(path).as_posix()}") for file in sorted(path.rglob("*")) if file.is_file()
            ]
        for file, file_name in files:
            experiment.log_asset(str(file), file_name=file_name, metadata={"kind": kind}, overwrite=bool(self._known))
        self._settle()

    @hookimpl
    def report_end(self, run: RunInfo, outcome: Outcome) -> None:
        """Close the experiment with how the run ended."""
        experiment, self._experiment = self._experiment, None
        if experiment is None:
            return
        experiment.log_others({"status": _STATUS[outcome.status], "outcome": outcome.status, "last step": outcome.step})
        if outcome.reason:
            experiment.log_other("reason", outcome.reason[:_LONGEST])
        if outcome.status == "failed":
            experiment._report_experiment_error(outcome.reason or "failed", has_crashed=True)
        if self._offline:
            experiment.end()
        else:
            self._end_online(experiment, run)

    def _end_online(self, experiment: Any, run: RunInfo) -> None:
        """End an experiment; if the server went away, keep what it did not confirm, and say where."""
        folder = self._folder(run)
        before = set(_archives.of_run(folder, _key(run))) if folder else set()
        complete = _sdk.end_online(experiment, keep=folder is not None)
        left = sorted(set(_archives.of_run(folder, _key(run))) - before) if folder else []
        if complete:
            for archive in left:
                archive.unlink()
            return
        for archive in left:
            _archives.drop_confirmed(archive, self._confirmed)
        if left:
            rest = " ".join(map(str, left))
            log.warning("comet: the server went away; upload the rest later with: comet upload %s", rest)
        else:
            log.warning("comet: the server went away; what it had not confirmed is lost, since the run has no work_dir")

    def _folder(self, run: RunInfo) -> Path | None:
        if self.folder is not None:
            return Path(self.folder).absolute()
        return None if run.work_dir is None else run.work_dir.absolute() / "comet"

    def _wants_server(self, comet_ml: Any) -> bool:
        return self.mode == "online" or (self.mode == "auto" and bool(comet_ml.get_config("comet.api_key")))

    def _open_online(self, comet_ml: Any, run: RunInfo) -> Any:
        """Return the experiment at the server, or ``None`` if it cannot be had and that need not be."""
        key = _key(run)
        try:
            _sdk.check_server(self.timeout_s)
            self._known = _sdk.last_steps(comet_ml, key) if run.resumed else {}
            return _sdk.open_online(comet_ml, key, self.project, self.workspace, self._folder(run))
        except Exception as error:
            if self.mode == "online":
                raise
            then = "the run is reported offline" if self._folder(run) else "nothing is reported, since the run has no work_dir"
            log.warning("%s; %s", str(error) or f"comet: {type(error).__name__}", then)
            return None

    def _report_nothing(self) -> None:
        if self.mode == "offline":
            message = "comet: mode = 'offline' needs a place for its archives; give the run a work_dir, or set 'folder'"
            raise OptionError(message)
        log.info("comet: nothing is reported: no server, and neither a work_dir nor 'folder' for an archive")

    def _settle(self) -> None:
        """Have the data on disk, or at the server, before the records count as delivered."""
        experiment = self._experiment
        if self._offline:
            _sdk.wait_until_written(experiment, self.timeout_s)
        else:
            self._confirmed = _sdk.settled(experiment, self.timeout_s) or self._confirmed


def _key(run: RunInfo) -> str:
    """Return the key of a run's experiment; Comet wants 32 to 50 letters and digits."""
    return f"trainhooks{run.id}".ljust(32, "0")


def _check_alive(experiment: Any) -> None:
    if not experiment.alive:
        message = "comet: the experiment was ended by somebody else"
        raise RuntimeError(message)


def _log_hyperparameters(experiment: Any, run: RunInfo, kept: Path | None) -> None:
    """Log the hyperparameters, and, under ``changed``, those that are not what they were when the run began."""
    values: Mapping[str, Any] = run.hyperparameters
    short = {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in values.items()}
    experiment.log_parameters({name: _finite(value) for name, value in short.items()}, nested_support=False)
    if any(isinstance(value, str) and len(value) > _LONGEST for value in values.values()):
        experiment.log_asset_data(json.dumps(dict(values), indent=1), name="hyperparameters.json")
    if kept is None:
        return
    texts = {name: repr(value) for name, value in values.items()}
    if run.resumed and kept.exists():
        before = json.loads(kept.read_text(encoding="utf-8"))
        for name in sorted({*before, *texts}):
            if before.get(name) != texts.get(name):
                change = f"{before.get(name, 'absent')} -> {texts.get(name, 'absent')} at step {run.resumed_step}"
                experiment.log_other(f"changed/{name}", change[:_LONGEST])
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(texts), encoding="utf-8")


def _finite(value: Any) -> Any:
    """Return what JSON has a number for as it is, the rest as text."""
    return str(value) if isinstance(value, float) and value - value != 0 else value


def _log_media(experiment: Any, item: Media) -> None:
    from trainhooks.media import Histogram, Image, Text

    experiment.set_step(item.step)
    if isinstance(item, Image):
        experiment.log_image(io.BytesIO(item.png()), name=item.name, image_format="png", step=item.step)
    elif isinstance(item, Text):
        experiment.log_text(item.text, step=item.step, metadata={"name": item.name})
    elif isinstance(item, Histogram):
        _log_histogram(experiment, item)
    else:
        _log_table(experiment, item)


def _log_histogram(experiment: Any, item: Histogram) -> None:
    """Log Comet's own histogram, whose bins are its own, and the exact counts next to it."""
    centers = [(low + high) / 2 for low, high in pairwise(item.edges)]
    theirs = import_module("comet_ml").Histogram()
    theirs.add(centers, counts=list(item.counts))
    experiment.log_histogram_3d(theirs, name=item.name, step=item.step)
    exact = {"name": item.name, "counts": item.counts, "edges": item.edges}
    experiment.log_asset_data(json.dumps(exact), name=f"{item.name}-{item.step}.json", step=item.step)


def _log_table(experiment: Any, item: Table) -> None:
    name = f"{item.name}-{item.step}.csv"
    experiment.log_table(name, tabular_data=[list(row) for row in item.rows], headers=list(item.columns))
