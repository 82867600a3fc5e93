"""The processes that train one agent together, and the values that they share."""

from datetime import timedelta
from typing import Any, Final

from torch import Tensor

# Time after which a process gives up on another one that still runs but does not answer. One that
# has ended is noticed at once.
PATIENCE: Final = timedelta(minutes=10)


class Processes:
    """The processes of a run. This class is a run of one process: it returns each value as it is.

    All values that depend on the data of all processes go through this object: gradients, metrics,
    moments, priorities, frames and requests to stop. `DistributedProcesses` overrides the methods
    for several processes. All processes call them in the same order, with tensors of the same
    shapes.

    Attributes:
        rank: number of this process, from 0.
        count: number of processes, at least 1.
    """

    rank: int = 0
    count: int = 1

    @property
    def is_writer(self) -> bool:
        """Whether this process prints, and writes the files of the whole run."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes."""
        return tensor

    def minimum(self, tensor: Tensor) -> Tensor:
        """Return the smallest value of each element of a tensor over the processes."""
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return the tensor of the process of rank 0."""
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors `[N, ...]` of all processes, `[count * N, ...]` by rank."""
        return tensor

    def any(self, flag: bool) -> bool:
        """Return whether the flag of any process is true."""
        return flag

    def agree(self, value: Any) -> Any:
        """Return the value of the process of rank 0, which can be pickled."""
        return value

    def apart(self, patience: timedelta = PATIENCE) -> "Processes":
        """Return the same processes for calls in another thread, or with another patience."""
        return self


ONE_PROCESS = Processes()
