"""Metrics of updates and episodes, summed on the device and read back together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.errors import ConfigurationError


class MetricAccumulator:
    """Means of the metrics of many updates, summed on the device and read back in one transfer."""

    def __init__(self) -> None:
        # One running sum per set of names: an algorithm may report some only every few updates.
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add the metrics of one update. Reads nothing back.

        Args:
            metrics: detached scalars `[]` by name, all on one device; copied, so that the next
                update may overwrite them.
        """
        names = tuple(metrics)
        values = torch.stack(tuple(metrics.values())).to(torch.float32)
        if names in self._sums:
            self._sums[names].add_(values)
            self._counts[names] += 1
        else:
            self._sums[names] = values
            self._counts[names] = 1

    def flush(self) -> dict[str, float]:
        """Return the mean of each metric over the updates that reported it, and start anew."""
        if not self._sums:
            return {}
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        keys = [(name, names) for names in self._sums for name in names]
        sums = torch.cat(tuple(self._sums.values())).tolist()
        for (name, names), total in zip(keys, sums, strict=True):
            totals[name] = totals.get(name, 0.0) + total
            counts[name] = counts.get(name, 0) + self._counts[names]
        self._sums.clear()
        self._counts.clear()
        return {name: total / counts[name] for name, total in totals.items()}


class EpisodeStatistics:
    """Return, length and success of the episodes of a batch of environments, kept on the device.

    Args:
        num_envs: N, at least 1.
        device: where rewards and dones come from.
    """

    def __init__(self, num_envs: int, device: torch.device | str) -> None:
        # Rows: return and length of the open episodes, success of the last step, 1 to count with.
        self._running = torch.zeros(4, num_envs, device=device)
        self._running[3].fill_(1)
        self._return, self._length, self._success, _ = self._running.unbind()
        self._open = self._running[:2]
        self._totals = torch.zeros_like(self._running)  # the same, summed over ended episodes
        self._zero = torch.zeros((), device=device)
        self._has_success = False

    def update(
        self,
        reward: Tensor,
        done: Tensor,
        success: Tensor | None = None,
        active: Tensor | None = None,
        counted: Tensor | None = None,
    ) -> None:
        """Add one batched step. Reads nothing back.

        Args:
            reward: float `[N, 1]`.
            done: bool `[N, 1]`, terminated or truncated.
            success: bool `[N, 1]`; an episode succeeds if it holds at its last step. None for a
                world that knows no success.
            active: bool `[N, 1]`, false where the row is no step of an episode (its reward is 0);
                None where each one is.
            counted: bool `[N]`, false where an episode that ends with this step is left out of
                the means; None to count each one.
        """
        ended = done.reshape(-1)
        if active is not None:
            ended = ended & active.reshape(-1)
        self._return.add_(reward.reshape(-1))
        self._length.add_(1 if active is None else active.reshape(-1))
        if success is not None:
            self._has_success = True
            self._success.copy_(success.reshape(-1))
        # Not a product with `ended`: a return of nan or inf elsewhere must not leak in.
        taken = ended if counted is None else ended & counted
        self._totals.add_(torch.where(taken, self._running, self._zero))
        self._open.masked_fill_(ended, 0)

    def flush(self) -> dict[str, float]:
        """Return means over the episodes that ended since the last flush, in one transfer.

        Returns:
            `episode/return`, `episode/length` (frames), `episode/success` (0 to 1, if known) and
            `episode/count`; nothing when no episode ended. Open episodes go on.
        """
        total_return, total_length, successes, count = self._totals.sum(dim=1).tolist()
        self._totals.zero_()
        if count == 0:
            return {}
        means = {"episode/return": total_return / count, "episode/length": total_length / count}
        if self._has_success:
            means["episode/success"] = successes / count
        return means | {"episode/count": count}

    def forget_open(self) -> None:
        """Leave the open episodes out: each environment begins a new one."""
        self._open.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return what determines all later results, tensors on the device."""
        return {
            "running": self._running.clone(),
            "totals": self._totals.clone(),
            "has_success": self._has_success,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state: what `state_dict` returned, on any device.

        Raises:
            ConfigurationError: it is of another number of environments.
        """
        saved, own = state["running"].shape[1], self._running.shape[1]
        if saved != own:
            raise ConfigurationError(f"the saved run has num_envs={saved}, this one num_envs={own}")
        self._running.copy_(state["running"])
        self._totals.copy_(state["totals"])
        self._has_success = state["has_success"]
