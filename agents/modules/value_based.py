"""The base class of agents that choose actions by their values."""

from __future__ import annotations

from torch import Tensor, nn

from agents.base import OffPolicyAgent
from agents.modules.optimization import TargetNetwork


class ValueBasedAgent(OffPolicyAgent):
    """A network that outputs the values of all actions, and its target network.

    Attributes:
        network: values of all actions.
        target_network: target network of `network`.
        optimizer: optimizer of the network.
    """

    network: nn.Module
    target_network: TargetNetwork

    def after_update(self, metrics: dict[str, Tensor]) -> None:
        """Update the target network."""
        self.target_network.update()
