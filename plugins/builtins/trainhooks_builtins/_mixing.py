"""What ``mixup`` and ``cutmix`` share: batches whose samples are mixed in pairs, and a loss that knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainhooks import OptionError, UsageError, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from trainhooks import Trainer
    from trainhooks.types import Batch, Metrics, Output


class BatchMixing:
    """Mixes the inputs of a training batch with those of the same batch in another order, and the losses in the same share.

    Args:
        alpha: Of the Beta(alpha, alpha) that the share is drawn from.
        probability: That a batch is mixed.
    """

    phase = "algorithm"
    #: The plugin's name, for messages.
    name: str

    def __init__(self, alpha: float, probability: float) -> None:
        if not 0 < alpha < float("inf"):
            message = f"alpha = {alpha}: must be above 0"
            raise OptionError(message)
        if not 0 <= probability <= 1:
            message = f"probability = {probability}: must be between 0 and 1"
            raise OptionError(message)
        self.alpha, self.probability = alpha, probability
        self._pairs: Tensor | None = None  # of the running batch, while it is mixed: which sample each one is mixed with
        self._share = 1.0

    def mix(self, inputs: Sequence[Tensor], pairs: Tensor, share: float) -> tuple[list[Tensor], float]:
        """Return the mixed inputs, and the share of each sample in what became of it."""
        raise NotImplementedError

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Refuse a training whose loss is out of reach."""
        if trainer.loss is None:
            message = (
                f"{self.name} mixes what loss(output, target) gives for two targets, and Trainer was given no loss=; give one (in "
                "a project file: set trainer.loss in configure and call it in compute_loss), or mix the batch in a prepare_batch of your own if the model computes its loss"
            )
            raise UsageError(message)

    @hookimpl(wrapper=True)
    def prepare_batch(self, trainer: Trainer, batch: Batch) -> Generator[None, Batch, Batch]:
        """Mix the inputs of a batch that is trained with; the target stays as it is."""
        prepared = yield
        if trainer.split != "train" or not torch.is_grad_enabled():  # the train loader may be evaluated too
            return prepared
        self._pairs = None
        if self.probability < 1 and number_of(torch.rand(())) >= self.probability:
            return prepared
        *inputs, target = self._checked(prepared)
        pairs = torch.randperm(len(target), device=target.device)
        mixed, self._share = self.mix(inputs, pairs, draw_share(self.alpha))
        self._pairs = pairs
        return type(prepared)((*mixed, target)) if type(prepared) in (tuple, list) else type(prepared)(*mixed, target)

    @hookimpl(wrapper=True)
    def train_step(self, trainer: Trainer) -> Generator[None, Output, Output]:
        """Have the loss function give the mixed loss during the step.

        Raises:
            UsageError: The step did not ask it.
        """
        pairs, share, loss = self._pairs, self._share, trainer.loss
        if pairs is None or loss is None:
            return (yield)
        trainer.loss = mixed = MixedLoss(loss, pairs, share)
        try:
            output = yield
        finally:
            trainer.loss = loss
            self._pairs = None
        if not mixed.asked:
            message = (
                f"{self.name} mixed the batch, but the step computed its loss without trainer.loss, so the targets were not "
                "mixed: call trainer.loss(output, target) in compute_loss or train_step"
            )
            raise UsageError(message)
        return output

    @hookimpl(wrapper=True)
    def evaluate(self, trainer: Trainer) -> Generator[None, Metrics, Metrics]:
        """Measure with the loss function itself, also within a step."""
        loss = trainer.loss
        while isinstance(trainer.loss, MixedLoss):
            trainer.loss = trainer.loss.plain
        try:
            return (yield)
        finally:
            trainer.loss = loss

    def _checked(self, batch: Batch) -> Sequence[Tensor]:
        """Return the batch if it can be mixed.

        Raises:
            UsageError: It is not (inputs..., target) of tensors, or its inputs are no floating-point numbers.
        """
        if isinstance(batch, tuple | list) and len(batch) > 1 and all(isinstance(one, Tensor) and one.ndim for one in batch):
            *inputs, target = batch
            if all(one.is_floating_point() and len(one) == len(target) for one in inputs):
                return batch
            found = ", ".join(f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in batch)
        else:
            found = type(batch).__name__
        message = (
            f"{self.name} needs batches (inputs..., target) of tensors with the same number of samples and floating-point inputs, "
            f"not {found}"
        )
        raise UsageError(message)


class MixedLoss:
    """The loss function, mixed: ``share * loss(output, target) + (1 - share) * loss(output, target[pairs])``.

    Args:
        loss: What it mixes, which may itself be mixed.
        pairs: Which sample each one is mixed with.
        share: Of the sample itself.
    """

    def __init__(self, loss: Callable[..., Any], pairs: Tensor, share: float) -> None:
        #: What it mixes.
        self.plain = loss
        self._pairs, self._share = pairs, share
        #: Whether it was called.
        self.asked = False

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return the mixed loss; the target is the second argument, or that of the name ``target``."""
        self.asked = True
        own, other = self.plain(*arguments, **options), self._of_the_others(*arguments, **options)
        if isinstance(own, Mapping):
            return {name: self._mix(own[name], other[name]) for name in own}
        return self._mix(own, other)

    def __getattr__(self, name: str) -> Any:
        """Be like the function in everything else."""
        return getattr(self.plain, name)

    def _of_the_others(self, *arguments: Any, **options: Any) -> Any:
        if "target" in options:
            return self.plain(*arguments, **{**options, "target": options["target"][self._pairs]})
        output, target, *more = arguments
        return self.plain(output, target[self._pairs], *more, **options)

    def _mix(self, own: Any, other: Any) -> Any:
        return self._share * own + (1 - self._share) * other


def draw_share(alpha: float) -> float:
    """Return a number drawn from Beta(alpha, alpha) by torch's generator on the host, whose state checkpoints hold."""
    return float(number_of(torch.distributions.Beta(alpha, alpha, validate_args=False).sample()))


def number_of(drawn: Tensor) -> Any:
    """Return a number that was drawn on the host, where reading it waits for no device."""
    return drawn.tolist()
