"""Seeds of loader workers: one for each seed, rank, epoch and worker."""

from __future__ import annotations

import hashlib
import logging
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger("trainhooks")


def seed_of(*parts: int) -> int:
    """Return 128 bits that depend on all of ``parts``, in any process and on any machine the same."""
    digest = hashlib.blake2b(",".join(map(str, parts)).encode(), digest_size=16).digest()
    return int.from_bytes(digest, "big")


def seed_process(seed: int) -> None:
    """Seed torch, Python and, where it is installed, NumPy from 128 bits."""
    torch.manual_seed(seed % 2**63)
    random.seed(seed)
    try:
        import numpy as np
    except ImportError:
        return
    # Words in another order than Python takes them from the number: both have a Mersenne Twister, and it would be the same one.
    np.random.seed([seed >> shift & 0xFFFFFFFF for shift in (96, 64, 32, 0)])  # noqa: NPY002 - the generator of datasets


class WorkerSeeds:
    """A ``worker_init_fn`` that seeds a worker for each epoch, then calls the user's own.

    Workers that last over epochs see the next one in shared memory, and seed themselves anew when it begins.

    Args:
        inner: The user's own ``worker_init_fn``.
        lasting: Whether the workers are persistent.
    """

    def __init__(self, inner: Callable[[int], Any] | None, *, lasting: bool) -> None:
        self.inner, self.lasting = inner, lasting
        self.place = torch.zeros(3, dtype=torch.int64)  # seed, rank, epoch
        if lasting:
            self.place.share_memory_()  # type: ignore[no-untyped-call]

    def set(self, seed: int, rank: int, epoch: int) -> None:
        """Say what the seeds of the next epoch are made from."""
        self.place.copy_(torch.tensor([seed, rank, epoch]))

    def seed(self, worker: int) -> None:
        """Seed the process of one worker."""
        seed = seed_of(*self.place.tolist(), worker)
        seed_process(seed)
        info = data.get_worker_info()
        if info is not None:
            object.__setattr__(info, "seed", seed % 2**63)  # it is frozen, and what users are told to derive theirs from

    def __call__(self, worker: int) -> None:
        """Begin a worker."""
        self.seed(worker)
        if self.lasting:
            self._seed_each_epoch(worker)
        if self.inner is not None:
            self.inner(worker)

    def _seed_each_epoch(self, worker: int) -> None:
        """Seed anew whenever this process, which is a worker and nothing else, makes the fetcher of an epoch.

        torch tells a worker of a new epoch in no other way.
        """
        kind: Any = data._DatasetKind
        create = kind.create_fetcher
        first = True

        def create_seeded(*arguments: Any) -> Any:
            nonlocal first
            if not first:  # the first time the user's own worker_init_fn had the last word
                self.seed(worker)
            first = False
            return create(*arguments)

        kind.create_fetcher = staticmethod(create_seeded)


@contextmanager
def worker_seeds(loader: Any, seed: int, rank: int, epoch: int) -> Iterator[None]:
    """Seed the workers that ``loader`` starts inside; its ``worker_init_fn`` is then as it was."""
    if not isinstance(loader, data.DataLoader) or not loader.num_workers:
        yield
        return
    own: Any = loader.worker_init_fn
    running = getattr(loader, "_iterator", None)  # of persistent workers, which have been started with what they had
    lasting = bool(loader.persistent_workers)
    seeds = getattr(running, "_worker_init_fn", None) if running is not None else WorkerSeeds(own, lasting=lasting)
    if not isinstance(seeds, WorkerSeeds):
        yield
        return
    seeds.set(seed, rank, epoch)
    loader.worker_init_fn = seeds
    try:
        yield
    finally:
        loader.worker_init_fn = own
