"""A normal distribution whose samples are clipped to [-1, 1], made of tensor operations only.

An environment executes the clipped action, so all probability beyond a bound belongs to the bound
itself. With this exact likelihood the policy gradient has less variance than with the density of
the normal.

Source: Fujita and Maeda, "Clipped Action Policy Gradient", arXiv 1802.07564.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
# Actions that were scaled to the bounds of an environment and back carry rounding errors.
_BOUND = 1.0 - 1e-4
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
# Below this x, 1 - 1/x^2 + 3/x^4 - 15/x^6 is exact in float32, and erfc(-x) soon underflows.
_TAIL = -8.0


def draw(mean: Tensor, log_std: Tensor) -> Tensor:
    """Draw actions `[*B, D]` in [-1, 1]; the parameters are those of the unclipped normal."""
    return torch.addcmul(mean, log_std.exp(), torch.randn_like(mean)).clamp(-1.0, 1.0)


def log_prob(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-likelihood `[*B, 1]` of clipped actions, with finite gradients everywhere.

    It is the sum over the dimensions of log N(a; mean, std) between the bounds, log
    Phi((-1 - mean) / std) at the lower and log(1 - Phi((1 - mean) / std)) at the upper bound (eq.
    8). Actions `[*B, D]` are in [-1, 1]; mean `[*B, D]` and log_std, broadcastable to it, are those
    before clipping.
    """
    at_bound = action.abs() >= _BOUND
    reached = torch.where(at_bound, action.sign(), action)
    z = (reached - mean) * (-log_std).exp()
    # log N = -z^2 / 2 - log std - log(2 pi) / 2
    inside = -0.5 * z * z - (log_std + _HALF_LOG_TWO_PI)
    # Phi(z) at the lower bound, 1 - Phi(z) = Phi(-z) at the upper one
    beyond = log_cdf(-reached * z)
    return torch.where(at_bound, beyond, inside).sum(dim=-1, keepdim=True)


def entropy(log_std: Tensor) -> Tensor:
    """Return the entropy `[*B, 1]` of the normal before clipping, in nats, of log_std `[*B, D]`."""
    # H = sum_i log std_i + log(2 pi e) / 2
    return (log_std + _HALF_LOG_TWO_PI + 0.5).sum(dim=-1, keepdim=True)


class _LogCdf(torch.autograd.Function):
    """log Phi of the standard normal, elementwise, float32, accurate in both tails.

    Equals `torch.special.log_ndtr`, but uses only operations that every backend has. Its derivative
    N / Phi is in closed form.

    `where` computes both branches for all elements. A branch may be infinite or NaN beyond its
    range, which would spoil the gradient if autograd went through the branches.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        square = x * x
        log_density = -0.5 * square - _HALF_LOG_TWO_PI
        # Phi(x) = erfc(-x / sqrt 2) / 2
        body = torch.log(0.5 * torch.erfc(x * -math.sqrt(0.5)))
        # Phi(x) = N(x) / -x (1 - 1/x^2 + 3/x^4 - 15/x^6 + ...)  (Abramowitz and Stegun, 26.2.12)
        inverse = 1.0 / square
        mills = (inverse * (1.0 - inverse * (3.0 - 15.0 * inverse)) - 1.0) / x
        value = torch.where(x > _TAIL, body, log_density + torch.log(mills))
        ctx.save_for_backward(x, value, log_density, mills)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, value, log_density, mills = ctx.saved_tensors
        # In the tail, exponents differ by less than their rounding errors.
        slope = torch.where(x > _TAIL, torch.exp(log_density - value), 1.0 / mills)
        return gradient * slope


log_cdf: Callable[[Tensor], Tensor] = _LogCdf.apply
