"""Schedules of hyperparameters over frames, computed as tensors without a host read."""

from __future__ import annotations

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

    def __call__(self, frames: Tensor) -> Tensor:
        """Return the value, float32 `[]`, after `frames` `[]` environment steps."""
        progress = (frames.to(torch.float32) / self.frames).clamp(max=1.0)
        return self.start + (self.end - self.start) * progress


def optional_schedule(
    name: str, start: float, end: float | None, frames: int | None
) -> LinearSchedule | None:
    """Return the schedule of a hyperparameter, or None for one without an end.

    Args:
        name: name of the hyperparameter; its settings are `name`, `name_end` and `name_frames`.
        start: value at frame 0.
        end: value from frame `frames` on; None for no schedule.
        frames: length of the schedule in environment steps, at least 1; None for no schedule.

    Raises:
        ConfigurationError: only one of `end` and `frames` is given.
    """
    if end is None and frames is None:
        return None
    if end is None or frames is None:
        raise ConfigurationError(f"{name}_end and {name}_frames: a schedule needs both of them")
    return LinearSchedule(start, end, frames)
