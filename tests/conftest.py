"""One thread a worker: the workers fill the cores, and threads that wait for each other only slow them."""

import os

for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # for the processes that tests start, too

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

torch.set_num_threads(1)
settings.register_profile("steelyard", deadline=None, derandomize=True)
settings.load_profile("steelyard")
