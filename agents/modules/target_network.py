"""Target networks, which follow the networks that learn."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from agents.modules.normalization import ObservationNormalizer
from torchrl_gpu.devices.kinds import accelerator_of


class TargetNetwork(nn.Module):
    """A frozen copy of a network that follows the original.

    It takes the inputs of the original. An off-policy agent updates those among its attributes
    after each gradient step. With `period=1` the copy follows by Polyak averaging at every update;
    with a longer period and `rate=1.0` it becomes equal once per period. Whenever it moves, its
    buffers become those of the original. An `ObservationNormalizer` is shared.

    Args:
        online: network to follow.
        rate: Polyak averaging rate (tau), above 0 to 1; 1 copies the original.
        period: number of calls of `update` per move, at least 1.
    """

    updates: Tensor

    def __init__(self, online: nn.Module, rate: float, period: int = 1) -> None:
        super().__init__()
        # Its statistics describe the observations, and not the network.
        shared = {id(m): m for m in online.modules() if isinstance(m, ObservationNormalizer)}
        self.network = copy.deepcopy(online, shared).requires_grad_(False)
        self.rate = rate
        self.period = period
        # In a tuple, because the original must not become a submodule.
        self._online = (online,)
        self._pairs: tuple[list[Tensor], list[Tensor]] | None = None
        self._buffers_to_copy: list[tuple[Tensor, Tensor]] = []
        device = next(self.network.parameters()).device
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=device))

    def forward(self, *inputs: Any) -> Any:
        """Return the output of the copy."""
        return self.network(*inputs)

    @torch.no_grad()
    def update(self) -> None:
        """Move the copy if it is due: theta' <- (1 - rate) theta' + rate theta."""
        if self._pairs is None:
            (online,) = self._online
            self._pairs = list(self.network.parameters()), list(online.parameters())
            self._buffers_to_copy = list(zip(self.network.buffers(), online.buffers(), strict=True))
            accelerator = accelerator_of(self.updates.device)
            self._lerp, self._reads_stall = accelerator.lerp, accelerator.reads_stall
        targets, originals = self._pairs
        if self.period == 1:
            for target, original in self._buffers_to_copy:
                target.copy_(original)
            if self._lerp:
                torch._foreach_lerp_(targets, originals, self.rate)
            else:
                torch._foreach_mul_(targets, 1.0 - self.rate)
                torch._foreach_add_(targets, originals, alpha=self.rate)
            return
        self.updates.add_(1)
        if not self._reads_stall and int(self.updates) % self.period:
            return
        # On the device, so that the update is the same sequence of operations at every step.
        is_due = self.updates % self.period == 0
        for target, original in self._buffers_to_copy:
            target.copy_(torch.where(is_due, original, target))
        rate = torch.where(is_due, self.rate, 0.0)
        torch._foreach_mul_(targets, 1.0 - rate)
        torch._foreach_add_(targets, torch._foreach_mul(originals, rate))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TargetNetwork:
        """Drop the cached parameters, because a move to a device may replace them."""
        super()._apply(fn, recurse)
        self._pairs = None
        return self
