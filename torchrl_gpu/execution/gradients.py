"""Gradients of a batch, computed in parts where the memory is insufficient for the whole."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.precision import Precision

_logger = logging.getLogger(__name__)

Losses = TypeVar("Losses", bound="BatchLosses")


class BatchLosses(Protocol):
    """Losses of one batch, each of them a mean over its rows."""

    @property
    def terms(self) -> dict[str, Tensor]:
        """Scalar losses `[]` with their autograd graph, by name."""
        ...

    def joined(self: Losses, others: Sequence[Losses], shares: Sequence[float]) -> Losses:
        """Return the detached losses of a batch from those of its parts.

        Args:
            others: losses of the parts after this one, in the order of their rows.
            shares: number of rows of each part, this one first, divided by all rows.
        """
        ...


class Gradients:
    """Computes the gradients of batches.

    A batch whose gradients do not fit into memory is halved until its parts do; the sum of their
    gradients is that of the batch. The size of the parts is remembered for all later batches.

    Args:
        precision: precision of losses and gradients.
    """

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        # Number of transitions that fit into memory; None while every batch has.
        self._part_size: int | None = None

    def compute(
        self,
        loss: Callable[[TensorDictBase], Losses],
        batch: TensorDictBase,
        optimizers: Iterable[torch.optim.Optimizer],
    ) -> Losses:
        """Compute the gradients of a loss, which replace those that the parameters have.

        Args:
            loss: loss function of an agent.
            batch: transitions `[B]`.
            optimizers: optimizers of all trained parameters.

        Returns:
            The losses; detached if memory sufficed for parts of the batch only.

        Raises:
            ConfigurationError: the memory is insufficient for a single transition.
        """
        rows = len(batch)
        size = rows if self._part_size is None else min(rows, self._part_size)
        while True:
            try:
                losses = self._accumulate(loss, batch, optimizers, size)
                break
            except (RuntimeError, MemoryError) as error:
                device = _device_of(optimizers)
                accelerator = accelerator_of(device)
                if not accelerator.is_out_of_memory(error) or accelerator.is_capturing:
                    raise
                if size == 1:
                    raise ConfigurationError(
                        f"{device}: the memory is insufficient for the gradients of a single "
                        "transition; smaller networks or observations need less"
                    ) from error
            # Outside the handler, because the error holds the tensors of the failed attempt.
            size = math.ceil(size / 2)
            for optimizer in optimizers:
                optimizer.zero_grad()
            accelerator.empty_cache()
        if size < rows and size != self._part_size:
            _logger.warning(
                "%s: the memory is insufficient for the gradients of %d transitions at once; they "
                "are accumulated over parts of %d from here on, which gives the same updates",
                _device_of(optimizers),
                rows,
                size,
            )
            self._part_size = size
        return losses

    def _accumulate(
        self,
        loss: Callable[[TensorDictBase], Losses],
        batch: TensorDictBase,
        optimizers: Iterable[torch.optim.Optimizer],
        size: int,
    ) -> Losses:
        """Compute the gradients of a batch `[B]` in equal parts of at most `size` rows."""
        for optimizer in optimizers:
            optimizer.zero_grad()
        rows = len(batch)
        if size == rows:
            with self._precision.active():
                losses = loss(batch)
            self._precision.backward(list(losses.terms.values()))
            return losses
        parts = batch.split(math.ceil(rows / math.ceil(rows / size)))
        shares = [len(part) / rows for part in parts]
        done: list[Losses] = []
        for part, share in zip(parts, shares, strict=True):
            with self._precision.active():
                losses = loss(part)
            self._precision.backward([share * term for term in losses.terms.values()])
            done.append(losses)
        return done[0].joined(done[1:], shares)


def _device_of(optimizers: Iterable[torch.optim.Optimizer]) -> torch.device:
    """Return the device of the trained parameters."""
    parameters = (p for o in optimizers for group in o.param_groups for p in group["params"])
    device: torch.device = next(parameters).device
    return device
