"""Reads back what MLflow has, with its own client."""

from __future__ import annotations

import contextlib
from pathlib import Path

from mlflow import MlflowClient


class Read:
    """The runs at an address."""

    def __init__(self, uri):
        self.client = MlflowClient(uri)

    def runs(self, experiment="trainhooks"):
        found = self.client.get_experiment_by_name(experiment)
        return [] if found is None else self.client.search_runs([found.experiment_id])

    def only_run(self, experiment="trainhooks"):
        (run,) = self.runs(experiment)
        return run

    def steps(self, run, name):
        """The steps and values of a metric, in the order of steps."""
        return sorted((metric.step, metric.value) for metric in self.client.get_metric_history(run.info.run_id, name))

    def files(self, run, path=None):
        found = []
        for file in self.client.list_artifacts(run.info.run_id, path):
            found += self.files(run, file.path) if file.is_dir else [file.path]
        return sorted(found)

    def file(self, run, path, folder):
        with contextlib.redirect_stderr(None):
            return Path(self.client.download_artifacts(run.info.run_id, path, str(folder))).read_bytes()


def every_step(steps):
    """What ``probe/double`` is to be."""
    return [(step, 2.0 * step) for step in range(1, steps + 1)]


def complaints(ran):
    """The warnings of a run, without that which is only about time: other work may be on this machine."""
    return [text for text in ran.warnings if "did not finish in time" not in text]
