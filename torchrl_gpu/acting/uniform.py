"""Policy of uniformly random actions."""

from __future__ import annotations

from tensordict import TensorDictBase
from torchrl.data import TensorSpec


class UniformPolicy:
    """Draws actions uniformly within their spec.

    Args:
        action_spec: spec of the actions `[*B, ...]` on the device of the policy.
    """

    def __init__(self, action_spec: TensorSpec) -> None:
        self.action_spec = action_spec

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action` `[*B, ...]`."""
        return tensordict.set("action", self.action_spec.rand())
