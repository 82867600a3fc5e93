"""Deep Q-network, single or double, and the base class of agents that choose actions by values.

Sources: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015;
van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning", arXiv 1509.06461.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import field
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor, nn

from agents import hyperparameters as hp
from agents.base import OffPolicyAgent
from agents.modules.encoders import Encoder
from agents.modules.networks import EncodedMLP
from agents.modules.target_network import TargetNetwork
from torchrl_gpu.acting.exploration import EpsilonGreedy, Exploration
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution.adam import adam
from torchrl_gpu.execution.learner import Losses


class ValueBasedAgent(OffPolicyAgent):
    """A network that outputs the values of all actions, and its target network."""

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"discrete"})
    network: Any = field(init=False)
    target_network: TargetNetwork = field(init=False)

    double: hp.DoubleQ = True  # type: ignore[assignment]  # in place of nn.Module.double
    adam_epsilon: hp.AdamEpsilon = 1e-8
    target_rate: hp.TargetRate = 0.01
    target_period: hp.TargetPeriod = 1
    max_gradient_norm: hp.GradientNorm = 10.0
    epsilon_start: hp.EpsilonStart = 1.0
    epsilon_end: hp.EpsilonEnd = 0.05
    epsilon_frames: hp.EpsilonFrames = 10_000
    batch_size: hp.BatchSize = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        num_actions = self.action_spec.space.n
        self.network = self.build_network(self.build_encoder(), num_actions)
        self.target_network = TargetNetwork(self.network, self.target_rate, self.target_period)
        self.policy = self.build_policy(self.network, self.build_exploration(num_actions))
        self.to(self.device)
        self.optimizer = adam(
            self.network.parameters(), self.learning_rate, self.device, self.adam_epsilon
        )

    @abstractmethod
    def build_network(self, encoder: Encoder, num_actions: int) -> nn.Module:
        """Return a new network of the values of all actions; it is the actor of the policy."""

    def build_exploration(self, num_actions: int) -> Exploration | None:
        """Return the exploration of the policy; None for a network that explores by itself."""
        epsilon = LinearSchedule(self.epsilon_start, self.epsilon_end, self.epsilon_frames)
        return EpsilonGreedy(num_actions, epsilon)


class DQN(ValueBasedAgent):
    """Off-policy agent for discrete actions.

    Args:
        hidden_sizes: widths of the hidden layers behind the encoder, each at least 1; may be empty.
        kappa: error at which the Huber loss turns from quadratic to linear, in units of reward.
            Beyond it values tend to the median of the returns instead of their mean.
    """

    network: QNetwork = field(init=False)

    hidden_sizes: Annotated[hp.OptionalLayers, hp.LAYER_SEARCH] = (128, 128)
    activation: hp.Activation = "relu"
    learning_rate: hp.LearningRate = 1e-3
    kappa: hp.Positive = 1.0
    utd_ratio: hp.UTDRatio = 0.5

    def build_network(self, encoder: Encoder, num_actions: int) -> QNetwork:
        """Return a new network of the values of all actions."""
        return QNetwork(encoder, num_actions, self.hidden_sizes, activation=self.activation)

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
