"""Reads runs back from SwanLab's files, with SwanLab's own reader and protocol."""

from pathlib import Path

import yaml


class Files:
    """Of all processes of the runs below a folder, in order."""

    def __init__(self, log_dir):
        from swanlab.proto.swanlab.record.v1.record_pb2 import Record
        from swanlab.sdk.internal.core_python.store import DataStoreReader

        self.files = sorted(Path(log_dir).glob("run-*/run-*.swanlab"))
        self.records = []
        for file in self.files:
            reader = DataStoreReader()
            reader.open(file)
            for data in reader:
                record = Record()
                record.ParseFromString(data)
                self.records.append(record)
            reader.close()

    def of(self, kind):
        return [getattr(record, kind) for record in self.records if record.HasField(kind)]

    def metric(self, key):
        return [(one.step, one.value.number) for one in self.of("scalar") if one.key == key]

    def media(self, key, kind):
        """Pairs of step and the file's bytes."""
        folders = [file.parent / "media" / kind for file in self.files]
        found = [(one.step, item.filename) for one in self.of("media") if one.key == key for item in one.value.items]
        return [(step, (folder / name).read_bytes()) for step, name in found for folder in folders if (folder / name).exists()]

    def config(self):
        """Of the last process."""
        found = yaml.safe_load((self.files[-1].parent / "files" / "config.yaml").read_text(encoding="utf-8"))
        return {key: entry["value"] for key, entry in found.items()}

    def ends(self):
        from swanlab.proto.swanlab.run.v1.run_pb2 import RunState

        return [(RunState.Name(one.state).removeprefix("RUN_STATE_"), one.error) for one in self.of("finish")]
