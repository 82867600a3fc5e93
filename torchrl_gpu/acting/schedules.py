"""Quantities that change in the course of training, as tensors: nothing is read back for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearSchedule(nn.Module):
    """Goes from one value to another in a straight line, and then stays.

    Args:
        start: the value at the first frame.
        end: the value from the last frame of the schedule on.
        frames: how long it takes, in environment steps, at least 1.
    """

    def __init__(self, start: float, end: float, frames: int) -> None:
        super().__init__()
        self.start = start
        self.end = end
        self.frames = frames

    def forward(self, frames: Tensor) -> Tensor:
        """Return the value `[]` after `frames` `[]` environment steps, float32."""
        progress = (frames.to(torch.float32) / self.frames).clamp(max=1.0)
        return self.start + (self.end - self.start) * progress
