"""Pool of worker processes that step the arms together and are replaced when they die or hang."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
import weakref
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.fanuc.robot import CONTROL_RATE, Robot
from envs.fanuc.shared_memory import Exchange
from envs.fanuc.worker_process import SIGNAL, Assignment
from envs.processes import (
    MAX_LOSSES,
    SECONDS_TO_END,
    SECONDS_TO_END_IN_STEP,
    Patience,
    parent_of_workers,
    patience_to_start,
    too_many_losses,
)
from torchrl_gpu.commands import command_line
from torchrl_gpu.devices.host import ONE_THREAD, num_cores, usable_cores
from torchrl_gpu.environments.environment import STEP_TIMEOUT
from torchrl_gpu.errors import ConfigurationError, WorkerError
from torchrl_gpu.signals import stop_signals_held

log = logging.getLogger(__name__)

# Beyond eight arms per PyBullet client the time per arm rises; each client takes about 35 MB.
# A small number of arms is spread over up to eight clients, to use up to eight cores.
MAX_ARMS_PER_CLIENT = 8
MIN_CLIENTS = 8

PACKAGE_ROOT = Path(__file__).resolve().parents[2]

# Priority of workers beside a program that computes (Unix), added to that of the program; a higher
# number gives way to a lower one, 19 is the highest.
NICENESS = 10


def group_sizes(num_arms: int) -> list[int]:
    """Return the number of arms in each client, spread as evenly as possible over all `num_arms`.

    It does not depend on the number of workers, so that trajectories are equal on all machines.
    """
    per_client = min(MAX_ARMS_PER_CLIENT, -(-num_arms // MIN_CLIENTS))
    return [len(arms) for arms in np.array_split(range(num_arms), -(-num_arms // per_client))]


def default_num_workers(num_arms: int) -> int:
    """Return the number of cores that this process may use, at most the number of clients."""
    return min(num_cores(), len(group_sizes(num_arms)))


@dataclass
class _Worker:
    name: str
    assignment: Assignment
    descriptors: tuple[int, ...]  # see `Exchange`
    process: subprocess.Popen[bytes] = field(init=False)
    stepping: bool = False  # the answer to `send_step` has not been read
    silence: float | None = None  # seconds that a process which hangs was waited for
    losses: int = 0  # of its processes in a row, without a finished step
    gives_way: bool = False  # see `WorkerPool.give_way`

    def start(self) -> None:
        """Start the process; `wait` returns when it is ready."""
        assignment = replace(self.assignment, parent=parent_of_workers())
        with stop_signals_held():
            self.process = subprocess.Popen(
                [sys.executable, "-m", Assignment.__module__, json.dumps(asdict(assignment))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                cwd=PACKAGE_ROOT,  # first entry of the module search path
                env={**os.environ, **ONE_THREAD},
                pass_fds=self.descriptors,
            )
        self.stepping = False
        if self.gives_way:
            self.give_way()

    def give_way(self) -> None:
        """Let the process run on any core, with a low priority."""
        self.gives_way, self.assignment = True, replace(self.assignment, core=None)
        with contextlib.suppress(OSError):  # it may have died
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(self.process.pid, usable_cores())
            if hasattr(os, "setpriority"):
                niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
                os.setpriority(os.PRIO_PROCESS, self.process.pid, niceness)

    def send_step(self) -> None:
        """Send the step command; `wait` detects a dead process."""
        assert self.process.stdin is not None
        self.stepping = True
        with contextlib.suppress(OSError):
            self.process.stdin.write(SIGNAL)

    def wait(self, patience: Patience) -> bool:
        """Wait for the answer; return False if the process has died or hangs."""
        assert self.process.stdout is not None
        in_time = patience.wait(self.process.stdout)
        self.silence = None if in_time else patience.seconds
        answered = in_time and self.process.stdout.read(1) == SIGNAL
        self.stepping = False
        return answered

    def reap(self) -> str:
        """End the lost process, and return the cause of its loss in words."""
        if self.silence is not None:
            _reap(self.process, 0)
            return f"has not answered for {self.silence:g} s"
        return f"died with exit code {_reap(self.process)}"


class WorkerPool:
    """Worker processes that simulate all arms of an environment.

    Args:
        robot: description of the arm.
        num_arms: number of arms, at least 1.
        num_workers: number of processes, at least 1, limited to the number of clients; None for
            one per core.
        solver_iterations: iterations of the constraint solver per substep.
        window: whether the first worker opens a window, if there is a display.
        control_rate: number of steps per second, Hz.
        step_timeout: seconds that a step may take; None for no limit.

    Attributes:
        lost_episodes: number of episodes of the arms of lost workers, since a reader set it to 0.

    Raises:
        ConfigurationError: PyBullet cannot load the arm.
    """

    def __init__(
        self,
        robot: Robot,
        num_arms: int,
        num_workers: int | None,
        solver_iterations: int,
        window: bool = False,
        control_rate: float = CONTROL_RATE,
        step_timeout: float | None = STEP_TIMEOUT,
    ) -> None:
        self._step_timeout = step_timeout
        self.lost_episodes = 0
        num_workers = num_workers or default_num_workers(num_arms)
        self._exchange = Exchange.create(robot, num_arms)
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end, self._workers, self._exchange)
        sizes, first_arm = group_sizes(num_arms), 0
        # As many workers as cores are pinned to one core each; the system schedules fewer workers.
        cores = usable_cores()
        has_display = sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY"))
        for index, groups in enumerate(np.array_split(sizes, min(num_workers, len(sizes)))):
            assignment = Assignment(
                exchange=str(self._exchange.path),
                num_arms=num_arms,
                first_arm=first_arm,
                group_sizes=groups.tolist(),
                urdf=robot.urdf,
                tool=robot.tool_link,
                solver_iterations=solver_iterations,
                control_rate=control_rate,
                window=window and has_display and index == 0,
                core=cores[index] if num_workers == len(cores) else None,
            )
            worker = _Worker(f"worker {index}", assignment, self._exchange.descriptors)
            worker.start()
            self._workers.append(worker)
            first_arm = assignment.arms.stop
        for worker in self._workers:
            started = worker.wait(patience_to_start(step_timeout))
            if not started and worker.assignment.window:
                log.warning("no window can be opened on this display; the demo continues")
                worker.reap()
                worker.assignment = replace(worker.assignment, window=False)
                worker.start()
                started = worker.wait(patience_to_start(step_timeout))
            if not started:
                hangs = worker.silence is not None
                self.close()
                if hangs:
                    raise WorkerError(f"{worker.name} of {robot.urdf} does not start")
                raise ConfigurationError(
                    f"env.urdf={robot.urdf}: PyBullet cannot load this arm; "
                    f"{command_line(['torchrl-gpu', 'robot', str(robot.urdf)])} prints its reason"
                )
        self._busy = self._workers  # those that take part in a step

    @property
    def exchange(self) -> Exchange:
        """Arrays in memory shared with the workers; a RuntimeError once the pool is closed."""
        if not self._finalizer.alive:
            raise RuntimeError("the environment is closed")
        return self._exchange

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def give_way(self) -> None:
        """Let the workers leave a core to the program, which computes while they simulate.

        Workers pinned to a core, or of equal priority, delay the program.
        """
        for worker in self._workers:
            if not worker.gives_way:
                worker.give_way()

    def set_idle(self, mask: NDArray[np.bool_]) -> None:
        """Leave out clients, and workers, whose arms are all idle, bool `[num_arms]`.

        A worker that died idle is replaced: a reset of its arms follows.
        """
        self.exchange.idle[:] = mask
        before = self._busy
        self._busy = [each for each in self._workers if not mask[each.assignment.arms].all()]
        for worker in self._busy:
            if worker not in before and worker.process.poll() is not None:
                self._restart(worker, worker.reap())
                self.exchange.rewritten[worker.assignment.arms] = 1

    def begin_step(self) -> None:
        """Let the workers step their arms by `exchange.action`, and return at once."""
        for worker in self._busy:
            worker.send_step()

    def finish_step(self) -> list[slice]:
        """Wait for the end of the step; `exchange.state` then holds the new states.

        Returns:
            Arms of workers that died or hang, usually none. Their rows of the exchange can be
            incomplete. The workers have been replaced and load `exchange.state` at the next step.

        Raises:
            WorkerError: a worker could not be replaced.
        """
        lost = []
        patience = Patience(self._step_timeout)
        for worker in self._workers:
            if not worker.stepping:
                continue
            if worker.wait(patience):
                worker.losses = 0
            else:
                self._replace(worker)
                lost.append(worker.assignment.arms)
        return lost

    def recover(self) -> bool:
        """Replace workers whose step was not finished, for instance because of Ctrl-C.

        If there were any, return True: the states of the arms must be written again.
        """
        interrupted = [worker for worker in self._workers if worker.stepping]
        for worker in interrupted:
            _reap(worker.process, 0)
            worker.losses = 0  # this process was not lost
            self._restart(worker)
        return bool(interrupted)

    def _replace(self, worker: _Worker) -> None:
        pid, arms = worker.process.pid, worker.assignment.arms
        cause = worker.reap()
        self._restart(worker, cause)
        log.warning(
            f"{worker.name} (process {pid}) {cause}: the episodes of arms {arms.start} to "
            f"{arms.stop - 1} are truncated; process {worker.process.pid} replaces it"
        )
        self.lost_episodes += arms.stop - arms.start
        self.exchange.rewritten[arms] = 1

    def _restart(self, worker: _Worker, cause: str = "") -> None:
        """Start a process in place of a lost one, unless too many were lost in a row.

        `cause` is the cause of its loss in words.
        """
        while worker.losses < MAX_LOSSES:
            worker.losses += 1
            worker.start()
            if worker.wait(patience_to_start(self._step_timeout)):
                return
            cause = worker.reap()
        raise too_many_losses(f"{worker.name} (process {worker.process.pid}) {cause}")

    def close(self) -> None:
        """End the processes and remove the shared file; may be called again."""
        self._finalizer()


def _reap(process: subprocess.Popen[bytes], seconds: float = SECONDS_TO_END) -> int:
    """Wait until a process with a closed pipe exits, kill it after a time; return its code."""
    with process:  # closes the other pipe, and waits
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.returncode


def _end(workers: list[_Worker], exchange: Exchange) -> None:
    """End all processes by closing their input pipes, and remove the shared file."""
    for worker in workers:
        if worker.process.stdin is not None:
            worker.process.stdin.close()
    in_step = any(worker.stepping for worker in workers)
    end = time.monotonic() + (SECONDS_TO_END_IN_STEP if in_step else SECONDS_TO_END)
    for worker in workers:
        _reap(worker.process, max(0.0, end - time.monotonic()))
    workers.clear()
    exchange.remove()
