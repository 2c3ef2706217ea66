"""``seed``: seeds the run and its loader workers; deterministic operations on request."""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
from typing import TYPE_CHECKING, Any

import torch

from trainhooks import OptionError, UsageError, hookimpl
from trainhooks.settings import seed_everything

from ._worker_seeds import seed_of, seed_process, worker_seeds

if TYPE_CHECKING:
    from collections.abc import Generator

    from trainhooks import Trainer
    from trainhooks.state import Outcome

log = logging.getLogger("trainhooks")

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


class Seed:
    """Seeds torch with its accelerators, NumPy and Python, and each worker of the train loader in each epoch.

    The generators of this process are seeded once, before the model is made, as by ``Trainer(seed=...)``; NumPy too if it is
    installed but has not been imported yet. A worker's seed is a hash (BLAKE2b) of seed, rank, epoch and worker, so that two of
    them never share it, a resumed run has those of the uninterrupted one, and ranks that were seeded alike do not augment alike.
    A ``worker_init_fn`` of your own is called after that.

    Args:
        seed: That of the run (``Trainer(seed=...)``, ``--set seed=0``) by default; if there is none, one is drawn, logged, and kept
            in checkpoints.
        workers: Seed the workers of the train loader.
        per_rank: Seed each rank differently once the model has been made, for augmentation in the main process and dropout.
        deterministic: Have torch use deterministic algorithms or fail, and cuDNN choose none by timing; until the end of the run.
        warn_only: Have torch warn, not fail, where there is no deterministic algorithm.
    """

    def __init__(
        self,
        seed: int | None = None,
        workers: bool = True,
        per_rank: bool = False,
        deterministic: bool = False,
        warn_only: bool = False,
    ) -> None:
        if seed is not None and not 0 <= seed < 2**63:
            message = f"seed = {seed}: must be 0 or more, and below 2**63"
            raise OptionError(message)
        if warn_only and not deterministic:
            message = "warn_only = True: means nothing without deterministic = True"
            raise OptionError(message)
        self.seed, self.workers, self.per_rank = seed, workers, per_rank
        self.deterministic, self.warn_only = deterministic, warn_only
        self._drawn = False
        self._ranked = False
        self._found: tuple[bool, bool, bool, bool, str | None] | None = None
        if not workers:
            vars(self)["train_epoch"] = None

    @hookimpl
    def configure(self, trainer: Trainer) -> None:
        """Seed this process, before the model is made."""
        given = trainer.settings.seed
        if self.seed is not None and given is not None and given != self.seed:
            message = f"seed.seed = {self.seed}, but the seed of the run is {given}: give one of the two"
            raise UsageError(message)
        self.seed = given if self.seed is None else self.seed
        if self.seed is None:
            if trainer.world_size > 1:
                message = "seed: give a seed where there are several ranks, since each would draw another: --set seed=0"
                raise UsageError(message)
            self.seed, self._drawn = secrets.randbits(31), True
            log.info("seed: drew %d", self.seed)
        if importlib.util.find_spec("numpy") is not None:
            import numpy as np  # noqa: F401 - so that it is seeded too

        seed_everything(self.seed)

    @hookimpl
    def setup(self, trainer: Trainer) -> None:
        """Seed by rank and turn on what makes operations deterministic."""
        if self.per_rank and not self._ranked:
            self._ranked = True
            seed_process(seed_of(self._base, trainer.rank))
        if self.deterministic:
            self._make_deterministic(trainer)

    @hookimpl(wrapper=True)
    def train_epoch(self, trainer: Trainer, epoch: int) -> Generator[None, bool, bool]:
        """Seed the workers that this epoch starts, or those that last."""
        with worker_seeds(trainer.loader("train"), self._base, trainer.rank, epoch):
            return (yield)

    @hookimpl
    def teardown(self, outcome: Outcome) -> None:
        """Leave torch's flags and the environment as they were found."""
        if self._found is None:
            return
        enabled, warn_only, cudnn, benchmark, workspace = self._found
        self._found = None
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn, benchmark
        if workspace is None:
            os.environ.pop(_CUBLAS, None)

    @property
    def _base(self) -> int:
        assert self.seed is not None  # noqa: S101 - configure has set it
        return self.seed

    def _make_deterministic(self, trainer: Trainer) -> None:
        backend = torch.backends.cudnn
        enabled, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        self._found = enabled, warn_only, backend.deterministic, backend.benchmark, os.environ.get(_CUBLAS)
        torch.use_deterministic_algorithms(True, warn_only=self.warn_only)
        backend.deterministic, backend.benchmark = True, False
        if self._found[-1] is None:
            os.environ[_CUBLAS] = ":4096:8"  # without it cuBLAS refuses in this mode, and torch says so
            if trainer.device.type == "cuda":
                log.info("seed: %s was not set, it is :4096:8 during this run", _CUBLAS)

    def state_dict(self) -> dict[str, Any]:
        """Return the seed, which may have been drawn."""
        return {"seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a seed that was drawn; one that is given counts more."""
        if self._drawn and state["seed"] is not None:
            self.seed = int(state["seed"])
            log.info("seed: %d, from the checkpoint", self.seed)
