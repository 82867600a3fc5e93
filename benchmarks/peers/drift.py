"""A cheap environment of tensors, and its step as a function for a loop without a library."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Composite, Unbounded

from benchmarks.fixture import ACTION_DIM, OBSERVATION_DIM, specs
from torchrl_gpu.environments.environment import Environment

_EPISODE_STEPS = 200


class Drift:
    """Points that decay towards 0 and are pushed by actions; episodes of 200 steps.

    Args:
        num_envs: number of points.

    Attributes:
        state: observations `[num_envs, D]`.
    """

    def __init__(self, num_envs: int) -> None:
        numbers = torch.Generator().manual_seed(0)
        self._push = torch.randn(ACTION_DIM, OBSERVATION_DIM, generator=numbers)
        self._starts = torch.randn(num_envs, OBSERVATION_DIM, generator=numbers)
        self._zero = torch.zeros((), dtype=torch.int64)
        self._age = torch.arange(num_envs).unsqueeze(1) % _EPISODE_STEPS
        self.state = self._starts

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step all points by actions `[num_envs, A]`, and begin new episodes where episodes end.

        Returns:
            The last observations `[num_envs, D]`, rewards and truncations, each `[num_envs, 1]`.
        """
        after = torch.addmm(self.state, action, self._push, beta=0.9, alpha=0.1)
        reward = -after.square().mean(1, keepdim=True)
        age = self._age + 1
        truncated = age >= _EPISODE_STEPS
        self.state = torch.where(truncated, self._starts, after)
        self._age = torch.where(truncated, self._zero, age)
        return after, reward, truncated


class DriftEnv(Environment):
    """`Drift` as a TorchRL environment.

    Args:
        num_envs: number of points.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(device="cpu", batch_size=[num_envs])
        self._drift = Drift(num_envs)
        self._no = torch.zeros(num_envs, 1, dtype=torch.bool)
        self.observation_spec, self.action_spec = specs(num_envs)
        self.reward_spec = Unbounded((num_envs, 1))
        flags = {
            name: Binary(1, shape=(num_envs, 1), dtype=torch.bool)
            for name in ("done", "terminated", "truncated")
        }
        self.full_done_spec = Composite(flags, shape=(num_envs,))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        after, reward, truncated = self._drift.step(tensordict.get("action"))
        flags = {"done": truncated, "terminated": self._no, "truncated": truncated}
        return self._batch({"observation": after, "reward": reward, **flags})

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Begin new episodes where episodes ended, without reading `done` on the host."""
        return tensordict.update(self._root_after(tensordict))

    def _root_after(self, after: TensorDictBase) -> TensorDictBase:
        return self._root()

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        return self._root()

    def _root(self) -> TensorDict:
        flags = {"done": self._no, "terminated": self._no, "truncated": self._no}
        return self._batch({"observation": self._drift.state, **flags})

    def _set_seed(self, seed: int | None) -> None:
        del seed
