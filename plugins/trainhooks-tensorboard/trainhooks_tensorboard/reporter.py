"""The plugin ``tensorboard``."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainhooks import OptionError, hookimpl

from . import hparams as table
from . import summaries
from .event_file import EventFile, cut, find, new_paths, read
from .protos import protos

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainhooks import Outcome, Record, RunInfo, Trainer
    from trainhooks.media import Media

log = logging.getLogger("trainhooks")

FOLDER: Final = "tensorboard"
_OUTCOME, _CHANGED, _ARTIFACTS = "run/outcome", "run/changed_hyperparameters", "artifacts/"


class TensorBoard:
    """Writes what the run logs as event files: ``tensorboard --logdir runs`` shows them.

    Scalars, images, histograms (their bins as they were counted), texts, tables as Markdown, the paths of artifacts as text, and
    the hyperparameters with the outcome in the HParams view. Everything is on the disk when a delivery is over, so a kill loses
    nothing of it. A resumed run cuts its files back to its checkpoint and goes on, so that each step is there once. Files that
    others wrote to the folder are left alone.

    Args:
        log_dir: Where to write, instead of ``tensorboard`` in the run folder. ``{name}`` and ``{id}`` in it stand for the run's; a
            folder that another run has written to is not mixed: this one makes a folder named by its id there.
        hparams: Write the hyperparameters for the HParams view.
    """

    name = "tensorboard"
    phase = "reporting"
    on_error = "disable"
    records_per_call = 500

    def __init__(self, log_dir: str | None = None, hparams: bool = True) -> None:
        if log_dir is not None and "://" in log_dir:
            message = f"log_dir = {log_dir!r}: must be a local folder; copy it to a bucket with the tool of the bucket"
            raise OptionError(message)
        self.log_dir, self.hparams = log_dir, hparams
        self._file: EventFile | None = None
        self._folder: Path | None = None
        self._step = 0
        self._kept: set[bytes] = set()

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """List the folder among the files of the run, so that replacing the run removes it."""
        folder = trainer.run_folder
        if self.log_dir is None and folder is not None and folder.is_open and trainer.is_main:
            trainer.run_file(FOLDER)

    @hookimpl
    def report_start(self, run: RunInfo) -> None:
        """Cut back what a former process of this run wrote after its checkpoint, and begin a new file."""
        self._close()
        self._step, self._folder = run.resumed_step, self._choose_folder(run)
        if self._folder is None:
            log.info("tensorboard: the run has no work_dir and no log_dir is given, so nothing is written")
            return
        self._kept = set()
        for path, kind, owner in find(self._folder):
            if owner == run.id and kind == "records":
                cut(path, lambda event: self._keep(event, run.resumed_step))
        file, path = new_paths(self._folder, run.id)
        self._begin(path)
        if self.hparams:
            self._write_hyperparameters(run, file)

    @hookimpl
    def report_metrics(self, run: RunInfo, records: Sequence[Record]) -> None:
        """Append an event for each record."""
        self._append(run, lambda: [summaries.scalars(record) for record in records])
        self._step = max(self._step, records[-1].step)

    @hookimpl
    def report_media(self, run: RunInfo, items: Sequence[Media]) -> None:
        """Append an event for each image, text, histogram and table."""
        self._append(run, lambda: [summaries.medium(item) for item in items])

    @hookimpl
    def report_artifact(self, run: RunInfo, path: Path, name: str, kind: str) -> None:
        """Append where the artifact is, as a text: TensorBoard keeps no files."""
        content = summaries.table(["name", "kind", "path"], [[name, kind, path]])
        value = summaries.text(f"{_ARTIFACTS}{name}", content)
        if value.SerializeToString() in self._kept:  # logged within the first step after the checkpoint, which is done again
            return
        self._append(run, lambda: [summaries.event([value], self._step, time.time())])

    @hookimpl
    def report_end(self, run: RunInfo, outcome: Outcome) -> None:
        """Say how the run ended, and close the file."""
        content = summaries.table(["status", "reason", "step"], [[outcome.status, outcome.reason, outcome.step]])
        ended = _text(_OUTCOME, content, outcome.step)
        self._append(run, lambda: [table.end_event(outcome), ended])
        self._close()

    # --- Files ---

    def _keep(self, event: Any, step: int) -> bool:
        """Return whether an event of a former process stands; note the artifacts of the last step."""
        if event.step > step or table.is_end(event):
            return False
        if event.step == step:
            values = event.summary.value
            self._kept.update(value.SerializeToString() for value in values if value.tag.startswith(_ARTIFACTS))
        return True

    def _choose_folder(self, run: RunInfo) -> Path | None:
        if self.log_dir is None:
            return run.work_dir / FOLDER if run.work_dir is not None else None
        folder = Path(self.log_dir.replace("{name}", run.name).replace("{id}", run.id)).expanduser().absolute()
        owners = {owner for _, _, owner in find(folder)}
        return folder / run.id if owners and run.id not in owners else folder

    def _begin(self, path: Path) -> None:
        """Begin a file; its first event tells who reads that what was logged after the checkpoint comes again."""
        proto = protos()
        begins = proto.Event(
            step=self._step + 1, wall_time=time.time(), session_log=proto.SessionLog(status=proto.SessionLog.START)
        )
        self._file = EventFile(path, [begins])

    def _append(self, run: RunInfo, make: Callable[[], list[Any]]) -> None:
        if self._file is None:
            return
        if not self._file.is_there:
            log.warning("tensorboard: %s was removed; a new file is begun", self._file.path)
            self._file.close()
            self._begin(new_paths(self._file.path.parent, run.id)[1])
        self._file.append(make())

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_hyperparameters(self, run: RunInfo, path: Path) -> None:
        """Write a file with nothing else in place of the former process's, since TensorBoard shows the first that it finds.

        What is not as it was is logged: the view shows the hyperparameters of now only.
        """
        old = [one for one, kind, owner in find(path.parent) if kind == "hparams" and owner == run.id]
        before, started = table.read_start([event for one in reversed(old) for event in read(one)])
        start = table.start_event(run.hyperparameters, started)
        now, _ = table.read_start([start])
        if old and (rows := _changes(before, now)):
            content = summaries.table(["hyperparameter", "before", "now"], rows)
            self._append(run, lambda: [_text(_CHANGED, content, run.resumed_step)])
        EventFile(path, [start]).close()
        for one in old:
            one.unlink(missing_ok=True)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[list[Any]]:
    names = sorted(before.keys() | now.keys())
    return [[name, before.get(name, ""), now.get(name, "")] for name in names if before.get(name) != now.get(name)]


def _text(name: str, content: str, step: int) -> Any:
    return summaries.event([summaries.text(name, content)], step, time.time())
