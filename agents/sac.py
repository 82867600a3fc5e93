"""Soft actor-critic with twin critics and a learned temperature.

Source: Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from agents.base import Losses, OffPolicyAgent
from agents.modules import tanh_normal
from agents.modules.encoders import DEFAULT_ENCODER, EncoderFactory
from agents.modules.networks import Critics, EncodedMLP, LayerSizes, frozen
from agents.modules.optimization import TargetNetwork, joint_parameters
from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.adam import adam
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.specs import ActionKind


class SAC(OffPolicyAgent):
    """Off-policy agent for continuous actions: maximum entropy, twin critics.

    Args:
        observation_spec: spec of the observations, batch size `[num_envs]`.
        action_spec: spec of the actions, bounded and continuous, `[*B, action_dim]`.
        device: device of all parameters and computations.
        hidden_sizes: widths of the hidden layers, each at least 1; actor and critic have the same
            widths.
        encoder: factory of the encoders that turn observations into features for the networks, see
            `agents.modules.encoders`.
        critic_layer_norm: apply layer normalization before each ReLU of the critics.
        learning_rate: learning rate of Adam, above 0.
        gamma: discount factor per environment step, 0 to 1.
        target_rate: Polyak averaging rate of each target network, above 0 to 1; 1 copies the online
            network.
        initial_temperature: initial weight of the entropy (temperature alpha), above 0, in units of
            reward.
        target_entropy: target entropy of the policy, in nats; None for minus the number of action
            dimensions, as in the paper.
        batch_size: number of transitions per gradient step, at least 1.
        utd_ratio: number of gradient steps per environment step (update-to-data ratio), above 0.

    Raises:
        ConfigurationError: a hyperparameter is out of range, or a spec is not supported.
    """

    actions: ClassVar[frozenset[ActionKind]] = frozenset({"continuous"})

    @checked
    def __init__(
        self,
        observation_spec: Composite,
        action_spec: TensorSpec,
        device: torch.device,
        *,
        hidden_sizes: LayerSizes = (256, 256),
        encoder: EncoderFactory = DEFAULT_ENCODER,
        critic_layer_norm: bool = False,
        learning_rate: Annotated[float, Field(gt=0.0)] = 3e-4,
        gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99,
        target_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005,
        initial_temperature: Annotated[float, Field(gt=0.0)] = 1.0,
        target_entropy: float | None = None,
        batch_size: Annotated[int, Field(ge=1)] = 256,
        utd_ratio: Annotated[float, Field(gt=0.0)] = 1.0,
    ) -> None:
        super().__init__(observation_spec, action_spec, device, encoder)
        self.batch_size = batch_size
        self.utd_ratio = utd_ratio
        self.gamma = gamma
        action_dim = action_spec.shape[-1]
        self.target_entropy = -float(action_dim) if target_entropy is None else target_entropy

        actor_encoder, critic_encoder = self.build_encoders()
        self.actor = GaussianActor(actor_encoder, 2 * action_dim, hidden_sizes, device)
        self.policy = PolicyWrapper(self.actor, observation_spec, action_spec, device)
        self.critics = Critics(
            critic_encoder, action_dim, hidden_sizes, device, 2, critic_layer_norm
        )
        self.target_critics = TargetNetwork(self.critics, target_rate)
        self.log_temperature = nn.Parameter(
            torch.tensor(math.log(initial_temperature), device=device)
        )
        learned = [*joint_parameters(self.actor, self.critics), self.log_temperature]
        self.optimizer = adam(learned, learning_rate, device)

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/critic`, `loss/actor` and `loss/temperature`."""
        after = batch.get("next")
        action = self.policy.from_bounds(batch.get("action"))
        temperature = self.log_temperature.detach().exp()

        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(after)
            # V(s') = min_i Q'_i(s', a') - alpha log pi(a'|s'),  a' ~ pi(.|s')      (eq. 3)
            next_values = self.target_critics(after, next_action)
            next_value = next_values.min(dim=0).values - temperature * next_log_prob
            # y = r + gamma (1 - terminated) V(s'): a time limit does not terminate
            target = after.get("reward") + self.bootstrap_discount(batch) * next_value

        # J_Q = sum_i E[(Q_i(s, a) - y)^2]                                         (eq. 5)
        values = self.critics(batch, action)
        critic_loss = 2.0 * F.mse_loss(values, target.expand_as(values))

        # J_pi = E[alpha log pi(a|s) - min_i Q_i(s, a)],  a ~ pi(.|s)              (eq. 9)
        new_action, log_prob = self.actor.sample(batch)
        new_value = frozen(self.critics, batch, new_action).min(dim=0).values
        actor_loss = (temperature * log_prob - new_value).mean()

        # J_alpha = E[-alpha (log pi(a|s) + target entropy)]                       (eq. 18)
        entropy = -log_prob.detach().mean()
        temperature_loss = self.log_temperature.exp() * (entropy - self.target_entropy)

        return Losses(
            terms={
                "loss/critic": critic_loss,
                "loss/actor": actor_loss,
                "loss/temperature": temperature_loss,
            },
            metrics={
                "sac/value": values.detach().mean(),
                "sac/temperature": temperature,
                "sac/entropy": entropy,
            },
        )

    def after_update(self, metrics: dict[str, Tensor]) -> None:
        """Update the target networks."""
        self.target_critics.update()


class GaussianActor(EncodedMLP):
    """A network that outputs the mean and log standard deviation of a tanh-normal distribution.

    `outputs` is twice the number of action dimensions.
    """

    def act(self, observation: TensorDictBase, deterministic: bool) -> Tensor:
        """Return actions `[*B, action_dim]` in [-1, 1]."""
        mean, log_std = tanh_normal.split(self(observation))
        return tanh_normal.mode(mean) if deterministic else tanh_normal.draw(mean, log_std)

    def sample(self, observation: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Return actions `[B, action_dim]` and log-probabilities `[B, 1]`, both with gradient."""
        return tanh_normal.sample(*tanh_normal.split(self(observation)))
