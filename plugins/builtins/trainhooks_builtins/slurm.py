"""``slurm``: have the job requeued when a signal has interrupted the run and its checkpoint is there."""

from __future__ import annotations

import logging
import math
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from trainhooks import OptionError, Terminated, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainhooks import Trainer
    from trainhooks.state import Outcome

log = logging.getLogger("trainhooks")


class Slurm:
    """Requeues the job in which a signal has interrupted the run, once and when its checkpoint is on disk.

    Have SLURM send the signal early enough (``#SBATCH --signal=USR1@90``), allow the requeue (``#SBATCH --requeue``) and start
    the run with ``--resume auto``. A run that ends normally, that fails, or that Ctrl-C has ended is not requeued, nor is
    anything done outside of a SLURM job. The exit code is that of the signal in any case.

    Args:
        timeout_s: How long ``scontrol`` may take.
    """

    phase = "bookkeeping"
    after = ("signals",)  # so that it is torn down while signals are still handled: SLURM sends one to a job that it requeues
    requires = ("signals",)

    def __init__(self, timeout_s: float = 30.0) -> None:
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            message = f"timeout_s = {timeout_s}: must be above 0"
            raise OptionError(message)
        self.timeout_s = timeout_s
        self._saved_step: int | None = None
        self._signalled = False

    @hookimpl
    def setup(self) -> None:
        """Forget an earlier run."""
        self._saved_step, self._signalled = None, False

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        """Note the checkpoint that the run is resumed from."""
        if trainer.session is not None and trainer.session.resume is not None and trainer.step:
            self._saved_step = trainer.step

    @hookimpl
    def after_save(self, trainer: Trainer) -> None:
        """Note that a checkpoint is on disk."""
        self._saved_step = trainer.step

    @hookimpl
    def on_exception(self, exception: BaseException) -> None:
        """Note whether it was a signal."""
        self._signalled = isinstance(exception, Terminated)

    @hookimpl
    def teardown(self, trainer: Trainer, outcome: Outcome) -> None:
        """Requeue the job, if that is to be."""
        if outcome.status != "interrupted" or not self._signalled or not trainer.is_main:
            return
        job = job_id(os.environ)
        if job is None:
            return
        if self._saved_step != outcome.step:
            log.warning("slurm: job %s is not requeued, since there is no checkpoint of step %d", job, outcome.step)
            return
        self._requeue(job)

    def _requeue(self, job: str) -> None:
        program = shutil.which("scontrol")
        if program is None:
            log.warning("slurm: job %s is not requeued, since there is no scontrol on PATH", job)
            return
        command = [program, "requeue", job]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=self.timeout_s)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("slurm: job %s is not requeued: %s", job, error)
            return
        if done.returncode:
            why = (done.stderr or done.stdout).strip() or "it says nothing"
            log.warning("slurm: job %s is not requeued, scontrol failed with %d: %s", job, done.returncode, why)
        else:
            log.info("slurm: job %s is requeued", job)


def job_id(environment: Mapping[str, str]) -> str | None:
    """Return how ``scontrol`` knows this job, or ``None`` outside of SLURM; of an array only the running task is meant."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    job = environment.get("SLURM_JOB_ID")
    if job and array and task:
        return f"{array}_{task}"
    return job or None
