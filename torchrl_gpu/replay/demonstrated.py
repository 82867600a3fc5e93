"""Batches of which demonstrations are a fixed share."""

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu.replay.buffer import ReplayBuffer


class DemonstratedReplay:
    """Draws the last rows of every batch from demonstrations, all others from a replay buffer.

    Both buffers are on one device and of one class, so that n-step returns, priorities and weights
    of a row are those of its buffer.

    Args:
        replay: transitions of the agent.
        demonstrations: transitions of the demonstrations, at least one.
        count: number of rows from demonstrations, at least 1, below the size of a batch.
    """

    def __init__(self, replay: ReplayBuffer, demonstrations: ReplayBuffer, count: int) -> None:
        self._replay, self._demonstrations, self._count = replay, demonstrations, count

    def sample(self, batch_size: int) -> TensorDict:
        """Draw a batch; see `ReplayBuffer.sample`."""
        own = self._replay.sample(batch_size - self._count)
        return torch.cat((own, self._demonstrations.sample(self._count)))

    def update_priorities(self, batch: TensorDictBase, priorities: Tensor | None) -> None:
        """Set new priorities for a batch of `sample`; see `ReplayBuffer.update_priorities`."""
        first = len(batch) - self._count
        for buffer, rows in (
            (self._replay, slice(first)),
            (self._demonstrations, slice(first, None)),
        ):
            own = None if priorities is None else priorities[rows]
            buffer.update_priorities(batch[rows], own)
