"""Computations that may not fit into memory: reported in one line, or done in parts."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError

_logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@contextmanager
def enough_memory(device: torch.device, work: str, advice: str) -> Iterator[None]:
    """Report in one line that the memory was insufficient for the work within the block.

    `work` is a phrase such as `the images of 256 transitions`, and `advice` one such as
    `a smaller agent.batch_size`.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not accelerator_of(device).is_out_of_memory(error):
            raise
        raise ConfigurationError(
            f"{device}: the memory is insufficient for {work}; {advice} needs less"
        ) from error


class Fitting:
    """Halves the number of rows of a computation until it fits into memory, and remembers it.

    Messages name the work, such as `the gradients`.
    """

    def __init__(self, work: str) -> None:
        self.work = work
        # Number of rows that fit into memory; None while all have.
        self._size: int | None = None

    def __call__(self, compute: Callable[[int], Result], rows: int, device: torch.device) -> Result:
        """Return the result of a computation in parts of a size that fits.

        Args:
            compute: computes the result over all rows, in parts of at most the given size. After a
                failure it is called again with half of the size, so it shares nothing with other
                processes.
            rows: number of rows, at least 1.
            device: device of the computation.

        Raises:
            ConfigurationError: the memory is insufficient for a single row.
        """
        size = rows if self._size is None else min(rows, self._size)
        accelerator = accelerator_of(device)
        while True:
            try:
                result = compute(size)
                break
            except (RuntimeError, MemoryError) as error:
                if not accelerator.is_out_of_memory(error) or accelerator.is_capturing:
                    raise
                if size == 1:
                    raise ConfigurationError(
                        f"{device}: the memory is insufficient for {self.work} of a single "
                        "transition; smaller networks or observations need less"
                    ) from error
            # Outside the handler, because the error holds the tensors of the failed attempt.
            size = math.ceil(size / 2)
            accelerator.call("empty_cache")
        if size < rows and size != self._size:
            failed = f"{device}: the memory is insufficient for {self.work} of {rows} transitions"
            then = f"they are computed in parts of {size}, which gives the same updates"
            _logger.warning("%s at once; from now on %s", failed, then)
            self._size = size
        return result
