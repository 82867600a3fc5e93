"""Starts of episodes: positions of the cube, postures of the arm, and the curriculum."""

import torch
from torch import Tensor

from envs.lift_cube.simulation import CUBE_SIZE, Simulation
from torchrl_gpu.errors import ConfigurationError

_MIN_GRASPS = 32  # minimum number of postures of the curriculum
_TOLERANCE = 0.01  # m, between the grip point and a cube to grasp
# Maximum number of different sizes of the cube in one scene. Genesis keeps a cube of every size in
# every environment, so that each size costs memory.
_MAX_SIZES = 8


def draw_sizes(limits: tuple[float, float], num_envs: int, seed: int) -> list[float]:
    """Return the edge lengths of the cubes of a scene in metres, at most 8 different ones.

    Args:
        limits: lowest and highest multiple of 3 cm.
        num_envs: number of environments.
        seed: random seed.
    """
    low, high = limits
    if low == high:
        return [CUBE_SIZE * low]
    generator = torch.Generator().manual_seed(seed)
    factors = uniform(generator, low, high, min(num_envs, _MAX_SIZES)).tolist()
    return [CUBE_SIZE * factor for factor in factors]


def uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Return random numbers between two limits, on the device of the generator."""
    return low + (high - low) * torch.rand(shape, generator=generator, device=generator.device)


class Starts:
    """Draws the starts of episodes.

    Args:
        simulation: simulator, built; it is used to find the postures of the curriculum.
        generator: random numbers of the episodes.
        cube_range, joint_noise: see `LiftCubeEnv`.

    Attributes:
        workspace: lowest and highest x, y and z of the grip point `[2, 3]`, m.
        center: middle of the workspace, at the height of a resting cube of 3 cm `[3]`, m.
    """

    def __init__(
        self,
        simulation: Simulation,
        generator: torch.Generator,
        cube_range: float,
        joint_noise: float,
    ) -> None:
        arm, device = simulation.arm, simulation.device
        self._generator = generator
        self._cube_range = cube_range
        self._joint_noise = joint_noise
        self._home = torch.tensor(arm.home, device=device)
        limits = (arm.workspace_low, arm.workspace_high)
        self.workspace = torch.tensor(limits, device=device)
        self.center = self.workspace.mean(0)
        self.center[2] = CUBE_SIZE / 2
        self._heights = simulation.cube_size / 2
        self._cubes, self._grasps = self._find_grasps(simulation)

    def draw(self, curriculum: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the start of an episode for each environment.

        Args:
            curriculum: share of the episodes that start with the open gripper around the cube.

        Returns:
            Joint angles `[N, J]`, rad; positions of the cube's centre `[N, 3]`, m; and its rotation
            about the vertical `[N]`, rad.
        """
        generator, noise, count = self._generator, self._joint_noise, len(self._heights)
        joints = self._home + uniform(generator, -noise, noise, count, len(self._home))
        cube = self._draw_cubes(count)
        if curriculum > 0:
            grasp = torch.randint(
                len(self._cubes), (count,), generator=generator, device=generator.device
            )
            eased = uniform(generator, 0.0, 1.0, count, 1) < curriculum
            cube = torch.where(eased, self._cubes[grasp], cube)
            joints = torch.where(eased, self._grasps[grasp], joints)
        cube[:, 2] = self._heights  # the postures are those of a cube of 3 cm
        return joints, cube, uniform(generator, -torch.pi / 4, torch.pi / 4, count)

    def _draw_cubes(self, count: int) -> Tensor:
        shift = uniform(self._generator, -self._cube_range, self._cube_range, count, 3)
        shift[:, 2] = 0.0
        return self.center + shift

    def _find_grasps(self, simulation: Simulation) -> tuple[Tensor, Tensor]:
        """Return positions of the cube `[K, 3]` and joint angles `[K, J]` to grasp it.

        Raises:
            ConfigurationError: a position is out of reach.
        """
        count = simulation.num_envs
        cubes = torch.cat([self._draw_cubes(count) for _ in range(-(-_MIN_GRASPS // count))])
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
        return cubes, postures
