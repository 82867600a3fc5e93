"""Random shifts of images: a regularization for agents that learn from pixels.

Source: Yarats et al., "Mastering Visual Continuous Control: Improved Data-Augmented Reinforcement
Learning", arXiv 2107.09645, section 3.1; here by whole pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor


class RandomShift:
    """Shifts every image of a batch by its own random distance.

    Args:
        keys: keys of the images among the observations.
        pixels: longest shift along height and along width, in pixels.
    """

    def __init__(self, keys: Sequence[NestedKey], pixels: int) -> None:
        self.keys = list(keys)
        self.pixels = pixels

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the transitions `[B]` with shifted images; the given batch stays unchanged."""
        shifted = batch.copy()
        for key in self.keys:
            path = (key,) if isinstance(key, str) else key
            for place in (path, ("next", *path)):
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
    count, channels, height, width = images.shape
    device = images.device
    shifts = torch.randint(-pixels, pixels + 1, (2, count, 1), device=device)
    rows = (torch.arange(height, device=device) + shifts[0]).clamp(0, height - 1)
    columns = (torch.arange(width, device=device) + shifts[1]).clamp(0, width - 1)
    image = torch.arange(count, device=device)
    channel = torch.arange(channels, device=device)
    return images[
        image[:, None, None, None],
        channel[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
