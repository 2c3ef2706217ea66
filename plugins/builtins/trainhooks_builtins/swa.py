"""``swa``: the plain average of the weights of the last part of a run (stochastic weight averaging)."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Literal

from trainhooks import OptionError, UsageError, hookimpl
from trainhooks.compiled import plain_name
from trainhooks.intervals import Interval
from trainhooks.optimizers import group_names, saved_places

from ._average import Average
from ._averaging import EvaluatesWithAverage, model_of
from ._batch_norm import layers_to_measure, measured, unreadable

if TYPE_CHECKING:
    from torch import Tensor

    from trainhooks import Trainer

    from ._stand_in import Layer

log = logging.getLogger("trainhooks")

Anneal = Literal["cosine", "linear"]


class SWA(EvaluatesWithAverage):
    """Averages the weights of the last part of a run with equal shares, and evaluates and predicts with the average.

    From Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization": after each of the last
    epochs ``average = average + (weights - average) / (n + 1)``, n being the number of those averaged before. The last part begins
    with the update ``round(start * updates of the run)``, or with the epoch ``start_epoch``.

    With ``lr`` the learning rate goes, in the last part, from what it was to ``lr``, as ``torch.optim.swa_utils.SWALR`` does:
    in the k-th epoch of it, from 0, ``rate = lr * a + before * (1 - a)`` with ``x = min(1, k / anneal_epochs)`` and
    ``a = (1 - cos(pi * x)) / 2`` for ``cosine``, ``a = x`` for ``linear``. The plugin ``lr`` decides until then.

    The statistics of batch normalization belong to the weights that they were measured with. So before the average is evaluated,
    and at the end, they are measured anew with batches of the train loader (equal shares, as
    ``torch.optim.swa_utils.update_bn``); layers that are in evaluation mode keep theirs. What that draws from random
    generators is put back.

    Args:
        start: Share of the run's updates after which the last part begins, in [0, 1).
        start_epoch: Or the index of the first epoch of the last part, from 0.
        every_epochs: Average after every n-th epoch; 0 for never. 1 if no other interval is given.
        every_updates: Average after every n-th update; 0 for never.
        lr: Learning rate of the last part, for every parameter group; without it the rate is left alone.
        anneal_epochs: Epochs until it is reached; 0 for at once.
        anneal: On which curve.
        bn_batches: How many batches of the train loader to measure statistics with, at most; 0 to leave them as they are.
        evaluate: Evaluate and predict with the average.
        apply_at_end: Leave the average in the model when the training ends, after the last checkpoint.
    """

    phase = "algorithm"
    after = ("lr", "ema")  # the rate is ours in the last part; with both averages this one is evaluated

    def __init__(
        self,
        start: float = 0.75,
        start_epoch: int | None = None,
        every_epochs: int | None = None,
        every_updates: int = 0,
        lr: float | None = None,
        anneal_epochs: int = 10,
        anneal: Anneal = "cosine",
        bn_batches: int = 100,
        evaluate: bool = True,
        apply_at_end: bool = False,
    ) -> None:
        if not 0 <= start < 1:
            message = f"start = {start}: must be at least 0 and below 1; start_epoch counts epochs"
            raise OptionError(message)
        for name, value in (("start_epoch", start_epoch), ("anneal_epochs", anneal_epochs), ("bn_batches", bn_batches)):
            if value is not None and value < 0:
                message = f"{name} = {value}: must be 0 or more"
                raise OptionError(message)
        if lr is not None and not (lr >= 0 and math.isfinite(lr)):
            message = f"lr = {lr}: must be 0 or more"
            raise OptionError(message)
        if anneal not in ("cosine", "linear"):
            message = f"anneal = {anneal!r}: must be 'cosine' or 'linear'"
            raise OptionError(message)
        self.interval = Interval(every_epochs, 0, every_updates)
        if self.interval.never:
            message = "every_epochs = 0 and every_updates = 0: one of them must be above 0"
            raise OptionError(message)
        super().__init__(Average("swa"), evaluate=evaluate, apply_at_end=apply_at_end)
        self.start, self.start_epoch = start, start_epoch
        self.lr, self.anneal_epochs, self.anneal = lr, anneal_epochs, anneal
        self.bn_batches = bn_batches
        #: How many weights are in the average.
        self.averaged_weights = 0
        self._start_update: int | None = None
        self._began: int | None = None  # the first update of the last part
        self._epochs = 0  # complete epochs with updates of the last part
        self._rates: dict[str, list[float]] = {}  # before the last part, by optimizer and group
        self._groups: dict[str, list[list[str]]] = {}  # the names of the parameters of these groups
        self._statistics: dict[str, Tensor] = {}  # of batch normalization, that belong to the average
        self._measured = False
        self._warned = False
        if lr is None:
            vars(self)["before_step"] = None  # nothing to do there: the hook is not even called

    # --- The last part ---

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Work out when the last part begins; it has begun if the run was resumed in it, where groups may stand in another order."""
        self._average.bind(model_of(trainer, "swa"))
        for name in self._groups.keys() & trainer.optimizers.keys():
            present, rates = group_names(trainer.optimizers[name], trainer.model), self._rates[name]
            places = saved_places(self._groups[name], present)
            while places and places[-1] is None:
                places.pop()
            self._groups[name] = present[: len(places)]
            self._rates[name] = [math.nan if place is None else rates[place] for place in places]
        if self.lr is not None and not trainer.optimizers:
            message = "plugin 'swa' needs an optimizer whose rate it can set, this training has none; leave out swa.lr"
            raise UsageError(message)
        if self.start_epoch is None:
            total = trainer.total_updates
            if total is None:
                message = (
                    "swa.start is a share of the run, whose number of updates is not known in advance: give swa.start_epoch"
                )
                raise UsageError(message)
            self._start_update = round(self.start * total)
            self._begin_if_due(trainer, trainer.update)

    @hookimpl
    def before_epoch(self, trainer: Trainer, epoch: int) -> None:
        """Begin the last part, if it begins with this epoch."""
        self._average.check(trainer.model)
        if self.start_epoch is not None and epoch >= self.start_epoch and self._began is None:
            self._begin(trainer, trainer.update)

    @hookimpl
    def before_step(self, trainer: Trainer) -> None:
        """Set the rate of the last part, whatever ``lr`` and ``plateau`` have set since the last step."""
        self._set_rates(trainer)

    @hookimpl
    def after_update(self, trainer: Trainer) -> None:
        """Average, if that is due; begin the last part, if the next update is its first."""
        if self._began is None:
            self._begin_if_due(trainer, trainer.update + 1)
        elif self.interval.updates and trainer.every_n_updates(self.interval.updates):
            self._add()

    @hookimpl
    def after_train_epoch(self, trainer: Trainer) -> None:
        """Average, if that is due."""
        if self._began is None or trainer.update <= self._began:
            return
        if self.interval.due_after_epoch(trainer):
            self._add()
        if trainer.every_n_epochs(1):
            self._epochs += 1

    @hookimpl
    def after_train(self, trainer: Trainer) -> None:
        """Measure statistics once more, so that the last checkpoint has them; say so if nothing was averaged."""
        outcome = trainer.outcome
        if outcome is None or outcome.status not in ("completed", "stopped"):
            return
        if self.averaged_weights:
            self._measure(trainer)
        elif outcome.step:
            log.warning(
                "swa: no weights were averaged: the run ended after %d updates, before the first were due", outcome.update
            )

    def _begin_if_due(self, trainer: Trainer, update: int) -> None:
        if self._began is None and self._start_update is not None and update >= self._start_update:
            self._begin(trainer, update)

    def _begin(self, trainer: Trainer, update: int) -> None:
        self._began = update
        users = ", which evaluations and predictions then use" if self._evaluates else ""
        log.info("swa: the weights are averaged from update %d on%s", update, users)
        self._rates = {
            name: [float(group["lr"]) for group in optimizer.param_groups]
            for name, optimizer in (trainer.optimizers.items() if self.lr is not None else ())
        }
        self._groups = {name: group_names(trainer.optimizers[name], trainer.model) for name in self._rates}
        for name in self._rates:
            for group in trainer.optimizers[name].param_groups:  # what it was given, as schedules keep it
                group.setdefault("initial_lr", float(group["lr"]) / group.get("lr_scale", 1.0))

    def _add(self) -> None:
        if self.averaged_weights == 0:
            self._average.begin()
        else:
            self._average.update(1 / (self.averaged_weights + 1))
        self.averaged_weights += 1
        self._measured = False

    # --- The learning rate ---

    def rate(self, before: float, epochs: int) -> float:
        """Return the rate in the last part.

        Args:
            before: The rate with which it began.
            epochs: Epochs of it that are done.
        """
        assert self.lr is not None  # noqa: S101 - whoever asks has looked
        x = min(1.0, epochs / self.anneal_epochs) if self.anneal_epochs else 1.0
        share = (1 - math.cos(math.pi * x)) / 2 if self.anneal == "cosine" else x
        return self.lr * share + before * (1 - share)

    def _set_rates(self, trainer: Trainer) -> None:
        if self._began is None or self.lr is None:
            return
        for name, rates in self._rates.items():
            for group, before in zip(trainer.optimizers[name].param_groups, rates, strict=False):
                if math.isnan(before):  # a group that was added since
                    continue
                rate = self.rate(before, self._epochs)
                if hasattr(group["lr"], "fill_"):  # a tensor, which a captured or compiled optimizer holds on to
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    # --- The average and its statistics ---

    def _layer(self, trainer: Trainer) -> Layer | None:
        layer = super()._layer(trainer)
        if layer is None:
            return None
        self._measure(trainer)
        buffers = {plain_name(name): buffer for name, buffer in trainer.model.named_buffers()}
        statistics = [(buffers[name], statistic.to(buffers[name].device)) for name, statistic in self._statistics.items()]
        return layer + statistics

    def _measure(self, trainer: Trainer) -> None:
        """Measure the statistics that belong to the average, unless that is done."""
        if self._measured or not self.bn_batches:
            return
        norms = layers_to_measure(trainer.model)
        if norms:
            loader = trainer.find_loader("train")
            why = unreadable(loader)
            if why:
                self._statistics = {}
                if not self._warned:
                    log.warning("swa: the average is evaluated with the statistics of the last weights, since %s", why)
                self._warned = True
                return
            assert loader is not None  # noqa: S101 - it is readable
            found = measured(trainer, norms, self._average.layer(), loader, self.bn_batches)
            self._statistics = {plain_name(name): statistic for name, statistic in found.items()}
        self._measured = True

    def _apply(self, trainer: Trainer) -> None:
        super()._apply(trainer)
        buffers = {plain_name(name): buffer for name, buffer in trainer.model.named_buffers()}
        for name, statistic in self._statistics.items():
            buffers[name].copy_(statistic)

    # --- State ---

    def state_dict(self) -> dict[str, Any]:
        """Return the average, how many weights are in it, its statistics, and when the last part began."""
        return {
            "average": dict(self._average.tensors),
            "averaged_weights": self.averaged_weights,
            "statistics": dict(self._statistics),
            "measured": self._measured,
            "began": self._began,
            "epochs": self._epochs,
            "rates": {name: list(rates) for name, rates in self._rates.items()},
            "groups": dict(self._groups),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self._average.load(state["average"])
        self._statistics = {name: one.clone() for name, one in state["statistics"].items()}
        self._measured, self.averaged_weights = state["measured"], state["averaged_weights"]
        self._began, self._epochs = state["began"], state["epochs"]
        self._rates = {name: list(rates) for name, rates in state["rates"].items()}
        self._groups = dict(state.get("groups", {}))  # before version 0.2 they had to stay where they were
