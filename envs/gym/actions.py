"""Conversion of action tensors to actions of Gymnasium spaces."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray
from torch import Tensor
from torchrl.data import Bounded, Categorical, TensorSpec

from envs.gym.observations import describe
from torchrl_gpu.environments.action_table import single_moves
from torchrl_gpu.errors import ConfigurationError

# Maximum number of dimensions whose levels the table of discrete actions combines.
_MAX_COMBINED = 3


class DiscreteActions:
    """Actions of a Discrete space: int64 `[num_envs]`, 0 to n - 1.

    Args:
        space: action space of one environment.
    """

    def __init__(self, space: Discrete) -> None:
        self._n = int(space.n)
        self._start = int(space.start)

    def spec(self, num_envs: int) -> TensorSpec:
        """Return the spec of a batch of actions."""
        return Categorical(self._n, shape=(num_envs,), dtype=torch.int64)

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return a batch of actions in the format of a vector environment."""
        numbers: NDArray[np.int64] = action.numpy()
        return numbers + self._start if self._start else numbers

    def table(self, levels: int) -> None:
        """Return None: actions are discrete already."""

    def bounds(self) -> None:
        """Return None: actions are not scaled."""


class BoxActions:
    """Actions of a Box: float32 `[num_envs, D]` in [-1, 1], mapped to the bounds of the Box.

    Args:
        space: action space of one environment, with finite bounds.
    """

    def __init__(self, space: Box) -> None:
        self._dtype = space.dtype
        self._shape = space.shape
        self._low, self._high = space.low.reshape(-1), space.high.reshape(-1)
        low, high = self._low.astype(np.float64), self._high.astype(np.float64)
        self._center = ((high + low) / 2).astype(self._dtype)
        self._half_range = ((high - low) / 2).astype(self._dtype)

    def spec(self, num_envs: int) -> TensorSpec:
        """Return the spec of a batch of actions."""
        return Bounded(-1.0, 1.0, (num_envs, len(self._low)), dtype=torch.float32)

    def to_env(self, action: Tensor) -> NDArray[np.floating]:
        """Return a batch of actions in the format of a vector environment, within its bounds."""
        values = action.numpy() * self._half_range
        values += self._center
        np.maximum(values, self._low, out=values)
        np.minimum(values, self._high, out=values)
        return values.astype(self._dtype, copy=False).reshape(-1, *self._shape)

    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the bounds of the Box, one number for each dimension of an action."""
        return tuple(self._low.tolist()), tuple(self._high.tolist())

    def table(self, levels: int) -> tuple[tuple[float, ...], ...]:
        """Return the rows of a table of discrete actions, see `GymnasiumEnv`."""
        dimensions = len(self._low)
        values = [(2.0 * level - (levels - 1)) / (levels - 1) for level in range(levels)]
        if dimensions <= _MAX_COMBINED:
            return tuple(product(values, repeat=dimensions))
        return single_moves(dimensions, [value for value in values if value])


def actions_of(space: Space) -> DiscreteActions | BoxActions:
    """Return the conversion of actions for a space.

    Args:
        space: action space of one environment.

    Raises:
        ConfigurationError: the space is neither Discrete nor a Box of floats with finite bounds.
    """
    if isinstance(space, Discrete):
        return DiscreteActions(space)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        if np.isfinite(space.low).all() and np.isfinite(space.high).all():
            return BoxActions(space)
        raise ConfigurationError(
            f"its action space, a {describe(space)}, has no finite bounds; actions in [-1, 1] need "
            f"finite bounds to be mapped to"
        )
    raise ConfigurationError(
        f"actions of a {describe(space)} are not supported; supported are Discrete spaces and Box "
        f"spaces of floats with finite bounds"
    )
