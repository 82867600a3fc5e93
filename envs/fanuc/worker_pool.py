"""The worker processes of the environment: started, stepped together, replaced when they die."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import weakref
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from envs.fanuc.shared_memory import Exchange
from envs.fanuc.worker_process import Assignment
from torchrl_gpu.errors import ConfigurationError

# Of a worker process.
_MODULE = "envs.fanuc.worker_process"

log = logging.getLogger(__name__)

# Arms in one PyBullet client slow each other down beyond eight, and a client costs about 35 MB.
# Few arms are spread over up to eight clients, so that as many cores can share them.
MAX_ARMS_PER_CLIENT = 8
MIN_CLIENTS = 8

PACKAGE_ROOT = Path(__file__).resolve().parents[2]

STEP = b"."
SECONDS_TO_END = 5.0


def group_sizes(num_arms: int) -> list[int]:
    """Return how many arms each client gets: all of them, spread as evenly as can be.

    It depends on nothing else, least of all on the number of workers, so that the arms move in
    exactly the same way on any machine.

    Args:
        num_arms: how many arms there are.
    """
    per_client = min(MAX_ARMS_PER_CLIENT, -(-num_arms // MIN_CLIENTS))
    return _spread(num_arms, -(-num_arms // per_client))


def default_num_workers(num_arms: int) -> int:
    """Return one worker for each core that this process may use, but no more than clients."""
    return min(len(usable_cores()), len(group_sizes(num_arms)))


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@dataclass
class _Worker:
    name: str
    assignment: Assignment
    process: subprocess.Popen[bytes] = field(init=False)
    stepping: bool = False  # has been told to step and has not answered yet

    def start(self) -> None:
        """Start the process; `wait` tells when it is ready."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, json.dumps(asdict(self.assignment))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=PACKAGE_ROOT,  # where Python looks for the module first
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.stepping = False

    def tell(self) -> None:
        """Tell it to step; a dead one is found out by `wait`."""
        assert self.process.stdin is not None
        self.stepping = True
        with contextlib.suppress(OSError):
            self.process.stdin.write(STEP)

    def wait(self) -> bool:
        """Wait for its answer and return True, or False if it has died."""
        assert self.process.stdout is not None
        answered = self.process.stdout.read(1) == STEP
        self.stepping = False
        return answered


class WorkerPool:
    """All arms of an environment, spread over processes.

    Args:
        urdf: path of the arm's description.
        num_arms: how many arms.
        num_workers: how many processes; no more than there are clients are started.
        solver_iterations: of the constraint solver, per substep.
        window: whether the first worker shows its arms, if it can.

    Attributes:
        exchange: the arrays shared with the workers.

    Raises:
        ConfigurationError: the workers cannot build their arms.
    """

    def __init__(
        self,
        urdf: str,
        num_arms: int,
        num_workers: int,
        solver_iterations: int,
        window: bool = False,
    ) -> None:
        self.exchange = Exchange.create(num_arms)
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end, self._workers, self.exchange)
        sizes = group_sizes(num_arms)
        # Workers that fill all cores have one each; fewer leave the choice to the system, which
        # knows what else runs.
        cores = usable_cores()
        first_group = first_arm = 0
        for index, num_groups in enumerate(_spread(len(sizes), min(num_workers, len(sizes)))):
            own_sizes = sizes[first_group : first_group + num_groups]
            assignment = Assignment(
                exchange=str(self.exchange.path),
                num_arms=num_arms,
                first_arm=first_arm,
                group_sizes=own_sizes,
                urdf=urdf,
                solver_iterations=solver_iterations,
                window=window and index == 0,
                core=cores[index] if num_workers == len(cores) else None,
            )
            worker = _Worker(f"worker {index}", assignment)
            worker.start()
            self._workers.append(worker)
            first_group, first_arm = first_group + num_groups, assignment.arms.stop
        for worker in self._workers:
            started = worker.wait()
            if not started and worker.assignment.window:
                log.warning("no window can be opened on this display: the arms move unseen")
                _reap(worker.process)
                worker.assignment = replace(worker.assignment, window=False)
                worker.start()
                started = worker.wait()
            if not started:
                self.close()
                raise ConfigurationError(
                    f"urdf={urdf}: PyBullet cannot load this arm; what it said stands above"
                )

    @property
    def num_workers(self) -> int:
        """How many processes there are."""
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        """Their process ids."""
        return [worker.process.pid for worker in self._workers]

    def step(self) -> list[slice]:
        """Let all arms carry out `exchange.action`; `exchange.state` then holds where they are.

        Returns:
            The arms of workers that died, usually none. Their rows of the exchange may be torn. New
            workers are in place and will take over what `exchange.state` holds at the next step.

        Raises:
            RuntimeError: a worker that died could not be replaced, or the pool is closed.
        """
        if not self._finalizer.alive:
            raise RuntimeError("the environment is closed")
        for worker in self._workers:
            worker.tell()
        lost = []
        for worker in self._workers:
            if not worker.wait():
                self._replace(worker)
                lost.append(worker.assignment.arms)
        return lost

    def recover(self) -> bool:
        """Replace workers whose step was interrupted, by Ctrl-C say, with arms in unknown states.

        Returns:
            Whether there were any: the states of all arms must be written again.
        """
        interrupted = [worker for worker in self._workers if worker.stepping]
        for worker in interrupted:
            worker.process.kill()
            self._restart(worker)
        return bool(interrupted)

    def _replace(self, worker: _Worker) -> None:
        pid, code = worker.process.pid, self._restart(worker)
        log.warning(
            "%s (process %d) died with exit code %d: its arms %d to %d end their episodes; "
            "process %d has taken them over",
            worker.name,
            pid,
            code,
            worker.assignment.arms.start,
            worker.assignment.arms.stop - 1,
            worker.process.pid,
        )
        self.exchange.rewritten[worker.assignment.arms] = 1

    def _restart(self, worker: _Worker) -> int:
        """Start a process in the place of one that has ended; return the exit code of that."""
        code = _reap(worker.process)
        worker.start()
        if not worker.wait():
            raise RuntimeError(f"{worker.name} ended with exit code {code} and cannot be replaced")
        return code

    def close(self) -> None:
        """End the processes and remove the shared file; may be called again."""
        self._finalizer()


def _spread(total: int, parts: int) -> list[int]:
    """Return `parts` numbers that add up to `total` and differ by one at most."""
    return [total // parts + (index < total % parts) for index in range(parts)]


def _reap(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process whose pipe is closed, make it end if need be."""
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    return process.returncode


def _end(workers: list[_Worker], exchange: Exchange) -> None:
    """End every process by closing the pipe that it listens to, and remove the shared file."""
    for worker in workers:
        if worker.process.stdin is not None:
            worker.process.stdin.close()
    for worker in workers:
        _reap(worker.process)
    workers.clear()
    exchange.remove()
