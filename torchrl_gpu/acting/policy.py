"""The one door through which any agent acts."""

from __future__ import annotations

from typing import Protocol

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.environments.specs import action_kind


class Actor(Protocol):
    """What `PolicyWrapper` needs of an agent."""

    def act(self, observation: TensorDictBase, deterministic: bool) -> Tensor:
        """Return the actions for observations `[*B, ...]`.

        Continuous actions are `[*B, action_dim]` in [-1, 1], discrete ones `[*B]` int64.
        """
        ...


class PolicyWrapper(TensorDictModuleBase):
    """Acts for a whole batch at once: TensorDict in, the same TensorDict with `action` out.

    In train mode the policy explores, in eval mode it is greedy (`policy.train()`,
    `policy.eval()`); TorchRL's global exploration type has no say. Any number of leading batch
    dimensions is taken. No value leaves the device.

    Args:
        actor: a network, see `Actor`.
        observation_spec: the observation keys that the actor reads.
        action_spec: continuous and bounded, `[*B, action_dim]`: actions in [-1, 1] are mapped onto
            its bounds, which are kept as buffers; or discrete, `[*B]`.
        device: where the policy acts.
        exploration: called with the actor's actions and the frames so far in train mode, returns
            the actions to try; None for an actor that explores by itself.

    Attributes:
        frames: int64 `[]`, environment steps acted upon in train mode so far, which schedules
            follow; the first dimension of a batch is that of the environments.

    Raises:
        ConfigurationError: the action space is neither bounded and continuous nor discrete.
    """

    frames: Tensor
    action_center: Tensor
    action_half_range: Tensor

    def __init__(
        self,
        actor: Actor,
        observation_spec: Composite,
        action_spec: TensorSpec,
        device: torch.device,
        exploration: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.is_continuous = action_kind(action_spec) == "continuous"
        self.actor = actor
        self.exploration = exploration
        self.in_keys = list(observation_spec.keys(include_nested=True, leaves_only=True))
        self.out_keys = ["action"]
        self.register_buffer("frames", torch.zeros((), dtype=torch.int64, device=device))
        if self.is_continuous:
            # The bounds are the same for every world of the batch: keep one row of them.
            dimension = action_spec.shape[-1]
            low = action_spec.space.low.reshape(-1, dimension)[0].to(device)
            high = action_spec.space.high.reshape(-1, dimension)[0].to(device)
            self.register_buffer("action_center", (high + low) / 2)
            self.register_buffer("action_half_range", (high - low) / 2)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action`: within the bounds `[*B, action_dim]`, or a number `[*B]` int64."""
        action: Tensor = self.actor.act(tensordict, deterministic=not self.training)
        if self.training:
            if self.exploration is not None:
                action = self.exploration(action, self.frames)
            self.frames.add_(next(iter(tensordict.batch_size), 1))
        return tensordict.set("action", self.to_bounds(action) if self.is_continuous else action)

    def to_bounds(self, action: Tensor) -> Tensor:
        """Map actions in [-1, 1] onto the bounds of a continuous action space."""
        return torch.addcmul(self.action_center, self.action_half_range, action)

    def from_bounds(self, action: Tensor) -> Tensor:
        """Map actions within the bounds of a continuous action space onto [-1, 1]."""
        return (action - self.action_center) / self.action_half_range
