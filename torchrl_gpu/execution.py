"""How the computations of a run are carried out: acting, and the gradient step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor


class HasTerms(Protocol):
    """Losses of a batch."""

    @property
    def terms(self) -> dict[str, Tensor]:
        """Scalar losses `[]` with their graph, by name."""
        ...


Losses = TypeVar("Losses", bound=HasTerms)


class Execution:
    """Carries out acting and gradient steps, eagerly.

    The collector, evaluations, films and the trainer act and learn through an execution and never
    call a policy or an update themselves. A subclass therefore changes in one place how all agents
    act or learn:

    * `act` and `update` see a computation as a whole, to compile or capture it;
    * `gradients` and `step` are the parts of an update, for the precision of the loss, for scaling
      and for the reduction of gradients over several processes.
    """

    def act(
        self, policy: Callable[[TensorDictBase], TensorDictBase], observation: TensorDictBase
    ) -> TensorDictBase:
        """Let a policy write its actions.

        Args:
            policy: writes `action` into the TensorDict that it is called with.
            observation: the observations `[*B, ...]` that the policy reads.

        Returns:
            The same TensorDict, with `action`.
        """
        return policy(observation)

    def update(self, agent: Any, batch: TensorDictBase) -> Any:
        """Do one gradient step.

        Args:
            agent: its `update(batch, execution)` is the step.
            batch: the transitions `[B]` to learn from.

        Returns:
            Result of the step.
        """
        return agent.update(batch, self)

    def gradients(
        self,
        loss: Callable[[TensorDictBase], Losses],
        batch: TensorDictBase,
        optimizers: Iterable[torch.optim.Optimizer],
    ) -> Losses:
        """Compute the gradients of a gradient step, ready to be clipped.

        Args:
            loss: of an agent.
            batch: the transitions `[B]` to learn from.
            optimizers: of the parameters that learn; former gradients are dropped.

        Returns:
            The losses.
        """
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = loss(batch)
        torch.autograd.backward(list(losses.terms.values()))
        return losses

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the parameters of an optimizer by their gradients."""
        optimizer.step()


EAGER = Execution()
