"""Execution of the computations of a run: acting and the gradient step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError

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


class Execution:
    """Runs policies and gradient steps eagerly.

    The collector, evaluations, films and the trainer call policies and updates only through an
    execution. A subclass therefore changes in one place how all agents act or learn:

    * `act` and `update` each wrap a whole computation, to compile it or to capture it in a graph;
    * `gradients` and `step` are the parts of an update: override them to change the precision of
      the loss, to scale gradients, or to reduce gradients over several processes.

    A batch whose gradients do not fit into memory is halved until its parts do; the sum of their
    gradients is that of the batch. An execution remembers the size of the parts for all later
    batches, so it serves one training.
    """

    _part_size: int | None = None  # number of transitions that fit; None while every batch has

    def act(
        self, policy: Callable[[TensorDictBase], TensorDictBase], observation: TensorDictBase
    ) -> TensorDictBase:
        """Call a policy.

        Args:
            policy: callable that writes `action` into its TensorDict argument.
            observation: observations `[*B, ...]` that the policy reads.

        Returns:
            `observation` itself, with `action` added.
        """
        return policy(observation)

    def update(self, agent: Any, batch: TensorDictBase) -> Any:
        """Do one gradient step.

        Args:
            agent: agent whose `update(batch, execution)` does the step.
            batch: transitions `[B]` to learn from.

        Returns:
            The return value of the agent's `update`.
        """
        return agent.update(batch, self)

    def gradients(
        self,
        loss: Callable[[TensorDictBase], Losses],
        batch: TensorDictBase,
        optimizers: Iterable[torch.optim.Optimizer],
    ) -> Losses:
        """Compute the gradients of one gradient step, ready to be clipped.

        Args:
            loss: loss function of an agent.
            batch: transitions `[B]` to learn from.
            optimizers: optimizers of all trained parameters; their old gradients are cleared.

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
                if not accelerator_of(device).is_out_of_memory(error):
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
            accelerator_of(device).empty_cache()
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
            losses = loss(batch)
            torch.autograd.backward(list(losses.terms.values()))
            return losses
        parts = batch.split(math.ceil(rows / math.ceil(rows / size)))
        shares = [len(part) / rows for part in parts]
        done: list[Losses] = []
        for part, share in zip(parts, shares, strict=True):
            losses = loss(part)
            torch.autograd.backward([share * term for term in losses.terms.values()])
            done.append(losses)
        return done[0].joined(done[1:], shares)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the parameters of an optimizer from their gradients."""
        optimizer.step()


def _device_of(optimizers: Iterable[torch.optim.Optimizer]) -> torch.device:
    """Return the device of the trained parameters."""
    parameters = (p for o in optimizers for group in o.param_groups for p in group["params"])
    device: torch.device = next(parameters).device
    return device


EAGER = Execution()
