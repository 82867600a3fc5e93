"""Agents that act without learning, to look at an environment before training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.environments.specs import ActionKind, action_bounds, action_kind


class UntrainedAgent(TensorDictModuleBase, ABC):
    """An agent that is its own policy: it has neither a loss nor a checkpoint.

    It reads nothing of the observations but their batch size, so they may have any shape and dtype.

    Args:
        observation_spec: specs of the observations, batch size `[num_envs]`.
        action_spec: spec of the actions, bounded and continuous `[num_envs, action_dim]` or
            discrete `[num_envs]`.
        device: device of the actions.

    Attributes:
        actions: the kinds of actions that the agent can produce.
        low: lowest action, float32 `[action_dim]`, or index 0, int64 `[]`.
        high: highest action or index, likewise.

    Raises:
        ConfigurationError: the action space is neither bounded and continuous nor discrete.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"continuous", "discrete"})
    low: Tensor
    high: Tensor

    def __init__(
        self, observation_spec: Composite, action_spec: TensorSpec, device: torch.device
    ) -> None:
        super().__init__()
        self.in_keys = list(observation_spec.keys(include_nested=True, leaves_only=True))
        self.out_keys = ["action"]
        if action_kind(action_spec) == "discrete":
            low, high = torch.tensor(0), torch.tensor(int(action_spec.space.n) - 1)
        else:
            low, high = action_bounds(action_spec)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        self.to(device)

    @property
    def policy(self) -> UntrainedAgent:
        """The agent itself, which maps a TensorDict of observations to one with actions."""
        return self

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action`: `[*B, action_dim]` within the bounds, or discrete `[*B]` int64."""
        return tensordict.set("action", self.choose((*tensordict.batch_size, *self.low.shape)))

    @abstractmethod
    def choose(self, shape: tuple[int, ...]) -> Tensor:
        """Return actions of a shape, `[*B, action_dim]` or `[*B]`."""


class RandomAgent(UntrainedAgent):
    """Draws every action uniformly from the action space, also when the policy is in eval mode.

    The random numbers come from the generator of the device: `torch.manual_seed` repeats them.
    """

    def choose(self, shape: tuple[int, ...]) -> Tensor:
        """Return random actions in both modes."""
        uniform = torch.rand(shape, device=self.low.device)
        if self.low.is_floating_point():
            return self.low + (self.high - self.low) * uniform
        return ((self.high + 1) * uniform).to(torch.int64)


class ZeroAgent(UntrainedAgent):
    """Always chooses the action 0.

    A continuous action is 0 in the units of the action spec, or the bound nearest to 0 if the
    bounds exclude 0. A discrete action is the one with index 0.
    """

    def choose(self, shape: tuple[int, ...]) -> Tensor:
        """Return the action 0 for every observation."""
        return self.low.new_zeros(shape).clamp(self.low, self.high)
