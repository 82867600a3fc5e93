"""Schedules of hyperparameters over frames, computed as tensors without a host read."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearSchedule(nn.Module):
    """Linear interpolation between two values over frames, constant afterwards.

    Args:
        start: value at frame 0.
        end: value from frame `frames` on.
        frames: length of the schedule in environment steps, at least 1.
    """

    def __init__(self, start: float, end: float, frames: int) -> None:
        super().__init__()
        self.start = start
        self.end = end
        self.frames = frames

    def forward(self, frames: Tensor) -> Tensor:
        """Return the value, float32 `[]`, after `frames` `[]` environment steps."""
        progress = (frames.to(torch.float32) / self.frames).clamp(max=1.0)
        return self.start + (self.end - self.start) * progress
