"""Arms in PyBullet, simulated by worker processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.fanuc.arms import Arms
from envs.fanuc.observation import OBSERVATION_SIZE, ObservationEncoder
from envs.fanuc.reward import Outcome, effort_of, judge
from envs.fanuc.robot import NUM_JOINTS, Robot
from envs.fanuc.worker_pool import WorkerPool, default_num_workers

# Bytes that each arm takes, measured with 512 to 4096 arms.
BULLET_ARM_MEMORY = 4_700 * 2**10

# More arms per core raise the throughput further, but delay the steps of each arm.
ARMS_PER_CORE = 32


class BulletArms(Arms):
    """Arms in PyBullet, synchronised with their worker processes.

    The workers write to shared memory; this class copies it, so that a dying worker cannot corrupt
    a state. All tensors are on the CPU and share the memory of numpy arrays, whose operations take
    less than half the time of torch on so few values per arm. The states are float64.

    Args:
        robot: description of the arm.
        num_arms: number of arms, at least 1.
        num_workers: number of worker processes, at least 1; None for one per core.
        solver_iterations: iterations of the constraint solver per substep.
        window: whether the first worker opens a window if possible.

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
    ) -> None:
        self._pool = WorkerPool(
            urdf=robot.urdf,
            num_arms=num_arms,
            num_workers=num_workers or default_num_workers(num_arms),
            solver_iterations=solver_iterations,
            window=window,
        )
        self._encode = ObservationEncoder(robot)
        self._shared = self._pool.exchange
        self._target = self._shared.target.copy()
        self._all = slice(0, num_arms)
        # The rows and actions of each step in flight.
        self._begun: list[tuple[slice, Tensor]] = []
        self.steps = np.zeros((num_arms, 1), np.int64)
        self._copy(self._all)

    @property
    def state(self) -> Tensor:
        """Joint angles [rad] and speeds [rad/s], `[N, 2, 6]`, float64."""
        return torch.from_numpy(self._state)

    @property
    def target(self) -> Tensor:
        """Target positions relative to joint 1 in the base frame, `[N, 3]`, float32, metres."""
        return torch.from_numpy(self._target)

    @property
    def observation(self) -> Tensor:
        """Observations, `[N, 36]`, float32."""
        return torch.from_numpy(self._observation)

    @property
    def distance(self) -> Tensor:
        """Distances from flange to target, `[N, 1]`, float32, metres."""
        return torch.from_numpy(self._distance)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._pool.pids

    def _copy(self, rows: slice) -> None:
        """Copy the results of a step from shared memory."""
        shared = self._shared
        if rows == self._all:
            self._state = shared.state.copy()
            self._observation = shared.observation.copy()
            self._distance = shared.distance.copy()
        else:
            self._state = _replaced(self._state, rows, shared.state[rows])
            self._observation = _replaced(self._observation, rows, shared.observation[rows])
            self._distance = _replaced(self._distance, rows, shared.distance[rows])

    def begin_step(self, rows: slice, action: Tensor) -> None:
        """Let the workers begin a step while the program computes: see `Arms.begin_step`."""
        if rows == self._all:
            self._pool.give_way()
        self._begin_step(rows, action)

    def _begin_step(self, rows: slice, action: Tensor) -> None:
        """Let the workers begin a step; an unfinished one is undone."""
        if self._pool.recover(rows):
            self._hand_over(rows)
        self._shared.action[rows] = action.numpy()
        self._pool.begin_step(rows)
        self._begun.append((rows, action))

    def step(self, rows: slice, action: Tensor, max_steps: int, success_radius: float) -> Outcome:
        """Move some arms for one control period; see `Arms.step`.

        Arms whose worker died in this step keep their state; their episodes are truncated.
        """
        if not any(begun is action and its == rows for its, begun in self._begun):
            self._begin_step(rows, action)
        self._begun = [begun for begun in self._begun if begun[0] != rows]
        # While the workers simulate.
        before, effort = self._distance[rows], effort_of(action.numpy())
        steps = self.steps[rows] + 1
        time_is_up = steps >= max_steps
        lost = self._pool.finish_step(rows)
        for arms in lost:
            self._shared.state[arms] = self._state[arms]
            self._shared.observation[arms] = self._observation[arms]
            self._shared.distance[arms] = self._distance[arms]
        self._copy(rows)
        self.steps[rows] = steps
        interrupted = [slice(arms.start - rows.start, arms.stop - rows.start) for arms in lost]
        after = self._distance[rows]
        outcome = judge(before, after, effort, time_is_up, success_radius, interrupted)
        return outcome._replace(reward=outcome.reward.astype(np.float32, copy=False))

    def place(self, rows: Tensor, angles: Tensor, target: Tensor) -> None:
        """Set some arms to a posture at rest with a new target, without waiting for a worker."""
        arms, targets = rows.numpy(), target.numpy()
        state = np.zeros((len(arms), 2, NUM_JOINTS))
        state[:, 0] = angles.numpy()
        observation = np.empty((len(arms), OBSERVATION_SIZE), np.float32)
        distance = np.empty((len(arms), 1), np.float32)
        self._encode(state, targets, observation, distance)
        self._target[arms] = targets
        self.steps[arms] = 0
        self._state, self._observation, self._distance = (
            _replaced(self._state, arms, state),
            _replaced(self._observation, arms, observation),
            _replaced(self._distance, arms, distance),
        )
        self._hand_over(arms)

    def _hand_over(self, arms: NDArray[np.int64] | slice) -> None:
        """Write the state of some arms to shared memory; workers load it before the next step.

        A step of these arms in flight began from another state: the next one will undo it.
        """
        self._begun = [begun for begun in self._begun if not _contains(begun[0], arms)]
        self._shared.state[arms] = self._state[arms]
        self._shared.target[arms] = self._target[arms]
        self._shared.rewritten[arms] = 1

    def state_dict(self) -> dict[str, Tensor]:
        """Return states, targets, observations and distances of all arms."""
        return {name: getattr(self, name).clone() for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict()` of as many arms."""
        self._state, self._target, self._observation, self._distance = (
            state[name].numpy().copy() for name in _STATE
        )
        self._hand_over(self._all)

    def close(self) -> None:
        """End the worker processes; may be called again."""
        self._begun.clear()
        self._pool.close()


_STATE = ("state", "target", "observation", "distance")


def _contains(rows: slice, arms: NDArray[np.int64] | slice) -> bool:
    """Return whether some of the arms are in the given rows."""
    if isinstance(arms, slice):
        return max(rows.start, arms.start) < min(rows.stop, arms.stop)
    return bool(((arms >= rows.start) & (arms < rows.stop)).any())


def _replaced(
    array: NDArray[Any], rows: NDArray[np.int64] | slice, values: NDArray[Any]
) -> NDArray[Any]:
    """Return a copy of the array with some rows replaced."""
    array = array.copy()
    array[rows] = values
    return array
