"""How the computations of a run are carried out: acting, and the gradient step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tensordict import TensorDictBase

Result = TypeVar("Result")


class Execution:
    """Calls every policy and every gradient step of a run, eagerly.

    Collectors, evaluations, films and the trainer act and learn through an execution and never call
    a policy or an update themselves. A subclass that overrides a method therefore changes how all
    agents act or learn, for instance with other numeric precision or as one compiled function.
    Gradients can be changed between backward pass and clipping by hooks on the parameters
    (`torch.Tensor.register_post_accumulate_grad_hook`).
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

    def update(self, step: Callable[[TensorDictBase], Result], batch: TensorDictBase) -> Result:
        """Do one gradient step.

        Args:
            step: `update` of an agent.
            batch: the transitions `[B]` to learn from.

        Returns:
            Result of the step.
        """
        return step(batch)
