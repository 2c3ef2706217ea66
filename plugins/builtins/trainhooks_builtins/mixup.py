"""``mixup``: training on weighted averages of pairs of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._mixing import BatchMixing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Mixup(BatchMixing):
    """Replaces each input ``x`` by ``lam * x + (1 - lam) * x'``, where ``x'`` is another sample of the batch.

    The loss becomes ``lam * loss(output, target) + (1 - lam) * loss(output, target')`` (Zhang et al. 2018, "mixup: Beyond
    Empirical Risk Minimization", with one ``lam`` of Beta(alpha, alpha) for each batch). It is made of the loss function that
    ``Trainer`` was given, called for both targets, so that any loss of (output, target) will do and targets may be classes,
    numbers or probabilities. Only training is touched.

    Args:
        alpha: Of the Beta distribution: small values mix little, 1 is uniform.
        probability: That a batch is mixed at all.
    """

    name = "mixup"

    def __init__(self, alpha: float = 0.2, probability: float = 1.0) -> None:
        super().__init__(alpha, probability)

    def mix(self, inputs: Sequence[Tensor], pairs: Tensor, share: float) -> tuple[list[Tensor], float]:
        """Return the averages of the pairs."""
        return [share * one + (1 - share) * one[pairs] for one in inputs], share
