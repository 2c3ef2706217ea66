"""A dataset of random numbers that a worker which is spawned can import."""

import random

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

USERS_OWN = 0


def users_own(worker):
    """Leave a trace; draw nothing."""
    global USERS_OWN
    USERS_OWN = 100 + worker


class FirstNumbers(Dataset):
    """Each sample is a NumPy, a Python and a torch random number, the worker's id, its seed and what ``users_own`` left."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        info = get_worker_info()
        numbers = [np.random.rand(), random.random(), torch.rand((), dtype=torch.float64).item()]  # noqa: NPY002
        return torch.tensor([*numbers, info.id, info.seed % 2**48, USERS_OWN], dtype=torch.float64)
