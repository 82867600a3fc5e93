"""Random number generators of environments in parallel, one for each.

Each is a SplitMix64 generator (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), whose state is one integer of a tensor on the device. `torch.Generator`
is not used: it draws sequentially on a CPU, breaks the graph of `torch.compile`, and is frozen in a
captured graph.
"""

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from envs.compiling import stored


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
MURMUR_1: Final = 0x85EBCA6B - 2**32
_MURMUR_2: Final = 0xC2B2AE35 - 2**32


def seed_streams(seed: int, count: int, device: torch.device) -> Tensor:
    """Return the states of `count` generators, int64 `[count]`; state i depends on seed and i."""
    return _streams([seed], torch.arange(count), device)


def streams_of(seeds: Sequence[int], device: torch.device) -> Tensor:
    """Return the states of one generator for each seed, int64 `[N]`, as `seed_streams` of one."""
    return _streams(seeds, torch.zeros(len(seeds), dtype=torch.int64), device)


def _streams(seeds: Sequence[int], numbers: Tensor, device: torch.device) -> Tensor:
    keys = _mix(_mix(torch.tensor([_signed(seed) for seed in seeds])) + _GAMMA)
    return _mix(_mix(keys + numbers) + _GAMMA).to(device)


def split_streams(streams: Tensor) -> Tensor:
    """Return the states `[N]` of independent generators, one split from each given generator."""
    return stored(_mix(streams ^ _MIX_2))


def random_words(streams: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Draw 32 random bits for each element of a shape from each generator.

    The generator's 64 bits are the key of a hash of the numbers 1, 2, 3, ...: half of them enter
    before the first round and half before the second (the 32-bit finaliser of MurmurHash3).
    Processors and accelerators multiply 32-bit integers several times faster than 64-bit ones.

    Returns:
        The bits, int32 `[*shape, N]`, and the advanced states of the generators, int64 `[N]`.
    """
    key = _mix(streams)
    low, high = stored(key.to(torch.int32)), stored((key >> 32).to(torch.int32))
    numbers = torch.arange(1, math.prod(shape) + 1, dtype=torch.int32, device=streams.device)
    z = (numbers * _STRIDE)[:, None] + low
    z = _fold(z, 16).mul_(MURMUR_1).add_(high)
    z = _fold(z, 13).mul_(_MURMUR_2)
    words = stored(_fold(z, 16))
    return words.view(*shape, -1), streams + _GAMMA


def _fold(z: Tensor, bits: int) -> Tensor:
    """Return `z ^ (z >> bits)` with a logical shift; overwrites `z` to save cache."""
    return z.bitwise_xor_((z >> bits).bitwise_and_(2 ** (32 - bits) - 1))
