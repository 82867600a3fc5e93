"""A cheap environment of tensors, and its step as a function for a loop without a library."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Composite, Unbounded

from benchmarks.peers.jobs import ACTION_DIM, OBSERVATION_DIM
from torchrl_gpu.environments.environment import Environment

_EPISODE_STEPS = 200


class Step(NamedTuple):
    """Result of a step: `after` is the last observation, `state` that of the next step."""

    after: Tensor
    reward: Tensor
    truncated: Tensor
    state: Tensor
    age: Tensor


class Drift:
    """Points that decay towards 0 and are pushed by actions; episodes of 200 steps.

    Args:
        num_envs: number of points.
    """

    def __init__(self, num_envs: int) -> None:
        numbers = torch.Generator().manual_seed(0)
        self._push = torch.randn(ACTION_DIM, OBSERVATION_DIM, generator=numbers)
        self.starts = torch.randn(num_envs, OBSERVATION_DIM, generator=numbers)
        self.ages = torch.arange(num_envs).unsqueeze(1) % _EPISODE_STEPS
        self._zero = torch.zeros((), dtype=torch.int64)

    def step(self, state: Tensor, age: Tensor, action: Tensor) -> Step:
        """Step all points, and begin new episodes where episodes end.

        Args:
            state: observations `[num_envs, D]`.
            age: number of steps of each episode so far, `[num_envs, 1]`.
            action: actions `[num_envs, A]`.
        """
        after = torch.addmm(state, action, self._push, beta=0.9, alpha=0.1)
        reward = -after.square().mean(1, keepdim=True)
        age = age + 1
        truncated = age >= _EPISODE_STEPS
        return Step(
            after,
            reward,
            truncated,
            torch.where(truncated, self.starts, after),
            torch.where(truncated, self._zero, age),
        )


class DriftEnv(Environment):
    """`Drift` as a TorchRL environment.

    Args:
        num_envs: number of points.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(device="cpu", batch_size=[num_envs])
        self._drift = Drift(num_envs)
        self._state, self._age = self._drift.starts, self._drift.ages
        self._no = torch.zeros(num_envs, 1, dtype=torch.bool)
        shape = (num_envs,)
        self.observation_spec = Composite(
            observation=Unbounded((num_envs, OBSERVATION_DIM)), shape=shape
        )
        self.action_spec = Bounded(-1.0, 1.0, (num_envs, ACTION_DIM))
        self.reward_spec = Unbounded((num_envs, 1))
        flag = Binary(1, shape=(num_envs, 1), dtype=torch.bool)
        self.full_done_spec = Composite(
            done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=shape
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        step = self._drift.step(self._state, self._age, tensordict.get("action"))
        self._state, self._age = step.state, step.age
        return self._batch(
            {
                "observation": step.after,
                "reward": step.reward,
                "done": step.truncated,
                "terminated": self._no,
                "truncated": step.truncated,
            }
        )

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Begin new episodes where episodes ended, without reading `done` on the host."""
        return tensordict.update(self._root_after(tensordict))

    def _root_after(self, after: TensorDictBase) -> TensorDictBase:
        return self._root()

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        return self._root()

    def _root(self) -> TensorDict:
        flags = {"done": self._no, "terminated": self._no, "truncated": self._no}
        return self._batch({"observation": self._state, **flags})

    def _set_seed(self, seed: int | None) -> None:
        del seed
