"""The host: its cores, how the processes of a run share them, and its memory allocator."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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

# Limit of `limit_cores`, which holds for the process as its affinity does; None for none.
_limit: int | None = None

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
    """Return the number of cores that this process may use."""
    limits = len(usable_cores()), core_limit(), _limit
    return min(limit for limit in limits if limit is not None)


def limit_cores(number: int) -> None:
    """Let this process and its workers take up a number of cores; others use the rest."""
    global _limit
    _limit = number


def share_cores(local_rank: int, local_count: int) -> None:
    """Restrict this process, and those that it starts, to its share of the usable cores.

    The shares of the `local_count` processes of the run on this machine, all started by the same
    parent, are contiguous and differ by one core at most. The cores stay as they are if a launcher
    has given this process others than its parent has, if there are fewer cores than processes, or
    on other systems than Linux. The processor time of a container is divided in any case.
    """
    if (container := core_limit()) is not None:
        limit_cores(max(1, container // local_count))
    cores = usable_cores()
    if len(cores) < local_count or not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError):  # the parent has ended
        if os.sched_getaffinity(os.getppid()) != set(cores):
            return
    first, last = (len(cores) * rank // local_count for rank in (local_rank, local_rank + 1))
    # The threads that libraries have started keep their cores otherwise.
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it may have ended
            os.sched_setaffinity(int(thread.name), cores[first:last])


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
