"""Random numbers of the seas, and the errors of their sensors made of them.

Every sea has a generator of its own, SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014), whose state is one integer of a tensor on the device. A generator
of torch would be none of this: its numbers are drawn one after another on a CPU, it keeps
`torch.compile` from making one graph, and a captured graph freezes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from envs.marinenav.compiling import stored

POSITION_ERROR: Final = 0.05  # m, standard deviation of each component
VELOCITY_ERROR: Final = 0.05  # m/s
RADIUS_BIAS: Final = 0.8
RADIUS_SPREAD: Final = 0.2
RADIUS_CONCENTRATION: Final = 1.0  # kappa of the von Mises distribution

LANES: Final = 4  # of 16 bits in a word of 64


def _signed(value: int) -> int:
    """Return the 64-bit integer in two's complement that has the low bits of `value`."""
    return (value + 2**63) % 2**64 - 2**63


# The step of a generator: odd, its bits those of the golden ratio, and so small that thousands of
# its multiples fit 64 bits, because compiled code takes an index that overflows for impossible.
_GAMMA: Final = 0x9E3779B97F4A7C15 >> 13 | 1
# The multipliers of the output function.
_MIX_1: Final = _signed(0xBF58476D1CE4E5B9)
_MIX_2: Final = _signed(0x94D049BB133111EB)


def _mix(z: Tensor) -> Tensor:
    """Scramble 64-bit integers; a shift to the right brings in zeros."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _MIX_1
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _MIX_2
    return z ^ ((z >> 31) & (2**33 - 1))


def seed_streams(seed: int, count: int, device: torch.device) -> Tensor:
    """Return the states of `count` generators, int64 `[count]`; number i depends on seed and i."""
    key = _mix(_mix(torch.tensor(_signed(seed))) + _GAMMA).to(device)
    return _mix(_mix(key + torch.arange(count, device=device)) + _GAMMA)


def split_streams(streams: Tensor) -> Tensor:
    """Return generators `[N]` of their own beside the given ones, which do not move."""
    return _mix(streams ^ _MIX_2)


def random_words(streams: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Draw 64 random bits for each place of a shape, from every generator.

    Args:
        streams: states of the generators, int64 `[N]`.
        shape: of what every generator draws.

    Returns:
        The bits, int64 `[*shape, N]`, and the states after drawing.
    """
    count = math.prod(shape)
    numbers = torch.arange(1, count + 1, device=streams.device) * _GAMMA
    words = stored(_mix(streams + numbers[:, None]))
    return words.view(*shape, -1), streams + count * _GAMMA


def _lane(words: Tensor, number: int) -> Tensor:
    """Return one of the four 16-bit integers of each word, 0 to 65,535, int64."""
    return (words >> (16 * number)) & 0xFFFF


def uniform(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Return four numbers of each word, uniform between 0 and 1 exclusive, `[4, *words.shape]`.

    They are the 65,536 midpoints of equal intervals: 0.8 mm apart across the map.
    """
    numbers = torch.stack([_lane(words, number) for number in range(LANES)])
    return (numbers.to(dtype) + 0.5) / 65536.0


class Noise(NamedTuple):
    """How sensing errs, as tables of 65,536 quantiles.

    The table of a normal distribution with a standard deviation of 0.05 m is as fine as float32 is
    at 20 m.

    Attributes:
        normal: of an error of a component of position (m) or velocity (m/s).
        factor: of the sensed over the true radius.
    """

    normal: Tensor
    factor: Tensor

    def displacement(self, words: Tensor) -> Tensor:
        """Return errors of x and y from the first lanes, `[2, *words.shape]`."""
        return torch.stack([_look_up(self.normal, _lane(words, number)) for number in range(2)])

    def radius_factor(self, words: Tensor) -> Tensor:
        """Return the sensed over the true radius from the last lane, `[*words.shape]`."""
        return _look_up(self.factor, _lane(words, LANES - 1))


def _look_up(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.reshape(-1)).view(index.shape)


def make_noise(device: torch.device, dtype: torch.dtype) -> Noise:
    """Compute the tables."""
    middle = (np.arange(65536) + 0.5) / 65536
    normal = POSITION_ERROR * math.sqrt(2.0) * torch.erfinv(torch.tensor(2.0 * middle - 1.0))
    # r_obs = 0.8 r + 0.2 r * vonMises(0, kappa = 1) / pi
    angle = np.linspace(-np.pi, np.pi, 2**18 + 1)
    density = np.exp(RADIUS_CONCENTRATION * np.cos(angle))
    below = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    turn = np.interp(middle, below / below[-1], angle) / np.pi
    factor = torch.tensor(RADIUS_BIAS + RADIUS_SPREAD * turn)
    return Noise(normal.to(device, dtype), factor.to(device, dtype))
