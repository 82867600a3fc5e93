"""A process that simulates some of the arms.

It is started as `python -m envs.fanuc.worker_process '<assignment as JSON>'`.

The environment writes one byte to its standard input for every step and reads one byte from its
standard output when the step is done; everything else goes through the shared `Exchange`. When the
environment is gone, so is the other end of the pipe, and the worker ends by itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.fanuc.observation import ObservationEncoder
from envs.fanuc.robot import load_robot
from envs.fanuc.shared_memory import Exchange

DONE = b"."


@dataclass(frozen=True)
class Assignment:
    """What a worker is to simulate; plain values, so that they travel as JSON.

    Attributes:
        exchange: path of the shared memory.
        num_arms: how many arms it holds in all.
        first_arm: index of this worker's first one.
        group_sizes: arms in each of its clients.
        urdf: path of the arm's description.
        solver_iterations: of the constraint solver, per substep.
        window: whether to show the first client; needs a display.
        core: the core to stay on; None to go where the system likes.
    """

    exchange: str
    num_arms: int
    first_arm: int
    group_sizes: list[int]
    urdf: str
    solver_iterations: int
    window: bool
    core: int | None

    @property
    def arms(self) -> slice:
        """This worker's rows of the shared memory."""
        return slice(self.first_arm, self.first_arm + sum(self.group_sizes))


def main(assignment: Assignment) -> None:
    """Build the arms and step them until the pipe is closed."""
    _share_cores_well(assignment.core)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to act upon
    # PyBullet prints from C. The real output is kept for the protocol and hidden from PyBullet,
    # which therefore is imported only now.
    output = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    from envs.fanuc.simulation import STEP_SECONDS, Simulation

    exchange = Exchange(Path(assignment.exchange), assignment.num_arms)
    state, action = exchange.state[assignment.arms], exchange.action[assignment.arms]
    target, rewritten = exchange.target[assignment.arms], exchange.rewritten[assignment.arms]
    observation = exchange.observation[assignment.arms]
    distance = exchange.distance[assignment.arms]
    robot = load_robot(urdf=assignment.urdf)
    encode = ObservationEncoder(robot)
    simulation = Simulation(
        robot, assignment.group_sizes, assignment.solver_iterations, assignment.window
    )

    gc.disable()  # PyBullet's many tuples would set it off at every step, and nothing makes cycles
    with contextlib.suppress(BrokenPipeError):
        os.write(output, DONE)
        while os.read(0, 1):
            began = time.perf_counter()
            if rewritten.any():
                simulation.write(np.flatnonzero(rewritten).tolist(), state, target)
                rewritten[:] = 0
            simulation.step(state, action)
            encode(state, target, observation, distance)
            if assignment.window:  # a person is looking: no faster than life
                time.sleep(max(0.0, STEP_SECONDS - (time.perf_counter() - began)))
            os.write(output, DONE)
    simulation.close()
    exchange.remove()  # in case the parent was killed and could not


def _share_cores_well(core: int | None) -> None:
    """Keep the workers from standing in each other's way, where the system offers it (Linux).

    All workers are told to step at almost the same moment. Left alone, two of them often wake on
    one core, or the first takes the core of the environment before it has told the second.
    """
    if hasattr(os, "sched_setscheduler"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            if core is not None:
                os.sched_setaffinity(0, {core})


if __name__ == "__main__":
    main(Assignment(**json.loads(sys.argv[1])))
