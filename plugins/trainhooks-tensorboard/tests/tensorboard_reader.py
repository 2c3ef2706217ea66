"""TensorBoard's own reader of event files, for the tests."""

from tensorboard.backend.event_processing.event_accumulator import STORE_EVERYTHING_SIZE_GUIDANCE, EventAccumulator
from tensorboard.plugins.hparams.metadata import (
    SESSION_END_INFO_TAG,
    SESSION_START_INFO_TAG,
    parse_session_end_info_plugin_data,
    parse_session_start_info_plugin_data,
)


class Reader:
    """What TensorBoard's accumulator finds in a folder; ``purge`` as TensorBoard does with what a restart repeats."""

    def __init__(self, folder, purge=True):
        self.found = EventAccumulator(str(folder), STORE_EVERYTHING_SIZE_GUIDANCE, purge_orphaned_data=purge).Reload()

    def scalars(self, name):
        return [(one.step, one.value) for one in self.found.Scalars(name)]

    def texts(self, name):
        found = self.found.Tensors(name) if name in self.found.Tags()["tensors"] else []
        return [(one.step, one.tensor_proto.string_val[0].decode()) for one in found]

    def hyperparameters(self):
        info = parse_session_start_info_plugin_data(self._content(SESSION_START_INFO_TAG))
        return {name: getattr(value, value.WhichOneof("kind")) for name, value in info.hparams.items()}

    def status(self):
        tags = self.found.Tags()["tensors"]
        return (
            parse_session_end_info_plugin_data(self._content(SESSION_END_INFO_TAG)).status
            if SESSION_END_INFO_TAG in tags
            else None
        )

    def _content(self, tag):
        return self.found.SummaryMetadata(tag).plugin_data.content


def losses(first, last):
    """The loss of step n is 1 - n, and twice n is logged with it."""
    return [(step, 1.0 - step) for step in range(first, last + 1)]
