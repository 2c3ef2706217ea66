"""The plugin ``dvclive``."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainhooks import OptionError, hookimpl

from .folder import NOTE, check, cut_back, paths_of_metrics, read_note, write
from .live import in_dvc_repository, open_live
from .names import Names, safe, valid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainhooks import Outcome, Record, RunInfo, Trainer
    from trainhooks.media import Histogram, Image, Media, Table

log = logging.getLogger("trainhooks")

FOLDER: Final = "dvclive"


class DVCLive:
    """Writes what the run logs with DVCLive: files that ``dvc plots``, ``dvc metrics`` and the extension for VS Code show.

    Metrics, hyperparameters, images and histograms are where DVCLive has them; texts and tables are files beside them, the
    status is ``run/status`` among the metrics. A resumed run drops what was logged after its checkpoint. Neither DVC nor Git is
    called unless ``save_dvc_exp`` asks for it, and nothing is sent to DVC Studio.

    Args:
        dir: Where to write, instead of ``dvclive`` in the run folder. What an earlier run has left there is replaced.
        save_dvc_exp: Save a DVC experiment when the run has finished, and have DVC note the artifacts; it needs the working
            directory to be in a DVC repository.
        exp_name: Of that experiment.
        cache_artifacts: Have DVC copy artifacts into its cache, too (``dvc add``).
    """

    name = "dvclive"
    phase = "reporting"
    on_error = "disable"
    records_per_call = 500

    def __init__(
        self,
        dir: str | None = None,  # noqa: A002 - it is what DVCLive calls it
        save_dvc_exp: bool = False,
        exp_name: str | None = None,
        cache_artifacts: bool = False,
    ) -> None:
        self.dir = Path(os.path.abspath(Path(dir).expanduser())) if dir is not None else None  # noqa: PTH100 - follows no link
        if self.dir is not None and Path.cwd().is_relative_to(self.dir):
            message = f"dir = {dir!r}: is or holds the working directory, and DVCLive replaces what is in it; name a new folder"
            raise OptionError(message)
        if (exp_name is not None or cache_artifacts) and not save_dvc_exp:
            message = "exp_name and cache_artifacts need save_dvc_exp = true: without it DVC is not used"
            raise OptionError(message)
        self.save_dvc_exp, self.exp_name, self.cache_artifacts = save_dvc_exp, exp_name, cache_artifacts
        self._live: Any = None
        self._folder = Path()
        self._note: dict[str, Any] = {}
        self._names = Names({})
        self._taken: set[tuple[int, float, str]] = set()  # values of the records of a call that failed
        self._listed: set[str] = set()  # what dvc.yaml lists

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """List the folder among the files of the run, so that replacing the run removes it."""
        folder = trainer.run_folder
        if self.dir is None and folder is not None and folder.is_open and trainer.is_main:
            trainer.run_file(FOLDER)

    @hookimpl
    def report_start(self, run: RunInfo) -> None:
        """Open the folder; what a former process of this run logged after its checkpoint is dropped."""
        self._live = None
        folder = self.dir or (run.work_dir / FOLDER if run.work_dir is not None else None)
        if folder is None:
            log.info("dvclive: the run has no work_dir and no dir is given, so nothing is written")
            return
        self._folder = folder
        self._taken.clear()
        check(folder)
        note = read_note(folder)
        resumed = note.get("run") == run.id
        before = _read_params(folder) if resumed else {}
        if resumed:
            cut_back(folder, run.resumed_step)
        else:
            for name in ("texts", "tables"):
                shutil.rmtree(folder / name, ignore_errors=True)
            note = {"run": run.id, "name": run.name, "names": {}, "artifacts": {}, "changed_hyperparameters": []}
        use_dvc = self.save_dvc_exp and in_dvc_repository()
        if self.save_dvc_exp and not use_dvc:
            log.warning("dvclive: %s is in no DVC repository, so no experiment is saved; make one with 'dvc init'", Path.cwd())
        live = open_live(folder, resume=resumed, use_dvc=use_dvc, name=self.exp_name)
        if before:
            note["changed_hyperparameters"] += _changes(before, _params(run), run.resumed_step)
        self._note, self._names = note, Names(note["names"], paths_of_metrics(folder))
        self._write_note()
        live.log_params(_params(run))
        live.step = run.resumed_step
        live.log_metric("run/status", "running", plot=False)
        live.make_summary()
        live._artifacts.update(note["artifacts"])
        _list_images(live, folder)
        self._live, self._listed = live, set()
        self._list("params")

    @hookimpl
    def report_metrics(self, run: RunInfo, records: Sequence[Record]) -> None:
        """Append a row to the file of each metric, and replace the summary once."""
        live = self._live
        if live is None:
            return
        if not (self._folder / NOTE).exists():
            self._make_anew(run)
        for record in records:
            live.step = record.step
            for name, value in record.values.items():
                key = (record.step, record.time, name)
                if key not in self._taken:
                    self._log_metric(name, value)
                    self._taken.add(key)
        live.make_summary()
        self._list("metrics")
        self._taken.clear()

    @hookimpl
    def report_media(self, run: RunInfo, items: Sequence[Media]) -> None:
        """Write a file for each image, histogram, text and table; ``dvc.yaml`` names the latest histograms."""
        from trainhooks.media import Histogram, Image, Text

        if self._live is None:
            return
        for item in items:
            place = f"{safe(item.name)}/{item.step}"
            self._live.step = max(self._live.step, item.step)
            if isinstance(item, Image):
                self._log_image(item, place)
            elif isinstance(item, Histogram):
                self._log_histogram(item, place)
            elif isinstance(item, Text):
                write(self._folder / "texts" / f"{place}.txt", item.text)
            else:
                write(self._folder / "tables" / f"{place}.csv", _as_csv(item))

    @hookimpl
    def report_artifact(self, run: RunInfo, path: Path, name: str, kind: str) -> None:
        """Name the artifact in ``dvc.yaml``; only if asked, DVC keeps it."""
        live = self._live
        if live is None:
            return
        valid = _artifact_name(name)
        if live._dvc_repo is not None:
            live.log_artifact(str(path), type=kind, name=valid, cache=self.cache_artifacts)
        live._artifacts[valid] = {"path": str(path), "type": kind}
        self._note["artifacts"][valid] = live._artifacts[valid]
        self._write_note()
        live.make_dvcyaml()

    @hookimpl
    def report_end(self, run: RunInfo, outcome: Outcome) -> None:
        """Note how the run ended; if asked, save the experiment of one that has finished."""
        live = self._live
        if live is None:
            return
        live.step = outcome.step
        live.log_metric("run/status", outcome.status, plot=False)
        live.log_metric("run/reason", outcome.reason, plot=False)
        live.make_summary()
        live.make_dvcyaml()
        if live._save_dvc_exp and outcome.status in ("completed", "stopped"):
            live.end()
        self._live = None

    # --- Single values ---

    def _log_metric(self, name: str, value: float) -> None:
        """Append a row, all of it or nothing: what raises is tried again."""
        new = name not in self._names
        path = self._names[name]
        if new and path != name:
            self._note["names"] = self._names.changed
            self._write_note()
        file = self._folder / "plots/metrics" / f"{path}.tsv"
        size = file.stat().st_size if file.exists() else None
        try:
            self._live.log_metric(path, value)
        except BaseException:
            if size is None:
                file.unlink(missing_ok=True)
            else:
                with file.open("r+b") as opened:
                    opened.truncate(size)
            raise

    def _log_image(self, item: Image, place: str) -> None:
        pixels = item.pixels.numpy()
        self._live.log_image(f"{place}.png", pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        self._list("images")

    def _log_histogram(self, item: Histogram, place: str) -> None:
        bins = zip(item.edges, item.edges[1:], item.counts, strict=False)
        points = [{"bin": f"{low:.4g}", "from": low, "to": high, "count": count} for low, high, count in bins]
        former = [name for name in self._live._plots if name.rpartition("/")[0] == safe(item.name)]
        self._live.log_plot(place, points, x="count", y="bin", template="bar_horizontal", title=item.name)
        for name in former:
            if name != place:
                del self._live._plots[name]
        self._live.make_dvcyaml()

    # --- Files ---

    def _list(self, kind: str) -> None:
        """Have ``dvc.yaml`` name the files of a kind."""
        if kind not in self._listed:
            self._live.make_dvcyaml()
            self._listed.add(kind)

    def _make_anew(self, run: RunInfo) -> None:
        log.warning("dvclive: %s was removed; it is made anew", self._folder)
        self._write_note()
        self._live.log_params(_params(run))
        self._listed.clear()

    def _write_note(self) -> None:
        write(self._folder / NOTE, json.dumps(self._note, indent=1, ensure_ascii=False) + "\n")


def _params(run: RunInfo) -> dict[str, Any]:
    return {valid(name): valid(value) for name, value in run.hyperparameters.items()}


def _read_params(folder: Path) -> dict[str, Any]:
    """Take the hyperparameters out of the folder; none where a kill has left half a file."""
    serialize = import_module("dvclive.serialize")
    path = folder / "params.yaml"
    if not path.exists():
        return {}
    try:
        found = serialize.load_yaml(path)
    except serialize.YAMLError:
        found = None
    path.unlink()
    return found if isinstance(found, dict) else {}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
    names = sorted(before.keys() | now.keys())
    pairs = [(name, before.get(name), now.get(name)) for name in names]
    return [
        {"step": step, "name": name, "before": _plain(old), "now": _plain(new)}
        for name, old, new in pairs
        if repr(old) != repr(new) and old != new
    ]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _list_images(live: Any, folder: Path) -> None:
    """Let a resumed run know of the images that are there, lest ``dvc.yaml`` loses them."""
    image: Any = import_module("dvclive.plots").Image
    root = folder / "plots/images"
    for path in sorted(root.rglob("*.png")):
        name = path.relative_to(root).as_posix()
        live._images[name] = image(name, live.plots_dir)


def _artifact_name(name: str) -> str:
    """Return a name that DVC's registry of artifacts takes."""
    return re.sub(r"[^A-Za-z0-9_/-]", "-", name).strip("-_/").ljust(2, "0")


def _as_csv(item: Table) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(item.columns)
    writer.writerows(item.rows)
    return text.getvalue()
