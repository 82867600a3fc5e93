"""Reference for speed: a plain PyBullet loop over the same arms, without this library.

The module does not import torch, because each of its processes imports the module.
"""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np

from envs.fanuc.robot import Robot
from envs.fanuc.simulation import ArmGroup

FLANGE_LINK = 5
EPISODE_STEPS = 150  # as long as the environment's episodes last under random actions


class RawLoop:
    """Worker processes that set motors, step the physics, and read joints and flange.

    Args:
        robot: arm to simulate.
        solver_iterations: number of iterations of the constraint solver per substep.
        start: joint angles at the start of each episode, rad.
        shares: number of arms in each PyBullet client, for each process.
    """

    def __init__(
        self,
        robot: Robot,
        solver_iterations: int,
        start: Sequence[float],
        shares: Sequence[Sequence[int]],
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        for share in shares:
            here, there = context.Pipe()
            arguments = (there, robot, solver_iterations, start, share)
            context.Process(target=_serve, args=arguments, daemon=True).start()
            self._pipes.append(here)
        for pipe in self._pipes:
            pipe.recv()

    def step(self, steps: int) -> None:
        """Step all arms a number of times, the processes in parallel."""
        for pipe in self._pipes:
            pipe.send(steps)
        for pipe in self._pipes:
            pipe.recv()

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(0)


def _serve(
    pipe: Connection,
    robot: Robot,
    solver_iterations: int,
    start: Sequence[float],
    share: Sequence[int],
) -> None:
    groups = [ArmGroup(robot, size, solver_iterations) for size in share]
    generator = np.random.default_rng(0)
    commands = [
        [(generator.uniform(-1, 1, (size, 6)) * robot.velocity).tolist() for size in share]
        for _ in range(100)
    ]
    pipe.send("ready")
    done = 0
    while steps := pipe.recv():
        for step in range(done, done + steps):
            for group, velocities in zip(groups, commands[step % len(commands)], strict=True):
                client, joints = group.client, group.joints
                if step % EPISODE_STEPS == 0:
                    for arm in range(len(group.bodies)):
                        group.write(arm, start, [0.0] * len(joints))
                group.step(velocities)
                for body in group.bodies:
                    client.getJointStates(body, joints)
                    client.getLinkState(body, FLANGE_LINK)
        done += steps
        pipe.send("done")
