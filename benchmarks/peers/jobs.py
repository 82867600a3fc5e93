"""Jobs to measure, and the sizes, settings and types that their sides share."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from benchmarks.fixture import ACTION_DIM, BATCH, NUM_ACTIONS, OBSERVATION_DIM
from benchmarks.measuring import Run

GAMMA = 0.99
STORED = 20_480  # transitions in the replay of the jobs `updates_*`, written by
WRITERS = 64  # environments at a time
TARGET_PERIOD = 10_000  # updates between two copies into the target network of DQN, IQN and QR-DQN
FRACTIONS = 8  # quantiles that IQN draws for a transition, and as many for its target

# SAC on Pendulum-v1, with one environment and one update per frame.
PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
LEARNING_RATE, RANDOM_FRAMES, CAPACITY = 1e-3, 100, 100_000


class PPOTask(NamedTuple):
    """Settings of PPO, the same on all sides; `batch_size` is that of a minibatch."""

    num_envs: int
    rollout_length: int
    epochs: int
    batch_size: int = BATCH
    learning_rate: float = 3e-4
    gamma: float = GAMMA
    gae_lambda: float = 0.95

    @property
    def frames(self) -> int:
        """Number of frames of a rollout."""
        return self.num_envs * self.rollout_length

    @property
    def minibatches(self) -> int:
        """Number of minibatches of an epoch."""
        return self.frames // self.batch_size

    @property
    def updates(self) -> int:
        """Number of updates from a rollout."""
        return self.epochs * self.minibatches


RANDOM_PPO = PPOTask(8, 256, 10)  # of the job `updates_ppo`, which learns from one rollout
# RL Zoo's settings without schedules, and networks of the common size.
CARTPOLE_PPO = PPOTask(8, 32, 20, learning_rate=1e-3, gamma=0.98, gae_lambda=0.8)
# On 1,024 seas of marinenav: length of rollouts, epochs and minibatches of rsl_rl.
SEAS_PPO = PPOTask(1_024, 24, 5, batch_size=1_024 * 24 // 4)


class Job(NamedTuple):
    """A job that several sides do.

    Attributes:
        name: name by which the libraries have their builders.
        title: heading of its column.
        units: number of units in each round.
        rate: name of the rate, with the unit.
    """

    name: str
    title: str
    units: int
    rate: str = "frames/s of training"


_updates = partial(Job, rate="updates/s, replay sampling included")

WORKS = {
    "updates": (
        _updates("updates_sac", "SAC", 30),
        _updates("updates_ddpg", "DDPG", 40),
        _updates("updates_dqn", "DQN", 60),
        _updates("updates_iqn", "IQN", 6),
        _updates("updates_ppo", "PPO", RANDOM_PPO.updates),
    ),
    "training": (
        Job("training_sac", f"SAC {PENDULUM}", 150),
        Job("training_ppo", f"PPO {CARTPOLE}", 8 * CARTPOLE_PPO.frames),
    ),
    # As many frames as lie between two checkpoints of this library, which writes one a round.
    "seas": (Job("seas_ppo", "PPO marinenav, 1,024 seas", 4 * SEAS_PPO.frames),),
}

Build = Callable[[], Run]  # prepares a job of one side, which includes filling its replay


class Side(NamedTuple):
    """One way to do a job: a library, and the name of a variant of it."""

    library: str
    variant: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is a side of this library."""
        return self.library == "ours"

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
        return self.np_random.standard_normal(OBSERVATION_DIM, dtype=np.float32), {}

    def step(self, action: object) -> tuple[object, float, bool, bool, dict]:
        """Return a random observation and no reward."""
        return self.reset()[0], 0.0, False, False, {}
