"""Exploration of deterministic policies, with random numbers drawn on the device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchrl_gpu.acting.schedules import LinearSchedule


class EpsilonGreedy(nn.Module):
    """Replaces each action, with probability epsilon, by an action drawn uniformly from all.

    Args:
        num_actions: number of discrete actions, at least 1.
        epsilon: schedule over frames of the probability of a random action, 0 to 1.
    """

    def __init__(self, num_actions: int, epsilon: LinearSchedule) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.epsilon = epsilon

    def forward(self, action: Tensor, frames: Tensor) -> Tensor:
        """Return exploring actions for greedy ones, both `[*B]` int64, after `frames` `[]`."""
        explores = torch.rand(action.shape, device=action.device) < self.epsilon(frames)
        random = torch.randint(self.num_actions, action.shape, device=action.device)
        return torch.where(explores, random, action)


class GaussianNoise(nn.Module):
    """Adds independent normal noise to each component of an action.

    Args:
        scale: schedule over frames of the standard deviation, for actions in [-1, 1].
    """

    def __init__(self, scale: LinearSchedule) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, action: Tensor, frames: Tensor) -> Tensor:
        """Return actions `[*B, action_dim]` with noise, clamped to [-1, 1], after `frames` `[]`."""
        noise = self.scale(frames) * torch.randn_like(action)
        return (action + noise).clamp(-1.0, 1.0)
