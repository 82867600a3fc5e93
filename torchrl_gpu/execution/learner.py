"""Interfaces of the gradient step with agent and replay: losses, updates and methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from torchrl_gpu.processes import Processes


class Losses(NamedTuple):
    """Result of a loss function.

    Attributes:
        terms: differentiable scalar losses `[]` by name (`loss/...`), each a mean over the rows of
            the batch; a gradient step minimizes their sum.
        metrics: other detached scalars `[]` by name, each a mean over the rows of the batch.
        priorities: floating-point `[B]`, at least 0: the new priority of each transition of the
            batch in a prioritized replay; None for an agent that computes none.
    """

    terms: dict[str, Tensor]
    metrics: dict[str, Tensor]
    priorities: Tensor | None = None

    def detached(self) -> Losses:
        """Return the losses without their gradients."""
        terms = {name: term.detach() for name, term in self.terms.items()}
        # Not `_replace`, which the compiler of torch 2.11 does not trace.
        return Losses(terms, self.metrics, self.priorities)

    @staticmethod
    def joined(parts: Sequence[Losses], shares: Sequence[float]) -> Losses:
        """Return the losses of a batch from the detached ones of its parts, in the order of rows.

        `shares` are the numbers of rows of the parts, divided by all rows.
        """

        def mean(scalars: Sequence[Tensor]) -> Tensor:
            shared = [share * scalar for share, scalar in zip(shares, scalars, strict=True)]
            return torch.stack(shared).sum(dim=0)

        first = parts[0]
        priorities = [part.priorities for part in parts if part.priorities is not None]
        return Losses(
            terms={name: mean([part.terms[name] for part in parts]) for name in first.terms},
            metrics={name: mean([part.metrics[name] for part in parts]) for name in first.metrics},
            priorities=torch.cat(priorities) if priorities else None,
        )


class Update(NamedTuple):
    """Result of a gradient step: detached scalars `[]` by name, and priorities as in `Losses`."""

    metrics: dict[str, Tensor]
    priorities: Tensor | None


# Adds the gradients of the losses of a part of a batch, multiplied by the factor `[]`, to those of
# the parameters, and returns the detached losses.
Differentiation: TypeAlias = Callable[[TensorDictBase, Tensor], Losses]


class Replay(Protocol):
    """Replay that batches are drawn from, see `ReplayBuffer`."""

    @property
    def can_capture(self) -> bool:
        """Whether `sample` depends on tensors alone, which stay in their memory."""

    def sample(self, batch_size: int) -> TensorDictBase:
        """Draw transitions `[batch_size]`."""


class Learner(Protocol):
    """Agent as a gradient step sees it; `agents.Agent` describes each attribute."""

    device: torch.device
    processes: Processes
    max_gradient_norm: float | None
    phase: int

    def modules(self) -> Iterator[nn.Module]:
        """Yield all networks and layers."""

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimizers of all trained parameters, by name."""

    def follow_rate_schedule(self) -> None:
        """Set the learning rates that follow a schedule."""

    def prepare_batch(self, batch: TensorDictBase) -> TensorDictBase:
        """Return a batch with all entries that `loss` reads."""

    def loss(self, batch: TensorDictBase) -> Losses:
        """Return the differentiable losses of a prepared batch, or of a part of its rows."""

    def after_update(self, metrics: dict[str, Tensor]) -> None:
        """Run after each gradient step."""

    def advance(self) -> None:
        """Set `phase` for the next gradient step."""
