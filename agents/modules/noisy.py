"""Noisy layers: agents explore by learned noise on the weights.

Source: Fortunato et al., "Noisy Networks for Exploration", arXiv 1706.10295.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from agents.modules.networks import InFloat32
from torchrl_gpu.execution.products import Linear


class NoisyLinear(Linear):
    """A linear layer with factorized Gaussian noise on weights and biases.

    `weight` and `bias`, the means, are initialized as in `nn.Linear`; `sigma` (sigma_0) is the
    initial standard deviation of the weights in units of 1 / sqrt(inputs). Every call draws new
    noise, which the whole batch shares. TorchRL's exploration type has no effect.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__(inputs, outputs)
        # mu ~ U(-1 / sqrt(p), 1 / sqrt(p)), as nn.Linear has it; sigma = sigma_0 / sqrt(p)  (3.2)
        start = sigma / math.sqrt(inputs)
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), start))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), start))

    def forward(self, inputs: Tensor, noisy: bool = True) -> Tensor:
        """Map `[*B, inputs]` to `[*B, outputs]`, by the mean weights alone if not `noisy`."""
        if not noisy:
            return super().forward(inputs)
        # epsilon_ij = f(epsilon_i) f(epsilon_j),  epsilon_j = f(epsilon_j)            (eq. 10, 11)
        # f(x) = sgn(x) sqrt(|x|)
        draw = torch.randn(self.in_features + self.out_features, device=inputs.device)
        noise = draw.sign() * draw.abs().sqrt()
        noise_in, noise_out = noise.split((self.in_features, self.out_features))
        # y = (mu_w + sigma_w * epsilon_w) x + mu_b + sigma_b * epsilon_b              (eq. 9)
        weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(noise_out, noise_in))
        bias = torch.addcmul(self.bias, self.bias_sigma, noise_out)
        return self.product(inputs, weight, bias)


class NoisyHead(InFloat32, NoisyLinear):
    """The last layer of a noisy network."""


class NoisyMLP(nn.Module):
    """A multilayer perceptron of `NoisyLinear` with ReLU between its layers.

    The arguments are those of `mlp` and `NoisyLinear`.
    """

    def __init__(
        self, inputs: int, hidden_sizes: Sequence[int], outputs: int, sigma: float = 0.5
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden_sizes]
        self.hidden = nn.ModuleList(NoisyLinear(*ends, sigma) for ends in pairwise(widths))
        self.output = NoisyHead(widths[-1], outputs, sigma)

    def forward(self, inputs: Tensor, noisy: bool = True) -> Tensor:
        """Map `[*B, inputs]` to `[*B, outputs]`, by the mean weights alone if not `noisy`."""
        for layer in self.hidden:
            inputs = layer(inputs, noisy).relu()
        return self.output(inputs, noisy)
