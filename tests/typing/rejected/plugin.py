"""Marked functions keep their type, so that wrong calls of them must not type-check."""

from typing import Any

from trainhooks import Trainer, hookimpl


class Plugin:
    @hookimpl
    def after_step(self, trainer: Trainer, batch: Any) -> None: ...

    @hookimpl(wrapper="yes")  # E: call-overload, untyped-decorator
    def before_step(self) -> None: ...


def wrong(trainer: Trainer) -> None:
    Plugin().after_step(trainer)  # E: call-arg
    Plugin().after_step(trainer, 1, 2)  # E: call-arg
