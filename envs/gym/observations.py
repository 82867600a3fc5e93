"""What a Gymnasium environment shows, as tensors."""

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

# Keys that have a meaning of their own in the TensorDict of a transition.
_TAKEN_KEYS = frozenset(
    ("action", "reward", "terminated", "truncated", "done", "next", "_reset", "success", "active")
)

# An image whose first dimension is one of these is taken to have its channels first.
_CHANNELS = (1, 3, 4)


class Observations:
    """Turns batches of observations into tensors, by key.

    A vector or a number in a Discrete space becomes `observation`, an image `pixels`, and every
    entry of a Dict space what it is, under its own name.

    Args:
        space: of one environment.

    Raises:
        ConfigurationError: the space holds something else.
    """

    def __init__(self, space: Space) -> None:
        self._is_dict = isinstance(space, Dict)
        self._readers: dict[str, _Reader] = {}
        if isinstance(space, Dict):
            for name, entry in space.spaces.items():
                if name in _TAKEN_KEYS:
                    raise ConfigurationError(
                        f"its observation has an entry {name!r}, a key that means something else "
                        f"here; rename the entry"
                    )
                self._readers[name] = _reader(entry)
        else:
            reader = _reader(space)
            self._readers["pixels" if isinstance(reader, _Pixels) else "observation"] = reader

    def spec(self, num_envs: int) -> Composite:
        """Return the spec of every key, for a batch `[num_envs]`."""
        specs = {key: reader.spec(num_envs) for key, reader in self._readers.items()}
        return Composite(specs, shape=(num_envs,))

    def read(self, batch: Any) -> dict[str, Tensor]:
        """Return a batch of observations by key, in memory of its own.

        Args:
            batch: as a vector environment gives it; it may be overwritten afterwards.
        """
        if self._is_dict:
            return {key: reader.read(batch[key]) for key, reader in self._readers.items()}
        return {key: reader.read(batch) for key, reader in self._readers.items()}


class _Reader(ABC):
    """Turns the batches of one space into tensors; a copy, always."""

    @abstractmethod
    def spec(self, num_envs: int) -> TensorSpec:
        """Return the spec of a batch `[num_envs]`."""

    @abstractmethod
    def read(self, batch: NDArray) -> Tensor:
        """Return the tensor of a batch `[B, ...]`."""


class _Vector(_Reader):
    """Numbers of any shape, flattened: float32 `[B, D]`."""

    def __init__(self, space: Box) -> None:
        self._low = np.asarray(space.low, np.float32).reshape(-1)
        self._high = np.asarray(space.high, np.float32).reshape(-1)

    def spec(self, num_envs: int) -> TensorSpec:
        low, high = torch.from_numpy(self._low), torch.from_numpy(self._high)
        shape = (num_envs, len(low))
        # The largest float as a bound, which stands for none, has no finite range either.
        if not bool(torch.isfinite(high - low).all()):
            return Unbounded(shape, dtype=torch.float32)
        return Bounded(low.expand(shape), high.expand(shape), shape, dtype=torch.float32)

    def read(self, batch: NDArray) -> Tensor:
        return torch.from_numpy(np.array(batch, np.float32, order="C").reshape(len(batch), -1))


class _Pixels(_Reader):
    """Images, their channels moved to the front: uint8 `[B, C, H, W]`."""

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
    """One of `n` numbers: float32 `[B, n]`, a one in its place."""

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
        f"it shows a {describe(space)}; this world reads Box spaces of floats, images (uint8, "
        f"height x width x channels), Discrete spaces, and a Dict of these"
    )


def describe(space: Space) -> str:
    """Return what a space is, in a few words."""
    if isinstance(space, Box):
        return f"Box of {space.dtype} {space.shape}"
    return f"{type(space).__name__} space"
