"""Quantile functions of the return: the parts that IQN and AC-IQN share.

Source: Dabney et al., "Implicit Quantile Networks for Distributional Reinforcement Learning",
arXiv 1806.06923.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.modules.networks import relu
from torchrl_gpu.execution.products import Linear


class CosineEmbedding(nn.Module):
    """Turns quantile fractions into features: phi(tau) = ReLU(W [cos(pi i tau)] + b), eq. 4.

    i runs from 0 to `cosines` - 1, and `width` is the number of features.
    """

    frequencies: Tensor

    def __init__(self, cosines: int, width: int) -> None:
        super().__init__()
        self.linear = Linear(cosines, width)
        frequencies = math.pi * torch.arange(cosines, dtype=torch.float32)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, fractions: Tensor) -> Tensor:
        """Map fractions `[*B, N]` in [0, 1] to features `[*B, N, width]`."""
        return relu(self.linear((fractions.unsqueeze(-1) * self.frequencies).cos()))


def draw_fractions(shape: tuple[int, ...], risk_level: float, device: torch.device) -> Tensor:
    """Draw fractions of `shape`, uniform in [0, risk_level).

    The mean over Z_tau at these fractions estimates the conditional value at risk: the mean of the
    worst `risk_level` of all returns, section 3 of the paper. 1.0 is risk neutral.
    """
    fractions = torch.rand(shape, device=device)
    return fractions if risk_level == 1.0 else risk_level * fractions


def quantile_huber_loss(values: Tensor, fractions: Tensor, targets: Tensor, kappa: float) -> Tensor:
    """Return the quantile regression loss of each sample, `[B]`, eq. 3 of the paper.

    Args:
        values: predicted quantiles `[B, N]`, Z at `fractions`, with gradient.
        fractions: quantile fractions (tau) `[B, N]` in [0, 1].
        targets: samples of the target distribution, `[B, N']`.
        kappa: error at which the loss turns from quadratic to linear, above 0, in units of reward.
    """
    shape = (*values.shape, targets.shape[-1])
    value = values.unsqueeze(-1).expand(shape)
    target = targets.unsqueeze(-2).expand(shape)
    # delta_ij = y_j - Z_i;  weight |tau_i - 1{delta_ij < 0}|
    tau = fractions.unsqueeze(-1)
    weight = torch.where(target < value, 1.0 - tau, tau)
    # L_kappa(delta) / kappa = delta^2 / (2 kappa) up to kappa, |delta| - kappa / 2 beyond
    huber = F.smooth_l1_loss(value, target, reduction="none", beta=kappa)
    # sum_i mean_j weight_ij L_kappa(delta_ij) / kappa
    return (weight * huber).sum(dim=-2).mean(dim=-1)
