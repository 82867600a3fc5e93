"""All arms of an environment: where they are, what they are to reach and what they see."""

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
    """The arms as the environment knows them, kept in step with the worker processes.

    The workers write into memory that is shared; here are copies that no dying worker can spoil.

    Args:
        robot: the arm.
        pool: the workers, which have as many arms as there are here.

    Attributes:
        state: joint angles [rad] and speeds [rad/s], `[N, 2, 6]`, float64.
        target: from the origin of joint 1, in the base frame, `[N, 3]`, float32, metres.
        observation: see `ObservationEncoder`, `[N, 36]`, float32.
        distance: from flange to target, `[N, 1]`, float32, metres.

    All but `target` are new arrays after every change: those of the last step may be kept.
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
        """Let the arms move for one control period.

        Args:
            action: joint speeds as shares of the top speeds, `[N, 6]`.

        Returns:
            Arms whose worker died in this step, usually none: they stand where they stood before.
        """
        if self._pool.recover():  # the last step was interrupted: it never happened
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
        """Put some arms into a posture, at rest, with a new target; no worker is asked.

        Args:
            arms: which ones, `[K]`.
            angles: of their joints, `[K, 6]`, rad.
            target: from the origin of joint 1, in the base frame, `[K, 3]`, metres.
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
        """Have the workers take over the state of some arms before the next step."""
        self._shared.state[arms] = self.state[arms]
        self._shared.target[arms] = self.target[arms]
        self._shared.rewritten[arms] = 1

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that the arms' future depends on."""
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`.

        Raises:
            ConfigurationError: it is of another number of arms.
        """
        if len(state["state"]) != len(self):
            raise ConfigurationError(
                f"num_envs={len(self)}: the saved state is of {len(state['state'])} arms"
            )
        for name in _STATE:
            setattr(self, name, state[name].numpy().copy())
        self._hand_over(slice(None))

    def close(self) -> None:
        """End the worker processes; may be called again."""
        self._pool.close()


_STATE = ("state", "target", "observation", "distance")


def _replaced(array: NDArray[Any], rows: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of the array with other values in some rows."""
    array = array.copy()
    array[rows] = values
    return array
