"""DVCLive's own reader of its files, for the tests."""

import json
from pathlib import Path
from types import SimpleNamespace

from dvclive.serialize import load_yaml
from dvclive.utils import parse_metrics


class Read:
    """What DVCLive's own reader finds in a folder."""

    def __init__(self, folder):
        self.folder = Path(folder)
        live = SimpleNamespace(plots_dir=self.folder / "plots", metrics_file=self.folder / "metrics.json")
        found, self.summary = parse_metrics(live)
        self.history = {
            Path(name).relative_to(live.plots_dir / "metrics").with_suffix("").as_posix(): rows for name, rows in found.items()
        }
        self.params = load_yaml(self.folder / "params.yaml")
        self.dvcyaml = load_yaml(self.folder / "dvc.yaml")
        self.note = json.loads((self.folder / "trainhooks.json").read_text())

    def values(self, name):
        return [(int(row["step"]), float(row[name.rpartition("/")[2]])) for row in self.history[name]]


def losses(first, last):
    """The loss of step n is 1 - n."""
    return [(step, 1.0 - step) for step in range(first, last + 1)]
