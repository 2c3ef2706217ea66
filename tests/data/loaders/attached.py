"""A dataset that may hold on to what cannot be sent to another process."""

import torch
from torch.utils.data import DataLoader, Dataset


class Attached(Dataset):
    """Four ones.

    Args:
        helper: Kept.
    """

    def __init__(self, helper=None):
        self.helper = helper

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones((), dtype=torch.float64)


def begin(worker):
    """Begin a worker as a user may."""


def loader(how, trainer=None, begin=begin):
    """Return a loader with two workers, whose dataset holds the trainer if there is one."""
    data = Attached({"trainer": trainer} if trainer is not None else None)
    return DataLoader(data, num_workers=2, multiprocessing_context=how, worker_init_fn=begin)
