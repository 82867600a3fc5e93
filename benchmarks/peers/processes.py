"""Child processes that do the jobs, one for each library."""

import gc
import logging
import multiprocessing
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from unittest.mock import patch

import torch

from benchmarks.measuring import Measurement, Run
from benchmarks.peers.libraries import LIBRARIES, builders_of
from torchrl_gpu.devices.host import ONE_THREAD, keep_freed_memory

_ONE_THREAD = {
    **ONE_THREAD,
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


class Worker:
    """Child process of one library with one thread; it waits without work between two requests.

    Args:
        library: name of the library.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._process = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _start, (library,)
        )
        with patch.dict(os.environ, _ONE_THREAD):
            self._process.submit(os.getpid).result()  # starts the process

    def measurement(self, job: str, variant: str, units: int) -> Measurement:
        """Return the measurement of a number of units of a job, in units per second."""
        request = (self._library, job, variant, units)
        return lambda: units / self._process.submit(_seconds, *request).result()

    def close(self) -> None:
        """End the process."""
        self._process.shutdown(cancel_futures=True)


def _start(library: str) -> None:
    """Prepare the child process."""
    sys.stdout = sys.stderr  # libraries print messages of their own
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if LIBRARIES[library].is_pinned and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    torch.set_num_threads(1)
    keep_freed_memory()  # as a training of this library does; here every library has it


_runs: dict[tuple[str, str], Run] = {}  # in the child process, those of the current job


def _seconds(library: str, job: str, variant: str, units: int) -> float:
    """Return the seconds that units of a job take, which is built at its first request."""
    if any(name != job for name, _ in _runs):
        _runs.clear()
        gc.collect()
    if (job, variant) not in _runs:
        torch.manual_seed(0)
        _runs[job, variant] = builders_of(library)[job][variant]()
    start = time.process_time()
    _runs[job, variant](units)
    return time.process_time() - start
