"""Child processes that do the jobs, one for each library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType

from benchmarks.peers.jobs import Side
from benchmarks.peers.works import Job, Measurement


class Worker:
    """Child process of one library; it waits without work between two requests.

    Args:
        library: name of the library.
        threads: number of CPU threads.
    """

    def __init__(self, library: str, threads: int) -> None:
        self.library = library
        count = str(threads)
        several = "true" if threads > 1 else "false"
        environment = {
            "OMP_NUM_THREADS": count,
            "MKL_NUM_THREADS": count,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_cpu_multi_thread_eigen={several} "
            f"intra_op_parallelism_threads={count}",
        }
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.peers.worker",
                f"library={library}",
                f"threads={threads}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def seconds(self, job: str, variant: str, units: int) -> float:
        """Return the seconds that a number of units of a job take.

        Raises:
            RuntimeError: the process has failed; its traceback went to the error output.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([job, variant, units]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.library} failed at {job} {variant}".rstrip())
        seconds: float = json.loads(answer)
        return seconds

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()


def measure(
    work: str, job: Job, sides: list[Side], workers: dict[str, Worker], rounds: int
) -> Measurement:
    """Measure a job of several sides in turns.

    Args:
        work: name of the work.
        job: the job.
        sides: sides to measure.
        workers: the process of each library.
        rounds: number of rounds after a first one that warms up.
    """
    rates: dict[Side, list[float]] = {side: [] for side in sides}
    for side in sides:  # each fills its replay and compiles while no other is measured
        workers[side.library].seconds(job.name, side.variant, 0)
    for turn in range(rounds + 1):
        for side in sides:
            seconds = workers[side.library].seconds(job.name, side.variant, job.units)
            if turn > 0:
                rates[side].append(job.units / seconds)
    return Measurement(work, job, rates)
