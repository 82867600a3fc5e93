"""What agents share that act by the values of their actions: the gradient step."""

from __future__ import annotations

from tensordict import TensorDict, TensorDictBase
from torch import nn

from agents.base import OffPolicyAgent
from agents.optimization import TargetNetwork


class ValueBasedAgent(OffPolicyAgent):
    """One network that values actions, and a target network that follows it.

    Attributes:
        network: what learns.
        target_network: follows it.
        optimizer: of the network.
        max_gradient_norm: gradients are scaled down to this norm; None for never.
    """

    network: nn.Module
    target_network: TargetNetwork
    max_gradient_norm: float | None

    def update(self, batch: TensorDictBase) -> TensorDict:
        """Do one gradient step and move the target; writes `priority` `[B]` into the batch."""
        losses = self.loss(batch)
        self.optimizer.zero_grad()
        losses["loss/value"].backward()
        if self.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.max_gradient_norm)
        self.optimizer.step()
        self.target_network.update()
        return losses.detach()
