"""Jobs on 1,024 seas with one vessel each: PPO collects rollouts of marinenav and learns from them.

All sides observe the vessel alone, without the buoys, so that two layers of 256 are the whole
network. The loops of the other libraries are those of their runners, without logging.
"""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym
import torch
from tensordict import TensorDict
from torch import Tensor

from benchmarks.fixture import CPU
from benchmarks.measuring import Run
from benchmarks.peers import ours, plain, plain_agents, rsl_rl, skrl
from benchmarks.peers.jobs import SEAS_PPO, Builders, every
from envs.marinenav import MarineNavEnv
from envs.marinenav.sea_env import GROUP
from torchrl_gpu.execution.execution import CompileMode, Execution
from torchrl_gpu.execution.precision import PrecisionName

_ACTIONS = 2  # dimensions of a vessel's action


class Outcome(NamedTuple):
    """Result of a step of all vessels: observations `[N, D]`, all else `[N, 1]`."""

    observation: Tensor  # of the next step
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


def make_env() -> MarineNavEnv:
    """Return the seas."""
    return MarineNavEnv(num_envs=SEAS_PPO.num_envs, num_robots=1)


class Vessels:
    """The environment as tensors, without TensorDict.

    Attributes:
        observation: current observations `[N, D]`.
    """

    def __init__(self) -> None:
        self._env = make_env()
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


def build_ours(precision: PrecisionName = "fp32", compile: CompileMode = "off") -> Run:
    """Return a run of frames of this library."""
    return ours.train_ppo(make_env(), SEAS_PPO, Execution(CPU, precision, compile))


def build_plain() -> Run:
    """Return a run of frames in plain PyTorch."""
    vessels = Vessels()

    def step(action: Tensor) -> plain.Step:
        after, reward, terminated, truncated = vessels.step(action)
        return after, reward.squeeze(1), (terminated | truncated).squeeze(1).float()

    first = vessels.observation
    learner = plain_agents.PPO(first.shape[1], _ACTIONS, is_discrete=False, task=SEAS_PPO)
    return plain.train_ppo(learner, SEAS_PPO, first, step)


def build_rsl_rl() -> Run:
    """Return a run of frames of rsl_rl."""
    vessels = Vessels()

    def observe() -> TensorDict:
        return TensorDict({"policy": vessels.observation}, [SEAS_PPO.num_envs])

    ppo = rsl_rl.make_ppo(observe(), _ACTIONS, SEAS_PPO)

    def collect_and_learn() -> None:
        with torch.inference_mode():
            for _ in range(SEAS_PPO.rollout_length):
                _, reward, terminated, truncated = vessels.step(ppo.act(observe()))
                done = (terminated | truncated).squeeze(1).long()
                time_outs = {"time_outs": truncated.squeeze(1).float()}
                ppo.process_env_step(observe(), reward.squeeze(1), done, time_outs)
            ppo.compute_returns(observe())
        ppo.update()

    return every(SEAS_PPO.frames, collect_and_learn)


def build_skrl() -> Run:
    """Return a run of frames of skrl."""
    vessels = Vessels()
    first = vessels.observation
    spaces = {
        "observation_space": gym.spaces.Box(-float("inf"), float("inf"), first.shape[1:]),
        "action_space": gym.spaces.Box(-1.0, 1.0, (_ACTIONS,)),
    }
    return skrl.train_ppo(skrl.make_ppo(spaces, SEAS_PPO), first, vessels.step)


OURS: Builders = {"seas_ppo": ours.extremes(build_ours)}
PLAIN: Builders = {"seas_ppo": {"": build_plain}}
RSL_RL: Builders = {"seas_ppo": {"": build_rsl_rl}}
SKRL: Builders = {"seas_ppo": {"": build_skrl}}
