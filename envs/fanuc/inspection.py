"""Examination of a robot file for the environment `fanuc`: limits, contact, reach and a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.examination import Examination
from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.reach import TOLERANCE, Reach
from envs.fanuc.render import ArmRenderer
from envs.fanuc.robot import Robot, load_robot
from envs.fanuc.targets import MIN_CLEARANCE, home_of, sample_targets
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.tables import table

_POINTS = 2_000  # positions that are tried
_SHOWN = 250  # reachable ones of them in the picture
_PER_GRADE = 500  # targets from which inverse kinematics starts


def examine(settings: Mapping[str, Any]) -> Examination:
    """Return a report on an arm and a picture of it, for arguments of `FanucEnv`.

    Raises:
        ConfigurationError: the environment cannot simulate the arm; the message says why.
    """
    names = ("robot", "urdf", "tool", "bar_radius")
    robot = load_robot(*(settings[name] for name in names))
    posture = home_of(robot, settings["home"])
    geometry = ArmGeometry(robot)
    gap = float(geometry.clearance(torch.tensor([posture])))
    if gap <= MIN_CLEARANCE:
        raise ConfigurationError(
            f"env.home={[round(angle, 2) for angle in posture]}: the gap of the arm to itself or "
            f"the floor is {1000 * gap:.0f} mm, and has to be above {1000 * MIN_CLEARANCE:.0f} mm"
        )
    postures = sample_targets(robot, 0, _PER_GRADE, posture)
    points = _points(robot)
    reached = Reach(geometry, postures.joints).is_reachable(points)
    angles = ",".join(f"{angle:.2f}" for angle in posture)
    radius = settings["bar_radius"]
    report = "\n".join(
        (
            _joints(robot),
            "",
            f"  reach      {robot.reach:.2f} m from joint 1 to the tool, outstretched",
            f"  home       [{angles}] rad, with a gap of {1000 * gap:.0f} mm",
            f"  reachable  {100 * reached.float().mean():.0f} % of the positions above the floor "
            f"within the reach, to {1000 * TOLERANCE:.0f} mm and without contact",
            f"  bodies     {len(robot.capsules)} capsules; one of {1000 * radius:.0f} mm stands "
            "for each mesh or box (env.bar_radius)",
        )
    )
    picture = _draw(geometry, posture, points[reached])
    return Examination(settings["urdf"] or robot.urdf, report, picture)


def _joints(robot: Robot) -> str:
    columns = (robot.lower, robot.upper, robot.velocity, robot.effort)
    rows = [
        [f"  {number}", *(f"{value:.2f}" for value in values)]
        for number, values in enumerate(zip(*columns, strict=True), start=1)
    ]
    header = ["  joint", "lower, rad", "upper, rad", "speed, rad/s", "effort, N m"]
    return table(header, rows)


def _points(robot: Robot) -> Tensor:
    """Return random positions above the floor within the reach of joint 1, `[P, 3]`, metres."""
    generator = torch.Generator().manual_seed(0)
    shoulder = torch.tensor(robot.shoulder, dtype=torch.float32)
    within = torch.empty(0, 3)
    while len(within) < _POINTS:
        points = robot.reach * (2.0 * torch.rand(_POINTS, 3, generator=generator) - 1.0)
        points = points[points.norm(dim=1) <= robot.reach] + shoulder
        within = torch.cat((within, points[points[:, 2] >= 0.0]))
    return within[:_POINTS]


def _draw(geometry: ArmGeometry, posture: Sequence[float], points: Tensor) -> NDArray[np.uint8]:
    shown = points[:_SHOWN].tolist()
    renderer = ArmRenderer(geometry.robot, trail=_SHOWN)
    tool = geometry.position(torch.tensor(posture)).tolist()
    frame = renderer.frame([*posture], tool, shown)
    renderer.close()
    return frame
