"""Arms as an environment sees them: one interface for all simulators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from envs.fanuc.reward import Outcome


class Arms(ABC):
    """Simulated arms and their targets, as tensors on the device of the simulator.

    Each change makes new tensors for all properties but `target`; tensors of earlier steps can be
    kept.

    Attributes:
        steps: number of steps since each arm was placed, int64 `[N, 1]`, tensor or numpy array.
    """

    steps: Any

    @property
    @abstractmethod
    def state(self) -> Tensor:
        """Joint angles [rad] and speeds [rad/s], `[N, 2, 6]`, in the simulator's precision."""

    @property
    @abstractmethod
    def target(self) -> Tensor:
        """Target positions relative to joint 1 in the base frame, `[N, 3]`, float32, metres."""

    @property
    @abstractmethod
    def observation(self) -> Tensor:
        """Observations, `[N, 36]`, float32, see `ObservationEncoder`."""

    @property
    @abstractmethod
    def distance(self) -> Tensor:
        """Distances from flange to target, `[N, 1]`, float32, metres."""

    def __len__(self) -> int:
        return len(self.target)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty for a simulator without workers."""
        return []

    @abstractmethod
    def begin_step(self, rows: slice, action: Tensor) -> None:
        """Begin a step that the next `step` of the same rows with the same tensor finishes.

        Args:
            rows: rows of the arms, see `step`.
            action: actions of the step, see `step`.
        """

    @abstractmethod
    def step(self, rows: slice, action: Tensor, max_steps: int, success_radius: float) -> Outcome:
        """Move some arms for one control period.

        Args:
            rows: rows of the arms.
            action: joint speeds as fractions of the maximum speeds, `[K, 6]`, -1 to 1.
            max_steps: number of steps after which an episode is truncated.
            success_radius: maximum distance that counts as success, metres.

        Returns:
            Rewards and done flags of the step, `[K, 1]`.
        """

    @abstractmethod
    def place(self, rows: Tensor, angles: Tensor, target: Tensor) -> None:
        """Set some arms to a posture at rest with a new target.

        Args:
            rows: indices of the arms, int64 `[K]`.
            angles: joint angles, `[K, 6]`, float32, rad.
            target: target positions relative to joint 1 in the base frame, `[K, 3]`, metres.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of all arms as tensors."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict()` of as many arms in the same simulator.

        Raises:
            ConfigurationError: the state belongs to another arm.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the simulator; may be called again."""
