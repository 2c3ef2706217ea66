"""``summary``: what the model consists of, at the start of a run."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.nn.parameter import is_lazy

from trainhooks import OptionError, hookimpl

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from torch import Tensor, nn

    from trainhooks import Trainer
    from trainhooks.types import Output

log = logging.getLogger("trainhooks")

_FILE = "summary.txt"
_MIB = 2**20


class Summary:
    """Shows the modules of the model with their parameters, and what they come to.

    A row has the parameters of a module and all that is inside it. A parameter that several modules share counts once in each
    row and once in the totals, so the rows may come to more than the totals. The table goes to the log, and to ``summary.txt`` in
    the run folder.

    Args:
        depth: Levels of modules to show: 1 for the children of the model; 0 for totals only.
        flops: Also count the floating-point operations of the first step that is trained.
    """

    phase = "bookkeeping"
    after = ("freeze",)  # it says what is frozen

    def __init__(self, depth: int = 2, flops: bool = False) -> None:
        if depth < 0:
            message = f"depth = {depth}: must be 0 (totals only) or more"
            raise OptionError(message)
        self.depth = depth
        #: What the first step took, where it was counted.
        self.flops: int | None = None
        self._counts = flops
        self._text = ""
        if not flops:
            vars(self)["train_step"] = None  # nothing to do there: the hook is not even called

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Show the table."""
        if trainer.model is None or not trainer.is_main:
            return
        self._text = table_of(trainer.model, self.depth)
        log.info("summary: the model\n%s", self._text)
        self._write(trainer)

    @hookimpl(wrapper=True)
    def train_step(self, trainer: Trainer) -> Generator[None, Output, Output]:
        """Count the operations of the first step."""
        if not self._counts or not trainer.is_main:
            return (yield)
        from torch.utils.flop_counter import FlopCounterMode

        self._counts = False
        with FlopCounterMode(display=False) as counter:
            output = yield
        self.flops = counter.get_total_flops()
        line = f"one training step: {self.flops:,} floating-point operations (of matrix products, convolutions and attention)"
        log.info("summary: %s", line)
        self._text += f"\n{line}"
        self._write(trainer)
        return output

    def _write(self, trainer: Trainer) -> None:
        if trainer.run_folder is not None and self._text:
            path = trainer.run_file(_FILE)
            path.write_text(self._text + "\n", encoding="utf-8")
            trainer.log_artifact(path)


@dataclass
class Size:
    """What some tensors come to, each counted once."""

    total: int = 0
    trainable: int = 0
    size_bytes: int = 0
    lazy: int = 0
    by_dtype: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> Size:
        """Add up tensors; of a lazy one nothing is known yet."""
        size = cls()
        for tensor in {id(one): one for one in tensors}.values():
            if is_lazy(tensor):
                size.lazy += 1
                continue
            taken = tensor.numel() * tensor.element_size()
            size.total += tensor.numel()
            size.trainable += tensor.numel() * tensor.requires_grad
            size.size_bytes += taken
            size.by_dtype[str(tensor.dtype).removeprefix("torch.")] += taken
        return size


def table_of(model: nn.Module, depth: int) -> str:
    """Return the table and the totals as text.

    Args:
        model: The model.
        depth: Levels of modules to show.
    """
    rows = [("module", "class", "parameters", "trainable", "")]
    owners = _owners(model)
    for name, module in model.named_modules():
        level = name.count(".") + 1 if name else 0
        if not name or level > depth:
            continue
        parameters = list(module.parameters())
        notes = _notes(Size.of(parameters), shared=any(len(owners[id(one)]) > 1 for one in parameters))
        size = Size.of(parameters)
        rows.append(("  " * (level - 1) + name, type(module).__name__, f"{size.total:,}", f"{size.trainable:,}", notes))
    return "\n".join([*(_aligned(rows) if len(rows) > 1 else []), *_totals(model)])


def _owners(model: nn.Module) -> dict[int, set[str]]:
    """Return the names of the modules that have each parameter as their own."""
    owners: dict[int, set[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(name)
    return owners


def _notes(size: Size, *, shared: bool) -> str:
    notes = []
    if size.total and not size.trainable:
        notes.append("frozen")
    elif size.trainable < size.total:
        notes.append("partly frozen")
    if shared:
        notes.append("shared")
    if size.lazy:
        notes.append(f"{size.lazy} lazy, not counted yet")
    return ", ".join(notes)


def _totals(model: nn.Module) -> list[str]:
    parameters, buffers = Size.of(model.parameters()), Size.of(model.buffers())
    frozen = parameters.total - parameters.trainable
    lazy = parameters.lazy + buffers.lazy
    kinds = parameters.by_dtype + buffers.by_dtype
    dtypes = ", ".join(f"{dtype} {size_bytes:,} bytes" for dtype, size_bytes in sorted(kinds.items()))
    lines = [
        f"parameters: {parameters.total:,} ({parameters.trainable:,} trainable, {frozen:,} frozen)",
        f"buffers: {buffers.total:,} values",
        f"size: {(parameters.size_bytes + buffers.size_bytes) / _MIB:.3f} MiB{f' ({dtypes})' if dtypes else ''}",
    ]
    if lazy:
        lines.append(f"not counted: {lazy} lazy parameters or buffers, whose shape the first batch decides")
    return lines


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines: text to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if 1 < column < 4 else cell.ljust(width)  # noqa: PLR2004 - the two numbers
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
