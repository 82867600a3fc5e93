"""Child process that does the jobs of one library.

It reads requests from its input, one JSON list a line: the job, the variant and a number of units,
0 to prepare the job only. It answers each with a line: the seconds that the units took. A job is
prepared at its first request and dropped at the first request of another job.

    python -m benchmarks.peers.worker library=sbx
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
import warnings
from typing import Annotated

import torch
from pydantic import AfterValidator, Field

from benchmarks.peers.jobs import Run
from benchmarks.peers.libraries import LIBRARIES, builders_of
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.host import keep_freed_memory


def _library(name: str) -> str:
    if name not in LIBRARIES:
        raise ValueError(f"there are {', '.join(LIBRARIES)}")
    return name


def work(
    *,
    library: Annotated[str, AfterValidator(_library)],
    threads: Annotated[int, Field(ge=1)] = 1,
) -> int:
    """Answer requests until the input ends.

    Args:
        library: name of the library.
        threads: number of CPU threads, at least 1. With one thread the seconds are CPU time, which
            other programs do not lengthen (1).

    Raises:
        ConfigurationError: the library is not installed.
    """
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print messages of their own
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if LIBRARIES[library].is_pinned and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    torch.set_num_threads(threads)
    keep_freed_memory()  # as a training of this library does; here every library has it
    clock = time.process_time if threads == 1 else time.perf_counter
    builders = builders_of(library)
    present, runs = "", dict[str, Run]()
    for line in sys.stdin:
        job, variant, units = json.loads(line)
        if job != present:
            present, runs = job, {}
            gc.collect()
        if variant not in runs:
            torch.manual_seed(0)
            runs[variant] = builders[job][variant]()
        seconds = 0.0
        if units:
            start = clock()
            runs[variant](units)
            seconds = clock() - start
        print(json.dumps(seconds), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(work))
