"""One run at MLflow: found or made, told its hyperparameters, and given each metric of each step once."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Final

from . import known
from .batches import MAX_ENTRIES, MAX_METRICS, batches
from .names import MAX_PARAM, MAX_TAG, Names, cut
from .tracking import RUN_ID_TAG, Metric, TrackedRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainhooks import Record, RunInfo

    from .tracking import Tracking

METRIC_TAG: Final = "trainhooks.metric/"
PARAM_TAG: Final = "trainhooks.param/"
CUT_TAG: Final = "trainhooks.cut/"
DRIFT_TAG: Final = "trainhooks.drift/"
RESUMED_TAG: Final = "trainhooks.resumed"


class Session:
    """What is known of the run while it is reported.

    Args:
        tracking: Where.
        tracked: MLflow's run.
    """

    def __init__(self, tracking: Tracking, tracked: TrackedRun) -> None:
        self.tracking, self.tracked = tracking, tracked
        self._metrics, self._params = Names(METRIC_TAG), Names(PARAM_TAG)
        self._metrics.recall(tracked.last_steps, tracked.tags)
        self._params.recall(tracked.params, tracked.tags)

    @classmethod
    def open(cls, tracking: Tracking, run: RunInfo, uri: str, experiment: str, name: str, tags: Mapping[str, str]) -> Session:
        """Find the run, by the file in the run folder or by its tag, or make it; it is running from now on."""
        tracked = _find(tracking, run, uri)
        if tracked is None:
            experiment_id = os.environ.get("MLFLOW_EXPERIMENT_ID") if not experiment else None
            experiment_id = experiment_id or tracking.experiment(experiment or "trainhooks")
            found = tracking.find(experiment_id, run.id)
            tracked = None if found is None else tracking.get(found)
            if tracked is None:
                tracked = tracking.create(experiment_id, name, {**_context(), RUN_ID_TAG: run.id})
            known.write(run, uri, tracked.experiment_id, tracked.id)
        if tracked.status != "RUNNING":
            tracking.set_status(tracked.id, "RUNNING", None)
        session = cls(tracking, tracked)
        session.describe(run, tags)
        return session

    def describe(self, run: RunInfo, tags: Mapping[str, str]) -> None:
        """Send hyperparameters and tags; what differs from what MLflow has, and never changes, becomes a tag."""
        notes = {key: cut(str(value), MAX_TAG) for key, value in tags.items()}
        if run.parent:
            notes["trainhooks.parent"] = run.parent
        if run.resumed:
            before = self.tracked.tags.get(RESUMED_TAG, "")
            steps = [step for step in before.split(", ") if step and step != str(run.resumed_step)]
            notes[RESUMED_TAG] = ", ".join([*steps[-50:], str(run.resumed_step)])
        params: dict[str, str] = {}
        for name, value in run.hyperparameters.items():
            key, whole = self._params[name], str(value)
            text = cut(whole, MAX_PARAM)
            if len(whole) > MAX_PARAM:
                notes[CUT_TAG + key] = f"{len(whole)} characters, of which the first {MAX_PARAM - 1} are here"
            if key not in self.tracked.params:
                params[key] = text
            else:
                self._note_drift(notes, key, text, run.resumed_step)
        for some in batches(params.items(), MAX_ENTRIES, "".join):
            self.tracking.log(self.tracked.id, (), dict(some), {})
        self.set_tags({**notes, **self._params.notes})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Send tags."""
        for some in batches(tags.items(), MAX_ENTRIES, "".join):
            self.tracking.log(self.tracked.id, (), {}, dict(some))
        self.tracked.tags.update(tags)

    def metrics(self, records: list[Record]) -> list[list[Metric]]:
        """Return the metrics of records as requests, without what MLflow has of the steps from before the resume."""
        last = self.tracked.last_steps
        found = [
            Metric(key, value, max(int(record.time * 1000), 0), record.step)
            for record in records
            for key, value in ((self._metrics[name], value) for name, value in record.values.items())
            if record.step > last.get(key, -1)
        ]
        return list(batches(found, MAX_METRICS, lambda metric: metric.key))

    def send(self, metrics: list[Metric]) -> None:
        """Send one request."""
        notes = self._metrics.notes
        if notes:
            self.set_tags(notes)
            self._metrics.notes = {}
        self.tracking.log(self.tracked.id, metrics, {}, {})

    def end(self, status: str, tags: Mapping[str, str]) -> None:
        """Say how the run ended."""
        self.set_tags(tags)
        self.tracking.set_status(self.tracked.id, status, int(time.time() * 1000))

    def _note_drift(self, notes: dict[str, str], key: str, text: str, step: int) -> None:
        changes = _changes(self.tracked.tags.get(DRIFT_TAG + key))
        current = next(reversed(changes.values())) if changes else self.tracked.params[key]
        text = cut(text, MAX_TAG // 2) if changes else text
        if text == current:
            return
        changes.pop(str(step), None)
        changes[str(step)] = cut(text, MAX_TAG // 2)
        while len(json.dumps(changes)) > MAX_TAG and len(changes) > 1:
            changes.pop(next(iter(changes)))
        notes[DRIFT_TAG + key] = json.dumps(changes, ensure_ascii=False)


def _find(tracking: Tracking, run: RunInfo, uri: str) -> TrackedRun | None:
    run_id = known.read(run, uri)
    found = None if run_id is None else tracking.get(run_id)
    return found if found is not None and found.tags.get(RUN_ID_TAG) == run.id else None


def _changes(tag: str | None) -> dict[str, str]:
    try:
        found = json.loads(tag or "{}")
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _context() -> dict[str, Any]:
    """Return the tags that MLflow itself gives a run: who, what script, which commit."""
    from mlflow.tracking.context.registry import resolve_tags

    return {key: cut(str(value), MAX_TAG) for key, value in resolve_tags().items()}
