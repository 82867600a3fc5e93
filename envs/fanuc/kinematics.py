"""Batched forward kinematics in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from envs.fanuc.robot import NUM_JOINTS, Robot


class ForwardKinematics:
    """Poses of the links and the flange for a batch of joint angles.

    Args:
        robot: description of the arm.
        device: device of the joint angles.
    """

    def __init__(self, robot: Robot, device: torch.device | str = "cpu") -> None:
        self._pose_map = torch.tensor(robot.pose_map(), dtype=torch.float32, device=device)
        self._flange = torch.tensor(robot.origins[-1, :, 3:], dtype=torch.float32, device=device)

    def _poses(self, joints: Tensor) -> Tensor:
        """Return the pose of each link in the frame of the previous link, `[N, 6, 4, 4]`."""
        flat = joints.reshape(-1, NUM_JOINTS).float()
        features = torch.cat((flat.sin(), flat.cos(), torch.ones_like(flat[:, :1])), -1)
        return (features @ self._pose_map).view(-1, NUM_JOINTS, 4, 4)

    def flange(self, joints: Tensor) -> Tensor:
        """Return the flange position in the base frame.

        Args:
            joints: joint angles `[*B, 6]`, rad.

        Returns:
            Positions `[*B, 3]`, float32, metres.
        """
        poses = self._poses(joints)
        # From the wrist inwards; the flange lies on the axis of joint 6, which does not move it.
        point = self._flange.expand(len(poses), 4, 1)
        for joint in reversed(range(NUM_JOINTS - 1)):
            point = torch.bmm(poses[:, joint], point)
        return point[:, :3].contiguous().view(*joints.shape[:-1], 3)

    def link_frames(self, joints: Tensor) -> Tensor:
        """Return the pose of every link in the base frame.

        Args:
            joints: joint angles `[*B, 6]`, rad.

        Returns:
            Poses `[*B, 7, 4, 4]`, float32, metres, of the base and the six links; the last is the
            flange.
        """
        poses = self._poses(joints)
        frames = [torch.eye(4, device=poses.device).expand(len(poses), 4, 4)]
        for joint in range(NUM_JOINTS):
            frames.append(torch.bmm(frames[-1], poses[:, joint]))
        return torch.stack(frames, 1).view(*joints.shape[:-1], NUM_JOINTS + 1, 4, 4)
