"""Jobs that are measured, and the sizes that all sides share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import gymnasium as gym
import numpy as np

OBSERVATION_DIM, ACTION_DIM, NUM_ACTIONS = 21, 6, 13  # those of the environment fanuc
BATCH = 256
HIDDEN = (256, 256)
GAMMA = 0.99
STORED = 20_480  # transitions in the replay of the jobs `updates_*`, written by
WRITERS = 64  # environments at a time
TARGET_PERIOD = 10_000  # updates between two copies into the target network of DQN, IQN and QR-DQN
FRACTIONS = 8  # quantiles that IQN draws for a transition, and as many for its target

# PPO in the job `updates_ppo`: one rollout gives 10 epochs of 8 minibatches.
ROLLOUT_ENVS, ROLLOUT_STEPS, EPOCHS = 8, 256, 10
UPDATES_A_ROLLOUT = EPOCHS * ROLLOUT_ENVS * ROLLOUT_STEPS // BATCH

Run = Callable[[int], object]  # does a number of units of a job: updates, frames, steps or samples
Build = Callable[[], Run]  # prepares a job of one side, which includes filling its replay


class Side(NamedTuple):
    """One way to do a job: a library, and a variant of it that has a name of its own."""

    library: str
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.library} {self.variant}".strip()


# Builders of one library: those of each job, by variant; the default variant is "".
Builders = Mapping[str, Mapping[str, Build]]


class RandomEnv(gym.Env):
    """Environment of random observations that never ends, for libraries that cannot do without one.

    Args:
        is_discrete: whether actions are numbers or vectors.
    """

    def __init__(self, is_discrete: bool) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (OBSERVATION_DIM,))
        self.action_space = (
            gym.spaces.Discrete(NUM_ACTIONS)
            if is_discrete
            else gym.spaces.Box(-1.0, 1.0, (ACTION_DIM,))
        )

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[object, dict]:
        """Return a random observation."""
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: object) -> tuple[object, float, bool, bool, dict]:
        """Return a random observation and no reward."""
        return self._observation(), 0.0, False, False, {}

    def _observation(self) -> object:
        return self.np_random.standard_normal(OBSERVATION_DIM, dtype=np.float32)
