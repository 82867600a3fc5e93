"""The one door through which any agent acts."""

from __future__ import annotations

from typing import Protocol

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Bounded, Composite

from torchrl_gpu.errors import ConfigurationError


class ContinuousActor(Protocol):
    """What `PolicyWrapper` needs of an agent with continuous actions."""

    def act(self, observation: TensorDictBase, deterministic: bool) -> Tensor:
        """Return actions `[*B, action_dim]` in [-1, 1] for observations `[*B, ...]`."""
        ...


class PolicyWrapper(TensorDictModuleBase):
    """Acts for a whole batch at once: TensorDict in, the same TensorDict with `action` out.

    In train mode the actor explores, in eval mode it is greedy (`policy.train()`,
    `policy.eval()`); TorchRL's global exploration type has no say. Any number of leading batch
    dimensions is taken. No value leaves the device.

    Args:
        actor: a network, see `ContinuousActor`.
        observation_spec: the observation keys that the actor reads.
        action_spec: bounded and continuous; actions in [-1, 1] are mapped onto its bounds, which
            are kept as buffers.
        device: where the policy acts.

    Raises:
        ConfigurationError: the action space is not bounded and continuous.
    """

    action_center: Tensor
    action_half_range: Tensor

    def __init__(
        self,
        actor: ContinuousActor,
        observation_spec: Composite,
        action_spec: Bounded,
        device: torch.device,
    ) -> None:
        super().__init__()
        if not isinstance(action_spec, Bounded) or not action_spec.dtype.is_floating_point:
            raise ConfigurationError(
                f"a continuous policy needs a bounded, continuous action space, "
                f"not {type(action_spec).__name__}"
            )
        self.actor = actor
        self.in_keys = list(observation_spec.keys(include_nested=True, leaves_only=True))
        self.out_keys = ["action"]
        # The bounds are the same for every world of the batch: keep one row of them.
        dimension = action_spec.shape[-1]
        low = action_spec.space.low.reshape(-1, dimension)[0].to(device)
        high = action_spec.space.high.reshape(-1, dimension)[0].to(device)
        self.register_buffer("action_center", (high + low) / 2)
        self.register_buffer("action_half_range", (high - low) / 2)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action` `[*B, action_dim]`, within the bounds of the action space."""
        action: Tensor = self.actor.act(tensordict, deterministic=not self.training)
        return tensordict.set("action", self.to_bounds(action))

    def to_bounds(self, action: Tensor) -> Tensor:
        """Map actions in [-1, 1] onto the bounds of the action space."""
        return torch.addcmul(self.action_center, self.action_half_range, action)

    def from_bounds(self, action: Tensor) -> Tensor:
        """Map actions within the bounds of the action space onto [-1, 1]."""
        return (action - self.action_center) / self.action_half_range
