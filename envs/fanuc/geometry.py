"""Positions of the links of an arm, and their clearance, for a batch of joint angles in torch."""

import torch
from torch import Tensor

from envs.fanuc.robot import FIRST_BODY_ABOVE_FLOOR, MIN_BODIES_APART, Robot


class ArmGeometry:
    """Poses of bodies and tool, and gaps of the bodies, capsules, to the floor and each other.

    Attributes:
        robot: description of the arm.
        lower: lower limits of the joint angles `[N]`, float32, rad.
        upper: upper limits of the joint angles `[N]`, float32, rad.
    """

    def __init__(self, robot: Robot, device: torch.device | str = "cpu") -> None:
        self.robot = robot
        self.lower, self.upper = (
            torch.tensor(x, dtype=torch.float32, device=device) for x in (robot.lower, robot.upper)
        )
        self._pose_map = torch.tensor(robot.pose_map(), dtype=torch.float32, device=device)
        self._joints = robot.num_joints
        tool = torch.tensor([*robot.tool, 1.0], dtype=torch.float32, device=device)
        self._tool = tool.unsqueeze(-1)
        capsules = robot.capsules
        links = torch.tensor([c.link for c in capsules], dtype=torch.long)
        ends = [[c.start.tolist(), c.end.tolist()] for c in capsules]
        self._ends = torch.tensor(ends, dtype=torch.float32, device=device).view(-1, 2, 3)
        self._radii = torch.tensor([c.radius for c in capsules], dtype=torch.float32, device=device)
        first, second = torch.triu_indices(len(capsules), len(capsules), 1)
        apart = (links[first] - links[second]).abs() >= MIN_BODIES_APART
        self._first, self._second = first[apart].to(device), second[apart].to(device)
        self._links = links.to(device)
        self._above_floor = self._links >= FIRST_BODY_ABOVE_FLOOR

    def relative_frames(self, joints: Tensor) -> Tensor:
        """Return the pose of each body in the frame of the previous one, `[B, N, 4, 4]`."""
        flat = joints.reshape(-1, self._joints).float()
        features = torch.cat((flat.sin(), flat.cos(), torch.ones_like(flat[:, :1])), -1)
        return (features @ self._pose_map).view(-1, self._joints, 4, 4)

    def position(self, joints: Tensor) -> Tensor:
        """Return positions of the tool in the base frame `[*B, 3]`, float32, metres.

        The joint angles are `[*B, N]`, rad; here and below.
        """
        poses = self.relative_frames(joints)
        point = self._tool.expand(len(poses), 4, 1)
        for joint in reversed(range(self._joints)):
            point = torch.bmm(poses[:, joint], point)
        return point[:, :3].contiguous().view(*joints.shape[:-1], 3)

    def velocity(self, joints: Tensor, speeds: Tensor) -> Tensor:
        """Return velocities of the tool in the base frame `[*B, 3]`, float32, m/s.

        The joint speeds are `[*B, N]`, rad/s.
        """
        angles, rates = (x.reshape(-1, self._joints).float() for x in (joints, speeds))
        poses = self.relative_frames(angles)
        rising = (angles.cos() * rates, -angles.sin() * rates, torch.zeros_like(rates[:, :1]))
        changes = (torch.cat(rising, -1) @ self._pose_map).view_as(poses)
        point, motion = self._tool.expand(len(poses), 4, 1), torch.zeros_like(poses[:, 0, :, :1])
        for joint in reversed(range(self._joints)):
            motion = torch.bmm(changes[:, joint], point) + torch.bmm(poses[:, joint], motion)
            point = torch.bmm(poses[:, joint], point)
        return motion[:, :3].contiguous().view(*joints.shape[:-1], 3)

    def jacobian(self, joints: Tensor) -> Tensor:
        """Return derivatives of the tool's position by joint angles `[B, N]`: `[B, 3, N]`, m."""
        units = torch.eye(self._joints, device=self._tool.device).expand(len(joints), -1, -1)
        repeated = joints.float().unsqueeze(1).expand_as(units)
        return self.velocity(repeated, units).transpose(1, 2)

    def link_frames(self, joints: Tensor) -> Tensor:
        """Return poses of all bodies in the base frame `[*B, N + 1, 4, 4]`, float32, metres.

        The first is that of the base, the last that of the flange.
        """
        poses = self.relative_frames(joints)
        frames = [torch.eye(4, device=poses.device).expand(len(poses), 4, 4)]
        for joint in range(self._joints):
            frames.append(torch.bmm(frames[-1], poses[:, joint]))
        return torch.stack(frames, 1).view(*joints.shape[:-1], self._joints + 1, 4, 4)

    def clearance(self, joints: Tensor) -> Tensor:
        """Return the smallest gaps between bodies, or between a body and the floor, `[B]`, metres.

        They are negative where bodies overlap, and infinite for an arm without bodies.
        """
        frames = self.link_frames(joints)[:, self._links]
        # End points of the axes of all capsules in the base frame: [N, capsules, 2, 3].
        ends = torch.einsum("ncij,cej->ncei", frames[..., :3, :3], self._ends)
        ends = ends + frames[..., None, :3, 3]
        floor_gaps = (ends[..., 2].amin(-1) - self._radii)[:, self._above_floor]
        lines = segment_distance(*ends[:, self._first].unbind(2), *ends[:, self._second].unbind(2))
        self_gaps = lines - self._radii[self._first] - self._radii[self._second]
        nothing = self._radii.new_full((len(joints), 1), torch.inf)
        return torch.cat((floor_gaps, self_gaps, nothing), -1).amin(-1)


def segment_distance(p1: Tensor, q1: Tensor, p2: Tensor, q2: Tensor) -> Tensor:
    """Return distances `[*B]` between the segments from p1 to q1 and from p2 to q2, `[*B, 3]` each.

    A segment may be a point. Follows Ericson, Real-Time Collision Detection (2005), section 5.1.9.
    """
    d1, d2, r = q1 - p1, q2 - p2, p1 - p2
    tiny = torch.finfo(p1.dtype).tiny
    a, e = (d1 * d1).sum(-1).clamp_min(tiny), (d2 * d2).sum(-1).clamp_min(tiny)
    b, c, f = (d1 * d2).sum(-1), (d1 * r).sum(-1), (d2 * r).sum(-1)
    # Closest points p1 + s d1 and p2 + t d2 of the two lines, then clamped to the segments.
    s = ((b * f - c * e) / (a * e - b * b).clamp_min(tiny)).clamp(0, 1)
    t = ((b * s + f) / e).clamp(0, 1)
    s = ((b * t - c) / a).clamp(0, 1)
    gap = r + s.unsqueeze(-1) * d1 - t.unsqueeze(-1) * d2
    return gap.norm(dim=-1)
