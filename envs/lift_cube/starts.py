"""Starts of episodes: positions of the cube, postures of the arm, and the curriculum."""

from typing import NamedTuple

import torch
from torch import Tensor

from envs.lift_cube.arm import Arm
from envs.lift_cube.camera import WristCamera
from envs.lift_cube.simulation import CUBE_SIZE, Simulation
from torchrl_gpu.arguments import Range
from torchrl_gpu.errors import ConfigurationError

_MIN_GRASPS = 32  # minimum number of postures of the curriculum
_TOLERANCE = 0.01  # m, between the grip point and a cube to grasp
# Maximum number of different sizes of the cube in one scene. Genesis keeps a cube of every size in
# every environment, so that each size costs memory.
_MAX_SIZES = 8


def draw_sizes(limits: tuple[float, float], num_envs: int, seed: int) -> list[float]:
    """Return the edge lengths of the cubes of a scene in metres, at most 8 different ones.

    `limits` are the lowest and highest multiple of 3 cm.
    """
    low, high = limits
    if low == high:
        return [CUBE_SIZE * low]
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(min(num_envs, _MAX_SIZES), generator=generator)
    return [CUBE_SIZE * factor for factor in (low + (high - low) * numbers).tolist()]


def check_cube_range(cube_range: float, arm: Arm) -> None:
    """Refuse a range of the cube that goes beyond the workspace of an arm."""
    sides = zip(arm.workspace_low[:2], arm.workspace_high[:2], strict=True)
    widest = min(high - low for low, high in sides) / 2
    if cube_range > widest + _TOLERANCE:
        raise ConfigurationError(
            f"env.cube_range={cube_range:g}: cubes would lie beyond the workspace, where the "
            f"gripper does not go; choose at most {widest:g}, or a wider "
            "env.arm.workspace_low and workspace_high"
        )


class Start(NamedTuple):
    """Starts of episodes, float32."""

    joints: Tensor  # angles `[N, J]`, rad
    cube: Tensor  # position of the cube's centre `[N, 3]`, m
    yaw: Tensor  # rotation of the cube about the vertical `[N]`, rad
    shift: Tensor  # of the wrist camera in the frame of the hand `[N, 3]`, m
    brightness: Tensor  # factor of the brightness of the images `[N]`
    friction: Tensor  # of the cube as a multiple of 0.5 `[N]`
    mass: Tensor  # of the cube as a multiple of 30 g `[N]`


class Starts:
    """Draws the starts of episodes.

    Args:
        simulation: simulator, built; it is used to find the postures of the curriculum.
        generator: random numbers of the episodes.
        cube_range, joint_noise, camera, friction, mass: see `LiftCubeEnv`.

    Attributes:
        workspace: lowest and highest x, y and z of the grip point `[2, 3]`, m.
        center: middle of the workspace, at the height of a resting cube of 3 cm `[3]`, m.

    Raises:
        ConfigurationError: the gripper does not reach some of the cubes.
    """

    def __init__(
        self,
        simulation: Simulation,
        generator: torch.Generator,
        *,
        cube_range: float,
        joint_noise: float,
        camera: WristCamera,
        friction: Range,
        mass: Range,
    ) -> None:
        arm, device = simulation.arm, simulation.device
        self._generator, self._cube_range = generator, cube_range
        self.workspace = torch.tensor([arm.workspace_low, arm.workspace_high], device=device)
        self.center = self.workspace.mean(0)
        self.center[2] = CUBE_SIZE / 2
        # All numbers are drawn at once, also those that this scene does not use: a seed gives the
        # same episodes with images and without them.
        x, y, _ = self.center.tolist()
        limits = [
            *((angle - joint_noise, angle + joint_noise) for angle in arm.home),
            *((middle - cube_range, middle + cube_range) for middle in (x, y)),
            (0.0, 0.0),  # height of the cube, see below
            *[(-camera.shift, camera.shift)] * 3,
            (-torch.pi / 4, torch.pi / 4),
            *(camera.brightness, friction, mass),
            *[(0.0, 1.0)] * 2,  # the draws of the curriculum
        ]
        low, high = torch.tensor(limits, device=device).T
        self._low, self._span = low.repeat(simulation.num_envs, 1), high - low
        self._low[:, len(arm.home) + 2] = simulation.cube_size / 2
        self._widths = [len(arm.home), 3, 3, 6]
        self._grasps = self._find_grasps(simulation)

    def draw(self, curriculum: float) -> Start:
        """Return the start of an episode for each environment.

        A share of them, `curriculum`, starts with the open gripper around the cube.
        """
        numbers = torch.rand(self._low.shape, generator=self._generator, device=self._low.device)
        numbers = torch.addcmul(self._low, self._span, numbers)
        joints, cube, shift, others = numbers.split(self._widths, dim=1)
        yaw, brightness, friction, mass, eased, grasp = others.unbind(1)
        if curriculum > 0:
            # The postures fit a cube of 3 cm: each cube keeps its own height.
            grasps = self._grasps[(grasp * len(self._grasps)).long()]
            drawn = numbers[:, : grasps.shape[1]]
            torch.where(eased.unsqueeze(1) < curriculum, grasps, drawn, out=drawn)
        return Start(joints, cube, yaw, shift, brightness, friction, mass)

    def _find_grasps(self, simulation: Simulation) -> Tensor:
        """Return K rows of joint angles with x and y of the cube that they grasp, `[K, J + 2]`."""
        count = simulation.num_envs
        cubes = torch.cat([self.draw(0.0).cube for _ in range(-(-_MIN_GRASPS // count))])
        cubes[:, 2] = self.center[2]
        postures, gaps, _ = simulation.postures(cubes)
        farthest = int(gaps.argmax())
        if gaps[farthest] > _TOLERANCE:
            where = [round(x, 3) for x in cubes[farthest].tolist()]
            raise ConfigurationError(
                f"env.cube_range={self._cube_range:g}: the gripper gets no nearer than "
                f"{1000 * float(gaps[farthest]):.0f} mm to a cube at {where}; choose a smaller "
                "env.cube_range, or other values of env.arm.home or env.arm.workspace_low and "
                "workspace_high"
            )
        return torch.cat([postures, cubes[:, :2]], dim=1)
