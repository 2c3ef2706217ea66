"""Calls of hooks that must not type-check; each line says which error mypy gives."""

from typing import Any

from trainhooks import Trainer


def wrong(trainer: Trainer, batch: Any) -> None:
    trainer.hooks.train_step(trainer=trainer, batch=batch)  # E: call-arg
    trainer.hooks.train_step(trainer=trainer, batch=batch, update_due="yes")  # E: arg-type
    trainer.hooks.train_step(trainer=trainer, batch=batch, update_due=True, due=True)  # E: call-arg
    trainer.hooks.evaluate(trainer=trainer, split=1)  # E: arg-type
    trainer.hooks.before_step(trainer=trainer, batch=batch)  # E: misc
    output: int = trainer.hooks.train_step(trainer=trainer, batch=batch, update_due=True)  # E: assignment
    output += 1
    trainer.step = "3"  # E: assignment
    trainer.stop(reason=3)  # E: arg-type
    trainer.stop("enough", at="never")  # E: arg-type
    trainer.log("loss", 1.0, reduce="average")  # E: arg-type
    trainer.no_such_attribute  # E: attr-defined
