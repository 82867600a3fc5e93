"""The losses of twin critics: of values, or of categorical distributions of the return."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.modules.categorical_values import CategoricalValues, divergence

# Combination of two critics: their minimum (clipped double Q-learning, Fujimoto et al., "Addressing
# Function Approximation Error in Actor-Critic Methods", arXiv 1802.09477), or their average, as in
# FastSAC (Seo et al., "Learning Sim-to-Real Humanoid Locomotion in 15 Minutes", arXiv 2512.01996).
Twins = Literal["minimum", "average"]


class TwinValues(nn.Module):
    """Twin critics that output values Q_i(s, a).

    With `minimum`, actor and targets use the lower value. With `average`, the actor uses the mean
    of both values, and each critic learns from the target of its own target network.

    Attributes:
        outputs: number of outputs of each critic.
    """

    outputs = 1

    def __init__(self, twins: Twins) -> None:
        super().__init__()
        self.takes_minimum = twins == "minimum"

    def values(self, outputs: Tensor) -> Tensor:
        """Return the values `[2, B, 1]` of the critics for their outputs `[2, B, outputs]`."""
        return outputs

    def value(self, outputs: Tensor) -> Tensor:
        """Return the value `[B, 1]` that the actor maximizes, for outputs `[2, B, outputs]`."""
        values = self.values(outputs)
        return values.min(dim=0).values if self.takes_minimum else values.mean(dim=0)

    def target(self, outputs: Tensor, bonus: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the target of the critics.

        Args:
            outputs: outputs of the target networks for the next observation, `[2, B, outputs]`.
            bonus: entropy bonus of the next observation, added to its value, `[B, 1]`.
            reward: rewards, or discounted sums of n rewards, `[B, 1]`.
            discount: gamma^n, and 0 after a termination, `[B, 1]`.

        Returns:
            `[B, n]` for both critics, or `[2, B, n]` with one target for each: values (n = 1) or
            the probabilities of n atoms.
        """
        next_value = self.value(outputs) if self.takes_minimum else outputs
        return reward + discount * (next_value + bonus)

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the sum `[]` of the critics' mean losses, for their outputs `[2, B, outputs]`."""
        # J = sum_i E[(Q_i(s, a) - y)^2]
        return 2.0 * F.mse_loss(outputs, target.expand_as(outputs))


class TwinDistributions(TwinValues):
    """Twin critics that output logits of the distribution of the return over fixed atoms (C51).

    With `minimum`, the targets use the distribution of the critic that has the lower mean.

    Source: C51, see `CategoricalValues`; with a continuous actor and twin critics: FastTD3, Seo et
    al., arXiv 2505.22642.
    """

    def __init__(self, twins: Twins, categories: CategoricalValues) -> None:
        super().__init__(twins)
        self.outputs = len(categories.atoms)
        self.categories = categories

    def values(self, outputs: Tensor) -> Tensor:
        """Return the means `[2, B, 1]` of the distributions, for logits `[2, B, atoms]`."""
        return self.categories.mean(outputs).unsqueeze(-1)

    def target(self, outputs: Tensor, bonus: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the distribution of `reward + discount * (return + bonus)`, as probabilities."""
        probabilities = outputs.to(torch.float32).softmax(dim=-1)
        if self.takes_minimum:
            means = self.values(outputs)
            probabilities = torch.where(means[0] < means[1], probabilities[0], probabilities[1])
        return self.categories.project(probabilities, reward + discount * bonus, discount)

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the sum `[]` over the critics of their mean divergences from the target."""
        # J = sum_i E[D_KL(target || Z_i(s, a))]
        return divergence(target, outputs).mean(dim=1).sum()
