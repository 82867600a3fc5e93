"""Schedules of hyperparameters over frames, computed as tensors without a host read."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchrl_gpu.errors import ConfigurationError


@dataclass(frozen=True)
class LinearSchedule:
    """Linear interpolation between two values over frames, constant afterwards.

    Attributes:
        start: value at frame 0.
        end: value from frame `frames` on.
        frames: length of the schedule in environment steps, at least 1.
    """

    start: float
    end: float
    frames: int

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ConfigurationError(f"a schedule takes at least 1 frame, not {self.frames}")

    def __call__(self, frames: Tensor) -> Tensor:
        """Return the value, float32 `[]`, after `frames` `[]` environment steps."""
        progress = (frames.to(torch.float32) / self.frames).clamp(max=1.0)
        return self.start + (self.end - self.start) * progress
