"""How a deterministic policy explores: what is added to its actions, drawn on the device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchrl_gpu.acting.schedules import LinearSchedule


class EpsilonGreedy(nn.Module):
    """Replaces each action, with a probability, by one drawn uniformly from all actions.

    Args:
        num_actions: how many actions there are, at least 1.
        epsilon: the probability, 0 to 1, by frames.
    """

    def __init__(self, num_actions: int, epsilon: LinearSchedule) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.epsilon = epsilon

    def forward(self, action: Tensor, frames: Tensor) -> Tensor:
        """Return actions `[*B]` int64 to try, given the greedy ones and the frames so far `[]`."""
        explores = torch.rand(action.shape, device=action.device) < self.epsilon(frames)
        random = torch.randint(self.num_actions, action.shape, device=action.device)
        return torch.where(explores, random, action)


class GaussianNoise(nn.Module):
    """Adds independent normal noise to each component of an action.

    Args:
        scale: standard deviation, for actions in [-1, 1], by frames.
    """

    def __init__(self, scale: LinearSchedule) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, action: Tensor, frames: Tensor) -> Tensor:
        """Return actions `[*B, action_dim]` in [-1, 1] around those given; frames so far `[]`."""
        noise = self.scale(frames) * torch.randn_like(action)
        return (action + noise).clamp(-1.0, 1.0)
