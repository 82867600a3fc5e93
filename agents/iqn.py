"""Implicit quantile network: the whole distribution of returns, and risk-averse actions.

Source: Dabney et al., "Implicit Quantile Networks for Distributional Reinforcement Learning",
arXiv 1806.06923.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor, nn

from agents import hyperparameters as hp
from agents.dqn import ValueBasedAgent
from agents.modules.encoders import Encoder
from agents.modules.networks import mlp
from agents.modules.quantiles import CosineEmbedding, draw_fractions, quantile_huber_loss
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.execution.learner import Losses


class IQN(ValueBasedAgent):
    """Off-policy agent for discrete actions: implicit quantiles of the return.

    Args:
        hidden_sizes: widths of the hidden layers, each at least 1; these layers compute the
            features of the observation (psi), which the embedded quantile fractions multiply.
        head_sizes: widths of the hidden layers (f) behind the product of features and embedded
            quantile fractions, each at least 1; may be empty. These layers are evaluated once per
            fraction.
        adam_epsilon: the paper uses 0.01 / 32.
        acting_fractions: number of quantile fractions (K) over which the return of each action is
            averaged to choose one; drawn at random in training, evenly spaced in evaluation.
    """

    network: QuantileNetwork = field(init=False)

    hidden_sizes: hp.LayerSizes = (128, 128)
    head_sizes: hp.OptionalLayers = ()
    cosines: hp.Cosines = 64
    fractions: hp.Fractions = 8
    target_fractions: hp.TargetFractions = 8
    acting_fractions: hp.Count = 32
    risk_level: hp.RiskLevel = 1.0
    kappa: hp.QuantileKappa = 1.0
    double: hp.DoubleQ = False
    learning_rate: hp.LearningRate = 1e-3
    utd_ratio: hp.UTDRatio = 0.25

    def build_network(self, encoder: Encoder, num_actions: int) -> QuantileNetwork:
        """Return a new network of the return distributions of all actions."""
        return QuantileNetwork(
            encoder,
            num_actions,
            self.hidden_sizes,
            self.head_sizes,
            cosines=self.cosines,
            acting_fractions=self.acting_fractions,
            risk_level=self.risk_level,
        )

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return `loss/value`, weighted by importance, and the loss per transition as priority."""
        after, action = batch.get("next"), batch.get("action")
        samples = action.shape[0]
        with torch.no_grad():
            target: Any = self.target_network.network
            next_features = target(after)
            # a' = argmax_a 1/K sum_k Z_{tau_k}(s', a),  tau_k ~ U(0, risk level)
            acting_fractions = self.network.draw_acting_fractions()
            if self.double:
                next_values = self.network.values(self.network(after), acting_fractions)
            else:
                next_values = target.values(next_features, acting_fractions)
            # y_j = r + gamma (1 - terminated) Z'_{tau_j}(s', a'),  tau_j ~ U(0, 1)       (eq. 2)
            next_fractions = draw_fractions((samples, self.target_fractions), 1.0, self.device)
            next_action = next_values.argmax(dim=-1)
            next_quantiles = target.quantiles(next_features, next_fractions, next_action)
            targets = after.get("reward") + self.bootstrap_discount(batch) * next_quantiles

        # L = sum_i mean_j rho_{tau_i}(y_j - Z_{tau_i}(s, a)),  tau_i ~ U(0, 1)            (eq. 3)
        fractions = draw_fractions((samples, self.fractions), 1.0, self.device)
        quantiles = self.network.quantiles(self.network(batch), fractions, action)
        loss = quantile_huber_loss(quantiles, fractions, targets, self.kappa)
        return Losses(
            terms={"loss/value": self.weighted_mean(loss, batch)},
            metrics={"iqn/value": quantiles.detach().mean()},
            priorities=loss.detach(),
        )


class QuantileNetwork(nn.Module):
    """Z_tau(s, a): the quantile functions of the returns of all actions at once.

    The arguments are an encoder of s, the number of actions, and settings of `IQN`.
    """

    acting_midpoints: Tensor

    def __init__(
        self,
        encoder: Encoder,
        num_actions: int,
        hidden_sizes: Sequence[int],
        head_sizes: Sequence[int],
        *,
        cosines: int,
        acting_fractions: int,
        risk_level: float,
    ) -> None:
        super().__init__()
        width = hidden_sizes[-1]
        self.encoder = encoder
        self.features = mlp(encoder.width, hidden_sizes, None)
        self.embedding = CosineEmbedding(cosines, width)
        self.head = mlp(width, head_sizes, num_actions)
        self.acting_fractions = acting_fractions
        self.risk_level = risk_level
        # Midpoints of equal parts of [0, risk_level], for repeatable means.
        midpoints = (torch.arange(acting_fractions) + 0.5) * (risk_level / acting_fractions)
        self.register_buffer("acting_midpoints", midpoints, persistent=False)

    def forward(self, observation: Observations) -> Tensor:
        """Return the features psi(s) `[*B, width]`, from which values and quantiles are made."""
        return self.features(self.encoder(observation))

    def values(self, features: Tensor, fractions: Tensor) -> Tensor:
        """Return the mean quantile of every action, `[*B, num_actions]`, over fractions `[N]`.

        The features psi(s) are `[*B, width]`, as `forward` returns them.
        """
        embedded = self.embedding(fractions)
        if len(self.head) == 1:
            # 1/N sum_n f(psi * phi(tau_n)) = f(psi * 1/N sum_n phi(tau_n)) for a linear f
            return self.head(features * embedded.mean(dim=-2))
        return self.head(features.unsqueeze(-2) * embedded).mean(dim=-2)

    def quantiles(self, features: Tensor, fractions: Tensor, action: Tensor) -> Tensor:
        """Return the quantiles `[*B, N]`, float32, of one action `[*B]` int64 for each observation.

        The features psi(s) are `[*B, width]`, and the quantile fractions `[*B, N]` in [0, 1].
        """
        # Z_tau(s, a) = f(psi(s) * phi(tau))_a: the rows of all other actions are left out.
        last: Any = self.head[-1]
        row = F.embedding(action, last.weight)
        inputs = self.embedding(fractions)
        if len(self.head) == 1:
            # (psi * phi(tau)) . w_a = phi(tau) . (psi * w_a): one product less for each fraction
            row = features * row
        else:
            inputs = self.head[:-1](features.unsqueeze(-2) * inputs)
        # A batched product with vectors is several times slower than this sum on a CPU.
        quantiles = (inputs * row.unsqueeze(-2)).sum(dim=-1)
        return quantiles + F.embedding(action, last.bias.unsqueeze(-1))

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return the actions `[*B]` int64 with the highest mean over the acting fractions."""
        fractions = self.acting_midpoints if deterministic else self.draw_acting_fractions()
        return self.values(self(observation), fractions).argmax(dim=-1)

    def draw_acting_fractions(self) -> Tensor:
        """Draw quantile fractions `[acting_fractions]` to choose the actions of one batch by.

        The whole batch shares one draw, because embedding the fractions is most of the cost.
        """
        device = self.acting_midpoints.device
        return draw_fractions((self.acting_fractions,), self.risk_level, device)
