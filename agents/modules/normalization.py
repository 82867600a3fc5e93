"""Running statistics of observations and returns, kept on the device."""

from typing import NamedTuple

import torch
from tensordict import NestedKey
from torch import Tensor, nn
from torchrl.data import Composite

from agents.modules.gae import linear_recurrence
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.processes import ONE_PROCESS, Processes

_LIMIT = 10.0
_EPSILON = 1e-8


class Moments(NamedTuple):
    """Moments of rows `[D]`; mean and variance are 0 without a row."""

    number: Tensor | int  # sum of the weights of the rows, `[]`, if they have weights
    mean: Tensor
    variance: Tensor


def weighted_moments(
    values: Tensor, weight: Tensor | None, processes: Processes = ONE_PROCESS
) -> Moments:
    """Return the moments of values `[*B, D]` over all rows of all processes, in one exchange.

    Source: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance", 1983.

    Args:
        values: values `[*B, D]`.
        weight: weight of each row `[*B, 1]`, 0 excludes a row; None weighs all rows equally.
        processes: processes that all pass a weight, or all None and the same number of rows.
    """
    number = values.shape[:-1].numel() if weight is None else weight.sum()

    def mean_of(rows: Tensor) -> Tensor:
        if weight is None:
            return rows.flatten(0, -2).mean(dim=0)
        return (rows * weight).flatten(0, -2).sum(dim=0) / weight.sum().clamp(min=1.0)

    mean = mean_of(values)
    variance = mean_of((values - mean).square())
    if processes.count == 1:
        return Moments(number, mean, variance)
    # Each process fills its part of a sum, which passes large numbers of processes in a tree. NCCL
    # gathers in a ring.
    parts = mean.new_zeros(processes.count, 3, len(mean))
    parts[processes.rank] = torch.stack([torch.ones_like(mean) * number, mean, variance])
    numbers, means, variances = processes.sum(parts).unbind(dim=1)
    shares = numbers / numbers.sum(dim=0).clamp(min=1.0)
    mean = (shares * means).sum(dim=0)
    variance = (shares * (variances + (means - mean).square())).sum(dim=0)
    total = processes.count * number if isinstance(number, int) else numbers[:, 0].sum()
    return Moments(total, mean, variance)


class RunningMoments(nn.Module):
    """Running mean and variance, `[size]` each, of samples: 0 and 1 before the first sample."""

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))

    @torch.no_grad()
    def update(
        self,
        samples: Tensor,
        weight: Tensor | None = None,
        processes: Processes = ONE_PROCESS,
    ) -> None:
        """Update the moments with samples `[*B, D]`; see `weighted_moments`."""
        number, mean, variance = weighted_moments(samples, weight, processes)
        self.count.add_(number)
        share = number / self.count.clamp(min=1.0)
        difference = mean - self.mean
        spread = difference.square() * (1.0 - share)
        self.variance.add_(share * (variance - self.variance + spread))
        self.mean.add_(share * difference)

    def inverse_std(self) -> Tensor:
        """Return one over the standard deviation, `[D]`."""
        return (self.variance + _EPSILON).rsqrt()


class ObservationNormalizer(nn.Module):
    """Normalizes each component of vector observations to mean 0 and variance 1, within [-10, 10].

    Pixels and sets pass unchanged, because their encoders scale them.
    """

    def __init__(self, observation_spec: Composite) -> None:
        super().__init__()
        leaves = dict(observation_spec.items(include_nested=True, leaves_only=True))
        self.keys: list[NestedKey] = list(leaves)
        self.vectors: list[NestedKey] = [
            key for key, leaf in leaves.items() if leaf.ndim == 2 and leaf.dtype.is_floating_point
        ]
        self._of_vectors = [RunningMoments(leaves[key].shape[-1]) for key in self.vectors]
        self.moments = nn.ModuleList(self._of_vectors)

    def forward(self, observation: Observations) -> Observations:
        """Return normalized observations `[*B, ...]`; the given ones stay unchanged."""
        normalized = {key: observation[key] for key in self.keys}
        for key, moments in zip(self.vectors, self._of_vectors, strict=True):
            standardized = (normalized[key] - moments.mean) * moments.inverse_std()
            normalized[key] = standardized.clamp(-_LIMIT, _LIMIT)
        return normalized

    def update(
        self,
        observation: Observations,
        weight: Tensor | None = None,
        processes: Processes = ONE_PROCESS,
    ) -> None:
        """Update the moments with observations `[*B]`: see `weighted_moments`."""
        for key, moments in zip(self.vectors, self._of_vectors, strict=True):
            moments.update(observation[key], weight, processes)


class RewardNormalizer(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return, and clips them.

    Source: Engstrom et al., "Implementation Matters in Deep Policy Gradients", arXiv 2005.12729,
    algorithm 1. `batch_size` is that of the environment, `[num_envs]`.
    """

    discounted: Tensor

    def __init__(self, batch_size: torch.Size, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.moments = RunningMoments(1)
        # Checkpoints have it in the state of the open episodes.
        self.register_buffer("discounted", torch.zeros(*batch_size, 1), persistent=False)

    @torch.no_grad()
    def forward(
        self,
        reward: Tensor,
        done: Tensor,
        weight: Tensor | None = None,
        processes: Processes = ONE_PROCESS,
    ) -> Tensor:
        """Update the statistics with the rewards of a rollout and return the scaled rewards.

        They are clipped to [-10, 10]: a first reward after many zeros would be hundreds of standard
        deviations large.

        Args:
            reward: rewards `[T, num_envs, 1]` that continue those of the previous call.
            done: whether the episode ended with the step, bool `[T, num_envs, 1]`.
            weight: `[T, num_envs, 1]`, 0 for rows without a transition; None weighs all equally.
            processes: see `weighted_moments`.
        """
        # R_t = r_t + gamma (1 - done_{t-1}) R_{t-1}: the recurrence of GAE, backwards in time
        decay = torch.full_like(reward, self.gamma).masked_fill(done, 0.0)
        first = reward[:1] + self.gamma * self.discounted
        increment = torch.cat([first, reward[1:]])
        coefficient = torch.cat([torch.zeros_like(first), decay[:-1]])
        discounted = linear_recurrence(increment.flip(0), coefficient.flip(0)).flip(0)
        self.discounted.copy_(discounted[-1].masked_fill(done[-1], 0.0))
        self.moments.update(discounted, weight, processes)
        return (reward * self.moments.inverse_std()).clamp(-_LIMIT, _LIMIT)
