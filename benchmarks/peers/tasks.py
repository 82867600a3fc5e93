"""Settings of the training jobs, the same on all sides."""

from __future__ import annotations

from typing import NamedTuple

PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"


class SACTask(NamedTuple):
    """SAC on Pendulum-v1 with one environment, and one update per frame."""

    learning_rate: float = 1e-3
    random_frames: int = 100
    capacity: int = 100_000


class PPOTask(NamedTuple):
    """PPO on CartPole-v1: RL Zoo's settings without schedules, networks of the common size."""

    num_envs: int = 8
    rollout_length: int = 32
    epochs: int = 20
    learning_rate: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.8


class SeasTask(NamedTuple):
    """PPO on 1,024 seas of marinenav: length of rollouts, epochs and minibatches of rsl_rl."""

    num_envs: int = 1_024
    rollout_length: int = 24
    epochs: int = 5
    minibatches: int = 4

    @property
    def frames(self) -> int:
        """Number of frames of a rollout."""
        return self.num_envs * self.rollout_length

    @property
    def batch_size(self) -> int:
        """Number of frames of a minibatch."""
        return self.frames // self.minibatches


SAC_TASK = SACTask()
PPO_TASK = PPOTask()
SEAS_TASK = SeasTask()
