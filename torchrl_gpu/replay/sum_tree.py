"""Drawing in proportion to priorities that change all the time, on the device.

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

# Children of a node. A node is handled by one operation on a row of so many numbers, and a level by
# a few kernels: a wide tree has few levels (four for a million leaves).
_FAN_OUT = 32


class SumTree:
    """Priorities in the leaves of a tree, and in each node above them the sum of its children.

    All is float32, so a draw resolves about `total / 2**24`. Each operation is the same sequence of
    kernels at every call, with a loop over levels but none over leaves; nothing is read back.

    Args:
        capacity: number of leaves, at least 1. All priorities are 0 at first.
        device: where the tree lives.

    Attributes:
        leaves: float32 `[capacity]`, the priorities. Whoever writes to them calls `rebuild`.
    """

    @checked
    def __init__(self, capacity: Annotated[int, Field(ge=1)], device: torch.device) -> None:
        # The leaves first, the root last; all but the root padded to whole groups of siblings.
        self._levels: list[Tensor] = []
        nodes = capacity
        while nodes > 1 or not self._levels:
            groups = math.ceil(nodes / _FAN_OUT)
            self._levels.append(torch.zeros(groups * _FAN_OUT, device=device))
            nodes = groups
        self._levels.append(torch.zeros(1, device=device))
        self.leaves = self._levels[0][:capacity]
        self._positions = torch.arange(_FAN_OUT, device=device)

    @staticmethod
    def bytes_needed(capacity: int) -> int:
        """Return the size in bytes of a tree, without building it."""
        numbers, nodes = 1, capacity
        while nodes > 1 or numbers == 1:
            nodes = math.ceil(nodes / _FAN_OUT)
            numbers += nodes * _FAN_OUT
        return 4 * numbers + 8 * _FAN_OUT

    @property
    def total(self) -> Tensor:
        """The sum of all priorities, `[]`, a view that follows every update."""
        return self._levels[-1][0]

    def priorities(self, index: Tensor) -> Tensor:
        """Return the priorities `[B]` of leaves `[B]` int64."""
        return self.leaves.index_select(0, index)

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities of some leaves.

        Args:
            index: the leaves, `[M]` int64, 0 to capacity - 1. Where one occurs several times, the
                largest of its new priorities counts.
            priority: their new priorities, `[M]` float32, finite and at least 0.
        """
        self.leaves.index_put_((index,), torch.zeros_like(priority))
        self.leaves.scatter_reduce_(0, index, priority, "amax")
        # Sums are taken afresh, never adjusted by a difference: no rounding error builds up. A
        # parent of several of these leaves is written several times, each time the same.
        parent = index
        for children, parents in pairwise(self._levels):
            parent = parent // _FAN_OUT
            siblings = children.view(-1, _FAN_OUT).index_select(0, parent)
            parents.index_put_((parent,), siblings.sum(1))

    def rebuild(self) -> None:
        """Sum up all leaves anew, after they were written to directly."""
        for children, parents in pairwise(self._levels):
            sums = children.view(-1, _FAN_OUT).sum(1)
            parents[: len(sums)].copy_(sums)

    def find(self, mass: Tensor) -> Tensor:
        """Return the leaves `[B]` int64 at which the sum over all leaves so far exceeds a mass.

        With masses drawn uniformly from 0 to `total`, leaves are drawn in proportion to their
        priorities. A leaf of priority 0 is never found while any other is there.

        Args:
            mass: `[B]` float32, 0 to `total`.
        """
        node = torch.zeros_like(mass, dtype=torch.int64)
        for level in reversed(self._levels[:-1]):
            siblings = level.view(-1, _FAN_OUT).index_select(0, node)
            # The mass falls to the last of the siblings that begin at or before it. The first that
            # is not empty begins at 0, so however sums are rounded, there is one.
            begins = F.pad(siblings[:, :-1].cumsum(1), (1, 0))
            is_candidate = (begins <= mass.unsqueeze(1)) & (siblings > 0.0)
            position = torch.where(is_candidate, self._positions, 0).amax(1, keepdim=True)
            mass = mass - begins.gather(1, position).squeeze(1)
            node = node * _FAN_OUT + position.squeeze(1)
        return node
