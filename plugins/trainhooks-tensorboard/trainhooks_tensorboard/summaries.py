"""What trainhooks logs as events of TensorBoard."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

from .protos import protos

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainhooks import Record
    from trainhooks.media import Histogram, Image, Media


def scalars(record: Record) -> Any:
    """Return the values of a record as one event; TensorBoard keeps them in single precision."""
    proto = protos()
    values = [proto.Summary.Value(tag=valid(name), simple_value=value) for name, value in record.values.items()]
    return event(values, record.step, record.time)


def medium(item: Media) -> Any:
    """Return an image, a text, a histogram or a table as an event."""
    from trainhooks.media import Histogram, Image, Text

    if isinstance(item, Image):
        value = _image(item)
    elif isinstance(item, Histogram):
        value = _histogram(item)
    else:
        value = text(item.name, item.text if isinstance(item, Text) else table(item.columns, item.rows))
    return event([value], item.step, item.time)


def event(values: Sequence[Any], step: int, time: float) -> Any:
    """Return an event with values of one step."""
    proto = protos()
    return proto.Event(step=step, wall_time=time, summary=proto.Summary(value=values))


def text(name: str, content: str) -> Any:
    """Return a text, which TensorBoard shows as Markdown."""
    proto = protos()
    metadata = proto.SummaryMetadata(plugin_data=proto.SummaryMetadata.PluginData(plugin_name="text"))
    shape = proto.TensorShapeProto(dim=[proto.TensorShapeProto.Dim(size=1)])
    tensor = proto.TensorProto(dtype=proto.DT_STRING, string_val=[content.encode("utf-8", "replace")], tensor_shape=shape)
    return proto.Summary.Value(tag=valid(name), metadata=metadata, tensor=tensor)


def valid(text: str) -> str:
    """Return a text without what is no character, as names of files may have it: protocol buffers refuse that."""
    return text.encode("utf-8", "replace").decode("utf-8")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\r\n", "<br>").replace("\n", "<br>")


def _image(item: Image) -> Any:
    proto = protos()
    height, width, channels = item.pixels.shape
    pixels = item.pixels.numpy()
    encoded = io.BytesIO()
    proto.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(encoded, "PNG")
    image = proto.Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=encoded.getvalue())
    return proto.Summary.Value(tag=valid(item.name), image=image)


def _histogram(item: Histogram) -> Any:
    """Return the bins as they are; sums, which only old views of TensorBoard show, are those of the middles of the bins."""
    proto = protos()
    middles = [(low + high) / 2 for low, high in zip(item.edges, item.edges[1:], strict=False)]
    weighted = [(count, middle) for count, middle in zip(item.counts, middles, strict=True) if count]
    histogram = proto.HistogramProto(
        min=item.edges[0],
        max=item.edges[-1],
        num=math.fsum(item.counts),
        sum=math.fsum(count * middle for count, middle in weighted),
        sum_squares=math.fsum(count * middle * middle for count, middle in weighted),
        bucket_limit=item.edges[1:],
        bucket=item.counts,
    )
    return proto.Summary.Value(tag=valid(item.name), histo=histogram)
