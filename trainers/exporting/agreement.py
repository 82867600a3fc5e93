"""Differences of actions between a policy and its exported files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchrl_gpu.errors import ConfigurationError

MAX_DIFFERENCE: Final = 1e-5
BATCHES: Final = (1, 3, 64)

# Actions `[*B, ...]` for observations in their order.
Acts = Callable[[Sequence[Tensor]], Tensor | NDArray[Any]]


@torch.no_grad()
def differences(
    policy: Acts,
    files: Mapping[str, Acts],
    observations: Sequence[Tensor],
    action: Mapping[str, Any],
    batches: Sequence[int] = BATCHES,
) -> dict[str, float]:
    """Return the largest difference of the actions of each file from those of the policy.

    Args:
        policy: policy that was exported.
        files: exported files by name.
        observations: observations `[N, ...]` in their order.
        action: description of the action, see `action_of`.
        batches: batch sizes that all observations are passed in; the last batch is filled up by
            the first observations.

    Returns:
        Differences by name, in halves of the range of each component: 2 for opposite bounds.
    """
    low, high = (np.asarray(action[side], dtype=np.float64) for side in ("low", "high"))
    half = (high - low) / 2
    half = np.where(half > 0, half, 1.0)
    rows, largest = len(observations[0]), dict.fromkeys(files, 0.0)
    for batch in batches:
        for start in range(0, rows, batch):
            index = torch.arange(start, start + batch) % rows
            given = [observation[index] for observation in observations]
            expected = np.asarray(policy(given), dtype=np.float64)
            for name, acts in files.items():
                difference = np.abs(np.asarray(acts(given), dtype=np.float64) - expected) / half
                # NaN, too, is a difference.
                largest[name] = max(largest[name], float(np.nan_to_num(difference, nan=2.0).max()))
    return largest


def check_agreement(largest: Mapping[str, float], rows: int) -> None:
    """Refuse files whose actions differ from those of the policy.

    Raises:
        ConfigurationError: a difference is above 1e-5 of half the range of an action.
    """
    for name, difference in largest.items():
        if difference > MAX_DIFFERENCE:
            raise ConfigurationError(
                f"mode=export: actions of {name} differ from those of the checkpoint by "
                f"{difference:.1e} of half their range, over {rows:,} observations; at most "
                f"{MAX_DIFFERENCE:.0e} is allowed, nothing was exported"
            )
