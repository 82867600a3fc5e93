"""Demand of the environments of a batch on the machine, by which `env.num_envs=auto` is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Demand:
    """Demand of the environments of a batch on the machine.

    Attributes:
        device: device that simulates the environments.
        per_core: number of environments that occupy one core of the host, at least 1; None for a
            simulator that steps all environments together, whose number follows the device.
        memory: function that returns the memory on `device` for a number of environments, in bytes;
            ascending.
    """

    device: torch.device = CPU
    per_core: int | None = None
    memory: Callable[[int], int] = lambda count: 0
