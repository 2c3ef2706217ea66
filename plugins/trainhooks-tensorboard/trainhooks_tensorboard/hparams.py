"""The table of hyperparameters that TensorBoard's HParams view shows, and how a run ended."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

from .protos import protos
from .summaries import event, valid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainhooks import Outcome

#: Integers up to this are numbers of double precision, too.
_EXACT: Final = 2**53


def start_event(hyperparameters: Mapping[str, Any], started: float) -> Any:
    """Return the event that says what a run was made with."""
    proto = protos()
    info = proto.SessionStartInfo(start_time_secs=started)
    for given, value in hyperparameters.items():
        name = valid(given)
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif (isinstance(value, int) and abs(value) <= _EXACT) or (isinstance(value, float) and math.isfinite(value)):
            info.hparams[name].number_value = value
        else:  # a number that the view could not show, or only another one
            info.hparams[name].string_value = valid(str(value))
    return event([_value(proto.SESSION_START_INFO_TAG, proto.HParamsPluginData(session_start_info=info))], 0, time.time())


def end_event(outcome: Outcome) -> Any:
    """Return the event that says how a run ended."""
    proto = protos()
    status = proto.STATUS_SUCCESS if outcome.status in ("completed", "stopped") else proto.STATUS_FAILURE
    info = proto.SessionEndInfo(status=status, end_time_secs=time.time())
    return event(
        [_value(proto.SESSION_END_INFO_TAG, proto.HParamsPluginData(session_end_info=info))], outcome.step, time.time()
    )


def is_end(found: Any) -> bool:
    """Return whether an event says how a run ended."""
    proto = protos()
    return any(value.tag == proto.SESSION_END_INFO_TAG for value in found.summary.value)


def read_start(events: Iterable[Any]) -> tuple[dict[str, Any], float]:
    """Return the hyperparameters and the time of the start that events tell of; nothing and now if they do not."""
    proto = protos()
    for found in events:
        for value in found.summary.value:
            if value.tag == proto.SESSION_START_INFO_TAG:
                info = proto.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
                return {name: getattr(one, one.WhichOneof("kind")) for name, one in info.hparams.items()}, info.start_time_secs
    return {}, time.time()


def _value(tag: str, data: Any) -> Any:
    proto = protos()
    return proto.Summary.Value(tag=tag, metadata=proto.create_summary_metadata(data), tensor=proto.NULL_TENSOR)
