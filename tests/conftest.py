"""One thread a worker: the workers fill the cores, and threads that wait for each other only slow them."""

import os

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("steelyard", deadline=None, derandomize=True)
settings.load_profile("steelyard")
