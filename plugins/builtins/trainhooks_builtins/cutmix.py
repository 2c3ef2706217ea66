"""``cutmix``: training on images with a box of another one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from trainhooks import UsageError

from ._mixing import BatchMixing, number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Cutmix(BatchMixing):
    """Replaces a box of each image by that of another image of the batch, and mixes the losses by area.

    With ``lam`` drawn from Beta(alpha, alpha), once for each batch, the box has ``sqrt(1 - lam)`` of the height and of the
    width and a centre that is drawn uniformly; it is clipped at the edges (Yun et al. 2019, "CutMix", algorithm 1). The loss
    is ``lam' * loss(output, target) + (1 - lam') * loss(output, target')`` with ``lam'`` the share of the image that is left
    of it beside the clipped box. It is made of the loss function that ``Trainer`` was given, called for both targets. Only
    training is touched.

    Args:
        alpha: Of the Beta distribution; 1 is uniform.
        probability: That a batch is mixed at all.
    """

    name = "cutmix"

    def __init__(self, alpha: float = 1.0, probability: float = 0.5) -> None:
        super().__init__(alpha, probability)

    def mix(self, inputs: Sequence[Tensor], pairs: Tensor, share: float) -> tuple[list[Tensor], float]:
        """Return the images with a box of others, and what is left of each."""
        sizes = {one.shape[-2:] for one in inputs}
        if len(sizes) > 1 or any(one.ndim < 3 for one in inputs):  # noqa: PLR2004 - samples, height, width
            shapes = ", ".join(str(list(one.shape)) for one in inputs)
            message = f"cutmix needs images: inputs whose last two dimensions are the same height and width, not {shapes}"
            raise UsageError(message)
        height, width = next(iter(sizes))
        rows, columns = clipped(height, share), clipped(width, share)
        mixed = []
        for one in inputs:
            image = one.clone()
            image[..., rows, columns] = one[..., rows, columns][pairs]
            mixed.append(image)
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        return mixed, 1 - area / (height * width)


def clipped(length: int, share: float) -> slice:
    """Return what is left within the image of a box's side, its centre drawn by torch's generator on the host."""
    side = int(length * math.sqrt(1 - share))
    centre: int = number_of(torch.randint(length, ()))
    return slice(max(centre - side // 2, 0), min(centre - side // 2 + side, length))
