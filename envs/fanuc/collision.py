"""Clearance of arms from the floor and from themselves, for a batch of joint angles."""

from __future__ import annotations

import torch
from torch import Tensor

from envs.fanuc.kinematics import ForwardKinematics
from envs.fanuc.robot import Robot

# Pairs of links closer than this in the chain are not checked: neighbours overlap by construction,
# and links two apart meet around the joint between them. The simulator ignores the same pairs.
MIN_LINKS_APART = 3

# Base and link 1 always touch the floor.
FIRST_LINK_ABOVE_FLOOR = 2


class CollisionCheck:
    """Distances of an arm's bodies from the floor and from each other.

    Args:
        robot: description of the arm, with capsules as bodies.
    """

    def __init__(self, robot: Robot) -> None:
        capsules = robot.capsules
        self._kinematics = ForwardKinematics(robot)
        self._links = torch.tensor([c.link for c in capsules], dtype=torch.long)
        self._ends = torch.tensor(
            [[c.start.tolist(), c.end.tolist()] for c in capsules], dtype=torch.float32
        ).view(-1, 2, 3)
        self._radii = torch.tensor([c.radius for c in capsules], dtype=torch.float32)
        self._above_floor = self._links >= FIRST_LINK_ABOVE_FLOOR
        first, second = torch.triu_indices(len(capsules), len(capsules), 1)
        apart = (self._links[first] - self._links[second]).abs() >= MIN_LINKS_APART
        self._first, self._second = first[apart], second[apart]

    def clearance(self, joints: Tensor) -> Tensor:
        """Return the smallest gap between bodies, or between a body and the floor.

        Args:
            joints: joint angles `[N, 6]`, rad.

        Returns:
            Gaps `[N]`, metres; negative where bodies overlap, infinite for an arm without bodies.
        """
        frames = self._kinematics.link_frames(joints)[:, self._links]
        # End points of the axes of all capsules in the base frame: [N, capsules, 2, 3].
        ends = torch.einsum("ncij,cej->ncei", frames[..., :3, :3], self._ends)
        ends = ends + frames[..., None, :3, 3]
        floor_gaps = (ends[..., 2].amin(-1) - self._radii)[:, self._above_floor]
        lines = segment_distance(*ends[:, self._first].unbind(2), *ends[:, self._second].unbind(2))
        self_gaps = lines - self._radii[self._first] - self._radii[self._second]
        nothing = torch.full((len(joints), 1), torch.inf)
        return torch.cat((floor_gaps, self_gaps, nothing), -1).amin(-1)


def segment_distance(p1: Tensor, q1: Tensor, p2: Tensor, q2: Tensor) -> Tensor:
    """Return the distance between the segments p1 q1 and p2 q2.

    Follows Ericson, Real-Time Collision Detection (2005), section 5.1.9.

    Args:
        p1: start of the first segment `[*B, 3]`.
        q1: end of the first segment `[*B, 3]`.
        p2: start of the second segment `[*B, 3]`.
        q2: end of the second segment `[*B, 3]`.

    Returns:
        Distances `[*B]`. A segment may be a point.
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
