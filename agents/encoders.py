"""From what a world shows to one vector: the front of every network, chosen by the specs."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.errors import ConfigurationError

_MASK = "_mask"

# Width of a layer that vectors go through first, or none.
VectorFeatures = Annotated[int, Field(ge=1)] | None


class Encoder(nn.Module):
    """Encodes all observations of a world and concatenates the results.

    Vectors `[*B, D]` stay as they are, or go through one layer with ReLU. Pixels `[*B, C, H, W]`
    uint8 go through a convolutional network. Sets of things `[*B, K, F]` with a mask `[*B, K]`
    under the same name and `_mask` go through one layer that all things share.

    Args:
        observation_spec: any number of leaves of these kinds.
        device: where the parameters live.
        vector_features: width of the layer for vectors; None for none.

    Attributes:
        width: the length of the vector that comes out.

    Raises:
        ConfigurationError: an observation is of none of these kinds.
    """

    def __init__(
        self,
        observation_spec: Composite,
        device: torch.device,
        vector_features: int | None = None,
    ) -> None:
        super().__init__()
        leaves = dict(observation_spec.items(include_nested=True, leaves_only=True))
        if not leaves:
            raise ConfigurationError("observation_spec: there is nothing to observe")
        self.keys: list[NestedKey] = [k for k in leaves if not _is_mask(k, leaves)]
        batch_dimensions = len(observation_spec.shape)
        parts = [_part(key, leaves, batch_dimensions, device, vector_features) for key in self.keys]
        self.parts = nn.ModuleList(parts)
        self.width = sum(part.width for part in parts)

    def forward(self, observation: TensorDictBase) -> Tensor:
        """Return `[*B, width]`."""
        encoded = [part(observation, key) for part, key in zip(self.parts, self.keys, strict=True)]
        return encoded[0] if len(encoded) == 1 else torch.cat(encoded, dim=-1)


class VectorEncoder(nn.Module):
    """Passes a vector on, because the network behind it can encode it, or encodes it by one layer.

    Args:
        inputs: D, the length of the vector.
        features: width of the layer; None to pass the vector on.
        device: where the parameters live.
    """

    def __init__(self, inputs: int, features: int | None, device: torch.device) -> None:
        super().__init__()
        self.width = inputs if features is None else features
        self.layer = (
            nn.Identity()
            if features is None
            else nn.Sequential(nn.Linear(inputs, features, device=device), nn.ReLU())
        )

    def forward(self, observation: TensorDictBase, key: NestedKey) -> Tensor:
        """Return `[*B, width]`."""
        return self.layer(observation.get(key))


class PixelEncoder(nn.Module):
    """Encodes pictures by strided convolutions, each of which halves them, and a linear layer.

    Args:
        channels: C.
        height: H, at least 8.
        width: W, at least 8.
        device: where the parameters live.
    """

    CHANNELS = (32, 64, 64, 64)
    WIDTH = 256

    def __init__(self, channels: int, height: int, width: int, device: torch.device) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for outputs in self.CHANNELS:
            layers += [nn.Conv2d(channels, outputs, 3, stride=2, padding=1, device=device)]
            layers += [nn.ReLU()]
            channels, height, width = outputs, math.ceil(height / 2), math.ceil(width / 2)
        layers += [nn.Flatten(), nn.Linear(channels * height * width, self.WIDTH, device=device)]
        layers += [nn.LayerNorm(self.WIDTH, device=device), nn.ReLU()]
        self.network = nn.Sequential(*layers)
        self.width = self.WIDTH

    def forward(self, observation: TensorDictBase, key: NestedKey) -> Tensor:
        """Return `[*B, width]` for pictures `[*B, C, H, W]` of values 0 to 255."""
        pixels = observation.get(key)
        # Centred, [-0.5, 0.5]: a picture of bytes stays one until it reaches the network.
        pictures = pixels.reshape(-1, *pixels.shape[-3:]).to(torch.float32) / 255.0 - 0.5
        return self.network(pictures).reshape(*pixels.shape[:-3], self.width)


class SetEncoder(nn.Module):
    """Encodes a set of things, nearest or most important first, by one layer shared by all.

    What is masked out is encoded as zeros.

    Args:
        things: K, at most so many.
        features: F, of each thing.
        device: where the parameters live.
    """

    WIDTH = 40

    def __init__(self, things: int, features: int, device: torch.device) -> None:
        super().__init__()
        self.linear = nn.Linear(features, self.WIDTH, device=device)
        self.width = things * self.WIDTH

    def forward(self, observation: TensorDictBase, key: NestedKey) -> Tensor:
        """Return `[*B, width]` for things `[*B, K, F]` and their mask `[*B, K]`."""
        encoded = self.linear(observation.get(key)).relu()
        mask = observation.get(_mask_of(key))
        return torch.where(mask.unsqueeze(-1), encoded, 0.0).flatten(-2)


def _part(
    key: NestedKey,
    leaves: dict[NestedKey, TensorSpec],
    batch_dimensions: int,
    device: torch.device,
    vector_features: int | None,
) -> VectorEncoder | PixelEncoder | SetEncoder:
    """Return the encoder for one observation."""
    shape, dtype = tuple(leaves[key].shape[batch_dimensions:]), leaves[key].dtype
    if len(shape) == 1 and dtype.is_floating_point:
        return VectorEncoder(shape[0], vector_features, device)
    if len(shape) == 3 and dtype == torch.uint8 and min(shape[1:]) >= 8:
        return PixelEncoder(shape[0], shape[1], shape[2], device)
    if len(shape) == 2 and dtype.is_floating_point and _mask_of(key) in leaves:
        return SetEncoder(shape[0], shape[1], device)
    raise ConfigurationError(
        f"observation {key!r} of shape {shape} and type {dtype}: agents read vectors "
        f"(D,) and sets (K, F) with {_mask_of(key)!r} (K,) of floats, and pixels (C, H, W) of uint8"
    )


def _mask_of(key: NestedKey) -> NestedKey:
    return key + _MASK if isinstance(key, str) else (*key[:-1], key[-1] + _MASK)


def _is_mask(key: NestedKey, leaves: dict[NestedKey, TensorSpec]) -> bool:
    """Return whether this leaf is the mask of another one."""
    return any(key == _mask_of(other) for other in leaves)
