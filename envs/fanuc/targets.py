"""Reachable targets of the tool and initial postures, computed before the first episode.

Targets are the tool positions of random joint angles without collision, and therefore reachable
by construction.
"""

import contextlib
import hashlib
import logging
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.robot import ASSETS, Robot
from torchrl_gpu.checkpoints.files import atomic_file
from torchrl_gpu.devices.host import cpu_threads
from torchrl_gpu.errors import ConfigurationError

log = logging.getLogger(__name__)

Grade = Literal["easy", "medium", "hard"]
GRADES: tuple[Grade, ...] = get_args(Grade)

# A target is graded by its distance from the tool in the home posture, as a fraction of the arm's
# reach: for the LR Mate 200iC, easy ends at 0.38 m and medium at 0.64 m. Of all random postures
# without collision, about a fifth are easy, two fifths medium and two fifths hard.
EASY_BELOW, MEDIUM_BELOW = 0.45, 0.75

# Home posture of the LR Mate: forearm level, flange down.
HOME = (0.0, 0.0, 0.0, 0.0, -math.pi / 2, 0.0)

# Each joint starts within `START_NOISE` rad of the home posture.
START_NOISE = 0.5

# The home posture of another arm is found within this share of the joint ranges, around their
# middles, and for joint 1 in the middle.
HOME_SHARE = 0.5

# Minimum gap [m] to the floor and between links, above the default `success_radius` of 0.015 m.
MIN_CLEARANCE = 0.02

# Minimum distance of targets from the axis of joint 1, as a fraction of the reach: 0.15 m for the
# LR Mate 200iC. Nearer targets are at the shoulder singularity, where the arm can reach them at
# most folded over its own shoulder.
MIN_AXIS_SHARE = 0.15 / 0.85

# Few enough to stay in the cache of one core.
SAMPLES_PER_ATTEMPT = 1_000
MAX_ATTEMPTS = 2_000

# Version of the sampling; cached files of other versions are ignored.
CACHE_VERSION = 3


@dataclass(frozen=True)
class ReachableTargets:
    """Targets sorted by grade, easy first, with equally many per grade; and postures, float32."""

    positions: Tensor  # of the targets in the base frame `[3 * per_grade, 3]`, metres
    joints: Tensor  # angles that reach the targets `[3 * per_grade, N]`, rad
    starts: Tensor  # joint angles of initial postures `[S, N]`, rad


def load_targets(
    robot: Robot, seed: int = 0, per_grade: int = 10_000, home: Sequence[float] = HOME
) -> ReachableTargets:
    """Return the targets of an arm, from the cache if possible.

    The cache is the folder `TORCHRL_GPU_CACHE`, or `torchrl-gpu` in the user's cache folder. An
    unreadable file is replaced; a folder that cannot be written to is only logged as a warning.

    `per_grade` is the number of targets per grade, and the number of initial postures; `home` are
    joint angles in rad.

    Raises:
        ConfigurationError: too few collision-free postures are found.
    """
    key = f"{CACHE_VERSION} {robot.fingerprint} {seed} {per_grade} {[*home]}"
    name = f"fanuc-targets-{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"
    path = _cache_folder() / name
    with contextlib.suppress(OSError, SafetensorError):  # missing or damaged
        return ReachableTargets(**load_file(path))
    with cpu_threads(1):  # faster than several threads on arrays this small
        targets = sample_targets(robot, seed, per_grade, home)
    try:
        with atomic_file(path) as file:  # several runs can share the cache
            file.write(save(vars(targets)))
    except ConfigurationError as error:
        log.warning("targets are not kept for the next run: %s", error)
    return targets


def axis_distance(robot: Robot, positions: Tensor) -> Tensor:
    """Return distances of positions `[*B, 3]` in the base frame from joint 1's axis, metres."""
    axis = torch.tensor(robot.origins[0, :3, :3] @ robot.axes[0], dtype=torch.float32)
    offset = positions - torch.tensor(robot.shoulder, dtype=torch.float32)
    return torch.linalg.cross(offset, axis.expand_as(offset)).norm(dim=-1)


def home_of(robot: Robot, home: Sequence[float] | None = None) -> Sequence[float]:
    """Return the home posture of an arm, joint angles in rad: `home`, if the user gives one.

    By default it is that of the LR Mate, and for another arm the most manipulable one of 1,000
    random postures.

    Raises:
        ConfigurationError: `home` does not fit the joints of the arm or their limits, or the arm
            is too near itself or the floor in all random postures.
    """
    if home is None:
        return HOME if Path(robot.urdf).parent == ASSETS.resolve() else _most_manipulable(robot)
    if len(home) != robot.num_joints:
        raise ConfigurationError(
            f"env.home={[*home]}: the arm has {robot.num_joints} joints; give as many angles, in "
            "rad"
        )
    for number, angle in enumerate(home):
        low, high = robot.lower[number], robot.upper[number]
        if not low <= angle <= high:
            raise ConfigurationError(
                f"env.home={[*home]}: {angle:g} is beyond the limits of joint {number + 1}, "
                f"{low:.4g} to {high:.4g} rad"
            )
    return home


