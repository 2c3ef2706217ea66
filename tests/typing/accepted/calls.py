"""The calls of the hooks have the types of their specifications."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from typing_extensions import assert_type

from trainhooks import Outcome, Trainer


def calls(trainer: Trainer, loss: Tensor) -> None:
    """Call stages, an event that may be nobody's, and an optional stage."""
    output = trainer.hooks.train_step(trainer=trainer, batch=(loss, loss), update_due=True)
    assert_type(output, Mapping[str, Any])
    assert_type(trainer.hooks.evaluate(trainer=trainer, split="val"), dict[str, float])
    assert_type(trainer.hooks.save_checkpoint(trainer=trainer, path=Path("x"), kind="manual"), Path)
    assert_type(trainer.hooks.scale_loss(trainer=trainer, loss=loss, update_due=False), Tensor)
    if trainer.hooks.before_step is not None:
        trainer.hooks.before_step(trainer=trainer, batch=loss)
    if trainer.hooks.after_step is not None:
        trainer.hooks.after_step(trainer=trainer, batch=loss, output=output)


def run(trainer: Trainer) -> None:
    """Use what a run gives."""
    outcome = trainer.train(resume="auto", max_steps=3)
    assert_type(outcome, Outcome)
    assert_type(outcome.step, int)
    assert_type(outcome.metrics, dict[str, float])
    assert_type(trainer.evaluate("val", checkpoint=Path("x")), dict[str, float])
    assert_type(trainer.work_dir, Path | None)
    assert_type(trainer.step, int)
    assert_type(trainer.every_n_steps(3), bool)
    assert_type(trainer.register(object()), str)
