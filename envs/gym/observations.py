"""Conversion of observations of Gymnasium spaces to tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Space
from numpy.typing import NDArray
from torch import Tensor
from torchrl.data import Bounded, Composite, TensorSpec, Unbounded

from torchrl_gpu.errors import ConfigurationError

# Keys with a fixed meaning in the TensorDict of a transition.
_TAKEN_KEYS = frozenset(
    ("action", "reward", "terminated", "truncated", "done", "next", "_reset", "success", "active")
)

# Sizes of the first dimension of an image that mark it as channels first.
_CHANNELS = (1, 3, 4)


class Observations:
    """Converts batches of observations to tensors by key.

    A vector or an element of a Discrete space becomes `observation`, an image `pixels`. Entries of
    a Dict space are converted likewise under their own names.

    Args:
        space: observation space of one environment.

    Raises:
        ConfigurationError: the space is not supported, or an entry has a reserved name.
    """

    def __init__(self, space: Space) -> None:
        self._is_dict = isinstance(space, Dict)
        self._readers: dict[str, _Reader] = {}
        if isinstance(space, Dict):
            for name, entry in space.spaces.items():
                if name in _TAKEN_KEYS:
                    raise ConfigurationError(
                        f"its observation has an entry {name!r}, which is a reserved key; rename "
                        f"the entry"
                    )
                self._readers[name] = _reader(entry)
        else:
            reader = _reader(space)
            self._readers["pixels" if isinstance(reader, _Pixels) else "observation"] = reader

    @property
    def images(self) -> list[str]:
        """Keys of the images."""
        return [key for key, reader in self._readers.items() if isinstance(reader, _Pixels)]

    def spec(self, num_envs: int) -> Composite:
        """Return the specs of all keys for a batch `[num_envs]`."""
        specs = {key: reader.spec(num_envs) for key, reader in self._readers.items()}
        return Composite(specs, shape=(num_envs,))

    def read(self, batch: Any) -> dict[str, Tensor]:
        """Return a copy of a batch of observations as tensors by key.

        Args:
            batch: observations of a vector environment; it may be overwritten afterwards.
        """
        if self._is_dict:
            return {key: reader.read(batch[key]) for key, reader in self._readers.items()}
        return {key: reader.read(batch) for key, reader in self._readers.items()}


class _Reader(ABC):
    """Converts batches of one space to tensors; always copies."""

    @abstractmethod
    def spec(self, num_envs: int) -> TensorSpec:
        """Return the spec of a batch `[num_envs]`."""

    @abstractmethod
    def read(self, batch: NDArray) -> Tensor:
        """Return a batch `[B, ...]` as a tensor."""


class _Vector(_Reader):
    """Float arrays of any shape, flattened: float32 `[B, D]`."""

    def __init__(self, space: Box) -> None:
        self._low = np.asarray(space.low, np.float32).reshape(-1)
        self._high = np.asarray(space.high, np.float32).reshape(-1)

    def spec(self, num_envs: int) -> TensorSpec:
        low, high = torch.from_numpy(self._low), torch.from_numpy(self._high)
        shape = (num_envs, len(low))
        # Bounds of the largest float stand for no bounds; their range overflows to infinity.
        if not bool(torch.isfinite(high - low).all()):
            return Unbounded(shape, dtype=torch.float32)
        return Bounded(low.expand(shape), high.expand(shape), shape, dtype=torch.float32)

    def read(self, batch: NDArray) -> Tensor:
        return torch.from_numpy(np.array(batch, np.float32, order="C").reshape(len(batch), -1))


class _Pixels(_Reader):
    """Images with channels first: uint8 `[B, C, H, W]`."""

    def __init__(self, space: Box) -> None:
        self._channels_last = space.shape[0] not in _CHANNELS
        height, width, channels = space.shape
        self._shape = (channels, height, width) if self._channels_last else space.shape

    def spec(self, num_envs: int) -> TensorSpec:
        return Bounded(0, 255, (num_envs, *self._shape), dtype=torch.uint8)

    def read(self, batch: NDArray) -> Tensor:
        images = np.moveaxis(batch, -1, 1) if self._channels_last else batch
        return torch.from_numpy(np.array(images, np.uint8, order="C"))


class _OneHot(_Reader):
    """Elements of a Discrete space, one-hot: float32 `[B, n]`."""

    def __init__(self, space: Discrete) -> None:
        self._n = int(space.n)
        self._start = int(space.start)

    def spec(self, num_envs: int) -> TensorSpec:
        return Bounded(0.0, 1.0, (num_envs, self._n), dtype=torch.float32)

    def read(self, batch: NDArray) -> Tensor:
        rows = np.zeros((len(batch), self._n), np.float32)
        rows[np.arange(len(batch)), np.asarray(batch) - self._start] = 1.0
        return torch.from_numpy(rows)


def _reader(space: Space) -> _Reader:
    if isinstance(space, Discrete):
        return _OneHot(space)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        return _Vector(space)
    if isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) == 3:
        return _Pixels(space)
    raise ConfigurationError(
        f"observations of a {describe(space)} are not supported; supported are Box spaces of "
        f"floats, images (uint8, height x width x channels), Discrete spaces, and Dicts of these"
    )


def describe(space: Space) -> str:
    """Return a short description of a space."""
    if isinstance(space, Box):
        return f"Box of {space.dtype} {space.shape}"
    return f"{type(space).__name__} space"
