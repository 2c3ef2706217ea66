"""Reads runs back with Trackio's own command line, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path


class Reader:
    """Of one project with one run, below ``TRACKIO_DIR``."""

    def __init__(self, project, *connection):
        self.project, self.connection, self._rows = project, connection, None

    def ask(self, *words):
        command = [str(Path(sys.executable).parent / "trackio"), *self.connection, *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def runs(self):
        return self.ask("list", "runs", "--project", self.project)["runs"]

    def run(self):
        (name,) = self.runs()
        return self.ask("get", "run", "--project", self.project, "--run", name)

    def metric(self, metric):
        """Pairs of step and value, in the order in which they were stored; NaN and infinities are text in the database."""
        if self._rows is None:
            self._rows = self.rows("SELECT step, metrics FROM metrics ORDER BY id")
        rows = [(row["step"], json.loads(row["metrics"])) for row in self._rows]
        return [(step, values[metric]) for step, values in rows if metric in values]

    def get_metric(self, metric):
        """As ``metric``, by the command for that."""
        (name,) = self.runs()
        found = self.ask("get", "metric", "--project", self.project, "--run", name, "--metric", metric)
        return [(one["step"], one["value"]) for one in found["values"]]

    def alerts(self):
        return self.ask("get", "alerts", "--project", self.project)["alerts"]

    def rows(self, sql):
        return self.ask("query", "project", "--project", self.project, "--sql", sql)["rows"]
