"""Sum tree on the device, to sample in proportion to changing priorities.

Source: Schaul et al., "Prioritized Experience Replay", arXiv 1511.05952, appendix B.2.1.
"""

import math

import torch
from torch import Tensor

from torchrl_gpu.devices.kinds import accelerator_of

# Number of children per node. A level costs a few kernels on rows of this length.
FAN_OUT = 32

# Largest number of nodes in the top level, which has no parent: three levels for 2 million leaves.
# Its cumulative sum is made once for all draws, so it may be wide.
_TOP_WIDTH = 2048


class SumTree:
    """Tree with priorities as leaves, at first 0; each inner node is the sum of its children.

    All values are float32. Each operation is the same sequence of kernels at every call, with a
    loop over levels but none over leaves, and needs no host reads.

    Attributes:
        leaves: priorities, float32 `[capacity]`; call `rebuild` after writing to them directly.
        total: sum of all priorities, float32 `[]`.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        # Levels from the leaves to the top; all but the top are padded to groups of siblings.
        self._levels = [torch.zeros(nodes, device=device) for nodes in _level_sizes(capacity)]
        self._groups = [level.view(-1, FAN_OUT) for level in self._levels[:-1]]
        # Cumulative sums of each group as shares of its sum, by which a draw finds a child. Those
        # of a group of sum 0 may be NaN, which compares as "not below a position".
        self._shares = [torch.ones_like(groups) for groups in self._groups]
        # Two rows, because CUDA sums a single one in an order that differs from call to call, and
        # a cumulative sum then may exceed its predecessor at a node of priority 0.
        self._top = self._levels[-1].expand(2, -1)
        # The last share stays 1, so that a search ends there if all priorities are 0.
        self._top_shares = torch.ones_like(self._levels[-1])
        self._inner_top_shares = self._top_shares[:-1]
        self._ones = torch.ones(FAN_OUT, 1, device=device)
        self._has_searchsorted = accelerator_of(device).searchsorted
        self.leaves = self._levels[0][:capacity]
        self.total = torch.zeros((), device=device)
        self._prepare(1)

    @staticmethod
    def bytes_needed(capacity: int) -> int:
        """Return the size in bytes of a tree, without allocating it."""
        return 8 * sum(_level_sizes(capacity))

    def update(self, index: Tensor, priority: Tensor, touched: Tensor | None = None) -> None:
        """Set the priorities of some leaves.

        Args:
            index: indices of the leaves, `[M]` int64, 0 to capacity - 1. A leaf that occurs
                several times gets the largest of its new priorities.
            priority: new priorities of the leaves, `[M]` float32, finite and at least 0.
            touched: indices of any leaves, at least one in each group of `FAN_OUT` siblings that
                has one of `index`, which spares sums where groups change as a whole; None for
                `index`.
        """
        self.leaves.scatter_reduce_(0, index, priority, "amax", include_self=False)
        # Sums are recomputed, not adjusted by differences, so rounding errors do not accumulate.
        # The parent of several of these leaves is written repeatedly, with the same value.
        parent = index if touched is None else touched
        levels = zip(self._groups, self._shares, self._levels[1:], strict=True)
        for groups, shares, parents in levels:
            parent = parent // FAN_OUT
            sums = groups.index_select(0, parent).cumsum(1)
            total = sums.narrow(1, -1, 1)
            shares.index_put_((parent,), sums / total)
            parents.index_put_((parent,), total.squeeze(1))
        self._update_top()

    def rebuild(self) -> None:
        """Recompute all sums after direct writes to the leaves."""
        levels = zip(self._groups, self._shares, self._levels[1:], strict=True)
        for groups, shares, parents in levels:
            sums = groups.cumsum(1)
            shares.copy_(sums / sums[:, -1:])
            parents[: len(groups)].copy_(sums[:, -1])
        self._update_top()

    def draw(self, count: int) -> Tensor:
        """Draw leaves `[count]` int64 in proportion to their priorities, with replacement.

        The nodes of the top level are drawn one from each of `count` strata of equal probability,
        the leaves below a node independently. A leaf of priority 0 is never drawn unless all
        priorities are 0.
        """
        if count != len(self._top_position):
            self._prepare(count)
        ends, lengths = self._strata
        # Positions above 0 up to 1 in the cumulative sums. Separate ones give each level the
        # full resolution of float32: probabilities are exact to about 1 part in 10,000.
        draws = self._positions.uniform_()
        torch.addcmul(ends, draws, lengths, value=-1.0, out=self._positions)
        # A draw is the first node whose cumulative sum reaches its position.
        if self._has_searchsorted:
            node = torch.searchsorted(self._top_shares, self._top_position)
        else:
            node = (self._top_shares < self._positions[0]).sum(1)
        for shares, position in self._lower:
            # Counting is faster than a search, whose branches processors cannot predict.
            torch.index_select(shares, 0, node, out=self._siblings)
            torch.mm(self._siblings.lt_(position), self._ones, out=self._below)
            node = self._below_by_draw.long().add_(node, alpha=FAN_OUT)
        return node

    def _update_top(self) -> None:
        """Recompute the cumulative sums of the top level."""
        sums = self._top.cumsum(1)[0]
        self.total = sums[-1]
        torch.div(sums[:-1], self.total, out=self._inner_top_shares)

    def _prepare(self, count: int) -> None:
        """Prepare the tensors of draws of `count` leaves.

        The strata have ends `[levels, count, 1]` and lengths `[levels, 1, 1]`: `count` in the top
        level, a single one in each lower level.
        """
        device = self.leaves.device
        ends = torch.ones(len(self._levels), count, 1, device=device)
        ends[0, :, 0] = torch.arange(1, count + 1, device=device) / count
        lengths = torch.ones(len(self._levels), 1, 1, device=device)
        lengths[0] = 1.0 / count
        self._strata = ends, lengths
        self._positions = torch.empty_like(ends)
        top, *lower = self._positions.unbind()
        self._top_position = top.squeeze(1)
        self._lower = list(zip(reversed(self._shares), lower, strict=True))
        self._siblings = torch.empty(count, FAN_OUT, device=device)
        self._below = torch.empty(count, 1, device=device)
        self._below_by_draw = self._below.squeeze(1)


def _level_sizes(capacity: int) -> list[int]:
    """Return the number of nodes of each level, from the leaves to the top."""
    sizes = [capacity]
    while sizes[-1] > _TOP_WIDTH:
        groups = math.ceil(sizes[-1] / FAN_OUT)
        sizes[-1] = groups * FAN_OUT
        sizes.append(groups)
    return sizes
