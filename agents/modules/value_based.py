"""Agents that act by the values of their actions."""

from __future__ import annotations

from torch import Tensor, nn

from agents.base import OffPolicyAgent
from agents.modules.optimization import TargetNetwork


class ValueBasedAgent(OffPolicyAgent):
    """One network that values actions, and a target network that follows it.

    Attributes:
        network: the values of all actions.
        target_network: follows it.
        optimizer: of the network.
    """

    network: nn.Module
    target_network: TargetNetwork

    def after_update(self, metrics: dict[str, Tensor]) -> None:
        """Move the target."""
        self.target_network.update()
