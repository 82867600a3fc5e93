"""Execution of the computations of a run: acting and the gradient step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor


class HasTerms(Protocol):
    """Losses of one batch."""

    @property
    def terms(self) -> dict[str, Tensor]:
        """Scalar losses `[]` with their autograd graph, by name."""
        ...


Losses = TypeVar("Losses", bound=HasTerms)


class Execution:
    """Runs policies and gradient steps eagerly.

    The collector, evaluations, films and the trainer call policies and updates only through an
    execution. A subclass therefore changes in one place how all agents act or learn:

    * `act` and `update` each wrap a whole computation, to compile it or to capture it in a graph;
    * `gradients` and `step` are the parts of an update: override them to change the precision of
      the loss, to scale gradients, or to reduce gradients over several processes.
    """

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
            The losses.
        """
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = loss(batch)
        torch.autograd.backward(list(losses.terms.values()))
        return losses

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the parameters of an optimizer from their gradients."""
        optimizer.step()


EAGER = Execution()
