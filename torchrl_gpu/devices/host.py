"""The host: its cores, how the processes of a run share them, and its memory allocator."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from torchrl_gpu.devices.containers import core_limit

# Environment variables by which a new process computes on one thread, with torch, numpy or another
# library of linear algebra.
ONE_THREAD: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}

# Limit of `share_cores`; None for none.
_share: int | None = None

# Parameters of mallopt: /usr/include/malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MAX_MMAP_THRESHOLD = 32 * 1024**2  # glibc refuses more
_MAX_KEPT = 1024**3
_ALLOCATOR_SETTINGS = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}


def usable_cores() -> list[int]:
    """Return the indices of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return the number of cores that this process may use.

    It is at most the limit of its container, and at most that of `share_cores`.
    """
    limits = len(usable_cores()), core_limit(), _share
    return min(limit for limit in limits if limit is not None)


def share_cores(number: int) -> None:
    """Let this process and its workers use a number of cores, because others use the rest."""
    global _share
    _share = number


@contextmanager
def cpu_threads(number: int | None) -> Iterator[None]:
    """Give PyTorch a number of CPU threads within the block.

    Args:
        number: number of threads; None for that of torch, at most one per core.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, num_cores()) if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compute_on_one_thread() -> None:
    """Limit this worker process to one thread, because there is a worker for each other core.

    The limit holds for torch, for libraries that are loaded later, and for child processes.
    """
    torch.set_num_threads(1)
    os.environ.update(ONE_THREAD)


def keep_freed_memory() -> bool:
    """Let this process keep up to 1 GiB of freed memory for its next allocations.

    By default glibc returns the memory of tensors of a megabyte and more to the system after each
    gradient step, and the system clears every page of it for the next one. On a CPU that is up to
    half of the time of an update of IQN or AC-IQN.

    Environment variables `MALLOC_..._` and `GLIBC_TUNABLES` take precedence.

    Returns:
        Whether the allocator has changed: False if it is not that of glibc, or if its environment
        variables are set.
    """
    if not sys.platform.startswith("linux") or _ALLOCATOR_SETTINGS & os.environ.keys():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, _MAX_KEPT)
    )
