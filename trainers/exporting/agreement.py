"""Differences of actions between a policy and its exported files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchrl_gpu.errors import ConfigurationError

MAX_DIFFERENCE: Final = 1e-5
BATCHES: Final = (1, 3, 64)

# Differences up to so many times the rounding of the policy, and up to this one, are rounding too:
# another library adds and evaluates functions in its own way. Of the shipped policies, one that
# reads pixels differs by 2.2e-5, with a rounding of 1.2e-5.
_ROUNDINGS: Final = 4
_MAX_ROUNDING: Final = 1e-4

# Actions `[*B, ...]` for observations in their order.
Acts = Callable[[Sequence[Tensor]], Tensor | NDArray[Any]]


@dataclass(frozen=True)
class Agreement:
    """Largest differences of actions, in halves of the range of each component: 2 between bounds.

    Attributes:
        differences: of each exported file from the policy, by name.
        rounding: of the policy from itself, in batches of other sizes. Sums in another order are
            rounded differently, so that no file can agree better.
        observations: number of observations that were compared.
        batches: batch sizes.
    """

    differences: dict[str, float]
    rounding: float
    observations: int
    batches: tuple[int, ...]

    def check(self) -> None:
        """Refuse files whose actions differ from those of the policy by more than rounding."""
        limit = max(MAX_DIFFERENCE, min(_ROUNDINGS * self.rounding, _MAX_ROUNDING))
        for name, difference in self.differences.items():
            if difference > limit:
                raise ConfigurationError(
                    f"mode=export: actions of {name} differ from those of the checkpoint by "
                    f"{difference:.1e} of half their range, over {self.observations:,} "
                    f"observations; at most {limit:.1e} is allowed, nothing was exported"
                )

    def __str__(self) -> str:
        """Return all figures as one line of text."""
        *first, last = map(str, self.batches)
        differences = ", ".join(f"{name} {x:.1e}" for name, x in self.differences.items())
        return (
            f"{differences}, rounding {self.rounding:.1e} of half the range of an action, at most, "
            f"over {self.observations:,} observations at batches of {', '.join(first)} and {last}"
        )


@torch.no_grad()
def agreement(
    policy: Acts,
    files: Mapping[str, Acts],
    observations: Sequence[Tensor],
    action: Mapping[str, Any],
    batches: Sequence[int] = BATCHES,
) -> Agreement:
    """Compare the actions of files with those of the policy.

    Args:
        policy: policy that was exported.
        files: exported files by name.
        observations: observations `[N, ...]` in their order.
        action: description of the action, see `action_of`.
        batches: two or more batch sizes that all observations are passed in; the last batch is
            filled up by the first observations.
    """
    low, high = (np.asarray(action[side], dtype=np.float64) for side in ("low", "high"))
    half = (high - low) / 2
    half = np.where(half > 0, half, 1.0)
    rows = len(observations[0])

    def act(acts: Acts, batch: int) -> NDArray[np.float64]:
        indices = torch.arange(-(-rows // batch) * batch) % rows
        parts = [acts([each[index] for each in observations]) for index in indices.split(batch)]
        return np.concatenate([np.asarray(part) for part in parts])[:rows] / half

    def difference(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
        # NaN, too, is a difference.
        return float(np.nan_to_num(np.abs(one - other), nan=2.0).max())

    expected = {batch: act(policy, batch) for batch in batches}
    largest = {
        name: max(difference(act(acts, batch), expected[batch]) for batch in batches)
        for name, acts in files.items()
    }
    first, *others = expected.values()
    rounding = max(difference(first, other) for other in others)
    return Agreement(largest, rounding, rows, tuple(batches))
