"""Random shifts of images: a regularization for agents that learn from pixels.

Source: Yarats et al., "Mastering Visual Continuous Control: Improved Data-Augmented Reinforcement
Learning", arXiv 2107.09645, section 3.1; here by whole pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor


@dataclass(frozen=True)
class RandomShift:
    """Shifts every image of a batch by its own random distance.

    Attributes:
        keys: keys of the images among the observations.
        pixels: longest shift along height and along width, in pixels.
    """

    keys: Sequence[NestedKey]
    pixels: int

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the transitions `[B]` with shifted images; the given batch stays unchanged."""
        shifted = batch.copy()
        for key in self.keys:
            for place in (key, ("next", key)):
                images = batch.get(place, None)
                if images is not None:
                    shifted.set(place, shift_randomly(images, self.pixels))
        return shifted


def shift_randomly(images: Tensor, pixels: int) -> Tensor:
    """Return the images, each shifted by its own random distance; border pixels fill the gaps.

    Args:
        images: `[B, C, H, W]` of any dtype.
        pixels: longest shift along height and along width, in pixels.
    """
    count, _, height, width = images.shape
    down, right = torch.randint(0, 2 * pixels + 1, (2, count), device=images.device)
    bordered = _with_borders(_with_borders(images, pixels, 2), pixels, 3)
    # A view of every shifted image, of which the index copies one for each image of the batch.
    shifted = bordered.unfold(2, height, 1).unfold(3, width, 1)
    return shifted[torch.arange(count, device=images.device), :, down, right]


def _with_borders(images: Tensor, pixels: int, dimension: int) -> Tensor:
    """Repeat the first and the last pixel of a dimension `pixels` times."""
    size = [-1] * images.dim()
    size[dimension] = pixels
    first = images.narrow(dimension, 0, 1).expand(size)
    last = images.narrow(dimension, -1, 1).expand(size)
    return torch.cat((first, images, last), dimension)
