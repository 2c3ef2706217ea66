"""``lr``: the learning rate as a pure function of progress."""

from __future__ import annotations

import logging
from collections.abc import Callable  # noqa: TC003 - option types are read when a run starts
from typing import TYPE_CHECKING, Any, ClassVar

from trainhooks import OptionError, hookimpl

from ._group_schedule import By, GroupSchedule, Warmup, assigned
from ._torch_schedulers import TorchSchedulers, check, makes_one

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainhooks import Trainer

log = logging.getLogger("trainhooks")


class LR(GroupSchedule):
    """Sets the learning rate before each update: warmup, then a schedule over the rest of the run.

    The rate of update ``u`` (from 0) of ``T`` with ``W`` of warmup is that of the schedule at ``u - W`` of ``T - W``, times the
    factor of the warmup: with ``x = u / W``, ``start + (1 - start) * x`` (linear), ``start`` (constant) or ``start ** (1 - x)``
    (exp). It depends on ``u`` and ``T`` alone, so that a resumed run goes on exactly, and one that is made longer follows the
    new length. Beyond ``T`` the last rate stays. The formulas of the schedules are MMCV's where it has them.

    The base rate is the optimizer's own, each parameter group's for itself, unless ``base`` is given. A group's ``lr_scale``,
    which ``plateau`` sets, multiplies its rate.

    Args:
        schedule: What follows the warmup: a name, a list of tables (name, length, parameters) one after the other, or a function
            of progress and total that returns a factor. Names: constant (fixed), step, multi_step, exp, poly, inv, inverse_sqrt,
            linear, cosine, flat_cosine, cosine_restart, cyclic, one_cycle, wsd.
        args: Parameters of the schedule that is named.
        base: Rate at the end of the warmup, for every parameter group.
        end: Factor at the end of the schedule, for those that have an end.
        by: What the schedule counts: updates, steps, or epochs, at whose boundaries only the rate changes then.
        warmup: How the rate rises to the base.
        warmup_updates: Updates of the warmup.
        warmup_epochs: Or epochs, which may be fractions; the loader's length must be known.
        warmup_ratio: Or a share of the run.
        warmup_start: Factor at the first update, in [0, 1].
        warmup_overlaps: The schedule begins with the run, not after the warmup, which multiplies it; by steps and epochs it always
            does.
        total_updates: Length of the schedule with its warmup; that of the run by default.
        total_epochs: Or in epochs.
        groups: Parameter groups to set, by index or by their ``name``; all by default.
        torch_scheduler: Instead of all this a scheduler of torch, or a function of the optimizer that makes one; stepped once
            per update or epoch.
    """

    key: ClassVar = "lr"
    in_every_group: ClassVar = True
    after = ("plateau",)

    def __init__(
        self,
        schedule: str | list[dict[str, Any]] | Callable[..., float] = "cosine",
        args: dict[str, Any] | None = None,
        base: float | None = None,
        end: float = 0.0,
        by: By = "update",
        warmup: Warmup = "linear",
        warmup_updates: int = 0,
        warmup_epochs: float = 0.0,
        warmup_ratio: float = 0.0,
        warmup_start: float = 0.0,
        warmup_overlaps: bool = False,
        total_updates: int | None = None,
        total_epochs: int | None = None,
        groups: list[int | str] | None = None,
        torch_scheduler: Any = None,
    ) -> None:
        super().__init__(
            schedule,
            args,
            base,
            end,
            by,
            warmup,
            warmup_updates,
            warmup_epochs,
            warmup_ratio,
            warmup_start,
            warmup_overlaps,
            total_updates,
            total_epochs,
            groups,
        )
        self.torch_scheduler = torch_scheduler
        self._torch: TorchSchedulers | None = None
        if torch_scheduler is None:
            vars(self)["setup"] = vars(self)["teardown"] = None  # it keeps nothing, so it may serve several trainers
            return
        if not makes_one(torch_scheduler):
            check(torch_scheduler)
        lengths = (warmup_updates, warmup_epochs, warmup_ratio, total_updates, total_epochs)
        others = (args, base is not None, end, *lengths, warmup_start, warmup_overlaps, groups)
        if schedule != "cosine" or warmup != "linear" or any(others) or by == "step":
            message = (
                "torch_scheduler: it is stepped by 'update' or 'epoch' and goes with no other option than by; "
                "torch's SequentialLR brings a warmup"
            )
            raise OptionError(message)

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Make torch's scheduler while the optimizer is new, and have its state saved."""
        if not trainer.optimizers:  # an evaluation
            return
        name = next(name for name, plugin in trainer.plugins.items() if plugin is self)
        key = f"schedulers/{name}"
        if key not in trainer.stateful:
            trainer.stateful[key] = TorchSchedulers(self.torch_scheduler, trainer.optimizers, trainer.model)
        self._torch = trainer.stateful[key]

    @hookimpl
    def teardown(self) -> None:
        """Let the optimizer go."""
        self._torch = None

    @hookimpl
    def after_eval(self, trainer: Trainer) -> None:
        """Set the rate anew where ``lr_scale`` may have changed."""
        if self._torch is not None:
            self._torch.apply_scale()
        elif self._planned and any("lr_scale" in group for group in self._groups(trainer)):
            self._apply(trainer, trainer.update, self._progress(trainer))

    def write(self, group: dict[str, Any], value: float) -> None:
        """Set the rate of a parameter group."""
        group["lr"] = value if type(group["lr"]) is float else assigned(group["lr"], value)

    def _plan(self, trainer: Trainer) -> None:
        if self._torch is None:
            super()._plan(trainer)
        else:
            self._planned = True
            log.info("lr: %s of torch by %s", self._torch.name, self.by)

    def _apply(self, trainer: Trainer, update: int, progress: int) -> None:
        if self._torch is None:
            super()._apply(trainer, update, progress)
        else:
            self._torch.step_to(progress)

    def read(self, group: Mapping[str, Any]) -> Any:
        """Return the rate of a parameter group."""
        return group["lr"]
