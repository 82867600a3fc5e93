"""Transforms between worlds and agents, for any TorchRL environment."""

from __future__ import annotations

from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Composite
from torchrl.envs import EnvBase, Transform, TransformedEnv

from torchrl_gpu.actors import Actors


class ActionTable(Transform):
    """Lets agents with discrete actions act in a continuous world.

    An action is the number of a row of a table, and the world receives that row.

    Args:
        table: `[A, action_dim]`, within the bounds of the world's actions.
        action_key: of the action; nested for the robots of a group.
    """

    table: Tensor

    def __init__(self, table: Tensor, action_key: NestedKey = "action") -> None:
        super().__init__(in_keys_inv=[action_key], out_keys_inv=[action_key])
        self.action_key = action_key
        self.register_buffer("table", table)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Replace the continuous action by a number from 0 to A - 1, `[*B]` int64."""
        specs = input_spec["full_action_spec"]
        action_spec = specs[self.action_key]
        specs[self.action_key] = Categorical(
            len(self.table), shape=action_spec.shape[:-1], device=action_spec.device
        )
        return input_spec

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        number = tensordict.get(self.action_key, None)
        if number is None:
            return tensordict
        return tensordict.set(self.action_key, self.table[number])


class _ActionTableEnv(TransformedEnv):
    """Resets as the world itself does, which may know how to without reading anything back."""

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Begin new episodes where they are over."""
        return self.base_env.maybe_reset(tensordict)


def with_action_table(env: EnvBase) -> EnvBase:
    """Return a continuous world as one with discrete actions.

    Args:
        env: a world that declares `discrete_actions` `[A, action_dim]`.
    """
    table = env.discrete_actions.to(env.device)
    return _ActionTableEnv(env, ActionTable(table, Actors(env).action_key))
