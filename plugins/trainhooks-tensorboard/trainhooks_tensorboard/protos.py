"""The protocol buffers of TensorBoard and what else is foreign, imported when a run begins to report."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

_NAMES: Final = {
    "tensorboard.compat.proto.event_pb2": ("Event", "SessionLog"),
    "tensorboard.compat.proto.summary_pb2": ("HistogramProto", "Summary", "SummaryMetadata"),
    "tensorboard.compat.proto.tensor_pb2": ("TensorProto",),
    "tensorboard.compat.proto.tensor_shape_pb2": ("TensorShapeProto",),
    "tensorboard.compat.proto.types_pb2": ("DT_STRING",),
    "tensorboard.plugins.hparams.api_pb2": ("STATUS_FAILURE", "STATUS_SUCCESS"),
    "tensorboard.plugins.hparams.metadata": (
        "NULL_TENSOR",
        "SESSION_END_INFO_TAG",
        "SESSION_START_INFO_TAG",
        "create_summary_metadata",
        "parse_session_start_info_plugin_data",
    ),
    "tensorboard.plugins.hparams.plugin_data_pb2": ("HParamsPluginData", "SessionEndInfo", "SessionStartInfo"),
    "tensorboard.summary.writer.record_writer": ("RecordWriter",),
    "google.protobuf.message": ("DecodeError",),
    "PIL.Image": ("fromarray",),
}


@cache
def protos() -> Any:
    """Return the classes and constants by their names; none of the modules imports TensorFlow."""
    return SimpleNamespace(**{name: getattr(import_module(module), name) for module, names in _NAMES.items() for name in names})
