"""Jobs on 1,024 seas with one vessel each: PPO collects rollouts of marinenav and learns from them.

All sides observe the vessel alone, without the buoys, so that two layers of 256 are the whole
network. The loops of the other libraries are those of their runners, without logging.
"""

from typing import NamedTuple

from torch import Tensor

from benchmarks.peers.jobs import SEAS_PPO
from envs.marinenav import MarineNavEnv
from envs.marinenav.sea_env import GROUP

ACTIONS = 2  # dimensions of a vessel's action


class Outcome(NamedTuple):
    """Result of a step of all environments: observations `[N, D]`, all else `[N, 1]`."""

    observation: Tensor  # of the next step
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


def make_seas() -> MarineNavEnv:
    """Return the seas."""
    return MarineNavEnv(num_envs=SEAS_PPO.num_envs, num_robots=1)


class Vessels:
    """The environment as tensors, without TensorDict."""

    def __init__(self) -> None:
        self._env = make_seas()
        self._root = self._env.reset()

    @property
    def observation(self) -> Tensor:
        """Current observations `[N, D]`."""
        observation: Tensor = self._root[GROUP, "observation"][:, 0]
        return observation

    def step(self, action: Tensor) -> Outcome:
        """Step all vessels by actions `[N, A]`, which are clipped to [-1, 1]."""
        self._root[GROUP, "action"] = action.clamp(-1.0, 1.0).unsqueeze(1)
        transition, self._root = self._env.step_and_maybe_reset(self._root)
        after = transition["next", GROUP]
        ends = (after[key][:, 0] for key in ("reward", "terminated", "truncated"))
        return Outcome(self.observation, *ends)
