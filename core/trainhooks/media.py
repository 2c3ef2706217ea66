"""What is logged besides scalars: images, text, histograms and tables, as reporters get them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import Tensor

from .errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_CHANNELS: Final = (1, 3, 4)
_SLACK: Final = 0.01  # of rounding
_BATCH: Final = 4  # dimensions of several images


@dataclass(frozen=True)
class Logged:
    """Something that was logged, and when.

    Args:
        name: For example ``val/samples``.
        step: Steps done when it was logged.
        update: Updates done.
        epoch: Epochs done.
        time: Seconds since the epoch of the clock (``time.time``).
    """

    name: str
    step: int
    update: int
    epoch: int
    time: float

    @cached_property
    def size_bytes(self) -> int:
        """What it takes in memory, roughly."""
        return sum(map(_size_of, list(vars(self).values())))


@dataclass(frozen=True)
class Image(Logged):
    """An image.

    Args:
        pixels: ``(H, W, C)``, uint8, on the CPU; ``C`` is 1, 3 (RGB) or 4 (RGBA).
    """

    pixels: Tensor

    def png(self) -> bytes:
        """Return it as a PNG file, which needs no library for images."""
        from .png import png

        return png(self.pixels)


@dataclass(frozen=True)
class Text(Logged):
    """A text."""

    text: str


@dataclass(frozen=True)
class Histogram(Logged):
    """How often values fall between edges of equal distance.

    Args:
        counts: ``N`` of them.
        edges: ``N + 1``, rising; the last bin includes its upper edge.
    """

    counts: tuple[float, ...]
    edges: tuple[float, ...]


@dataclass(frozen=True)
class Table(Logged):
    """Rows of plain values.

    Args:
        columns: Their names.
        rows: One value for each column.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float | bool | None, ...], ...]


Media: TypeAlias = Image | Text | Histogram | Table


@dataclass(frozen=True)
class Pending:
    """Something that was logged and may still be on its device.

    Args:
        finish: Makes what reporters get, when there is time to copy from the device.
        size_bytes: What it takes meanwhile, roughly.
    """

    finish: Callable[[], Media]
    size_bytes: int


def image(name: str, value: Any, place: dict[str, Any]) -> Pending:
    """Take an image, on its device.

    Args:
        name: Of it.
        value: A tensor or array ``(H, W)``, ``(C, H, W)`` or ``(N, C, H, W)``, whose images are put in a grid; uint8, bool, or
            floating point from 0 to 1, which is clipped.
        place: Counters and time.

    Raises:
        UsageError: It is no image.
    """
    pixels = _as_tensor(f"log_image({name!r})", value)
    shape = tuple(pixels.shape)
    if pixels.ndim == 2:  # noqa: PLR2004 - height and width
        pixels = pixels[None]
    if pixels.ndim == _BATCH:
        pixels = _grid(pixels)
    if pixels.ndim != 3 or pixels.shape[0] not in _CHANNELS or pixels.numel() == 0:  # noqa: PLR2004 - channels, height, width
        message = f"log_image({name!r}): shape {shape}; give (H, W), (C, H, W) or (N, C, H, W) with 1, 3 or 4 channels"
        raise UsageError(message)
    if pixels.dtype != torch.uint8:
        if not (pixels.is_floating_point() or pixels.dtype == torch.bool):
            message = f"log_image({name!r}): {pixels.dtype}; give uint8, bool, or floating point from 0 to 1"
            raise UsageError(message)
        pixels = (pixels.float().nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8)
    elif len(shape) != _BATCH:  # a grid is a copy
        pixels = pixels.clone()
    return Pending(lambda: Image(name, **place, pixels=pixels.permute(1, 2, 0).cpu().contiguous()), pixels.nbytes)


