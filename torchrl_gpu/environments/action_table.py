"""Transform that gives an environment with continuous actions discrete ones."""

from __future__ import annotations

from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Composite, TensorSpec
from torchrl.envs import Transform


class ActionTable(Transform):
    """Transform that replaces continuous actions by the row numbers of a table.

    An agent with discrete actions chooses a row, and the environment receives the values of that
    row as its continuous action.

    Args:
        table: continuous actions `[A, action_dim]`, within the bounds of the environment.
        action_key: key of the action; nested for a group of robots.
    """

    table: Tensor

    def __init__(self, table: Tensor, action_key: NestedKey = "action") -> None:
        super().__init__(in_keys_inv=[action_key], out_keys_inv=[action_key])
        self.action_key = action_key
        self.register_buffer("table", table)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Replace the continuous action by a row number, 0 to A - 1, `[*B]` int64."""
        specs = input_spec["full_action_spec"]
        specs[self.action_key] = row_spec(self.table, specs[self.action_key])
        return input_spec

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        number = tensordict.get(self.action_key, None)
        if number is None:
            return tensordict
        return tensordict.set(self.action_key, self.table[number])


def row_spec(table: Tensor, action_spec: TensorSpec) -> TensorSpec:
    """Return the spec of the number of a row, `[*B]` int64, for actions `[*B, action_dim]`."""
    return Categorical(len(table), shape=action_spec.shape[:-1], device=action_spec.device)


def rows_of(table: Tensor) -> tuple[tuple[float, ...], ...]:
    """Return a table as its rows, for `Capabilities.action_table`."""
    return tuple(map(tuple, table.tolist()))
