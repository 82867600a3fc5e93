"""The networks that agents share, shaped by the specs of the world."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite

from torchrl_gpu.errors import ConfigurationError

# Widths of the hidden layers of a network, at least one.
LayerSizes = Annotated[Sequence[Annotated[int, Field(ge=1)]], Field(min_length=1)]


class VectorEncoder(nn.Module):
    """Concatenates the vector observations of a world into one.

    Args:
        observation_spec: leaves `[*B, D]`, floating point.

    Attributes:
        width: the length of the concatenated vector.

    Raises:
        ConfigurationError: an observation is not a floating-point vector.
    """

    def __init__(self, observation_spec: Composite) -> None:
        super().__init__()
        batch_dimensions = len(observation_spec.shape)
        self.keys = list(observation_spec.keys(include_nested=True, leaves_only=True))
        self.width = 0
        for key in self.keys:
            leaf = observation_spec[key]
            if len(leaf.shape) != batch_dimensions + 1 or not leaf.dtype.is_floating_point:
                raise ConfigurationError(
                    f"observation {key!r} of shape {tuple(leaf.shape)} and type {leaf.dtype}: "
                    "agents read floating-point vectors"
                )
            self.width += leaf.shape[-1]

    def forward(self, observation: TensorDictBase) -> Tensor:
        """Return `[*B, width]`."""
        if len(self.keys) == 1:
            return observation.get(self.keys[0])
        return torch.cat([observation.get(key) for key in self.keys], dim=-1)


class EnsembleLinear(nn.Module):
    """`members` linear layers of one shape, computed as one batched matrix product.

    Initialised as `nn.Linear` is, each member with its own draw.
    """

    def __init__(
        self, members: int, inputs: int, outputs: int, device: torch.device | None = None
    ) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs, device=device))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs, device=device))
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map `[members, B, inputs]` to `[members, B, outputs]`."""
        return torch.baddbmm(self.bias, inputs, self.weight)


def mlp(
    inputs: int,
    hidden_sizes: Sequence[int],
    outputs: int,
    device: torch.device,
    members: int | None = None,
    layer_norm: bool = False,
) -> nn.Sequential:
    """Build a multilayer perceptron with ReLU between its layers.

    Args:
        inputs: width of the input.
        hidden_sizes: width of each hidden layer.
        outputs: width of the output.
        device: where the parameters live.
        members: None for one network, `[*B, inputs] -> [*B, outputs]`; a number for that many
            side by side, `[members, B, inputs] -> [members, B, outputs]`.
        layer_norm: normalise each hidden layer before its ReLU.
    """
    layers: list[nn.Module] = []
    width = inputs
    for hidden in hidden_sizes:
        layers.append(_linear(width, hidden, device, members))
        if layer_norm:
            layers.append(nn.LayerNorm(hidden, device=device))
        layers.append(nn.ReLU())
        width = hidden
    layers.append(_linear(width, outputs, device, members))
    return nn.Sequential(*layers)


def _linear(inputs: int, outputs: int, device: torch.device, members: int | None) -> nn.Module:
    if members is None:
        return nn.Linear(inputs, outputs, device=device)
    return EnsembleLinear(members, inputs, outputs, device=device)
