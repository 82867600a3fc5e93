"""Several processes of a run, played by threads of one process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchrl_gpu.processes import PATIENCE, Processes

Result = TypeVar("Result")


class Rank(Processes):
    """One of several threads that reduce their tensors together.

    Args:
        rank: number of the thread.
        shared: the current value of each thread.
        barrier: where the threads wait for each other.
        apart: the same for other threads, which `apart` returns.
    """

    def __init__(
        self, rank: int, shared: list[Any], barrier: Barrier, apart: Processes | None = None
    ) -> None:
        self._apart = apart
        self.rank = rank
        self.count = len(shared)
        self._shared = shared
        self._barrier = barrier

    def sum(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._gather(tensor)).sum(dim=0)

    def minimum(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._gather(tensor)).amin(dim=0)

    def broadcast(self, tensor: Tensor) -> Tensor:
        return self._gather(tensor)[0].clone()

    def gather(self, tensor: Tensor) -> Tensor:
        return torch.cat(self._gather(tensor))

    def any(self, flag: bool) -> bool:
        return any(self._gather(flag))

    def agree(self, value: Any) -> Any:
        return self._gather(value)[0]

    def apart(self, patience: timedelta = PATIENCE) -> Processes:
        assert self._apart is not None
        return self._apart

    def _gather(self, value: Any) -> list[Any]:
        """Return the values of all threads, in the order of their ranks."""
        self._shared[self.rank] = value.clone() if isinstance(value, Tensor) else value
        self._barrier.wait(timeout=60)
        values = list(self._shared)
        self._barrier.wait(timeout=60)
        return values


def on_ranks(count: int, work: Callable[[Processes], Result]) -> list[Result]:
    """Do work on several ranks at once, and return the results in the order of the ranks."""
    barriers = Barrier(count), Barrier(count)
    shared = [None] * count, [None] * count

    def run(rank: int) -> Result:
        try:
            apart = Rank(rank, shared[1], barriers[1])
            return work(Rank(rank, shared[0], barriers[0], apart))
        except BaseException:
            for barrier in barriers:
                barrier.abort()
            raise

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))
