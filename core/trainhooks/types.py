"""Names for what flows through the hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

#: One batch as the loader gives it: a tensor, a tuple ``(inputs..., target)``, a mapping, or anything else.
Batch: TypeAlias = Any

#: What ``train_step`` and ``eval_step`` return: named values, ``"loss"`` among them.
Output: TypeAlias = Mapping[str, Any]

#: Metric names to values on the host, for example ``{"val/loss": 0.31}``.
Metrics: TypeAlias = dict[str, float]

#: A tree of plain values and tensors, as ``state_dict()`` gives it.
StateDict: TypeAlias = dict[str, Any]
