"""Random number generators of the seas, and the sensor noise drawn from them.

Each sea has its own SplitMix64 generator (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), whose state is one integer of a tensor on the device. `torch.Generator`
is not used: it draws sequentially on a CPU, breaks the graph of `torch.compile`, and is frozen in a
captured graph.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from envs.marinenav.compiling import look_up, stored

POSITION_ERROR: Final = 0.05  # m, standard deviation of each component; also of velocities, m/s
RADIUS_BIAS: Final = 0.8
RADIUS_SPREAD: Final = 0.2
RADIUS_CONCENTRATION: Final = 1.0  # kappa of the von Mises distribution


def _signed(value: int) -> int:
    """Return the low 64 bits of `value` as a signed integer in two's complement."""
    return (value + 2**63) % 2**64 - 2**63


# The increment of a generator, odd, with the bits of the golden ratio; and the multipliers of its
# output function.
_GAMMA: Final = _signed(0x9E3779B97F4A7C15)
_MIX_1: Final = _signed(0xBF58476D1CE4E5B9)
_MIX_2: Final = _signed(0x94D049BB133111EB)


def _mix(z: Tensor) -> Tensor:
    """Mix the bits of 64-bit integers; the masks make right shifts logical."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _MIX_1
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _MIX_2
    return z ^ ((z >> 31) & (2**33 - 1))


# The increment of the numbers that are hashed to 32 bits, and the multipliers of the hash.
_STRIDE: Final = 0x9E37
_MURMUR_1: Final = 0x85EBCA6B - 2**32
_MURMUR_2: Final = 0xC2B2AE35 - 2**32


def seed_streams(seed: int, count: int, device: torch.device) -> Tensor:
    """Return the states of `count` generators, int64 `[count]`; state i depends on seed and i."""
    key = _mix(_mix(torch.tensor(_signed(seed))) + _GAMMA).to(device)
    return _mix(_mix(key + torch.arange(count, device=device)) + _GAMMA)


def split_streams(streams: Tensor) -> Tensor:
    """Return the states `[N]` of independent generators, one split from each given generator."""
    return stored(_mix(streams ^ _MIX_2))


def random_words(streams: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Draw 32 random bits for each element of a shape from each generator.

    The generator's 64 bits are the key of a hash of the numbers 1, 2, 3, ...: half of them enter
    before the first round and half before the second (the 32-bit finaliser of MurmurHash3).
    Processors and accelerators multiply 32-bit integers several times faster than 64-bit ones.

    Args:
        streams: states of the generators, int64 `[N]`.
        shape: shape of the draws of each generator.

    Returns:
        The bits, int32 `[*shape, N]`, and the advanced states.
    """
    key = _mix(streams)
    low, high = stored(key.to(torch.int32)), stored((key >> 32).to(torch.int32))
    numbers = torch.arange(1, math.prod(shape) + 1, dtype=torch.int32, device=streams.device)
    z = (numbers * _STRIDE)[:, None] + low
    z = _fold(z, 16).mul_(_MURMUR_1).add_(high)
    z = _fold(z, 13).mul_(_MURMUR_2)
    words = stored(_fold(z, 16))
    return words.view(*shape, -1), streams + _GAMMA


def _fold(z: Tensor, bits: int) -> Tensor:
    """Return `z ^ (z >> bits)` with a logical shift; overwrites `z` to save cache."""
    return z.bitwise_xor_((z >> bits).bitwise_and_(2 ** (32 - bits) - 1))


def lanes(words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two 16-bit integers of each word, 0 to 65,535, int32."""
    return words & 0xFFFF, (words >> 16) & 0xFFFF


def uniform(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Return two uniform numbers per word, between 0 and 1 exclusive, `[2, *words.shape]`.

    The values are the midpoints of 65,536 equal intervals, 0.8 mm apart across the map.
    """
    return (torch.stack(lanes(words)).to(dtype) + 0.5) / 65536.0


class Noise(NamedTuple):
    """Sensor noise as tables of 65,536 quantiles.

    The table of a normal distribution with a standard deviation of 0.05 m has the resolution of
    float32 at 20 m.

    Attributes:
        normal: errors of one component of position (m) or velocity (m/s).
        factor: ratio of sensed to true radius.
    """

    normal: Tensor
    factor: Tensor

    def displacement(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the errors of x and of y, `[*words.shape]` each."""
        x, y = lanes(words)
        return look_up(self.normal, x), look_up(self.normal, y)

    def radius_factor(self, words: Tensor) -> Tensor:
        """Return the ratio of sensed to true radius, `[*words.shape]`.

        Words already used for displacements can be reused: they are hashed once more.
        """
        return look_up(self.factor, lanes(words * _MURMUR_1)[1])


def make_noise(device: torch.device, dtype: torch.dtype) -> Noise:
    """Compute the noise tables."""
    middle = (np.arange(65536) + 0.5) / 65536
    normal = POSITION_ERROR * math.sqrt(2.0) * torch.erfinv(torch.tensor(2.0 * middle - 1.0))
    # r_obs = 0.8 r + 0.2 r * vonMises(0, kappa = 1) / pi
    angle = np.linspace(-np.pi, np.pi, 2**18 + 1)
    density = np.exp(RADIUS_CONCENTRATION * np.cos(angle))
    below = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    turn = np.interp(middle, below / below[-1], angle) / np.pi
    factor = torch.tensor(RADIUS_BIAS + RADIUS_SPREAD * turn)
    return Noise(normal.to(device, dtype), factor.to(device, dtype))
