"""Gradients of a batch, computed in parts if the memory is insufficient for the whole."""

import math
from collections.abc import Sequence

import torch
from tensordict import TensorDictBase

from torchrl_gpu.execution.fitting import Fitting
from torchrl_gpu.execution.learner import Losses, LossFunction
from torchrl_gpu.execution.precision import Precision


class Gradients:
    """Computes the gradients of batches in a precision.

    A batch whose gradients do not fit into memory is halved until its parts do; the sum of their
    gradients is that of the batch. The size of the parts is remembered for all later batches.

    Args:
        precision: precision of losses and gradients.
    """

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self._fitting = Fitting("the gradients")

    def compute(
        self,
        loss: LossFunction,
        batch: TensorDictBase,
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> Losses:
        """Compute the gradients of a loss, which replace those that the parameters have.

        Args:
            loss: loss function of an agent.
            batch: transitions `[B]`.
            optimizers: optimizers of all trained parameters.

        Returns:
            The losses; detached if memory sufficed for parts of the batch only. The gradients are
            multiplied by the scale of the precision.

        Raises:
            ConfigurationError: the memory is insufficient for a single transition.
        """
        parameters = (p for o in optimizers for group in o.param_groups for p in group["params"])
        device: torch.device = next(parameters).device

        def accumulate(size: int) -> Losses:
            for optimizer in optimizers:
                optimizer.zero_grad()
            return self._accumulate(loss, batch, size)

        return self._fitting(accumulate, len(batch), device)

    def _accumulate(self, loss: LossFunction, batch: TensorDictBase, size: int) -> Losses:
        """Add the gradients of a batch `[B]` in equal parts of at most `size` rows."""
        rows = len(batch)
        if size == rows:
            return self._add(loss, batch)
        parts = batch.split(math.ceil(rows / math.ceil(rows / size)))
        shares = [len(part) / rows for part in parts]
        losses = [self._add(loss, part, share) for part, share in zip(parts, shares, strict=True)]
        return Losses.joined(losses, shares)

    def _add(self, loss: LossFunction, batch: TensorDictBase, share: float = 1.0) -> Losses:
        """Add the gradients of a loss, multiplied by a share."""
        with self.precision.active():
            losses = loss(batch)
        terms = list(losses.terms.values())
        self.precision.backward(terms if share == 1.0 else [share * term for term in terms])
        return losses
