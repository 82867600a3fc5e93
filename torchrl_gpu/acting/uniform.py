"""Policy of uniformly random actions."""

from __future__ import annotations

from tensordict import TensorDictBase
from torchrl.data import TensorSpec


class UniformPolicy:
    """Draws actions uniformly within their spec, for a batch or for a part of it.

    Args:
        action_spec: spec of the actions `[*B, ...]` on the device of the policy.
    """

    def __init__(self, action_spec: TensorSpec) -> None:
        self.action_spec = action_spec

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action` for `[*B]`, or for some rows of its first dimension."""
        spec, rows = self.action_spec, tensordict.batch_size[0]
        if rows < spec.shape[0]:
            spec = spec[:rows]
        return tensordict.set("action", spec.rand())
