"""What each tracker has of one run of the digits, by the tracker's own reader; for ``satellite_demo.py``.

``READERS`` has one function for each satellite, from the run folder to ``Found``. A tracker's package is imported in its function,
since only one of them is installed.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import zipfile
from collections import defaultdict
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

TABLE, IMAGE, ARTIFACT = "val/misread", "val/misread scans", "trainconf.py"
PNG_SIZE = slice(16, 24)  #: width and height of an image in its file


@dataclass
class Found:
    """What was found; each list has all that the tracker has, so that nothing can be there twice unseen.

    Args:
        metrics: Pairs of step and value of each metric.
        hyperparameters: By name, in whatever type the tracker has.
        status: How the run ended, in the tracker's own word; ``None`` if it does not know yet.
        artifacts: The content of ``trainconf.py``, or of the file that the tracker names.
        images: Width and height of the image of misread scans.
        tables: Rows of the table of misread scans.
        is_single: Whether the tracker keeps metrics in single precision.
    """

    metrics: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    hyperparameters: dict[str, object] = field(default_factory=dict)
    status: str | None = None
    artifacts: list[bytes] = field(default_factory=list)
    images: list[tuple[int, int]] = field(default_factory=list)
    tables: list[list[list[int]]] = field(default_factory=list)
    is_single: bool = False

    def add_image(self, png):
        size = png[PNG_SIZE]
        self.images.append((int.from_bytes(size[:4], "big"), int.from_bytes(size[4:], "big")))

    def add_table(self, rows):
        self.tables.append([[int(cell) for cell in row] for row in rows])


def tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import STORE_EVERYTHING_SIZE_GUIDANCE, EventAccumulator
    from tensorboard.plugins.hparams import api_pb2, metadata

    read = EventAccumulator(str(run / "tensorboard"), STORE_EVERYTHING_SIZE_GUIDANCE).Reload()
    found, tags = Found(is_single=True), read.Tags()
    for name in tags["scalars"]:
        found.metrics[name] = [(one.step, one.value) for one in read.Scalars(name)]
    if metadata.SESSION_START_INFO_TAG in tags["tensors"]:
        content = read.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
        values = metadata.parse_session_start_info_plugin_data(content).hparams
        found.hyperparameters = {name: getattr(value, value.WhichOneof("kind")) for name, value in values.items()}
    if metadata.SESSION_END_INFO_TAG in tags["tensors"]:
        content = read.SummaryMetadata(metadata.SESSION_END_INFO_TAG).plugin_data.content
        found.status = api_pb2.Status.Name(metadata.parse_session_end_info_plugin_data(content).status)
    for name in (TABLE, f"artifacts/{ARTIFACT}"):
        for one in read.Tensors(name) if name in tags["tensors"] else []:
            _, _, *lines = one.tensor_proto.string_val[0].decode().splitlines()  # Markdown, after the header
            rows = [line.strip("| ").split(" | ") for line in lines]
            if name == TABLE:
                found.add_table(rows)
            else:
                found.artifacts.append(Path(rows[0][-1]).read_bytes())
    for one in read.Images(IMAGE) if IMAGE in tags["images"] else []:
        found.add_image(one.encoded_image_string)
    return found


def wandb(run):
    found = Found()
    for file in sorted(run.glob("wandb/offline-run-*/run-*.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        text = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120
        ).stdout  # of a killed run it fails
        for record in map(json.loads, text.splitlines()):  # ... after what is whole
            kind = record["type"]
            content = record[kind]
            if kind == "history":
                row = content["item"]
                for name, value in row.items():
                    found.metrics[name].append((row["_step"], value))
                if (path := row.get(f"{IMAGE}.path")) is not None:
                    found.add_image((file.parent / "files" / path).read_bytes())
                if (path := row.get(f"{TABLE}.path")) is not None:
                    found.add_table(json.loads((file.parent / "files" / path).read_text())["data"])
            elif kind == "config":
                found.hyperparameters |= content["update"]
            elif kind == "artifact" and content["name"] == ARTIFACT:
                found.artifacts += [Path(entry["local_path"]).read_bytes() for entry in content["manifest"]["contents"]]
            elif kind == "exit":
                found.status = f"exit code {content.get('exit_code', 0)}"
    return found


def mlflow(run):
    from mlflow import MlflowClient

    client, found = MlflowClient(f"sqlite:///{run.parent / 'mlflow.db'}"), Found()
    experiment = client.get_experiment_by_name("trainhooks")
    name = f"attributes.run_name = '{run.name}'"
    (stored,) = client.search_runs([experiment.experiment_id], name)
    for name in stored.data.metrics:
        found.metrics[name] = [(one.step, one.value) for one in client.get_metric_history(stored.info.run_id, name)]
    found.hyperparameters, found.status = stored.data.params, stored.info.status
    folders = ["images", f"table/{TABLE}", "code"]
    with redirect_stderr(None):  # a bar for each file
        for file in [file.path for folder in folders for file in client.list_artifacts(stored.info.run_id, folder)]:
            content = Path(client.download_artifacts(stored.info.run_id, file)).read_bytes()
            if file == f"code/{ARTIFACT}":
                found.artifacts.append(content)
            elif file.endswith(".json"):
                found.add_table(json.loads(content)["data"])
            elif file.startswith(f"images/{IMAGE.replace('/', '~')}+") and file.endswith(".png"):
                found.add_image(content)
    return found


def dvclive(run):
    from dvclive.serialize import load_yaml
    from dvclive.utils import parse_metrics

    found, folder = Found(), run / "dvclive"
    live = SimpleNamespace(plots_dir=folder / "plots", metrics_file=folder / "metrics.json")
    files, summary = parse_metrics(live)
    for file, rows in files.items():
        path = Path(file).relative_to(live.plots_dir / "metrics").with_suffix("")
        found.metrics[path.as_posix()] = [(int(row["step"]), float(row[path.name])) for row in rows]
    found.hyperparameters, found.status = load_yaml(folder / "params.yaml"), summary["run"]["status"]
    artifacts = load_yaml(folder / "dvc.yaml").get("artifacts", {})
    found.artifacts = [(folder / one["path"]).read_bytes() for one in artifacts.values()]
    for file in folder.glob(f"plots/images/{IMAGE}/*.png"):
        found.add_image(file.read_bytes())
    for file in folder.glob(f"tables/{TABLE}/*.csv"):
        found.add_table(list(csv.reader(file.read_text().splitlines()))[1:])
    return found


def comet(run):
    """The messages of the offline archives, one for each process; until its end it is a folder."""
    found = Found()
    for archive in sorted(path for path in run.glob("comet/*-*") if path.suffix in ("", ".zip")):
        at = zipfile.Path(archive) if archive.suffix else archive
        for message in map(json.loads, (at / "messages.json").read_text().splitlines()):
            kind, content = message["type"], message["payload"]
            if kind == "metric_msg":
                metric = content["metric"]
                found.metrics[metric["metricName"]].append((metric["step"], metric["metricValue"]))
            elif kind == "parameter_msg":
                found.hyperparameters[content["param"]["paramName"]] = content["param"]["paramValue"]
            elif kind == "log_other" and content["key"] == "status":
                found.status = content["value"]
            elif kind == "file_upload":
                file, given = (at / content["file_path"]).read_bytes(), content["additional_params"]
                if given.get("fileName") == ARTIFACT:
                    found.artifacts.append(file)
                elif given.get("figName") == IMAGE:
                    found.add_image(file)
                elif given.get("fileName", "").startswith(f"{TABLE}-"):
                    found.add_table(list(csv.reader(io.StringIO(file.decode())))[1:])
    return found


def clearml(run):
    """The offline session; it is packed at its end."""
    found = Found()
    (folder,) = [path for path in run.glob("clearml/offline/*") if path.is_dir()]
    packed = folder.with_suffix(".zip")
    at = zipfile.Path(packed) if packed.exists() else folder
    for event in [event for line in (at / "metrics.jsonl").read_text().splitlines() for event in json.loads(line)]:
        metric, variant = event["metric"], event["variant"]
        name = metric if metric == variant else f"{variant}/{metric}"
        if event["type"] == "training_stats_scalar":
            found.metrics[name].append((event["iter"], event["value"]))
        elif (event["type"], name) == ("plot", TABLE):
            columns = json.loads(event["plot_str"])["data"][0]["cells"]["values"]
            found.add_table(zip(*columns, strict=True))
        elif (event["type"], name) == ("training_debug_image", IMAGE):
            found.add_image((at / "data" / event["key"]).read_bytes())
    task = json.loads((at / "task.json").read_text())
    sections = {name: {key: one["value"] for key, one in values.items()} for name, values in task["hyperparams"].items()}
    found.hyperparameters, found.status = sections["General"], sections.get("properties", {}).get("status")
    for artifact in task["execution"].get("artifacts", []):
        found.artifacts.append((at / Path(artifact["uri"]).relative_to(folder)).read_bytes())
    return found


def trackio(run):
    """By its command line; the files of media and artifacts lie beside its database."""
    (database,) = Path.home().rglob("trainhooks.db")

    def ask(*words):
        command = [str(Path(sys.executable).parent / "trackio"), *words, "--project", "trainhooks", "--json"]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)

    found, (name,) = Found(), [name for name in ask("list", "runs")["runs"] if name.startswith(f"{run.name}-")]
    sql = f"SELECT step, metrics FROM metrics WHERE run_name = '{name}' ORDER BY id"
    for row in ask("query", "project", "--sql", sql)["rows"]:
        for metric, value in json.loads(row["metrics"]).items():
            if metric == IMAGE:
                found.add_image((database.parent / "media" / value["file_path"]).read_bytes())
            elif metric == TABLE:
                found.add_table(cells.values() for cells in value["_value"])
            else:
                found.metrics[metric].append((row["step"], value))
    found.hyperparameters = ask("get", "run", "--run", name)["config"]
    found.status = found.hyperparameters.get("outcome/status")
    if found.status is not None:
        values = ask("get", "metric", "--run", name, "--metric", "train/loss")["values"]
        found.metrics["train/loss"] = [(one["step"], one["value"]) for one in values]
        artifact = ask("get", "artifact", "--name", ARTIFACT)
        found.artifacts = [path.read_bytes() for one in artifact["manifest"] for path in database.parent.rglob(one["digest"])]
    return found


def swanlab(run):
    """The files of all processes."""
    import yaml
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.proto.swanlab.run.v1.run_pb2 import RunState
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    found = Found()
    for file in sorted(run.glob("swanlab/run-*/run-*.swanlab")):
        reader = DataStoreReader()
        reader.open(str(file))
        for data in reader:
            record = Record.FromString(data)
            if record.HasField("scalar"):
                found.metrics[record.scalar.key].append((record.scalar.step, record.scalar.value.number))
            elif record.HasField("media"):
                for item in record.media.value.items:
                    (path,) = file.parent.glob(f"media/*/{item.filename}")
                    if record.media.key == IMAGE:
                        found.add_image(path.read_bytes())
                    elif record.media.key == TABLE:
                        found.add_table(row.values() for row in json.loads(path.read_text())["rowData"])
            elif record.HasField("save") and record.save.name == ARTIFACT and record.save.target_path:
                found.artifacts.append(Path(record.save.target_path).read_bytes())
            elif record.HasField("finish"):
                found.status = RunState.Name(record.finish.state)
        reader.close()
        stored = yaml.safe_load((file.parent / "files" / "config.yaml").read_text(encoding="utf-8"))
        found.hyperparameters = {name: one["value"] for name, one in stored.items()}
    return found


#: The reader of each satellite, and what it calls a run that completed.
READERS = {
    "tensorboard": (tensorboard, "STATUS_SUCCESS"),
    "wandb": (wandb, "exit code 0"),
    "mlflow": (mlflow, "FINISHED"),
    "dvclive": (dvclive, "completed"),
    "comet": (comet, "finished"),
    "clearml": (clearml, "completed"),
    "trackio": (trackio, "completed"),
    "swanlab": (swanlab, "RUN_STATE_FINISHED"),
}
