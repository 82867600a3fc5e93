"""Deep Q-network, single or double.

Sources: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015;
van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning", arXiv 1509.06461.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from agents import hyperparameters as hp
from agents.modules.encoders import DEFAULT_ENCODER
from agents.modules.networks import EncodedMLP
from agents.modules.optimization import TargetNetwork
from agents.modules.value_based import ValueBasedAgent
from torchrl_gpu.acting.exploration import EpsilonGreedy
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution.adam import adam
from torchrl_gpu.execution.learner import Losses


class DQN(ValueBasedAgent):
    """Off-policy agent for discrete actions.

    Args:
        hidden_sizes: widths of the hidden layers behind the encoder, each at least 1; may be empty.
        kappa: error at which the Huber loss turns from quadratic to linear, above 0, in units of
            reward. Beyond it values tend to the median of the returns instead of their mean.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"discrete"})
    network: QNetwork

    @checked
    def __init__(
        self,
        observation_spec: Composite,
        action_spec: TensorSpec,
        device: torch.device,
        *,
        hidden_sizes: hp.OptionalLayers = (128, 128),
        encoder: hp.EncoderSetting = DEFAULT_ENCODER,
        double: hp.DoubleQ = True,
        learning_rate: hp.LearningRate = 1e-3,
        learning_rate_end: hp.LearningRateEnd = None,
        learning_rate_frames: hp.LearningRateFrames = None,
        gamma: hp.Gamma = 0.99,
        target_rate: hp.TargetRate = 0.01,
        target_period: hp.TargetPeriod = 1,
        max_gradient_norm: hp.GradientNorm = 10.0,
        kappa: hp.Positive = 1.0,
        epsilon_start: hp.EpsilonStart = 1.0,
        epsilon_end: hp.EpsilonEnd = 0.05,
        epsilon_frames: hp.EpsilonFrames = 10_000,
        batch_size: hp.BatchSize = 64,
        utd_ratio: hp.UTDRatio = 0.5,
        n_step: hp.NStep = 1,
    ) -> None:
        super().__init__(observation_spec, action_spec, device, encoder)
        self.is_double = double
        self.gamma = gamma
        self.max_gradient_norm = max_gradient_norm
        self.kappa = kappa
        self.batch_size = batch_size
        self.utd_ratio = utd_ratio
        self.n_step = n_step

        num_actions = action_spec.space.n
        self.network = QNetwork(self.build_encoder(), num_actions, hidden_sizes, device)
        self.target_network = TargetNetwork(self.network, target_rate, target_period)
        epsilon = LinearSchedule(epsilon_start, epsilon_end, epsilon_frames)
        self.policy = self.build_policy(self.network, EpsilonGreedy(num_actions, epsilon))
        self.optimizer = adam(self.network.parameters(), learning_rate, device)
        self.schedule_learning_rate(learning_rate_end, learning_rate_frames)

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/value`, weighted by importance, and the absolute errors as priorities."""
        after = batch.get("next")
        with torch.no_grad():
            next_values = self.target_network(after)
            # Q'(s', argmax_a Q(s', a)) if double (arXiv 1509.06461, eq. 4), else max_a Q'(s', a)
            chooser = self.network(after) if self.is_double else next_values
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
