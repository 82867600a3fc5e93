"""Exploration of deterministic policies, with random numbers drawn on the device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from torchrl_gpu.acting.schedules import LinearSchedule

# Maps the actions of an actor and the frames so far, `[]`, to exploring actions.
Exploration: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class EpsilonGreedy:
    """Replaces each action, with probability epsilon, by an action drawn uniformly from all.

    Attributes:
        num_actions: number of discrete actions, at least 1.
        epsilon: schedule over frames of the probability of a random action, 0 to 1.
    """

    num_actions: int
    epsilon: LinearSchedule

    def __call__(self, action: Tensor, frames: Tensor) -> Tensor:
        """Return exploring actions for greedy ones, both `[*B]` int64, after `frames` `[]`."""
        explores = torch.rand(action.shape, device=action.device) < self.epsilon(frames)
        random = torch.randint(self.num_actions, action.shape, device=action.device)
        return torch.where(explores, random, action)


@dataclass(frozen=True)
class GaussianNoise:
    """Adds independent normal noise to each component of an action.

    The schedule `scale` over frames is the standard deviation, for actions in [-1, 1].
    """

    scale: LinearSchedule

    def __call__(self, action: Tensor, frames: Tensor) -> Tensor:
        """Return actions `[*B, action_dim]` with noise, clamped to [-1, 1], after `frames` `[]`."""
        noise = self.scale(frames) * torch.randn_like(action)
        return (action + noise).clamp(-1.0, 1.0)


@dataclass(frozen=True)
class MixedNoise:
    """Adds normal noise whose scale differs from environment to environment.

    Some environments follow the policy closely while others explore widely, at every stage of
    training: sigma_i = low + i / (N - 1) (high - low) in environment i of N, for actions in
    [-1, 1]; the mean of both in a single environment.

    Source: Li et al., "Parallel Q-Learning: Scaling Off-policy Reinforcement Learning under
    Massively Parallel Simulation", arXiv 2307.12983, mixed exploration.
    """

    low: float
    high: float

    def __call__(self, action: Tensor, frames: Tensor) -> Tensor:
        """Return actions `[*B, action_dim]` with noise, clamped to [-1, 1].

        The first batch dimension counts environments; `frames` `[]` has no effect.
        """
        rows = action if action.dim() > 1 else action.unsqueeze(0)
        low = self.low if len(rows) > 1 else (self.low + self.high) / 2
        scale = torch.linspace(low, self.high, len(rows), device=action.device)
        scale = scale.view(-1, *[1] * (rows.dim() - 1))
        return (rows + scale * torch.randn_like(rows)).clamp(-1.0, 1.0).view_as(action)
