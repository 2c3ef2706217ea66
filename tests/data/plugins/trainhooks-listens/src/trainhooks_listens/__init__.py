"""``listens``: a line in the run folder after every few steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainhooks import hookimpl

if TYPE_CHECKING:
    from trainhooks import Trainer
    from trainhooks.types import Output


class Listens:
    """Writes step and loss into ``listens.txt`` of the run folder.

    Args:
        every_steps: Write after every n-th step.
        prefix: What each line begins with.
    """

    phase = "measurement"
    after = ("evaluation",)

    def __init__(self, every_steps: int = 1, prefix: str = "step") -> None:
        self.every_steps, self.prefix = every_steps, prefix

    @hookimpl
    def after_step(self, trainer: Trainer, output: Output) -> None:
        """Write a line."""
        if trainer.work_dir is not None and trainer.every_n_steps(self.every_steps):
            with trainer.run_file("listens.txt").open("a", encoding="utf-8") as file:
                file.write(f"{self.prefix} {trainer.step + 1}: {float(output['loss']):.4f}\n")
