"""Arms as an environment sees them: one interface for all simulators."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.reward import Goal, Judgement

# Attributes of `Arms` that a saved state contains.
SAVED: Final = ("state", "target", "observation", "distance", "steps", "held")


class Arms(ABC):
    """Simulated arms and their targets.

    Each step and each placement makes new tensors for `state`, `observation` and `distance`; those
    of earlier steps can be kept.
    """

    device: torch.device  # of the simulator and of all tensors
    state: Tensor  # joint angles [rad], speeds [rad/s], `[B, 2, N]`, in the simulator's precision
    target: Tensor  # relative to joint 1 in the base frame, `[B, 3]`, float32, metres
    observation: Tensor  # `[B, 4 N + 12]`, float32, see `ArmEncoder`
    distance: Tensor  # from tool to target, `[B, 1]`, float32, metres
    steps: Tensor  # since each arm was placed, int64 `[B, 1]`
    held: Tensor  # see `Judgement`, `[B, 1]`
    geometry: ArmGeometry
    goal: Goal
    terms: Mapping[str, Any] = MappingProxyType({})  # of the last rewards, see `Judgement`

    def begin_step(self, action: Tensor) -> None:  # noqa: B027
        """Start a step without waiting; the next `step` with the same tensor returns its result.

        Does nothing where `step` simulates.
        """

    @abstractmethod
    def step(self, action: Tensor, max_steps: int) -> Judgement:
        """Move all arms for one control period.

        Args:
            action: joint speeds as fractions of the maximum speeds, `[B, N]`, -1 to 1.
            max_steps: number of steps after which an episode is truncated.
        """

    def _calm(self) -> Tensor | None:
        """Return hold speed / (speed of the tool + hold speed) `[B, 1]`; None without a limit."""
        limit = self.goal.hold_speed
        if math.isinf(limit):
            return None
        velocity = self.geometry.velocity(self.state[:, 0], self.state[:, 1])
        return limit / (velocity.norm(dim=1, keepdim=True) + limit)

    @abstractmethod
    def place(self, mask: Tensor, angles: Tensor, target: Tensor) -> None:
        """Set the arms of a mask, bool `[B, 1]`, to postures at rest with new targets.

        Does not wait for the simulator. Joint angles are `[B, N]`, float32, rad; targets are
        relative to joint 1 in the base frame, `[B, 3]`, metres.
        """

    @abstractmethod
    def aim(self, mask: Tensor, target: Tensor) -> None:
        """Give some arms other targets; the arguments are those of `place`."""

    def set_idle(self, mask: Tensor) -> None:  # noqa: B027
        """Leave some arms out of the next steps, bool `[B]` on the host, where that saves time."""

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of all arms as tensors."""
        return {name: getattr(self, name).clone() for name in SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict()` of as many equal arms in the same simulator."""
        for name in SAVED:
            setattr(self, name, state[name].to(self.device, copy=True))

    @abstractmethod
    def close(self) -> None:
        """Release the simulator; may be called again."""
