"""Observations of a real arm, for a policy that was trained in simulation."""

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from envs.fanuc.observation import ArmEncoder
from envs.fanuc.robot import Robot
from torchrl_gpu.errors import ConfigurationError


class ArmObserver:
    """Computes observations from the measurements of any arm, without a simulator.

    Args:
        robot: description of the arm, from `load_robot` with the settings of the training.
        device: device of the observations.
    """

    def __init__(self, robot: Robot, device: torch.device | str = "cpu") -> None:
        self._encoder = ArmEncoder(robot, torch, dtype=torch.float32, device=torch.device(device))
        self._shoulder = torch.tensor(robot.shoulder, dtype=torch.float32, device=device)
        self._joints = robot.num_joints

    def observe(
        self, q: ArrayLike | Tensor, dq: ArrayLike | Tensor, target: ArrayLike | Tensor
    ) -> Tensor:
        """Return observations, equal to those of the environment up to rounding (1e-5).

        Args:
            q: joint angles `[*B, N]`, rad.
            dq: joint speeds `[*B, N]`, rad/s.
            target: target positions in the base frame `[*B, 3]`, or one for all `[3]`, metres.

        Returns:
            Observations `[*B, 4 N + 12]`, float32; `ArmEncoder` documents their elements.

        Raises:
            ConfigurationError: a measurement has another shape.
        """
        angles, speeds, place = (
            torch.as_tensor(each).to(self._shoulder) for each in (q, dq, target)
        )
        n, batch = self._joints, angles.shape[:-1]
        fits = angles.shape[-1:] == (n,) and speeds.shape == angles.shape
        if not (fits and place.shape in ((3,), (*batch, 3))):
            shapes = ", ".join(str(list(each.shape)) for each in (angles, speeds, place))
            raise ConfigurationError(
                f"q, dq, target: shapes {shapes}; give [..., {n}], [..., {n}], [..., 3]"
            )
        state = torch.stack((angles, speeds), -2).reshape(-1, 2, n)
        goal = place.expand(*batch, 3).reshape(-1, 3) - self._shoulder
        observation, _ = self._encoder(state, goal)
        return observation.view(*batch, -1)
