"""Observations of a real arm, for a policy that was trained in simulation."""

import torch
from torch import Tensor

from envs.fanuc.observation import ArmEncoder
from envs.fanuc.robot import Robot


class ArmObserver:
    """Computes observations from the measurements of any arm, without a simulator.

    Args:
        robot: description of the arm, from `load_robot` with the settings of the training.
        device: device of the observations.
    """

    def __init__(self, robot: Robot, device: torch.device | str = "cpu") -> None:
        self._encoder = ArmEncoder(robot, torch, dtype=torch.float32, device=torch.device(device))
        self._shoulder = torch.tensor(robot.shoulder, dtype=torch.float32, device=device)

    def observe(self, q: Tensor, dq: Tensor, target: Tensor) -> Tensor:
        """Return observations, equal to those of the environment up to rounding (1e-5).

        Args:
            q: joint angles `[*B, N]`, rad.
            dq: joint speeds `[*B, N]`, rad/s.
            target: target positions in the base frame `[*B, 3]`, metres.

        Returns:
            Observations `[*B, 4 N + 12]`, float32; `ArmEncoder` documents their elements.
        """
        state = torch.stack((q, dq), -2).to(self._shoulder).reshape(-1, 2, q.shape[-1])
        goal = target.to(self._shoulder).expand(*q.shape[:-1], 3).reshape(-1, 3) - self._shoulder
        observation = state.new_empty(len(state), self._encoder.size)
        self._encoder(state, goal, observation, state.new_empty(len(state), 1))
        return observation.view(*q.shape[:-1], -1)