def is_clipped(value: Any) -> bool:
    """Return whether an image has clearly other values than it may; one on a device is not waited for."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type != "cpu":
        return False
    if not value.is_floating_point() or value.numel() == 0:
        return False
    low, high = value.detach().aminmax()
    return bool(low < -_SLACK) or bool(high > 1 + _SLACK)


def text(name: str, value: str, place: dict[str, Any]) -> Pending:
    """Take a text."""
    return _done(Text(name, **place, text=str(value)))


def histogram(name: str, value: Any, bins: int, place: dict[str, Any]) -> Pending:
    """Take how values are distributed, counted on their device without waiting for it; what is not finite is left out.

    Raises:
        UsageError: There are no values, or no bins.
    """
    values = _as_tensor(f"log_histogram({name!r})", value).reshape(-1)
    if values.numel() == 0 or not isinstance(bins, int) or bins < 1 or values.is_complex():
        message = f"log_histogram({name!r}, bins={bins}): {values.numel()} values of {values.dtype}; give real numbers and 1 bin or more"
        raise UsageError(message)
    values = values.float() if values.device.type == "mps" else values.double()
    finite = values.abs() < torch.finfo(values.dtype).max / 4  # else the distance between two of them may be infinite
    low = torch.where(finite, values, math.inf).min()
    high = torch.where(finite, values, -math.inf).max()
    width = torch.where(high > low, high - low, torch.ones_like(low))
    index = ((values - low) / width * bins).nan_to_num(0.0, 0.0, 0.0).long().clamp(0, bins - 1)
    counts = torch.zeros(bins, dtype=values.dtype, device=values.device).scatter_add_(0, index, finite.to(values.dtype))

    def finish() -> Histogram:
        first, step = float(low), float(width) / bins
        if not math.isfinite(first):  # no value is finite
            first, step = 0.0, 1.0 / bins
        last = first + step * bins if first == float(high) or not math.isfinite(float(high)) else float(high)
        edges = (*(first + step * number for number in range(bins)), last)
        return Histogram(name, **place, counts=tuple(counts.tolist()), edges=edges)

    return Pending(finish, counts.nbytes)


def table(name: str, columns: Iterable[str], rows: Iterable[Sequence[Any]], place: dict[str, Any]) -> Pending:
    """Take a table; tensors with one element become numbers, what is no plain value its text.

    Raises:
        UsageError: These are no rows, or one has more or fewer values than there are columns.
    """
    try:
        names = tuple(str(column) for column in columns)
        taken = tuple(tuple(_plain(value) for value in _in_order(row)) for row in rows)
    except TypeError as error:
        message = f"log_table({name!r}): {error}; give names of columns, and rows with one value for each"
        raise UsageError(message) from None
    for number, row in enumerate(taken):
        if len(row) != len(names):
            message = f"log_table({name!r}): row {number} has {len(row)} values, there are {len(names)} columns"
            raise UsageError(message)
    return _done(Table(name, **place, columns=names, rows=taken))


def _in_order(values: Iterable[Any]) -> Iterable[Any]:
    """Return a row; refuse what would give letters, keys, or values in any order."""
    if isinstance(values, str | bytes | Mapping | set | frozenset):
        message = f"{values!r:.50} is no list"
        raise TypeError(message)
    return values


def _done(item: Media) -> Pending:
    return Pending(lambda: item, item.size_bytes)


def _size_of(value: object) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return getsizeof(value) + (sum(map(_size_of, value)) if isinstance(value, tuple) else 0)


def _as_tensor(what: str, value: Any) -> Tensor:
    """Return a dense tensor without a graph, of anything that is one, an array, or numbers in lists.

    Raises:
        UsageError: It is nothing of these.
    """
    try:
        if type(value).__module__ == "numpy" and any(stride < 0 for stride in value.strides):  # flipped, which torch refuses
            value = value.copy()
        tensor = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        message = f"{what}: {type(value).__name__} is no tensor or array of numbers ({str(error).partition(chr(10))[0]:.100})"
        raise UsageError(message) from None
    if tensor.is_meta or tensor.is_quantized:
        message = (
            f"{what}: a tensor of {tensor.dtype} on {tensor.device} has no values that can be read; give the values themselves"
        )
        raise UsageError(message)
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _plain(value: Any) -> str | int | float | bool | None:
    if isinstance(value, Tensor) or type(value).__module__ == "numpy":
        value = value.item() if getattr(value, "size", 1) == 1 or (isinstance(value, Tensor) and value.numel() == 1) else value
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _grid(images: Tensor) -> Tensor:
    """Put ``(N, C, H, W)`` into one ``(C, rows * H, columns * W)``, as square as it goes."""
    count, channels, height, width = images.shape
    columns = math.ceil(math.sqrt(count)) if count else 1
    rows = math.ceil(count / columns)
    grid = images.new_zeros(rows * columns, channels, height, width)
    grid[:count] = images
    return (
        grid.reshape(rows, columns, channels, height, width)
        .permute(2, 0, 3, 1, 4)
        .reshape(channels, rows * height, columns * width)
    )
