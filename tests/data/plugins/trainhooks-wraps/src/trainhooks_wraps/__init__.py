"""``wraps``: a factor on the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainhooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Generator


class Wraps:
    """Multiplies the loss.

    Args:
        factor: Of the loss.
    """

    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor

    @hookimpl(wrapper=True)
    def compute_loss(self) -> Generator[None, Any, Any]:
        """Return the loss times the factor."""
        loss = yield
        return loss * self.factor
