"""Deterministic actors, and the base class of agents with a deterministic actor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from agents.base import OffPolicyAgent
from agents.modules.encoders import Encoder
from agents.modules.networks import EncodedMLP
from agents.modules.optimization import TargetNetwork
from torchrl_gpu.acting.policy import Observations

# Bound of the initial weights of the last layer: the first actions lie near 0, where tanh is steep
# (Lillicrap et al., arXiv 1509.02971, section 7).
_LAST_LAYER_BOUND = 3e-3


class DeterministicActorCritic(OffPolicyAgent):
    """An actor, a critic that values its actions, and a target network for each.

    Attributes:
        actor: mu(s).
        target_actor: target network of the actor.
        critic: value of an action.
        target_critic: target network of the critic.
        optimizer: optimizer with one parameter group each for actor and critic.
        saturation_penalty: weight of the mean squared action before tanh in the actor's loss.
    """

    actor: DeterministicActor
    target_actor: TargetNetwork
    critic: nn.Module
    target_critic: TargetNetwork
    saturation_penalty: float

    def after_update(self, metrics: dict[str, Tensor]) -> None:
        """Update the target networks."""
        self.target_actor.update()
        self.target_critic.update()

    def saturation_loss(self, raw_action: Tensor) -> Tensor:
        """Return a loss `[]` that keeps actions off their bounds, where tanh passes no gradient.

        Source: the action penalty of Plappert et al., arXiv 1802.09464, here before tanh.

        Args:
            raw_action: actions before tanh, `[B, action_dim]`.
        """
        return self.saturation_penalty * raw_action.square().mean()


class DeterministicActor(EncodedMLP):
    """mu(s): a network that outputs one action, squashed into [-1, 1] by tanh.

    `outputs` is the number of action dimensions.
    """

    def __init__(
        self, encoder: Encoder, outputs: int, hidden_sizes: Sequence[int], device: torch.device
    ) -> None:
        super().__init__(encoder, outputs, hidden_sizes, device)
        for parameter in self.network[-1].parameters():
            nn.init.uniform_(parameter, -_LAST_LAYER_BOUND, _LAST_LAYER_BOUND)

    def forward(self, observation: Observations) -> Tensor:
        """Return actions `[*B, action_dim]` in [-1, 1]."""
        return self.raw(observation).tanh()

    def raw(self, observation: Observations) -> Tensor:
        """Return actions before tanh, `[*B, action_dim]`."""
        return super().forward(observation)

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return `forward` in both modes: the policy wrapper adds the exploration noise."""
        return self(observation)
