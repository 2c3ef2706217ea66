"""``freeze``: parameters that are not trained, for a while or for the whole run."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch.nn.modules.batchnorm import _BatchNorm

from trainhooks import OptionError, UsageError, hookimpl
from trainhooks.compiled import named_parameters, plain_name
from trainhooks.suggest import suggestion

if TYPE_CHECKING:
    from torch import nn

    from trainhooks import Outcome, Trainer

log = logging.getLogger("trainhooks")


class Freeze:
    """Keeps parameters from being trained: they need no gradient, and have none.

    Without a gradient an optimizer passes a parameter over altogether: neither momentum nor weight decay changes it. What was
    frozen is as it was found when the time is over, and at the end of the run. Whether it is frozen depends on the counters of the
    run alone, so a resumed run goes on exactly.

    Args:
        parameters: Patterns for parameter names, such as ``backbone.*``, as in a shell: ``*`` any text, ``?`` one character, ``[ab]``
            one of these. Capitals count. Each must match. One may stand without a list.
        until_step: Thaw before the step with this index, from 0, which is the first that trains them.
        until_update: Or before this update.
        until_epoch: Or before this epoch. Never, without any of the three.
        batch_norm: ``eval`` keeps batch normalization whose parameters are all frozen in evaluation mode, so that it uses its
            running statistics and does not change them; ``train`` leaves it as it is.
    """

    phase = "algorithm"

    def __init__(
        self,
        parameters: str | tuple[str, ...] = (),
        until_step: int | None = None,
        until_update: int | None = None,
        until_epoch: int | None = None,
        batch_norm: Literal["eval", "train"] = "eval",
    ) -> None:
        self.parameters = (parameters,) if isinstance(parameters, str) else tuple(parameters)
        if not self.parameters:
            message = "parameters is empty: name what to freeze, for example parameters = ['backbone.*']"
            raise OptionError(message)
        given = {"until_step": until_step, "until_update": until_update, "until_epoch": until_epoch}
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) > 1:
            message = f"{' and '.join(f'{name} = {value}' for name, value in given.items())}: give one of them"
            raise OptionError(message)
        for name, value in given.items():
            if value is not None and value < 1:
                message = f"{name} = {value}: must be at least 1; leave it out to freeze for the whole run"
                raise OptionError(message)
        if batch_norm not in ("eval", "train"):
            message = f"batch_norm = {batch_norm!r}: must be 'eval' or 'train'"
            raise OptionError(message)
        self.until_step, self.until_update, self.until_epoch = until_step, until_update, until_epoch
        self.batch_norm = batch_norm
        for hook, limit in (("after_step", until_step), ("after_update", until_update), ("before_epoch", until_epoch)):
            if limit is None:
                vars(self)[hook] = None  # nothing to do there: the hook is not even called
        self._frozen: dict[str, nn.Parameter] = {}
        self._norms: list[tuple[_BatchNorm, bool]] = []

    @property
    def frozen(self) -> list[str]:
        """Names of the parameters that are frozen now."""
        return list(self._frozen)

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Freeze, unless the time is over already."""
        if trainer.model is None:
            message = "plugin 'freeze' needs a model, this training has none; take it out with -p no:freeze"
            raise UsageError(message)
        chosen = self._chosen(trainer.model)
        if self._is_over(trainer.step, trainer.update, trainer.epoch):
            return
        self._check(trainer, chosen)
        norms = self._chosen_norms(trainer.model, chosen) if self.batch_norm == "eval" else []
        for name, parameter in chosen.items():
            if parameter.requires_grad:
                parameter.requires_grad = False
                self._frozen[name] = parameter
            parameter.grad = None
        for norm in norms:
            self._norms.append((norm, norm.training))
            norm.eval()
            vars(norm)["train"] = partial(_stay_in_eval, norm)  # model.train() asks each module
        number = len(list(trainer.model.parameters()))
        log.info("freeze: %d of %d parameters are frozen%s", len(self._frozen), number, self._until())

    @hookimpl
    def before_epoch(self, trainer: Trainer, epoch: int) -> None:
        """Thaw, if it is time."""
        self._thaw_if_over(trainer.step, trainer.update, epoch)

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """Thaw, if it is time."""
        self._thaw_if_over(trainer.step + 1, trainer.update, trainer.epoch)

    @hookimpl
    def after_update(self, trainer: Trainer) -> None:
        """Thaw, if it is time."""
        self._thaw_if_over(trainer.step, trainer.update + 1, trainer.epoch)

    @hookimpl
    def teardown(self, trainer: Trainer, outcome: Outcome) -> None:
        """Leave everything as it was found."""
        self._thaw()

    def _is_over(self, steps: int, updates: int, epochs: int) -> bool:
        limits = ((self.until_step, steps), (self.until_update, updates), (self.until_epoch, epochs))
        return any(limit is not None and count >= limit for limit, count in limits)

    def _thaw_if_over(self, steps: int, updates: int, epochs: int) -> None:
        if (self._frozen or self._norms) and self._is_over(steps, updates, epochs):
            log.info("freeze: %s: trained from now on", ", ".join(self.parameters))
            self._thaw()

    def _thaw(self) -> None:
        for parameter in self._frozen.values():
            parameter.requires_grad = True
        for norm, training in self._norms:
            vars(norm).pop("train", None)
            norm.train(training)
        self._frozen, self._norms = {}, []

    def _until(self) -> str:
        limits = (("step", self.until_step), ("update", self.until_update), ("epoch", self.until_epoch))
        return next((f" until {name} {value}" for name, value in limits if value is not None), "")

    def _chosen(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters whose names match."""
        known = dict(named_parameters(model, remove_duplicate=False))  # a tied parameter by any of its names
        for pattern in self.parameters:
            if not any(fnmatchcase(name, pattern) for name in known):
                inside = any(name.startswith(f"{pattern}.") for name in known)
                hint = f"; did you mean {f'{pattern}.*'!r}?" if inside else suggestion(pattern, known)
                message = f"freeze.parameters: no parameter of the model matches {pattern!r}{hint or _named(known)}"
                raise OptionError(message)
        ids = {id(one) for name, one in known.items() if self._matches(name)}
        return {name: one for name, one in named_parameters(model) if id(one) in ids}

    def _matches(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.parameters)

    def _chosen_norms(self, model: nn.Module, chosen: dict[str, nn.Parameter]) -> list[_BatchNorm]:
        """Return batch normalization whose parameters are all chosen; one without parameters counts by the name of its statistics."""
        ids = {id(one) for one in chosen.values()}
        found = []
        for name, module in model.named_modules():
            if isinstance(module, _BatchNorm):
                own = list(module.parameters(recurse=False))
                if all(id(one) in ids for one in own) if own else self._matches(plain_name(f"{name}.running_mean")):
                    found.append(module)
        return found

    def _check(self, trainer: Trainer, chosen: dict[str, nn.Parameter]) -> None:
        """Refuse what leaves nothing to train, or what would be thawed for nobody."""
        ids = {id(one) for one in chosen.values()}
        if not any(one.requires_grad and id(one) not in ids for one in trainer.model.parameters()):
            message = f"freeze.parameters = {list(self.parameters)} leaves no parameter of the model to train"
            raise UsageError(message)
        if not self._until() or not trainer.optimizers:
            return
        groups = [group for optimizer in trainer.optimizers.values() for group in optimizer.param_groups]
        held = {id(one) for group in groups for one in group["params"]}
        lost = [name for name, one in chosen.items() if one.requires_grad and id(one) not in held]
        if lost:
            message = (
                f"freeze: {lost[0]!r}{f' and {len(lost) - 1} more' if lost[1:] else ''} would be thawed but is in no optimizer, so it "
                "would not be trained then: give the optimizer all of model.parameters()"
            )
            raise UsageError(message)


def _stay_in_eval(norm: _BatchNorm, mode: bool = True) -> _BatchNorm:
    """Stand in for ``norm.train``: any mode is that of evaluation."""
    norm.training = False
    return norm


def _named(names: dict[str, Any], most: int = 5) -> str:
    shown = ", ".join(list(names)[:most])
    return f"; there are {shown}{', ...' if len(names) > most else ''}"
