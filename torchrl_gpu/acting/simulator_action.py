"""Actions as a simulator takes them: rows of an action table, in the simulator's own range."""

import torch
from torch import Tensor, nn

from torchrl_gpu.acting.interface import PolicyInterface


class SimulatorAction(nn.Module):
    """Maps the actions of a policy to those that the simulator takes, and back.

    Table and range of the actions are those of the policy's interface.
    """

    table: Tensor | None
    action_range: Tensor | None

    def __init__(self, interface: PolicyInterface) -> None:
        super().__init__()
        self.register_buffer("table", interface.action_table)
        self.register_buffer("action_range", interface.action_range)

    def forward(self, action: Tensor) -> Tensor:
        """Map actions `[*B, action_dim]` or row numbers `[*B]` to values `[*B, action_dim]`.

        Row numbers in an environment without an action table stay as they are.
        """
        if self.table is not None:
            action = self.table[action]
        if self.action_range is None:
            return action
        low, high = self.action_range
        return torch.clamp(action * (high / 2 - low / 2) + (high / 2 + low / 2), low, high)

    def inverse(self, values: Tensor) -> Tensor:
        """Map results of `forward` back to actions or row numbers."""
        if self.action_range is not None:
            low, high = self.action_range
            half = high / 2 - low / 2
            # A component whose bounds are equal, such as a locked joint, becomes 0.
            values = (values - (high / 2 + low / 2)) / (half + (half == 0))
        if self.table is None:
            return values
        return (values.unsqueeze(-2) - self.table).abs().sum(dim=-1).argmin(dim=-1)
