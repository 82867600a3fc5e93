"""Arms as an environment sees them: one interface for all simulators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.fanuc.reward import Judgement

Array: TypeAlias = NDArray[Any] | Tensor

# Attributes of `Arms` that a saved state contains.
SAVED: Final = ("state", "target", "observation", "distance")


class Arms(ABC):
    """Simulated arms and their targets.

    Each step and each placement makes new arrays for `state`, `observation` and `distance`; those
    of earlier steps can be kept.

    Attributes:
        device: device of the simulator; on the CPU the arrays may be numpy arrays.
        state: joint angles [rad] and speeds [rad/s], `[N, 2, 6]`, in the simulator's precision.
        target: target positions relative to joint 1 in the base frame, `[N, 3]`, float32, metres.
        observation: observations, `[N, 36]`, float32, see `ArmEncoder`.
        distance: distances from flange to target, `[N, 1]`, float32, metres.
        steps: number of steps since each arm was placed, int64 `[N, 1]`.
    """

    device: torch.device
    state: Array
    target: Array
    observation: Array
    distance: Array
    steps: Array

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty for a simulator without workers."""
        return []

    @abstractmethod
    def begin_step(self, action: Tensor) -> None:
        """Start a step without waiting; the next `step` with the same tensor returns its result."""

    @abstractmethod
    def step(self, action: Tensor, max_steps: int, success_radius: float) -> Judgement:
        """Move all arms for one control period.

        Args:
            action: joint speeds as fractions of the maximum speeds, `[N, 6]`, -1 to 1.
            max_steps: number of steps after which an episode is truncated.
            success_radius: maximum distance that counts as success, metres.
        """

    @abstractmethod
    def place(self, rows: Tensor, angles: Tensor, target: Tensor) -> None:
        """Set some arms to a posture at rest with a new target.

        Args:
            rows: indices of the arms, int64 `[K]`, K at least 1.
            angles: joint angles, `[K, 6]`, float32, rad.
            target: target positions relative to joint 1 in the base frame, `[K, 3]`, metres.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of all arms, except `steps`, as tensors."""
        return {name: torch.as_tensor(getattr(self, name)).clone() for name in SAVED}

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict()` of as many arms in the same simulator.

        Raises:
            ConfigurationError: the state belongs to another arm.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the simulator; may be called again."""