def _most_manipulable(robot: Robot) -> list[float]:
    """Return the most manipulable one of 1,000 random postures with twice the minimum clearance.

    Manipulability is the product of the singular values of the tool's Jacobian (Yoshikawa,
    "Manipulability of robotic mechanisms", IJRR 1985). Joint 1 is in the middle of its range, and
    the other joints are in the middle halves of theirs.
    """
    geometry = ArmGeometry(robot)
    lower, upper = geometry.lower, geometry.upper
    noise = torch.rand(
        SAMPLES_PER_ATTEMPT, robot.num_joints, generator=torch.Generator().manual_seed(0)
    )
    noise[:, 0] = 0.5
    joints = (lower + upper) / 2 + (upper - lower) * HOME_SHARE * (noise - 0.5)
    jacobian = geometry.jacobian(joints)
    manipulability = torch.linalg.det(jacobian @ jacobian.mT)
    gaps, smallest = geometry.clearance(joints), 2 * MIN_CLEARANCE
    if not (gaps > smallest).any():
        raise ConfigurationError(
            f"env.urdf={robot.urdf}: in 1,000 random postures around the middles of the joint "
            f"ranges, the gap of the arm to itself or the floor is {1000 * gaps.max():.0f} mm at "
            f"most, and has to be above {1000 * smallest:.0f} mm; lower env.bar_radius, the radius "
            "of the capsules that stand for meshes and boxes, or set env.home"
        )
    return joints[manipulability.where(gaps > smallest, -1.0).argmax()].tolist()


def sample_targets(
    robot: Robot, seed: int, per_grade: int, home: Sequence[float]
) -> ReachableTargets:
    """Sample targets of all grades and initial postures; see `load_targets`."""
    geometry = ArmGeometry(robot)
    generator = torch.Generator().manual_seed(seed)
    lower, upper = geometry.lower, geometry.upper
    centre = torch.tensor(home).clamp(lower, upper)
    home_position = geometry.position(centre)

    def free_postures(low: Tensor, high: Tensor) -> Iterator[Tensor]:
        for _ in range(MAX_ATTEMPTS):
            noise = torch.rand(SAMPLES_PER_ATTEMPT, robot.num_joints, generator=generator)
            joints = low + (high - low) * noise
            yield joints[geometry.clearance(joints) > MIN_CLEARANCE]

    edges = (0.0, EASY_BELOW, MEDIUM_BELOW, math.inf)
    found = {grade: torch.empty(0, robot.num_joints) for grade in GRADES}
    for joints in free_postures(lower, upper):
        tool = geometry.position(joints)
        is_clear = axis_distance(robot, tool) >= MIN_AXIS_SHARE * robot.reach
        joints, tool = joints[is_clear], tool[is_clear]
        share = (tool - home_position).norm(dim=-1) / robot.reach
        for grade, nearest, farthest in zip(GRADES, edges, edges[1:], strict=False):
            fitting = joints[(share >= nearest) & (share < farthest)]
            found[grade] = torch.cat((found[grade], fitting))[:per_grade]
        if all(len(joints) == per_grade for joints in found.values()):
            break
    else:
        counts = ", ".join(f"{len(joints)} {grade}" for grade, joints in found.items())
        raise ConfigurationError(
            f"env.urdf={robot.urdf}: found only {counts} collision-free targets within the joint "
            f"limits; {per_grade} of each grade are needed"
        )

    starts = torch.empty(0, robot.num_joints)
    nearby = ((centre + offset).clamp(lower, upper) for offset in (-START_NOISE, START_NOISE))
    for joints in free_postures(*nearby):
        starts = torch.cat((starts, joints))[:per_grade]
        if len(starts) == per_grade:
            break
    else:
        raise ConfigurationError(
            f"env.urdf={robot.urdf}: the arm touches itself or the floor near its home posture, "
            f"joint angles {[round(angle, 2) for angle in centre.tolist()]} rad; set env.home to "
            "angles without contact"
        )
    joints = torch.cat([found[grade] for grade in GRADES])
    return ReachableTargets(geometry.position(joints), joints, starts)


def _cache_folder() -> Path:
    chosen = os.environ.get("TORCHRL_GPU_CACHE")
    if chosen:
        return Path(chosen)
    folders = {"win32": ("LOCALAPPDATA", "AppData/Local"), "darwin": ("", "Library/Caches")}
    variable, fallback = folders.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    return Path(os.environ.get(variable) or Path.home() / fallback) / "torchrl-gpu"
