"""Arms in PyBullet, simulated by worker processes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.fanuc.arms import SAVED, Arms
from envs.fanuc.observation import OBSERVATION_SIZE, ArmEncoder
from envs.fanuc.reward import Judgement, effort_of, judge
from envs.fanuc.robot import NUM_JOINTS, Robot
from envs.fanuc.worker_pool import WorkerPool

# Bytes that each arm takes, measured with 512 to 4096 arms.
BULLET_ARM_MEMORY: Final = 4_700 * 2**10

# More arms per core raise the throughput further, but delay the steps of each arm.
ARMS_PER_CORE: Final = 32


class BulletArms(Arms):
    """Arms in PyBullet, synchronised with their worker processes.

    The workers write to shared memory; this class copies it, so that a dying worker cannot corrupt
    a state. All arrays are numpy arrays, whose operations take less than half the time of torch on
    so few values per arm. The states are float64.

    Args:
        robot: description of the arm.
        pool: worker processes that simulate the arms.
    """

    device = torch.device("cpu")
    state: NDArray[np.float64]
    target: NDArray[np.float32]
    observation: NDArray[np.float32]
    distance: NDArray[np.float32]
    steps: NDArray[np.int64]

    def __init__(self, robot: Robot, pool: WorkerPool) -> None:
        self._pool = pool
        self._encode = ArmEncoder(robot)
        self._shared = pool.exchange
        self._begun: Tensor | None = None  # the actions of the step in flight
        self.target = self._shared.target.copy()
        self.steps = np.zeros((len(self.target), 1), np.int64)
        self._copy()

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._pool.pids

    def _copy(self) -> None:
        """Copy the results of a step from shared memory."""
        self.state = self._shared.state.copy()
        self.observation = self._shared.observation.copy()
        self.distance = self._shared.distance.copy()

    def begin_step(self, action: Tensor) -> None:
        """Let the workers begin a step while the program computes: see `Arms.begin_step`."""
        self._pool.give_way()
        self._begin_step(action)

    def _begin_step(self, action: Tensor) -> None:
        """Let the workers begin a step; an unfinished one is undone."""
        if self._pool.recover():
            self._hand_over(slice(None))
        self._shared.action[:] = action.numpy()
        self._pool.begin_step()
        self._begun = action

    def step(self, action: Tensor, max_steps: int, success_radius: float) -> Judgement:
        """Move all arms for one control period; see `Arms.step`.

        Arms whose worker died in this step keep their state; their episodes are truncated.
        """
        if self._begun is not action:
            self._begin_step(action)
        self._begun = None
        # While the workers simulate.
        before, effort = self.distance, effort_of(action.numpy())
        steps = self.steps + 1
        time_is_up = steps >= max_steps
        lost = self._pool.finish_step()
        for arms in lost:
            self._shared.state[arms] = self.state[arms]
            self._shared.observation[arms] = self.observation[arms]
            self._shared.distance[arms] = self.distance[arms]
        self._copy()
        self.steps = steps
        result = judge(before, self.distance, effort, time_is_up, success_radius, lost)
        return result._replace(reward=result.reward.astype(np.float32, copy=False))

    def place(self, rows: Tensor, angles: Tensor, target: Tensor) -> None:
        """Set some arms to a posture at rest with a new target, without waiting for a worker."""
        arms, targets = rows.numpy(), target.numpy()
        state = np.zeros((len(arms), 2, NUM_JOINTS))
        state[:, 0] = angles.numpy()
        observation = np.empty((len(arms), OBSERVATION_SIZE), np.float32)
        distance = np.empty((len(arms), 1), np.float32)
        self._encode(state, targets, observation, distance)
        self.target[arms] = targets
        self.steps[arms] = 0
        self.state = _replaced(self.state, arms, state)
        self.observation = _replaced(self.observation, arms, observation)
        self.distance = _replaced(self.distance, arms, distance)
        self._hand_over(arms)

    def _hand_over(self, arms: NDArray[np.int64] | slice) -> None:
        """Write the state of some arms to shared memory; workers load it before the next step.

        A step in flight began from another state: the next one will undo it.
        """
        self._begun = None
        self._shared.state[arms] = self.state[arms]
        self._shared.target[arms] = self.target[arms]
        self._shared.rewritten[arms] = 1

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict()` of as many arms."""
        for name in SAVED:
            setattr(self, name, state[name].numpy().copy())
        self._hand_over(slice(None))

    def close(self) -> None:
        """End the worker processes; may be called again."""
        self._begun = None
        self._pool.close()


def _replaced(array: NDArray[Any], rows: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of the array with some rows replaced."""
    array = array.copy()
    array[rows] = values
    return array
