"""What a state is worth and what an action adds to it, learned apart.

Source: Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning",
arXiv 1511.06581.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Dueling(nn.Module):
    """Two streams that see the same features and together value all actions.

    A value is a number, or several: the atoms of a distribution.

    Args:
        value: the stream that maps features to `[*B, atoms]`.
        advantage: the stream that maps them to `[*B, num_actions * atoms]`.
        num_actions: how many actions there are.
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
