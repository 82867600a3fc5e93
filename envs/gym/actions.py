"""Conversion of action tensors to actions of Gymnasium spaces."""

from collections.abc import Callable
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray
from torch import Tensor
from torchrl.data import Bounded, Categorical, TensorSpec

from envs.gym.observations import describe
from torchrl_gpu.environments.action_table import single_moves
from torchrl_gpu.errors import ConfigurationError

# Maximum number of dimensions whose levels the table of discrete actions combines.
_MAX_COMBINED = 3
# Maximum number of combined choices of a MultiDiscrete space. An agent computes a value for each.
_MAX_CHOICES = 1024

Table: TypeAlias = tuple[tuple[float, ...], ...]


class Actions(NamedTuple):
    """Actions of a Gymnasium space, and their conversion.

    The spec of a batch is int64 `[num_envs]` for a Discrete space, 0 to n - 1, and for the rows of
    `choices`; float32 `[num_envs, D]` in [-1, 1], mapped to its bounds, for a Box.
    """

    spec: TensorSpec
    to_env: Callable[[Tensor], NDArray]  # returns a batch in the format of a vector environment
    table: Table | None = None  # of discrete actions of a Box, see `GymnasiumEnv`
    bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # lowest and highest of a Box
    choices: Table | None = None  # all combinations of a MultiDiscrete or MultiBinary space


def _of_discrete(space: Discrete, num_envs: int) -> Actions:
    start = int(space.start)

    def to_env(action: Tensor) -> NDArray:
        return action.numpy() + start if start else action.numpy()

    return Actions(Categorical(int(space.n), shape=(num_envs,), dtype=torch.int64), to_env)


def _of_several(space: MultiDiscrete | MultiBinary, num_envs: int) -> Actions:
    start: NDArray = space.start if isinstance(space, MultiDiscrete) else np.zeros(space.shape)
    counts: NDArray = space.nvec if isinstance(space, MultiDiscrete) else np.full(space.shape, 2)
    number = prod(map(int, counts.flat))
    if number > _MAX_CHOICES:
        raise ConfigurationError(
            f"its action space, a {describe(space)}, has {number:,} combinations; an agent chooses "
            f"among up to {_MAX_CHOICES:,}: register the environment with "
            "gymnasium.wrappers.TransformAction and a smaller action space"
        )
    combinations = list(product(*map(range, counts.flat)))
    rows = (np.array(combinations) + start.reshape(-1)).astype(space.dtype)

    def to_env(action: Tensor) -> NDArray:
        return rows[action.numpy()].reshape(-1, *space.shape)

    spec = Categorical(number, shape=(num_envs,), dtype=torch.int64)
    return Actions(spec, to_env, choices=tuple(map(tuple, rows.tolist())))


def _of_box(space: Box, num_envs: int, levels: int) -> Actions:
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    wide_low, wide_high = low.astype(np.float64), high.astype(np.float64)
    center = ((wide_high + wide_low) / 2).astype(space.dtype)
    half_range = ((wide_high - wide_low) / 2).astype(space.dtype)

    def to_env(action: Tensor) -> NDArray:
        values = action.detach().numpy() * half_range
        values += center
        np.maximum(values, low, out=values)
        np.minimum(values, high, out=values)
        return values.astype(space.dtype, copy=False).reshape(-1, *space.shape)

    spec = Bounded(-1.0, 1.0, (num_envs, len(low)), dtype=torch.float32)
    bounds = tuple(low.tolist()), tuple(high.tolist())
    values = [(2.0 * level - (levels - 1)) / (levels - 1) for level in range(levels)]
    if len(low) <= _MAX_COMBINED:
        table: Table = tuple(product(values, repeat=len(low)))
    else:
        table = single_moves(len(low), [value for value in values if value])
    return Actions(spec, to_env, table, bounds)


def actions_of(space: Space, num_envs: int, levels: int) -> Actions:
    """Return the actions of the space of one environment.

    The table of discrete actions has `levels` values per dimension, at least 2.

    Raises:
        ConfigurationError: the space is not supported: see the keys of `GymnasiumEnv`.
    """
    if isinstance(space, Discrete):
        return _of_discrete(space, num_envs)
    if isinstance(space, MultiDiscrete | MultiBinary):
        return _of_several(space, num_envs)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        if np.isfinite(space.low).all() and np.isfinite(space.high).all():
            return _of_box(space, num_envs, levels)
        raise ConfigurationError(
            f"its action space, a {describe(space)}, has no finite bounds; actions in [-1, 1] need "
            "finite bounds to be mapped to"
        )
    raise ConfigurationError(
        f"actions of a {describe(space)} are not supported; supported are Discrete, MultiDiscrete "
        "and MultiBinary spaces and Box spaces of floats with finite bounds; register the "
        "environment with gymnasium.wrappers.TransformAction"
    )
