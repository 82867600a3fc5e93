"""A normal distribution squashed into [-1, 1] by tanh, made of tensor operations only.

The distributions of TorchRL and PyTorch read values back to the host; this one does not.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def split(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Split a network's output `[*B, 2 * D]` into mean and log standard deviation `[*B, D]`.

    The log standard deviation is clamped to [-5, 2], before tanh.
    """
    mean, log_std = parameters.chunk(2, dim=-1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def sample(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """Draw actions to learn from, differentiable in mean and log_std, with log-probabilities.

    Args:
        mean: mean before tanh, `[*B, D]`.
        log_std: log standard deviation before tanh, `[*B, D]`.

    Returns:
        action `[*B, D]` in [-1, 1] and its log-probability `[*B, 1]`: SAC, arXiv 1812.05905,
        appendix C, with log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which stays finite.
    """
    noise = torch.randn_like(mean)
    # u = mean + std * noise
    pre_tanh = torch.addcmul(mean, log_std.exp(), noise)
    # log N(u) = -noise^2 / 2 - log std - log(2 pi) / 2
    log_normal = -0.5 * noise.square() - log_std - _HALF_LOG_TWO_PI
    # log pi(a) = sum_i log N(u_i) - log(1 - tanh(u_i)^2)
    log_prob = log_normal - _log_tanh_derivative(pre_tanh)
    return pre_tanh.tanh(), log_prob.sum(dim=-1, keepdim=True)


def draw(mean: Tensor, log_std: Tensor) -> Tensor:
    """Draw actions `[*B, D]` to act with, without log-probabilities."""
    return torch.addcmul(mean, log_std.exp(), torch.randn_like(mean)).tanh()


def _log_tanh_derivative(pre_tanh: Tensor) -> Tensor:
    return 2.0 * (math.log(2.0) - pre_tanh - F.softplus(-2.0 * pre_tanh))
