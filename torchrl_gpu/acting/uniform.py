"""Policy of uniformly random actions."""

from __future__ import annotations

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.data import TensorSpec


class UniformPolicy(TensorDictModuleBase):
    """Draws actions uniformly within their spec.

    Args:
        action_spec: spec of the actions `[*B, ...]` on the device of the policy.
    """

    def __init__(self, action_spec: TensorSpec) -> None:
        super().__init__()
        self.action_spec = action_spec
        self.in_keys: list[str] = []
        self.out_keys = ["action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action` for a batch `[*B]`, or for a part of its first dimension."""
        spec, rows = self.action_spec, tensordict.batch_size[0]
        if rows < spec.shape[0]:
            spec = spec[:rows]
        return tensordict.set("action", spec.rand())
