"""Agents that act without learning, to look at an environment before training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.acting.policy import Actor, PolicyWrapper
from torchrl_gpu.environments.specs import ActionKind, action_bounds, action_kind


class UntrainedAgent(nn.Module, ABC):
    """An agent that consists of a policy alone: it has neither a loss nor a checkpoint.

    Args:
        observation_spec: specs of the observations, batch size `[num_envs]`; any shape and dtype.
        action_spec: spec of the actions, bounded and continuous `[num_envs, action_dim]` or
            discrete `[num_envs]`.
        device: device of the policy.

    Attributes:
        actions: the kinds of actions that the agent can produce.
        policy: maps a TensorDict of observations to one with actions.

    Raises:
        ConfigurationError: the action space is neither bounded and continuous nor discrete.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"continuous", "discrete"})
    policy: PolicyWrapper

    def __init__(
        self, observation_spec: Composite, action_spec: TensorSpec, device: torch.device
    ) -> None:
        super().__init__()
        actor = self.build_actor(action_spec, device)
        self.policy = PolicyWrapper(actor, observation_spec, action_spec, device)

    @abstractmethod
    def build_actor(self, action_spec: TensorSpec, device: torch.device) -> Actor:
        """Return the actor of the policy.

        Args:
            action_spec: see the constructor.
            device: see the constructor.
        """


class RandomAgent(UntrainedAgent):
    """Draws every action uniformly from the action space, also when the policy is in eval mode.

    The random numbers come from the generator of the device: `torch.manual_seed` repeats them.
    """

    def build_actor(self, action_spec: TensorSpec, device: torch.device) -> Actor:
        """Return an actor with uniformly distributed actions."""
        return _RandomActor(action_spec, device)


class ZeroAgent(UntrainedAgent):
    """Always chooses the action 0.

    A continuous action is 0 in the units of the action spec, or the bound nearest to 0 if the
    bounds exclude 0. A discrete action is the one with index 0.
    """

    def build_actor(self, action_spec: TensorSpec, device: torch.device) -> Actor:
        """Return an actor with constant actions."""
        return _ZeroActor(action_spec, device)


class _RandomActor(nn.Module):
    """Actor whose actions are uniformly distributed."""

    one_action: Tensor

    def __init__(self, action_spec: TensorSpec, device: torch.device) -> None:
        super().__init__()
        is_discrete = action_kind(action_spec) == "discrete"
        self.num_actions = int(action_spec.space.n) if is_discrete else None
        # Shape, dtype and device of one action; the values are not used.
        self.register_buffer("one_action", _zero_action(action_spec, device), persistent=False)

    def act(self, observation: TensorDictBase, deterministic: bool) -> Tensor:
        shape = (*observation.batch_size, *self.one_action.shape)
        if self.num_actions is None:
            return self.one_action.new_empty(shape).uniform_(-1.0, 1.0)
        return torch.randint(self.num_actions, shape, device=self.one_action.device)


class _ZeroActor(nn.Module):
    """Actor whose actions are all 0 in the units of the action spec."""

    action: Tensor

    def __init__(self, action_spec: TensorSpec, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("action", _zero_action(action_spec, device), persistent=False)

    def act(self, observation: TensorDictBase, deterministic: bool) -> Tensor:
        return self.action.expand((*observation.batch_size, *self.action.shape)).clone()


def _zero_action(action_spec: TensorSpec, device: torch.device) -> Tensor:
    """Return the action 0 of one environment as an actor returns it.

    Returns:
        Float32 `[action_dim]` in [-1, 1], which `PolicyWrapper` maps onto the bounds; or int64
        `[]` for a discrete action.
    """
    if action_kind(action_spec) == "discrete":
        return torch.zeros((), dtype=torch.int64, device=device)
    low, high = action_bounds(action_spec)
    # Two equal bounds at 0 give 0 / 0.
    zero = (-(high + low) / (high - low)).nan_to_num(0.0)
    return zero.clamp(-1.0, 1.0).to(device)
