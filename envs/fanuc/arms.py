"""States, targets and observations of all arms of an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.fanuc.observation import OBSERVATION_SIZE, ObservationEncoder
from envs.fanuc.robot import NUM_JOINTS, Robot
from envs.fanuc.worker_pool import WorkerPool
from torchrl_gpu.errors import ConfigurationError


class Arms:
    """Arms of an environment, synchronised with the worker processes.

    The workers write to shared memory; the arrays here are copies that a dying worker cannot
    corrupt.

    Args:
        robot: description of the arm.
        pool: worker processes that simulate the arms.

    Attributes:
        state: joint angles [rad] and speeds [rad/s], `[N, 2, 6]`, float64.
        target: target positions relative to joint 1 in the base frame, `[N, 3]`, float32, metres.
        observation: observations, `[N, 36]`, float32, see `ObservationEncoder`.
        distance: distances from flange to target, `[N, 1]`, float32, metres.

    Each change makes new arrays for all attributes but `target`; arrays of earlier steps can be
    kept.
    """

    def __init__(self, robot: Robot, pool: WorkerPool) -> None:
        self._pool = pool
        self._encode = ObservationEncoder(robot)
        self._shared = pool.exchange
        self.target = self._shared.target.copy()
        self._copy()

    def __len__(self) -> int:
        return len(self.state)

    def _copy(self) -> None:
        self.state = self._shared.state.copy()
        self.observation = self._shared.observation.copy()
        self.distance = self._shared.distance.copy()

    def step(self, action: NDArray[np.float32]) -> list[slice]:
        """Move the arms for one control period.

        Args:
            action: joint speeds as fractions of the maximum speeds, `[N, 6]`, -1 to 1.

        Returns:
            Arms whose worker died in this step, usually none; their state is that before the step.
        """
        if self._pool.recover():  # undo an interrupted step
            self._hand_over(slice(None))
        self._shared.action[:] = action
        lost = self._pool.step()
        for arms in lost:
            self._shared.state[arms] = self.state[arms]
            self._shared.observation[arms] = self.observation[arms]
            self._shared.distance[arms] = self.distance[arms]
        self._copy()
        return lost

    def place(
        self, arms: NDArray[np.int64], angles: NDArray[np.float32], target: NDArray[np.float32]
    ) -> None:
        """Set some arms to a posture at rest with a new target, without waiting for a worker.

        Args:
            arms: indices of the arms, `[K]`.
            angles: joint angles, `[K, 6]`, rad.
            target: target positions relative to joint 1 in the base frame, `[K, 3]`, metres.
        """
        state = np.zeros((len(arms), 2, NUM_JOINTS))
        state[:, 0] = angles
        observation = np.empty((len(arms), OBSERVATION_SIZE), np.float32)
        distance = np.empty((len(arms), 1), np.float32)
        self._encode(state, target, observation, distance)
        self.target[arms] = target
        self.state, self.observation, self.distance = (
            _replaced(self.state, arms, state),
            _replaced(self.observation, arms, observation),
            _replaced(self.distance, arms, distance),
        )
        self._hand_over(arms)

    def _hand_over(self, arms: NDArray[np.int64] | slice) -> None:
        """Write the state of some arms to shared memory; workers load it before the next step."""
        self._shared.state[arms] = self.state[arms]
        self._shared.target[arms] = self.target[arms]
        self._shared.rewritten[arms] = 1

    def state_dict(self) -> dict[str, Tensor]:
        """Return states, targets, observations and distances of all arms."""
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict()`.

        Raises:
            ConfigurationError: the state has another number of arms.
        """
        if len(state["state"]) != len(self):
            raise ConfigurationError(
                f"num_envs={len(self)}: the saved state has {len(state['state'])} arms"
            )
        for name in _STATE:
            setattr(self, name, state[name].numpy().copy())
        self._hand_over(slice(None))

    def close(self) -> None:
        """End the worker processes; may be called again."""
        self._pool.close()


_STATE = ("state", "target", "observation", "distance")


def _replaced(array: NDArray[Any], rows: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of the array with some rows replaced."""
    array = array.copy()
    array[rows] = values
    return array
