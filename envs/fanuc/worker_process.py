"""Worker process that simulates a part of the arms.

The command is `python -m envs.fanuc.worker_process '<assignment as JSON>'`.

For each step the environment writes one byte to the worker's standard input and reads one byte from
its standard output; all data pass through the shared `Exchange`. When the environment exits, the
pipe closes and the worker exits too; under Linux also a worker that hangs.
"""

import contextlib
import gc
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.fanuc.observation import ArmEncoder
from envs.fanuc.robot import load_robot
from envs.fanuc.shared_memory import Exchange
from envs.processes import end_with, wake_without_preempting
from torchrl_gpu.signals import ignore_stop_signals

SIGNAL = b"."  # starts a step, and answers it


@dataclass(frozen=True)
class Assignment:
    """Assignment of a worker process, in plain values that can be encoded as JSON."""

    exchange: str  # path of the shared memory
    num_arms: int  # of all workers
    first_arm: int  # index of the worker's first arm
    group_sizes: list[int]  # number of arms in each client of the worker
    urdf: str
    tool: str | None
    solver_iterations: int
    control_rate: float
    window: bool  # whether to open a window for the first client; needs a display
    core: int | None  # index of the core to pin the process to; None for no pinning
    parent: int | None = None  # process to end with, see `end_with`

    @property
    def arms(self) -> slice:
        """Rows of the worker in the shared memory."""
        return slice(self.first_arm, self.first_arm + sum(self.group_sizes))


def main(assignment: Assignment) -> None:
    """Load the arms and step them until the pipe is closed."""
    end_with(assignment.parent)
    wake_without_preempting()
    if assignment.core is not None and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {assignment.core})
    ignore_stop_signals()
    # PyBullet prints from C. Standard output is reserved for the protocol and redirected before
    # PyBullet is imported.
    output = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    from envs.fanuc.simulation import ArmGroup, ArmSimulation

    robot = load_robot(urdf=assignment.urdf, tool=assignment.tool)
    path = Path(assignment.exchange)
    shared = Exchange(path, robot, assignment.num_arms, assignment.arms)
    encode = ArmEncoder(robot)
    rate = assignment.control_rate
    groups = [
        ArmGroup(robot, size, assignment.solver_iterations, assignment.window and index == 0, rate)
        for index, size in enumerate(assignment.group_sizes)
    ]
    simulation = ArmSimulation(robot, groups, rate)

    gc.disable()  # PyBullet's many tuples would trigger it at every step; there are no cycles
    with contextlib.suppress(BrokenPipeError):
        os.write(output, SIGNAL)
        while os.read(0, 1):
            began = time.perf_counter()
            if shared.rewritten.any():
                rows = np.flatnonzero(shared.rewritten).tolist()
                simulation.write(rows, shared.state, shared.target)
                shared.rewritten[:] = 0
            simulation.step(shared.state, shared.action, shared.idle)
            shared.observation[:], shared.distance[:] = encode(shared.state, shared.target)
            if assignment.window:  # show the arms at most in real time
                time.sleep(max(0.0, 1 / rate - (time.perf_counter() - began)))
            os.write(output, SIGNAL)
    simulation.close()
    shared.remove()  # under Windows the parent cannot remove the file if it was killed


if __name__ == "__main__":
    main(Assignment(**json.loads(sys.argv[1])))
