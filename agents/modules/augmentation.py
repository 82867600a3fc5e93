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
    """Shifts every image of a batch by its own random distance."""

    keys: Sequence[NestedKey]  # of the images among the observations
    pixels: int  # longest shift along height and along width

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
    """Return images `[B, C, H, W]` of any dtype, each shifted by its own random distance.

    Border pixels fill the gaps. The longest shift along height and along width is `pixels`.
    """
    count, channels, height, width = images.shape
    down, right = torch.randint(0, 2 * pixels + 1, (2, count), device=images.device)
    # The last row below is beyond the end of the longest shift.
    bordered = _with_borders(_with_borders(images, 2, pixels, pixels + 1), 3, pixels, pixels)
    if not images.is_cpu:
        # Other devices may copy a whole view before they index it, and this one is smaller.
        windows = bordered.unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(count, device=images.device), :, down, right]
    lines, line = bordered.shape[2:]
    # The rows of a shifted image, with the pixels between them, are one run of the bordered one: an
    # index copies whole runs several times as fast as pixels.
    runs = bordered.flatten().unfold(0, height * line, 1)
    planes = torch.arange(0, bordered.numel(), lines * line, device=images.device)
    starts = planes.reshape(count, channels) + (down * line + right).unsqueeze(1)
    shifted = runs.index_select(0, starts.flatten())
    return shifted.reshape(count, channels, height, line)[..., :width]


def _with_borders(images: Tensor, dimension: int, before: int, after: int) -> Tensor:
    """Repeat the first and the last pixel of a dimension a number of times."""
    size = [-1] * images.dim()
    first, last = images.narrow(dimension, 0, 1), images.narrow(dimension, -1, 1)
    size[dimension] = before
    first = first.expand(size)
    size[dimension] = after
    return torch.cat((first, images, last.expand(size)), dimension)
