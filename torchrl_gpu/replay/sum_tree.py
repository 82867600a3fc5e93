"""Sum tree on the device, to sample in proportion to changing priorities.

Source: Schaul et al., "Prioritized Experience Replay", arXiv 1511.05952, appendix B.2.1.
"""

import math

import torch
from torch import Tensor

from torchrl_gpu.devices.kinds import accelerator_of

# Number of children per node. A level costs a few kernels on rows of this length.
_FAN_OUT = 32

# Largest number of nodes in the top level, which has no parent: three levels for 2 million leaves.
# Its cumulative sum is made once for all draws, so it may be wide.
_TOP_WIDTH = 2048


class SumTree:
    """Tree with priorities as leaves; each inner node is the sum of its children.

    All values are float32. Each operation is the same sequence of kernels at every call, with a
    loop over levels but none over leaves, and needs no host reads.

    Args:
        capacity: number of leaves, at least 1; all priorities start at 0.
        device: device of the tree.

    Attributes:
        leaves: priorities, float32 `[capacity]`; call `rebuild` after writing to them directly.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        # Levels from the leaves to the top; all but the top are padded to groups of siblings.
        self._levels = [torch.zeros(nodes, device=device) for nodes in _level_sizes(capacity)]
        self._groups = [level.view(-1, _FAN_OUT) for level in self._levels[:-1]]
        # Two rows, because CUDA sums a single one in an order that differs from call to call, and
        # a cumulative sum then may exceed its predecessor at a node of priority 0.
        self._top = self._levels[-1].expand(2, -1)
        self._has_searchsorted = accelerator_of(device).searchsorted
        self._strata = self._strata_of(1)
        self.leaves = self._levels[0][:capacity]

    @staticmethod
    def bytes_needed(capacity: int) -> int:
        """Return the size in bytes of a tree, without allocating it."""
        return 4 * sum(_level_sizes(capacity))

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
        for groups, parents in zip(self._groups, self._levels[1:], strict=True):
            parent = parent // _FAN_OUT
            parents.index_put_((parent,), groups.index_select(0, parent).sum(1))

    def rebuild(self) -> None:
        """Recompute all sums after direct writes to the leaves."""
        for groups, parents in zip(self._groups, self._levels[1:], strict=True):
            parents[: len(groups)].copy_(groups.sum(1))

    def draw(self, count: int) -> Tensor:
        """Draw leaves in proportion to their priorities, with replacement.

        The nodes of the top level are drawn one from each of `count` strata of equal probability,
        the leaves below a node independently. A leaf of priority 0 is never drawn unless all
        priorities are 0.

        Args:
            count: number of leaves to draw, at least 1.

        Returns:
            Indices of the leaves, `[count]` int64.
        """
        if count != self._strata[0].shape[1]:
            self._strata = self._strata_of(count)
        ends, lengths = self._strata
        # Positions above 0 up to 1 in the cumulative sums. Separate ones give each level the
        # full resolution of float32: probabilities are exact to about 1 part in 10,000.
        top, *lower = torch.addcmul(ends, torch.rand_like(ends), lengths, value=-1.0).unbind()
        ends = self._top.cumsum(1)[0]
        node = self._first_reaching(ends, ends[-1] * top)
        for groups, fraction in zip(reversed(self._groups), lower, strict=True):
            ends = groups.index_select(0, node.squeeze(1)).cumsum(1)
            child = self._first_reaching(ends, ends[:, -1:] * fraction)
            node = torch.add(child, node, alpha=_FAN_OUT)
        return node.squeeze(1)

    def _first_reaching(self, ends: Tensor, position: Tensor) -> Tensor:
        """Return indices `[B, 1]` of the first ends, `[B, N]` or `[N]`, at or above positions."""
        if self._has_searchsorted:
            return torch.searchsorted(ends, position)
        return (ends < position).sum(1, keepdim=True)

    def _strata_of(self, count: int) -> tuple[Tensor, Tensor]:
        """Return ends `[levels, count, 1]` and lengths `[levels, 1, 1]` of the strata of draws.

        The top level has `count` strata, each lower level a single one.
        """
        device = self._top.device
        ends = torch.ones(len(self._levels), count, 1, device=device)
        ends[0, :, 0] = torch.arange(1, count + 1, device=device) / count
        lengths = torch.ones(len(self._levels), 1, 1, device=device)
        lengths[0] = 1.0 / count
        return ends, lengths


def _level_sizes(capacity: int) -> list[int]:
    """Return the number of nodes of each level, from the leaves to the top."""
    sizes = [capacity]
    while sizes[-1] > _TOP_WIDTH:
        groups = math.ceil(sizes[-1] / _FAN_OUT)
        sizes[-1] = groups * _FAN_OUT
        sizes.append(groups)
    return sizes
