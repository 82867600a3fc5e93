"""Deep Q-network, single or double.

Sources: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015;
van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning", arXiv 1509.06461.
"""

from __future__ import annotations

from dataclasses import field

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor

from agents import hyperparameters as hp
from agents.modules.encoders import Encoder
from agents.modules.networks import EncodedMLP
from agents.modules.value_based import ValueBasedAgent
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.execution.learner import Losses


class DQN(ValueBasedAgent):
    """Off-policy agent for discrete actions.

    Args:
        hidden_sizes: widths of the hidden layers behind the encoder, each at least 1; may be empty.
        kappa: error at which the Huber loss turns from quadratic to linear, in units of reward.
            Beyond it values tend to the median of the returns instead of their mean.
    """

    network: QNetwork = field(init=False)

    hidden_sizes: hp.OptionalLayers = (128, 128)
    learning_rate: hp.LearningRate = 1e-3
    kappa: hp.Positive = 1.0
    utd_ratio: hp.UTDRatio = 0.5

    def build_network(self, encoder: Encoder, num_actions: int) -> QNetwork:
        """Return a new network of the values of all actions."""
        return QNetwork(encoder, num_actions, self.hidden_sizes)

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/value`, weighted by importance, and the absolute errors as priorities."""
        after = batch.get("next")
        with torch.no_grad():
            next_values = self.target_network(after)
            # Q'(s', argmax_a Q(s', a)) if double (arXiv 1509.06461, eq. 4), else max_a Q'(s', a)
            chooser = self.network(after) if self.double else next_values
            next_value = next_values.gather(-1, chooser.argmax(dim=-1, keepdim=True))
            # y = r + gamma (1 - terminated) Q'(s', a'): a time limit does not terminate
            target = after.get("reward") + self.bootstrap_discount(batch) * next_value

        # L = E[huber(Q(s, a) - y)]: the error, clipped to [-kappa, kappa], is the gradient
        value = self.network(batch).gather(-1, batch.get("action").unsqueeze(-1))
        # Torch's smooth loss is huber / kappa; DirectML lacks `huber_loss`.
        loss = F.smooth_l1_loss(value, target, reduction="none", beta=self.kappa).squeeze(-1)
        loss = self.kappa * loss
        error = (value.detach() - target).abs().squeeze(-1)
        return Losses(
            terms={"loss/value": self.weighted_mean(loss, batch)},
            metrics={"dqn/value": value.detach().mean(), "dqn/error": error.mean()},
            priorities=error,
        )


class QNetwork(EncodedMLP):
    """Q(s, a) of all actions at once; `outputs` is the number of actions."""

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return the actions `[*B]` int64 with the highest value."""
        return self(observation).argmax(dim=-1)
