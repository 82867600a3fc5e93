"""Encoders, which turn observations into the features that the networks of an agent read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import torch
from pydantic import Field
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from agents.modules.augmentation import RandomShift
from agents.modules.normalization import ObservationNormalizer
from agents.modules.pixels import Convolutions, PixelEncoder
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.arguments import CheckedFields
from torchrl_gpu.environments.environment import mask_of
from torchrl_gpu.environments.readers import MIN_PICTURE_SIZE
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.products import Linear

Augmentation = Callable[[TensorDictBase], TensorDictBase]

# Settings of each kind of observation.
_SETTINGS_OF = {
    "vectors": ("vector_features",),
    "pixels": ("convolutions", "channels", "pixel_features", "random_shift"),
    "sets": ("set_features",),
}


class Encoder(nn.Module, ABC):
    """Turns the observations of a batch into features.

    Attributes:
        width: number of features.
    """

    width: int

    @abstractmethod
    def forward(self, observation: Observations) -> Tensor:
        """Return features `[*B, width]`, float32.

        Args:
            observation: observations `[*B, ...]` by key: a dict of tensors, or the TensorDict of a
                batch. `observation[key]` reads one of them; the key of a nested one is a tuple.
        """


# Observations by key, or their features `[*B, width]`, encoded once for all networks that share an
# encoder.
Encodable: TypeAlias = Observations | Tensor


def features_of(encoder: Encoder, observation: Encodable) -> Tensor:
    """Return the features `[*B, width]` of observations, unless they are encoded already."""
    return observation if isinstance(observation, Tensor) else encoder(observation)


def detached(observation: Encodable) -> Encodable:
    """Return observations or features through which no gradient reaches an encoder."""
    return observation.detach() if isinstance(observation, Tensor) else observation


class EncoderFactory(CheckedFields, ABC):
    """Builds the encoders of an agent's networks: the component `agent.encoder`.

    Derive from it to write your own: its annotated attributes are the settings of
    `agent.encoder._target_=package.Class`.

    Attributes:
        shared: whether actor and critic share one encoder.
    """

    shared: bool = False

    @abstractmethod
    def build(self, observation_spec: Composite) -> Encoder:
        """Return a new encoder of observations, batch size `[num_envs]`.

        Raises:
            ConfigurationError: an observation has a shape or dtype without an encoder.
        """

    def augmentation(self, observation_spec: Composite) -> Augmentation | None:
        """Return the random augmentation of the batches to learn from; None for none."""
        return None


def checked_encoder(factory: EncoderFactory, observation_spec: Composite) -> Encoder:
    """Return a new encoder of observations, once it has encoded one.

    Raises:
        ConfigurationError: the factory builds no `Encoder` with a `width`, or one whose features
            have another width.
    """
    encoder: Any = factory.build(observation_spec)
    name = f"agent.encoder: {type(factory).__name__}.build"
    if not isinstance(encoder, Encoder) or not isinstance(getattr(encoder, "width", None), int):
        raise ConfigurationError(
            f"{name} has to return an agents.modules.encoders.Encoder with its number of features "
            "as `width`"
        )
    device = next((each.device for each in encoder.parameters()), torch.device("cpu"))
    modes = [(module, module.training) for module in encoder.modules()]
    with torch.no_grad():  # in eval mode, which leaves the statistics of batches as they are
        features: Any = encoder.eval()(observation_spec[:1].to(device).zero())
    for module, is_training in modes:
        module.training = is_training
    found = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
    if found != (expected := [1, encoder.width]):
        raise ConfigurationError(
            f"{name}: the encoder of width {encoder.width} returns {found} for one observation, "
            f"not features {expected}"
        )
    return encoder


class ObservationEncoderFactory(EncoderFactory):
    """Encodes the vectors, pixels and sets of a spec and concatenates their features.

    Args:
        vector_features: width of a linear layer with ReLU that encodes each vector; None passes
            vectors unchanged.
        convolutions: convolutional network for pixels: `strided` (convolutions that each halve the
            image), `nature` (Mnih et al. 2015), `impala` (residual blocks, Espeholt et al. 2018) or
            `drqv2` (Yarats et al. 2021).
        channels: output channels of each convolution, or of each block of `impala`, each at least
            1; None for the default of the network.
        pixel_features: width of the linear layer behind the convolutions; None for the default of
            the network.
        set_features: width of the linear layer that all elements of a set share.
        shared: share one encoder between actor and critic; the critic's loss trains it, with PPO
            both losses do. Agents with a single network ignore it.
        random_shift: longest random shift of the images that the agent learns from, in pixels; 0
            for none, usually 4 for images of 84 x 84.

    Raises:
        ConfigurationError: a setting is out of range, or the agent observes nothing of the kind
            that it is for.
    """

    vector_features: Annotated[int, Field(ge=1)] | None = None
    convolutions: Convolutions = "strided"
    channels: Annotated[Sequence[Annotated[int, Field(ge=1)]], Field(min_length=1)] | None = None
    pixel_features: Annotated[int, Field(ge=1)] | None = None
    set_features: Annotated[int, Field(ge=1)] = 40
    random_shift: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        """Check the channels against the convolutions."""
        if self.convolutions == "nature" and self.channels is not None and len(self.channels) != 3:
            raise ConfigurationError(
                f"channels={list(self.channels)}: convolutions=nature takes three numbers"
            )

    def build(self, observation_spec: Composite) -> JoinedEncoder:
        """Return a new encoder of all observations: see `EncoderFactory`."""
        leaves = dict(observation_spec.items(include_nested=True, leaves_only=True))
        if not leaves:
            raise ConfigurationError("observation_spec: an agent needs at least one observation")
        masks = {mask_of(key) for key in leaves}
        parts = {key: self._part(key, leaves) for key in leaves if key not in masks}
        observed = {part.observes for part in parts.values()}
        for kind, names in _SETTINGS_OF.items():
            for name in names if kind not in observed else ():
                if getattr(self, name) != getattr(ObservationEncoderFactory, name):
                    raise ConfigurationError(
                        f"agent.encoder.{name}={getattr(self, name)}: the agent observes no "
                        f"{kind}; leave it out, or choose an environment or observation_keys with "
                        f"{kind}"
                    )
        return JoinedEncoder(parts)

    def augmentation(self, observation_spec: Composite) -> Augmentation | None:
        """Return the random shift of all pixels."""
        leaves = observation_spec.items(include_nested=True, leaves_only=True)
        pixels = [key for key, leaf in leaves if _is_pixels(leaf)]
        return RandomShift(pixels, self.random_shift) if pixels and self.random_shift else None

    def _part(self, key: NestedKey, leaves: dict[NestedKey, TensorSpec]) -> Part:
        """Return the encoder of one observation."""
        leaf = leaves[key]
        shape = tuple(leaf.shape[1:])
        if len(shape) == 1 and leaf.dtype == torch.float32:
            return VectorEncoder(shape[0], self.vector_features)
        if _is_pixels(leaf):
            _, height, width = shape
            if self.random_shift >= (side := min(height, width)):
                raise ConfigurationError(
                    f"agent.encoder.random_shift={self.random_shift}: the images have "
                    f"{height} x {width} pixels; use less than {side}"
                )
            return PixelEncoder(shape, self.convolutions, self.channels, self.pixel_features)
        if len(shape) == 2 and leaf.dtype == torch.float32 and mask_of(key) in leaves:
            return SetEncoder(*shape, self.set_features)
        raise ConfigurationError(
            f"observation {key!r} of shape {shape} and type {leaf.dtype}: agents read vectors (D,) "
            f"and sets (K, F) with {mask_of(key)!r} (K,) of float32, and pixels (C, H, W) of uint8 "
            f"with H and W at least {MIN_PICTURE_SIZE}"
        )


# Stateless, so all agents can share it.
DEFAULT_ENCODER = ObservationEncoderFactory()


class JoinedEncoder(Encoder):
    """Encodes each observation by its own network and concatenates the features.

    The network of a set reads the mask too.
    """

    def __init__(self, parts: dict[NestedKey, Part]) -> None:
        super().__init__()
        self.keys = [
            (key, mask_of(key)) if isinstance(part, SetEncoder) else (key,)
            for key, part in parts.items()
        ]
        self.parts = nn.ModuleList(parts.values())
        self.width = sum(part.width for part in parts.values())
        # The only observation, where it passes unchanged: the calls of modules that do nothing take
        # 2 % of a step of 64 environments with two layers of 256.
        (key, part), *others = parts.items()
        is_vector = not others and isinstance(part, VectorEncoder) and len(part) == 0
        self._vector = key if is_vector else None

    def forward(self, observation: Observations) -> Tensor:
        """Return features `[*B, width]`."""
        if self._vector is not None:
            return observation[self._vector]
        encoded = [
            part(*(observation[key] for key in keys))
            for part, keys in zip(self.parts, self.keys, strict=True)
        ]
        return encoded[0] if len(encoded) == 1 else torch.cat(encoded, dim=-1)


class DetachedEncoder(Encoder):
    """Reads the encoder of another network without training it."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.width = encoder.width

    def forward(self, observation: Observations) -> Tensor:
        """Return features `[*B, width]` without gradient."""
        with torch.no_grad():
            return self.encoder(observation)


