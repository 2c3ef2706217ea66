"""The plugin ``wandb``."""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainhooks import OptionError, hookimpl

from .former import Former
from .journal import Journal
from .media import artifact, as_wandb
from .opening import Mode, Wanted, folder_of, mode_of, open_run, process_left_alone
from .values import is_scalar, same, short, valid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainhooks import Outcome, Record, RunInfo
    from trainhooks.media import Media

    from .journal import Row

log = logging.getLogger("trainhooks")

#: By status; wandb shows 0 as finished, 255 as killed, others as failed.
_EXIT_CODES: Final = {"completed": 0, "stopped": 0, "interrupted": 255, "failed": 1}
_SHOWN_CHANGES: Final = 5


class WandB:
    """Reports a run to Weights & Biases.

    Steps are the engine's, a run that is resumed goes on in the same wandb run, and each step is there once. Nothing but what is
    logged leaves the process: no console output, code, git state or machine data, unless ``settings`` asks for it.

    Args:
        project: Name of the project; ``WANDB_PROJECT``, or wandb's own choice.
        entity: User or team; ``WANDB_ENTITY``, or the default of the account.
        name: Shown for the run; ``WANDB_NAME``, or the name of the run.
        mode: ``"auto"`` is online if there is an API key, otherwise offline; ``WANDB_MODE`` and ``wandb offline`` decide before that.
            ``"disabled"`` does nothing at all.
        tags: Of the run.
        group: Puts runs together that belong together.
        notes: A longer description.
        dir: Where wandb writes, in a folder ``wandb`` in it; ``WANDB_DIR``, or the run's folder. Without any of them only an online
            run is reported, from a temporary folder.
        run_id: Instead of the run's own id, which is the same over all resumes; ``WANDB_RUN_ID``.
        artifacts: Whether files of ``trainer.log_artifact`` are taken along.
        system_metrics: Whether wandb samples CPU, memory and GPUs.
        init_timeout: Seconds for opening the run online; after that it is kept offline.
        finish_timeout: Seconds for the upload at the end; what is missing then stays on disk, for ``wandb sync``.
        settings: Further fields of ``wandb.Settings``, for what this plugin leaves off.
    """

    name = "wandb"
    phase = "reporting"
    on_error = "disable"
    records_per_call = 500

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        name: str | None = None,
        mode: Mode = "auto",
        tags: list[str] | None = None,
        group: str | None = None,
        notes: str | None = None,
        dir: Path | None = None,  # noqa: A002 - as wandb calls it
        run_id: str | None = None,
        artifacts: bool = True,
        system_metrics: bool = False,
        init_timeout: float = 30.0,
        finish_timeout: float = 30.0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        if not (0 < init_timeout < math.inf and 0 < finish_timeout < math.inf):
            message = f"init_timeout = {init_timeout}, finish_timeout = {finish_timeout}: must be above 0 and finite seconds"
            raise OptionError(message)
        if "api_key" in (settings or {}):
            message = "settings: api_key: options are stored with the run; set WANDB_API_KEY, or call `wandb login`"
            raise OptionError(message)
        self.mode: Mode = mode
        self.run_id, self.artifacts = run_id, artifacts
        self.dir = None if dir is None else Path(dir)
        self.init_timeout, self.finish_timeout = init_timeout, finish_timeout
        self._identity = {"project": project, "entity": entity, "tags": tags, "group": group, "notes": notes}
        self._name = name
        self._settings = {"x_disable_stats": not system_metrics, "finish_timeout": finish_timeout, **(settings or {})}
        #: wandb's own run object while there is one, for what only wandb has.
        self.run: Any = None
        self._former: Former
        self._why_offline: str | None = None
        self._journal: Journal | None = None
        self._step = -1  # of the last row; wandb drops what is lower
        self._had = -1  # the last step that was there before
        self._had_keys: set[str] | None = None  # of it; None: not known
        self._resumed_step = 0
        self._opened_for: tuple[str, int] | None = None
        self._temporary: Path | None = None
        self._taken: set[tuple[Any, ...]] = set()  # records of a call that failed

    @hookimpl
    def report_start(self, run: RunInfo) -> None:
        """Open wandb's run, or rejoin it, and settle which steps it has."""
        if self.mode == "disabled" or (self.mode == "auto" and os.environ.get("WANDB_MODE") == "disabled"):
            return
        if self._opened_for != (run.id, run.resumed_step):  # what is there is of a run that could not be opened, or closed
            self.run, self._opened_for = None, (run.id, run.resumed_step)
            self._taken.clear()
            self._remove_temporary()
        folder = self._folder(run)
        run_id = self.run_id or os.environ.get("WANDB_RUN_ID") or run.id
        if self.run is None:  # otherwise it failed after that, and is called again
            folder.mkdir(parents=True, exist_ok=True)
            self._former = Former(folder, run_id)
            name = self._name or os.environ.get("WANDB_NAME") or run.name
            identity = {**self._identity, "id": run_id, "name": name, "dir": str(folder)}
            with process_left_alone():
                mode, self._why_offline = mode_of(self.mode, self._former)
                if mode == "disabled":
                    return
                if mode == "offline" and self._temporary is not None:
                    log.info("wandb: the run has no work_dir and no dir is given, so nothing is written")
                    self._remove_temporary()
                    return
                self.run, failed = open_run(Wanted(identity, self._settings, self.init_timeout), mode)
            self._why_offline = failed or self._why_offline
        self._journal = Journal(folder / "wandb" / f"trainhooks-{run_id}.jsonl")
        self._resumed_step = run.resumed_step
        self._rejoin(run, self._former)
        if not self.run.offline:
            log.info("wandb: run %s: %s", run_id, self.run.url)
        elif self._why_offline is None:
            log.info("wandb: run %s is kept offline; upload it with: wandb sync %s", run_id, folder_of(self.run))
        else:
            log.warning(
                "wandb: %s: the run is kept offline; upload it with: wandb sync %s", self._why_offline, folder_of(self.run)
            )

    def _folder(self, run: RunInfo) -> Path:
        given = self.dir or os.environ.get("WANDB_DIR") or run.work_dir
        if given is not None:
            return Path(given)
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="trainhooks-wandb-"))
        return self._temporary

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _rejoin(self, run: RunInfo, former: Former) -> None:
        """Find out which steps are there, add those that a kill took, and set the hyperparameters."""
        assert self._journal is not None  # noqa: S101 - set before
        config: Mapping[str, Any] = dict(self.run.config)
        lost: list[Row] = []
        newest = former.newest()
        if self.run.offline:
            config = newest.config
            self._had = newest.rows[-1][0] if newest.rows else -1
        else:
            self._had = self.run.starting_step - 1
            lost = former.rows_after(self._had)
        self._had_keys = None
        if newest.rows and newest.rows[-1][0] == self._had:
            self._had_keys = {key for step, values in newest.rows for key in values if step == self._had}
        if self._had >= 0 and not run.resumed:
            log.warning(
                "wandb: run %s has steps up to %d already, those of this run are left out up to there; without run_id it gets its own",
                self.run.id,
                self._had,
            )
        self._step = self._had
        if run.resumed:
            self._restore(lost, run.resumed_step)
        else:
            self._journal.restart([])
        self._configure(run, config)

    def _restore(self, lost: list[Row], resumed_step: int) -> None:
        """Log what a former process had logged and what never got anywhere, as far as this one does not do it again."""
        assert self._journal is not None  # noqa: S101 - set before
        found = {step: {key: value for key, value in values.items() if is_scalar(value)} for step, values in lost}
        for step, values in self._journal.rows():
            found.setdefault(step, {}).update(values)
        rows = [row for row in sorted(found.items()) if self._had < row[0] <= resumed_step]
        self._journal.restart(rows)
        for step, values in rows:
            self._log(step, {key: float(value) if isinstance(value, str) else value for key, value in values.items()})

    def _configure(self, run: RunInfo, before: Mapping[str, Any]) -> None:
        values = {valid(key): valid(value) for key, value in run.hyperparameters.items()}
        if run.parent is not None:
            values["parent"] = run.parent
        changed = [key for key, value in values.items() if key in before and not same(before[key], value)]
        if changed:
            texts = [f"{key} {short(before[key])} -> {short(values[key])}" for key in changed[:_SHOWN_CHANGES]]
            more = f" and {len(changed) - _SHOWN_CHANGES} more" if len(changed) > _SHOWN_CHANGES else ""
            log.warning("wandb: hyperparameters of the run were others before: %s%s", ", ".join(texts), more)
        self.run.config.update(values, allow_val_change=True)

    @hookimpl
    def report_metrics(self, records: Sequence[Record]) -> None:
        """Log each record as a row, with its update and epoch; rows of one step are joined."""
        if self.run is None:
            return
        for record in records:
            key = (record.step, record.time, *record.values)
            if key in self._taken:
                continue
            named = {valid(name): value for name, value in record.values.items()}
            values = {"update": record.update, "epoch": record.epoch, **named, "_timestamp": record.time}
            self._log(record.step, values, durable=True)
            self._taken.add(key)
        self._taken.clear()

    @hookimpl
    def report_media(self, items: Sequence[Media]) -> None:
        """Log media in the row of their step."""
        if self.run is None:
            return
        for item in items:
            step, name = max(item.step, self._step), valid(item.name)
            if self._missing(item.step, {name: None}):
                self._log(step, {name: as_wandb(item)})

    @hookimpl
    def report_artifact(self, path: Path, name: str, kind: str) -> None:
        """Log a file or folder as an artifact; the same content becomes no new version."""
        if self.run is None or not self.artifacts:
            return
        if not path.exists():
            log.warning("wandb: the artifact %r is gone (%s): it is not uploaded", name, path)
            return
        self.run.log_artifact(artifact(path, name, kind))

    @hookimpl
    def report_end(self, outcome: Outcome) -> None:
        """Close wandb's run with the status."""
        run, self.run = self.run, None
        if run is None or self._journal is None:
            return
        folder, offline = folder_of(run), run.offline
        try:
            run.finish(_EXIT_CODES[outcome.status])
        except TimeoutError:
            log.warning(
                "wandb: not everything was uploaded within %g s; it is on disk, complete it with: wandb sync --include-online %s",
                self.finish_timeout,
                folder,
            )
            offline = True
        self._journal.close(remove=True)
        if not offline:
            self._remove_temporary()
        self._temporary = None

    def _log(self, step: int, values: dict[str, Any], *, durable: bool = False) -> None:
        """Log what the run does not have yet."""
        missing = self._missing(step, values)
        if not any(key not in ("update", "epoch", "_timestamp") for key in missing):
            return
        step = max(step, self._step)
        if step == self._had:  # its row is closed: what is new goes into the next one
            step += 1
        if durable and self._journal is not None:
            self._journal.append(step, missing)
        self.run.log(missing, step=step)  # the row stays open: more may come for this step
        self._step = step

    def _missing(self, step: int, values: dict[str, Any]) -> dict[str, Any]:
        """Return those of one step that the run has not."""
        if step > self._had:
            return values
        if step < self._had:
            return {}
        if self._had_keys is None:  # only what was still to be done after the checkpoint is new
            return values if step == self._resumed_step else {}
        return {key: value for key, value in values.items() if not self._had_keys & {key, f"{key}._type"}}
