"""Stochastic actors, and the weight initialization that suits policy gradients."""

import math
from abc import ABC, abstractmethod

from torch import Tensor, nn

from agents.modules import categorical, clipped_normal
from agents.modules.encoders import Encodable
from agents.modules.networks import EncodedMLP
from torchrl_gpu.acting.policy import Observations


def orthogonal(network: EncodedMLP, output_gain: float) -> EncodedMLP:
    """Give a network orthogonal weights, of gain sqrt(2) before the last layer, and biases of 0."""
    *_, last = layers = [layer for layer in network.network if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, output_gain if layer is last else math.sqrt(2.0))
        nn.init.zeros_(layer.bias)
    return network


class StochasticActor(nn.Module, ABC):
    """Maps observations to a distribution over actions, whose parameters a network outputs."""

    def __init__(self, network: EncodedMLP) -> None:
        super().__init__()
        self.network = network

    @abstractmethod
    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return random actions for observations `[*B]`, or the greedy ones if deterministic."""

    @abstractmethod
    def evaluate(self, observation: Encodable, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of actions and entropies, `[*B, 1]` each, with gradient."""


class ClippedNormalActor(StochasticActor):
    """Continuous actions `[*B, action_dim]` in [-1, 1] from a clipped normal distribution.

    The network outputs the mean. The log standard deviation `[action_dim]` is a separate parameter,
    the same for all observations.
    """

    def __init__(self, network: EncodedMLP, log_std: Tensor) -> None:
        super().__init__(network)
        self.log_std = nn.Parameter(log_std)

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return actions `[*B, action_dim]`."""
        mean = self.network(observation)
        if deterministic:
            return mean.clamp(-1.0, 1.0)
        return clipped_normal.draw(mean, self._bounded_log_std())

    def evaluate(self, observation: Encodable, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of actions `[*B, action_dim]`, and entropies."""
        log_std = self._bounded_log_std()
        log_prob = clipped_normal.log_prob(action, self.network(observation), log_std)
        return log_prob, clipped_normal.entropy(log_std).expand_as(log_prob)

    def _bounded_log_std(self) -> Tensor:
        return self.log_std.clamp(clipped_normal.LOG_STD_MIN, clipped_normal.LOG_STD_MAX)


class CategoricalActor(StochasticActor):
    """Discrete actions `[*B]` int64; the network outputs their logits `[*B, n]`."""

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return actions `[*B]`."""
        logits = self.network(observation)
        return logits.argmax(dim=-1) if deterministic else categorical.draw(logits)

    def evaluate(self, observation: Encodable, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of actions `[*B]`, and entropies."""
        return categorical.evaluate(action, self.network(observation))