class NormalizedEncoder(Encoder):
    """Encodes observations after a normalizer that all encoders of an agent share."""

    def __init__(self, normalizer: ObservationNormalizer, encoder: Encoder) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.encoder = encoder
        self.width = encoder.width

    def forward(self, observation: Observations) -> Tensor:
        """Return features `[*B, width]`."""
        return self.encoder(self.normalizer(observation))


class VectorEncoder(nn.Sequential):
    """Passes vectors `[*B, inputs]` unchanged, or with `features` through a layer with ReLU."""

    observes = "vectors"

    def __init__(self, inputs: int, features: int | None) -> None:
        super().__init__()
        self.width = inputs if features is None else features
        if features is not None:
            self.extend([Linear(inputs, features), nn.ReLU()])


class SetEncoder(nn.Module):
    """Encodes a set of elements, nearest or most important first, by one layer shared by all.

    Elements that the mask excludes are encoded as zeros. A set has at most K `elements` of F
    `inputs`.
    """

    observes = "sets"

    def __init__(self, elements: int, inputs: int, features: int) -> None:
        super().__init__()
        self.linear = Linear(inputs, features)
        self.width = elements * features

    def forward(self, elements: Tensor, mask: Tensor) -> Tensor:
        """Return `[*B, width]` for elements `[*B, K, F]` and their mask `[*B, K]`."""
        encoded = self.linear(elements).relu()
        return torch.where(mask.unsqueeze(-1), encoded, 0.0).flatten(-2)


Part = VectorEncoder | PixelEncoder | SetEncoder


def _is_pixels(leaf: TensorSpec) -> bool:
    return leaf.ndim == 4 and leaf.dtype == torch.uint8 and min(leaf.shape[2:]) >= MIN_PICTURE_SIZE
