"""Pieces of a gradient step that agents share."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from torchrl_gpu.accelerator import accelerator_of


def adam(
    parameters: Iterable[nn.Parameter],
    learning_rate: float | Tensor,
    device: torch.device,
    epsilon: float = 1e-8,
) -> torch.optim.Adam:
    """Build an Adam that does its whole step in as few kernels as the device allows.

    Nothing is read back from a device that an optimizer can be captured on, not even a learning
    rate that is a tensor.
    """
    options = accelerator_of(device).adam_options
    return torch.optim.Adam(parameters, lr=learning_rate, eps=epsilon, **options)


class TargetNetwork(nn.Module):
    """A frozen copy of a network that follows the original.

    Called as the original is. With `period=1` it follows at every update by Polyak averaging; with
    a longer period and `rate=1.0` it is copied every so many updates.

    Args:
        online: the network that learns.
        rate: share of the original that moves into the copy, above 0 to 1 (tau).
        period: updates from one move to the next, at least 1.
    """

    updates: Tensor

    def __init__(self, online: nn.Module, rate: float, period: int = 1) -> None:
        super().__init__()
        self.network = copy.deepcopy(online).requires_grad_(False)
        self.rate = rate
        self.period = period
        self._online = [parameter.detach() for parameter in online.parameters()]
        self._target: list[Tensor] = list(self.network.parameters())
        device = self._target[0].device
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=device))

    def forward(self, *inputs: Any) -> Any:
        """Return what the copy says."""
        return self.network(*inputs)

    @torch.no_grad()
    def update(self) -> None:
        """Move the copy, if it is time: theta' <- (1 - rate) theta' + rate theta."""
        if self.period == 1:
            torch._foreach_lerp_(self._target, self._online, self.rate)
            return
        # On the device, so that the update is the same sequence of operations at every step.
        self.updates.add_(1)
        rate = torch.where(self.updates % self.period == 0, self.rate, 0.0)
        for target, online in zip(self._target, self._online, strict=True):
            target.lerp_(online, rate)
