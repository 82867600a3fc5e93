"""The cores of the host, and how the processes of a run share them."""

from __future__ import annotations

import os
from typing import Final

import torch

# Environment variables by which a new process computes on one thread, with torch, numpy or another
# library of linear algebra.
ONE_THREAD: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


def usable_cores() -> list[int]:
    """Return the indices of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def compute_on_one_thread() -> None:
    """Limit this worker process to one thread, because there is a worker for each other core.

    The limit holds for torch, for libraries that are loaded later, and for child processes.
    """
    torch.set_num_threads(1)
    os.environ.update(ONE_THREAD)
