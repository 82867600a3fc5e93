"""Sum tree on the device, to sample in proportion to changing priorities.

Source: Schaul et al., "Prioritized Experience Replay", arXiv 1511.05952, appendix B.2.1.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from torchrl_gpu.arguments import checked

# Number of children per node. Each level costs a few kernels that work on rows of this length, so a
# wide tree with few levels is fast (four levels for a million leaves).
_FAN_OUT = 32

# The product with a positive, normal float32 is smaller than the number, however it is rounded.
_JUST_BELOW_ONE = 1.0 - 2.0**-23


class SumTree:
    """Tree with priorities as leaves; each inner node is the sum of its children.

    All values are float32, so a draw has a resolution of about `total / 2**24`. Each operation is
    the same sequence of kernels at every call, with a loop over levels but none over leaves, and
    needs no host reads.

    Args:
        capacity: number of leaves, at least 1; all priorities start at 0.
        device: device of the tree.

    Attributes:
        leaves: priorities, float32 `[capacity]`; call `rebuild` after writing to them directly.
    """

    @checked
    def __init__(self, capacity: Annotated[int, Field(ge=1)], device: torch.device) -> None:
        # Levels from the leaves to the root; all but the root are padded to groups of siblings.
        self._levels: list[Tensor] = []
        nodes = capacity
        while nodes > 1 or not self._levels:
            groups = math.ceil(nodes / _FAN_OUT)
            self._levels.append(torch.zeros(groups * _FAN_OUT, device=device))
            nodes = groups
        self._levels.append(torch.zeros(1, device=device))
        self.leaves = self._levels[0][:capacity]

    @staticmethod
    def bytes_needed(capacity: int) -> int:
        """Return the size in bytes of a tree, without allocating it."""
        numbers, nodes = 1, capacity
        while nodes > 1 or numbers == 1:
            nodes = math.ceil(nodes / _FAN_OUT)
            numbers += nodes * _FAN_OUT
        return 4 * numbers

    @property
    def total(self) -> Tensor:
        """Sum of all priorities, `[]`, a view that reflects every update."""
        return self._levels[-1][0]

    def priorities(self, index: Tensor) -> Tensor:
        """Return the priorities `[B]` of the leaves with indices `[B]` int64."""
        return self.leaves.index_select(0, index)

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities of some leaves.

        Args:
            index: indices of the leaves, `[M]` int64, 0 to capacity - 1. A leaf that occurs
                several times gets the largest of its new priorities.
            priority: new priorities of the leaves, `[M]` float32, finite and at least 0.
        """
        self.leaves.index_put_((index,), torch.zeros_like(priority))
        self.leaves.scatter_reduce_(0, index, priority, "amax")
        # Sums are recomputed, not adjusted by differences, so rounding errors do not accumulate.
        # The parent of several of these leaves is written repeatedly, with the same value.
        parent = index
        for children, parents in pairwise(self._levels):
            parent = parent // _FAN_OUT
            siblings = children.view(-1, _FAN_OUT).index_select(0, parent)
            parents.index_put_((parent,), siblings.sum(1))

    def rebuild(self) -> None:
        """Recompute all sums after direct writes to the leaves."""
        for children, parents in pairwise(self._levels):
            sums = children.view(-1, _FAN_OUT).sum(1)
            parents[: len(sums)].copy_(sums)

    def find(self, mass: Tensor) -> Tensor:
        """Return the first leaves `[B]` int64 whose cumulative sum of priorities exceeds a mass.

        Masses drawn uniformly from 0 to `total` select leaves in proportion to their priorities. A
        leaf of priority 0 is never returned unless all priorities are 0.

        Args:
            mass: target values of the cumulative sum, `[B]` float32, 0 to `total`.
        """
        mass = mass.clamp(min=0.0)
        node = torch.zeros_like(mass, dtype=torch.int64)
        for level in reversed(self._levels[:-1]):
            siblings = level.view(-1, _FAN_OUT).index_select(0, node)
            # Sibling i begins at bounds[i] and ends at bounds[i + 1].
            bounds = F.pad(siblings, (1, 0)).cumsum(1)
            # However sums are rounded, the mass stays below the end of the last nonempty sibling.
            mass = torch.minimum(mass, bounds[:, -1] * _JUST_BELOW_ONE)
            position = (bounds <= mass.unsqueeze(1)).sum(1, keepdim=True) - 1
            # Only in an empty tree all bounds are at or below the mass.
            position = position.clamp(max=_FAN_OUT - 1)
            mass = mass - bounds.gather(1, position).squeeze(1)
            node = node * _FAN_OUT + position.squeeze(1)
        return node
