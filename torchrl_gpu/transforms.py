"""Transforms between worlds and agents, for any TorchRL environment."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Composite
from torchrl.envs import EnvBase, Transform, TransformedEnv


class ActionTable(Transform):
    """Lets agents with discrete actions act in a continuous world.

    An action is the number of a row of a table, and the world receives that row.

    Args:
        table: `[A, action_dim]`, within the bounds of the world's actions.
    """

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__(in_keys_inv=["action"], out_keys_inv=["action"])
        self.register_buffer("table", table)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Replace the continuous action by a number from 0 to A - 1, `[*B]` int64."""
        action_spec = input_spec["full_action_spec", "action"]
        input_spec["full_action_spec", "action"] = Categorical(
            len(self.table), shape=action_spec.shape[:-1], device=action_spec.device
        )
        return input_spec

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        number = tensordict.get("action", None)
        if number is None:
            return tensordict
        return tensordict.set("action", self.table[number])


def with_action_table(env: EnvBase) -> EnvBase:
    """Return a continuous world as one with discrete actions.

    Args:
        env: a world that declares `discrete_actions` `[A, action_dim]`.
    """
    return TransformedEnv(env, ActionTable(env.discrete_actions.to(env.device)))
