"""Actor-critic with an implicit quantile critic.

Source: Lin et al., "Distributional Reinforcement Learning based Integrated Decision Making and
Control for Autonomous Surface Vehicles", arXiv 2412.09466.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from agents.base import Losses
from agents.modules.deterministic import DeterministicActor, DeterministicActorCritic
from agents.modules.encoders import DEFAULT_ENCODER, Encoder, EncoderFactory
from agents.modules.networks import frozen, mlp
from agents.modules.optimization import TargetNetwork, parameter_groups
from agents.modules.quantiles import CosineEmbedding, draw_fractions, quantile_huber_loss
from agents.modules.relu import relu
from torchrl_gpu.acting.exploration import GaussianNoise
from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.execution.adam import adam


class ACIQN(DeterministicActorCritic):
    """Off-policy agent for continuous actions: deterministic actor, distributional critic.

    The defaults suit small tasks. The paper uses hidden_sizes (256, 128, 128), batch_size 64,
    learning_rate 1e-4, max_gradient_norm 0.5 and copied target networks (target_rate 1). It
    squashes actions by (2 / pi) atan, whereas this actor uses tanh.

    Args:
        observation_spec: spec of the observations, batch size `[num_envs]`.
        action_spec: spec of the actions, bounded and continuous, `[*B, action_dim]`.
        device: device of all parameters and computations.
        hidden_sizes: widths of two or more hidden layers, each at least 1; actor and critic have
            the same widths. In the critic, the embedded quantile fraction multiplies the output of
            the first layer, and the embedded action that of the second.
        encoder: factory of the encoders that turn observations into features for the networks, see
            `agents.modules.encoders`.
        cosines: number of cosines that embed a quantile fraction (tau), at least 1.
        fractions: number of quantile fractions (N) drawn per transition for the predicted returns,
            at least 1. The actor's loss draws as many.
        target_fractions: number of quantile fractions (N') drawn per transition for the target
            returns, at least 1.
        risk_level: fraction of returns, from the worst up, whose mean the policy maximizes
            (conditional value at risk), above 0 to 1; 0.25 for the worst quarter, 1 for
            risk-neutral.
        kappa: error at which the quantile Huber loss turns from quadratic to linear, above 0, in
            units of reward.
        learning_rate: learning rate of Adam, above 0; the initial rate where it follows a schedule.
        learning_rate_end: final learning rate of a linear schedule, at least 0; None for no
            schedule.
        learning_rate_frames: number of environment steps until the learning rate reaches
            `learning_rate_end`, at least 1; None for no schedule.
        gamma: discount factor per environment step, 0 to 1.
        target_rate: Polyak averaging rate of each target network, above 0 to 1; 1 copies the online
            network.
        target_period: number of updates (gradient steps) from one update of the target networks to
            the next, at least 1.
        max_gradient_norm: maximum norm of the gradient, above 0; a larger gradient is scaled down
            to it; None for no limit. Actor and critic are limited separately.
        saturation_penalty: weight of the mean squared action before tanh in the actor's loss, at
            least 0; keeps the actor away from the bounds of its actions, where the gradient of tanh
            vanishes (compare the action penalty of Plappert et al., arXiv 1802.09464).
        noise_start: initial standard deviation of the exploration noise, at least 0, for actions in
            [-1, 1].
        noise_end: final standard deviation of the exploration noise, at least 0, for actions in
            [-1, 1].
        noise_frames: number of environment steps over which the exploration noise changes linearly
            from `noise_start` to `noise_end`, at least 1.
        batch_size: number of transitions per gradient step, at least 1.
        utd_ratio: number of gradient steps per environment step (update-to-data ratio), above 0.
        n_step: number of environment steps whose rewards a target sums (n-step return), at least 1.

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
        hidden_sizes: Annotated[Sequence[Annotated[int, Field(ge=1)]], Field(min_length=2)] = (
            128,
            128,
        ),
        encoder: EncoderFactory = DEFAULT_ENCODER,
        cosines: Annotated[int, Field(ge=1)] = 64,
        fractions: Annotated[int, Field(ge=1)] = 8,
        target_fractions: Annotated[int, Field(ge=1)] = 8,
        risk_level: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0,
        kappa: Annotated[float, Field(gt=0.0)] = 1.0,
        learning_rate: Annotated[float, Field(gt=0.0)] = 1e-3,
        learning_rate_end: Annotated[float, Field(ge=0.0)] | None = None,
        learning_rate_frames: Annotated[int, Field(ge=1)] | None = None,
        gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99,
        target_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005,
        target_period: Annotated[int, Field(ge=1)] = 1,
        max_gradient_norm: Annotated[float, Field(gt=0.0)] | None = None,
        saturation_penalty: Annotated[float, Field(ge=0.0)] = 0.0,
        noise_start: Annotated[float, Field(ge=0.0)] = 0.3,
        noise_end: Annotated[float, Field(ge=0.0)] = 0.1,
        noise_frames: Annotated[int, Field(ge=1)] = 10_000,
        batch_size: Annotated[int, Field(ge=1)] = 128,
        utd_ratio: Annotated[float, Field(gt=0.0)] = 0.5,
        n_step: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        super().__init__(observation_spec, action_spec, device, encoder)
        self.fractions = fractions
        self.target_fractions = target_fractions
        self.risk_level = risk_level
        self.kappa = kappa
        self.gamma = gamma
        self.max_gradient_norm = max_gradient_norm
        self.saturation_penalty = saturation_penalty
        self.batch_size = batch_size
        self.utd_ratio = utd_ratio
        self.n_step = n_step

        actor_encoder, critic_encoder = self.build_encoders()
        action_dim = action_spec.shape[-1]
        self.actor = DeterministicActor(actor_encoder, action_dim, hidden_sizes, device)
        self.target_actor = TargetNetwork(self.actor, target_rate, target_period)
        self.policy = PolicyWrapper(
            self.actor,
            observation_spec,
            action_spec,
            device,
            exploration=GaussianNoise(LinearSchedule(noise_start, noise_end, noise_frames)),
        )
        self.critic = QuantileCritic(critic_encoder, action_dim, hidden_sizes, cosines, device)
        self.target_critic = TargetNetwork(self.critic, target_rate, target_period)
        self.optimizer = adam(parameter_groups(self.actor, self.critic), learning_rate, device)
        self.schedule_learning_rate(learning_rate_end, learning_rate_frames)

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/critic` and `loss/actor`, and the mean value."""
        after = batch.get("next")
        action = self.policy.from_bounds(batch.get("action"))
        samples = action.shape[0]

        with torch.no_grad():
            # y_j = r + gamma (1 - terminated) Z'_{tau_j}(s', mu'(s')),  tau_j ~ U(0, 1)
            next_fractions = draw_fractions((samples, self.target_fractions), 1.0, self.device)
            next_quantiles = self.target_critic(after, self.target_actor(after), next_fractions)
            targets = after.get("reward") + self.bootstrap_discount(batch) * next_quantiles

        # L = sum_i mean_j rho_{tau_i}(y_j - Z_{tau_i}(s, a)),  tau_i ~ U(0, 1)
        fractions = draw_fractions((samples, self.fractions), 1.0, self.device)
        quantiles = self.critic(batch, action, fractions)
        critic_loss = quantile_huber_loss(quantiles, fractions, targets, self.kappa).mean()

        # J = E[1/N sum_k Z_{tau_k}(s, mu(s))],  tau_k ~ U(0, risk level)
        risk_fractions = draw_fractions((samples, self.fractions), self.risk_level, self.device)
        raw_action = self.actor.raw(batch)
        actor_loss = -frozen(self.critic, batch, raw_action.tanh(), risk_fractions).mean()
        actor_loss = actor_loss + self.saturation_loss(raw_action)

        return Losses(
            terms={"loss/critic": critic_loss, "loss/actor": actor_loss},
            metrics={"ac_iqn/value": quantiles.detach().mean()},
        )


class QuantileCritic(nn.Module):
    """Z_tau(s, a): the quantile function of the return of an action.

    Args:
        encoder: encoder of s.
        action_dim: number of action dimensions.
        hidden_sizes: widths of two or more hidden layers; the embedded tau multiplies the output of
            the first layer, and the embedded action that of the second.
        cosines: number of cosines that embed tau.
        device: device of the parameters.
    """

    def __init__(
        self,
        encoder: Encoder,
        action_dim: int,
        hidden_sizes: Sequence[int],
        cosines: int,
        device: torch.device,
    ) -> None:
        super().__init__()
        first, second, *rest = hidden_sizes
        self.encoder = encoder
        self.features = nn.Linear(self.encoder.width, first, device=device)
        self.fraction_embedding = CosineEmbedding(cosines, first, device)
        self.merge = nn.Linear(first, second, device=device)
        self.action_embedding = nn.Linear(action_dim, second, device=device)
        self.head = mlp(second, rest, 1, device)

    def forward(self, observation: TensorDictBase, action: Tensor, fractions: Tensor) -> Tensor:
        """Return the quantiles `[B, N]` of the return.

        Args:
            observation: observations, batch size `[B]`.
            action: actions `[B, action_dim]` in [-1, 1].
            fractions: quantile fractions (tau) `[B, N]` in [0, 1].
        """
        features = relu(self.features(self.encoder(observation)))
        merged = relu(self.merge(features.unsqueeze(-2) * self.fraction_embedding(fractions)))
        action_features = relu(self.action_embedding(action))
        return self.head(merged * action_features.unsqueeze(-2)).squeeze(-1)
