"""Agents that act without learning, to look at an environment before training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.acting.policy import Observations, PolicyWrapper
from torchrl_gpu.environments.specs import ActionKind, action_bounds, action_kind
from torchrl_gpu.errors import ConfigurationError


class UntrainedActor(nn.Module, ABC):
    """An actor that reads nothing of the observations but their batch shape.

    Args:
        observation_spec: specs of the observations, batch size `[num_envs]`; any shape and dtype.
        action_spec: spec of the actions, bounded and continuous `[num_envs, action_dim]` or
            discrete `[num_envs]`.
        device: device of the actions.

    Attributes:
        action: the action 0 in the units of the action spec, as an actor returns it: float32
            `[action_dim]` in [-1, 1], or int64 `[]`.
        num_actions: number of discrete actions; None for continuous actions.

    Raises:
        ConfigurationError: the action space is neither bounded and continuous nor discrete, or
            there is no observation.
    """

    action: Tensor

    def __init__(
        self, observation_spec: Composite, action_spec: TensorSpec, device: torch.device
    ) -> None:
        super().__init__()
        leaves = list(observation_spec.items(include_nested=True, leaves_only=True))
        if not leaves:
            raise ConfigurationError("observation_spec: an agent needs at least one observation")
        self._key, leaf = leaves[0]
        self._dimensions = len(leaf.shape) - len(observation_spec.shape)
        is_discrete = action_kind(action_spec) == "discrete"
        self.num_actions = int(action_spec.space.n) if is_discrete else None
        self.register_buffer("action", _zero_action(action_spec, device), persistent=False)

    @abstractmethod
    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return actions: see `torchrl_gpu.acting.policy.Actor`."""

    def shape_of_actions(self, observation: Observations) -> tuple[int, ...]:
        """Return the shape of the actions for observations `[*B, ...]`."""
        shape = observation[self._key].shape
        return (*shape[: len(shape) - self._dimensions], *self.action.shape)


class RandomActor(UntrainedActor):
    """Actor whose actions are uniformly distributed."""

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return random actions in both modes."""
        shape = self.shape_of_actions(observation)
        if self.num_actions is None:
            return self.action.new_empty(shape).uniform_(-1.0, 1.0)
        return torch.randint(self.num_actions, shape, device=self.action.device)


class ZeroActor(UntrainedActor):
    """Actor whose actions are all 0 in the units of the action spec."""

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return the action 0 for every observation."""
        return self.action.expand(self.shape_of_actions(observation)).clone()


class UntrainedAgent(nn.Module, ABC):
    """An agent that consists of a policy alone: it has neither a loss nor a checkpoint.

    Args:
        observation_spec: see `UntrainedActor`.
        action_spec: see `UntrainedActor`.
        device: device of the policy.

    Attributes:
        actions: the kinds of actions that the agent can produce.
        policy: maps a TensorDict of observations to one with actions.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"continuous", "discrete"})
    policy: PolicyWrapper

    def __init__(
        self, observation_spec: Composite, action_spec: TensorSpec, device: torch.device
    ) -> None:
        super().__init__()
        actor = self.actor_class(observation_spec, action_spec, device)
        self.policy = PolicyWrapper(actor, observation_spec, action_spec, device)

    @property
    @abstractmethod
    def actor_class(self) -> type[UntrainedActor]:
        """Class of the actor of the policy."""


class RandomAgent(UntrainedAgent):
    """Draws every action uniformly from the action space, also when the policy is in eval mode.

    The random numbers come from the generator of the device: `torch.manual_seed` repeats them.
    """

    actor_class = RandomActor


class ZeroAgent(UntrainedAgent):
    """Always chooses the action 0.

    A continuous action is 0 in the units of the action spec, or the bound nearest to 0 if the
    bounds exclude 0. A discrete action is the one with index 0.
    """

    actor_class = ZeroActor


def _zero_action(action_spec: TensorSpec, device: torch.device) -> Tensor:
    if action_kind(action_spec) == "discrete":
        return torch.zeros((), dtype=torch.int64, device=device)
    low, high = action_bounds(action_spec)
    # Two equal bounds at 0 give 0 / 0.
    zero = (-(high + low) / (high - low)).nan_to_num(0.0)
    return zero.clamp(-1.0, 1.0).to(device)
