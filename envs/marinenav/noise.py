"""Sensor noise, drawn from the random number generators of the seas."""

import math
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from envs.compiling import look_up
from envs.streams import MURMUR_1

POSITION_ERROR: Final = 0.05  # m, standard deviation of each component; also of velocities, m/s
RADIUS_BIAS: Final = 0.8
RADIUS_SPREAD: Final = 0.2
RADIUS_CONCENTRATION: Final = 1.0  # kappa of the von Mises distribution


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
    """

    normal: Tensor  # errors of one component of position (m) or velocity (m/s)
    factor: Tensor  # ratio of sensed to true radius

    def displacement(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the errors of x and of y, `[*words.shape]` each."""
        x, y = lanes(words)
        return look_up(self.normal, x), look_up(self.normal, y)

    def radius_factor(self, words: Tensor) -> Tensor:
        """Return the ratio of sensed to true radius, `[*words.shape]`.

        Words already used for displacements can be reused: they are hashed once more.
        """
        return look_up(self.factor, lanes(words * MURMUR_1)[1])


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
