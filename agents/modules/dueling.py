"""Dueling networks: separate streams for the value of a state and the advantages of actions.

Source: Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning",
arXiv 1511.06581.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Dueling(nn.Module):
    """Two streams that read the same features and together output the values of all actions.

    A value is one number, or the logits of a distribution over atoms.

    Args:
        value: stream that maps features to `[*B, atoms]`.
        advantage: stream that maps features to `[*B, num_actions * atoms]`.
        num_actions: number of actions.
    """

    def __init__(self, value: nn.Module, advantage: nn.Module, num_actions: int) -> None:
        super().__init__()
        self.value = value
        self.advantage = advantage
        self.num_actions = num_actions

    def forward(self, *inputs: Any) -> Tensor:
        """Return `[*B, num_actions * atoms]`; both streams are called with all inputs."""
        value = self.value(*inputs).unsqueeze(-2)
        advantage = self.advantage(*inputs).unflatten(-1, (self.num_actions, -1))
        # Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')                                  (eq. 9)
        return (value + advantage - advantage.mean(dim=-2, keepdim=True)).flatten(-2)
