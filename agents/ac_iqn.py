"""Actor-critic with an implicit quantile critic.

Source: Lin et al., "Distributional Reinforcement Learning based Integrated Decision Making and
Control for Autonomous Surface Vehicles", arXiv 2412.09466.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from tensordict import TensorDictBase
from torch import Tensor, nn

from agents import hyperparameters as hp
from agents.ddpg import DDPG
from agents.modules.encoders import Encodable, Encoder, detached, features_of
from agents.modules.networks import ACTIVATIONS, Activation, frozen, mlp
from agents.modules.quantiles import CosineEmbedding, draw_fractions, quantile_huber_loss
from torchrl_gpu.execution.learner import Losses
from torchrl_gpu.execution.products import Linear


class ACIQN(DDPG):
    """Off-policy agent for continuous actions: DDPG with a distributional critic.

    The defaults suit small tasks. The paper uses hidden_sizes (256, 128, 128), batch_size 64,
    learning_rate 1e-4, max_gradient_norm 0.5 and copied target networks (target_rate 1). It
    squashes actions by (2 / pi) atan, whereas this actor uses tanh.

    Args:
        hidden_sizes: widths of two or more hidden layers, each at least 1; actor and critic have
            the same widths. In the critic, the embedded quantile fraction multiplies the output of
            the first layer, and the embedded action that of the second.
        fractions: also the number that the actor's loss draws.
        critic_layer_norm: apply layer normalization before each activation of the critic, except
            that of the embedded quantile fraction.
        max_gradient_norm: actor and critic are separate groups.
    """

    hidden_sizes: Annotated[hp.OptionalLayers, hp.LAYER_SEARCH, Field(min_length=2)] = (128, 128)
    cosines: hp.Cosines = 64
    fractions: hp.Fractions = 8
    target_fractions: hp.TargetFractions = 8
    risk_level: hp.RiskLevel = 1.0
    kappa: hp.QuantileKappa = 1.0
    critic_layer_norm: hp.Switch = False
    batch_size: hp.BatchSize = 128
    utd_ratio: hp.UTDRatio = 0.5

    def build_critic(self, encoder: Encoder, action_dim: int) -> QuantileCritic:
        """Return a new critic of actions in [-1, 1]."""
        return QuantileCritic(
            encoder,
            action_dim,
            self.hidden_sizes,
            self.cosines,
            self.critic_layer_norm,
            self.activation,
        )

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/critic` and `loss/actor`, and the mean value."""
        after = batch.get("next")
        action = self.policy.from_bounds(batch.get("action"))
        samples = action.shape[0]

        with torch.no_grad():
            # y_j = r + gamma (1 - terminated) Z'_{tau_j}(s', mu'(s')),  tau_j ~ U(0, 1)
            next_fractions = draw_fractions((samples, self.target_fractions), 1.0, self.device)
            target_actor, target_critic = self.target_networks.network.children()
            next_features = self.encode(target_critic, after)
            next_action = target_actor(next_features)
            next_quantiles = target_critic(next_features, next_action, next_fractions)
            targets = after.get("reward") + self.bootstrap_discount(batch) * next_quantiles

        # L = sum_i mean_j rho_{tau_i}(y_j - Z_{tau_i}(s, a)),  tau_i ~ U(0, 1)
        fractions = draw_fractions((samples, self.fractions), 1.0, self.device)
        features = self.encode(self.critic, batch)
        quantiles = self.critic(features, action, fractions)
        critic_loss = quantile_huber_loss(quantiles, fractions, targets, self.kappa).mean()

        # J = E[1/N sum_k Z_{tau_k}(s, mu(s))],  tau_k ~ U(0, risk level)
        risk_fractions = draw_fractions((samples, self.fractions), self.risk_level, self.device)
        features = detached(features)
        raw_action = self.actor.raw(features)
        actor_loss = -frozen(self.critic, features, raw_action.tanh(), risk_fractions).mean()
        actor_loss = actor_loss + self.saturation_loss(raw_action)

        return Losses(
            terms={"loss/critic": critic_loss, "loss/actor": actor_loss},
            metrics={"ac_iqn/value": quantiles.detach().mean()},
        )


class QuantileCritic(nn.Module):
    """Z_tau(s, a): the quantile function of the return of an action.

    The arguments are those of `Critics` and `CosineEmbedding`; `hidden_sizes` has two or more
    widths, see `ACIQN`.
    """

    def __init__(
        self,
        encoder: Encoder,
        action_dim: int,
        hidden_sizes: Sequence[int],
        cosines: int,
        layer_norm: bool,
        activation: Activation,
    ) -> None:
        super().__init__()
        first, second, *rest = hidden_sizes
        self.encoder = encoder
        self.features = Linear(self.encoder.width, first)
        self.fraction_embedding = CosineEmbedding(cosines, first)
        self.merge = Linear(first, second)
        self.action_embedding = Linear(action_dim, second)
        self.head = mlp(second, rest, 1, layer_norm=layer_norm, activation=activation)
        self.activation = ACTIVATIONS[activation]()
        widths = (first, second, second)
        self.norms = nn.ModuleList(
            nn.LayerNorm(width) if layer_norm else nn.Identity() for width in widths
        )

    def forward(self, observation: Encodable, action: Tensor, fractions: Tensor) -> Tensor:
        """Return the quantiles `[B, N]` of the return of actions `[B, action_dim]` in [-1, 1].

        The observations have batch size `[B]`, the quantile fractions (tau) are `[B, N]` in [0, 1].
        """
        norm, merged_norm, action_norm = self.norms
        features = self.activation(norm(self.features(features_of(self.encoder, observation))))
        fraction_features = self.fraction_embedding(fractions)
        merged = self.activation(
            merged_norm(self.merge(features.unsqueeze(-2) * fraction_features))
        )
        action_features = self.activation(action_norm(self.action_embedding(action)))
        return self.head(merged * action_features.unsqueeze(-2)).squeeze(-1)
