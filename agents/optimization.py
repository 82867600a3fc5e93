"""Pieces of a gradient step that agents share."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def adam(
    parameters: Iterable[nn.Parameter], learning_rate: float, device: torch.device
) -> torch.optim.Adam:
    """Build an Adam that does its whole step in one kernel where the device has one."""
    return torch.optim.Adam(parameters, lr=learning_rate, fused=device.type in ("cpu", "cuda"))


class TargetNetwork:
    """Keeps a frozen copy of a network, moved towards the original by Polyak averaging.

    Args:
        online: the network that learns.
        target: its copy; is set equal to it and frozen.
    """

    def __init__(self, online: nn.Module, target: nn.Module) -> None:
        target.load_state_dict(online.state_dict())
        target.requires_grad_(False)
        self._online = [parameter.detach() for parameter in online.parameters()]
        self._target: list[Tensor] = list(target.parameters())

    def update(self, rate: float) -> None:
        """Move the target: theta' <- (1 - rate) theta' + rate theta."""
        torch._foreach_lerp_(self._target, self._online, rate)
