"""Arms as an environment sees them: one interface for all simulators."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from envs.fanuc.observation import OBSERVATION_SIZE
from envs.fanuc.reward import Judgement
from envs.fanuc.robot import NUM_JOINTS

# Attributes of `Arms` that a saved state contains.
SAVED: Final = ("state", "target", "observation", "distance", "steps")


class Arms(ABC):
    """Simulated arms and their targets.

    Each step and each placement makes new tensors for `state`, `observation` and `distance`; those
    of earlier steps can be kept.

    Attributes:
        device: device of the simulator and of all tensors.
        state: joint angles [rad] and speeds [rad/s], `[N, 2, 6]`, in the simulator's precision.
        target: target positions relative to joint 1 in the base frame, `[N, 3]`, float32, metres.
        observation: observations, `[N, 36]`, float32, see `ArmEncoder`.
        distance: distances from flange to target, `[N, 1]`, float32, metres.
        steps: number of steps since each arm was placed, int64 `[N, 1]`.
    """

    device: torch.device
    state: Tensor
    target: Tensor
    observation: Tensor
    distance: Tensor
    steps: Tensor
    _encode: Callable[[Tensor, Tensor, Tensor, Tensor], None]  # see `ArmEncoder.__call__`

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

    def place(self, rows: Tensor, angles: Tensor, target: Tensor) -> None:
        """Set some arms to a posture at rest with a new target, without waiting for the simulator.

        Args:
            rows: indices of the arms, int64 `[K]`, K at least 1.
            angles: joint angles, `[K, 6]`, float32, rad.
            target: target positions relative to joint 1 in the base frame, `[K, 3]`, metres.
        """
        state = self.state.new_zeros(len(rows), 2, NUM_JOINTS)
        state[:, 0] = angles
        observation, distance = self._encoded(state, target)
        self.target.index_copy_(0, rows, target)
        self.steps.index_fill_(0, rows, 0)
        self.state = self.state.index_copy(0, rows, state)
        self.observation = self.observation.index_copy(0, rows, observation)
        self.distance = self.distance.index_copy(0, rows, distance)
        self._write(rows, state)

    @abstractmethod
    def _write(self, rows: Tensor, state: Tensor) -> None:
        """Let the simulator set some arms `[K]`, int64, to states `[K, 2, 6]`."""

    def _encoded(self, state: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return observations and distances of some arms."""
        observation = torch.empty(len(state), OBSERVATION_SIZE, device=self.device)
        distance = torch.empty(len(state), 1, device=self.device)
        self._encode(state, target, observation, distance)
        return observation, distance

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of all arms as tensors."""
        return {name: getattr(self, name).clone() for name in SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict()` of as many arms in the same simulator, bit for bit.

        Raises:
            ConfigurationError: the state belongs to another arm.
        """
        for name in SAVED:
            setattr(self, name, state[name].to(self.device, copy=True))

    @abstractmethod
    def close(self) -> None:
        """Release the simulator; may be called again."""
