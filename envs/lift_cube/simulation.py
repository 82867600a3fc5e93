"""The simulated scene: arm, cube and floor in Genesis, one copy for each environment."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from envs.genesis import (
    GENESIS_MEMORY,
    OPENGL,
    restore_scene,
    scene_state,
    simulator_device,
    start_genesis,
)
from envs.lift_cube.arm import Arm
from envs.lift_cube.arm_model import MIN_FRICTION, add_arm, as_slice, check_positions, find_parts
from envs.lift_cube.camera import SPACING, Cameras, WristCamera, choose
from envs.lift_cube.control import damping_matrix, jacobian, joint_changes
from envs.lift_cube.scene import Scene, SceneReader
from torchrl_gpu.devices.memory import check_memory
from torchrl_gpu.errors import ConfigurationError, one_line

logger = logging.getLogger(__name__)

CUBE_SIZE: Final = 0.03  # m
CUBE_MASS: Final = 0.03  # kg
FRICTION: Final = 0.5
STEP_SECONDS: Final = 0.02
PHYSICS_STEPS: Final = 2  # of the simulator in one step of the environment
SUBSTEPS: Final = 2
_ITERATIONS: Final = 60  # of inverse kinematics, to find a posture from the home posture
_MAX_LEAN: Final = 5.0  # degrees

# Bytes that a scene takes beside Genesis itself, measured on the CPU with 16 to 4096 environments
# and with images of 84 and 168 pixels: each environment, each further size of the cube in an
# environment, and the buffers of the renderer as multiples of the image.
_ENVIRONMENT_MEMORY, _SIZE_MEMORY = 270 * 2**10, 37 * 2**10
_IMAGES = 14


class Simulation:
    """Steps all environments at once.

    Args:
        arm, num_envs, show_viewer: see `LiftCubeEnv`.
        device: device of the policy, which determines the backend of Genesis.
        cube_sizes: edge lengths of the cubes in metres, each given to a block of environments.
        wrist: description of the wrist camera; None for a scene without cameras.
        overview: also add the camera that overlooks the scene; needs `wrist`.
        own_mass: give each environment a separate mass of the cube, for `set_mass`; slower.

    Attributes:
        device: device of all tensors that the simulator returns.
        cube_size: edge length of each cube `[N]`, m.
        opened: positions of the F finger joints of the open gripper `[F]`.
        closed: positions of the finger joints of the closed gripper `[F]`.

    Raises:
        ConfigurationError: the memory is insufficient, Genesis is not installed, the file of the
            arm does not exist or lacks a named part, or there is no OpenGL to draw images.
    """

    def __init__(
        self,
        arm: Arm,
        num_envs: int,
        device: torch.device,
        *,
        cube_sizes: Sequence[float] = (CUBE_SIZE,),
        wrist: WristCamera | None = None,
        overview: bool = False,
        own_mass: bool = False,
        show_viewer: bool = False,
    ) -> None:
        memory = check_memory(
            lambda count: GENESIS_MEMORY + count * environment_memory(len(cube_sizes), wrist),
            num_envs,
            simulator_device(device),
            setting="env.num_envs",
            purpose="the scene",
        )
        gs = start_genesis(device)
        if show_viewer and not gs.utils.misc.has_display():
            raise ConfigurationError(
                "env.show_viewer=true: there is no display; film with mode=demo"
            )
        way = None if wrist is None else choose(wrist.renderer, gs.backend.name)
        if way is not None:
            logger.info("wrist camera: %s rendering", way)
        # Each environment is drawn alone, except one after another, where distance separates them.
        spacing = SPACING if way == "sequential" else 0.0
        self.device: torch.device = gs.device
        self.num_envs = num_envs
        self.arm = arm
        self.scene = gs.Scene(
            show_viewer=show_viewer,
            sim_options=gs.options.SimOptions(dt=STEP_SECONDS / PHYSICS_STEPS, substeps=SUBSTEPS),
            rigid_options=gs.options.RigidOptions(
                enable_self_collision=False, batch_links_info=own_mass
            ),
            vis_options=gs.options.VisOptions(split_envs=not spacing, shadow=False),
            **({"renderer": gs.renderers.BatchRenderer()} if way == "madrona" else {}),
        )
        floor = gs.materials.Rigid(friction=MIN_FRICTION)
        self.scene.add_entity(gs.morphs.Plane(), material=floor)
        self.cube = self._add_cube(gs, cube_sizes)
        geometry = "visual" if wrist is None else wrist.geometry
        self.robot = add_arm(gs, self.scene, arm.file, geometry)
        parts = find_parts(arm, self.robot)
        check_positions(arm, parts)
        self.hand = parts.hand
        self.cameras: Cameras | None = None
        if wrist is not None and way is not None:
            self.cameras = Cameras(gs, self.scene, wrist, way, overview=overview)
        logger.info(memory)
        self._build(spacing)
        joints = [joint.dofs_idx_local[0] for joint in parts.joints]
        fingers = [joint.dofs_idx_local[0] for joint in parts.fingers]
        self._actuators = as_slice(joints + fingers)
        self._coordinates = as_slice([joint.qs_idx[0] for joint in parts.joints])
        self.robot.set_dofs_kp(self._row(arm.stiffness), self._actuators)
        self.robot.set_dofs_kv(self._row(arm.damping), self._actuators)
        force = self._row(arm.max_force)
        self.robot.set_dofs_force_range(-force, force, self._actuators)
        self._low, self._high = self.robot.get_dofs_limit(as_slice(joints))
        home = self._row(arm.home)
        self.robot.set_dofs_position(home.expand(num_envs, -1), as_slice(joints))
        self._reader = SceneReader(
            gs, self.scene.rigid_solver, parts, self.cube.base_link_idx, self._row(arm.grip_point)
        )
        if (lean := self.lean()) > _MAX_LEAN:
            raise ConfigurationError(
                f"env.arm.home: the hand leans by {lean:.0f} degrees from the vertical; choose "
                f"joint angles at which it points down to {_MAX_LEAN:.0f} degrees"
            )
        turns = self._row([joint.type == gs.JOINT_TYPE.REVOLUTE for joint in parts.joints]).float()
        self._turns = None if turns.all() else turns.unsqueeze(-1)
        self._damping = damping_matrix(self.device)
        self._friction = torch.ones(num_envs, 1, device=self.device)
        self._mass = torch.full((num_envs, 1), CUBE_MASS, device=self.device)
        # As tensors: Genesis would copy lists to the device at every call.
        self._cube_geoms, self._cube_link = (
            torch.tensor(indices, dtype=torch.int32, device=self.device)
            for indices in ([geom.idx for geom in self.cube.geoms], [self.cube.base_link_idx])
        )
        self.opened, self.closed = (
            self._row(arm.per_finger(position))
            for position in (arm.open_position, arm.closed_position)
        )
        self._rest: Tensor = self.scene.rigid_solver.get_qpos().clone()
        self._rest[:, [joint.qs_idx[0] for joint in parts.fingers]] = self.opened
        self._half_open = (self.opened + self.closed) / 2
        self._half_travel = (self.opened - self.closed) / 2
        self.cube_size = torch.full((num_envs,), cube_sizes[0], device=self.device)
        if len(cube_sizes) > 1:
            for box, size in zip(self.cube.geoms, cube_sizes, strict=True):
                self.cube_size[box.active_envs_mask] = size
            self.cube.set_mass(CUBE_MASS)  # the density is that of the first size

    def _row(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=self.device)

    def _add_cube(self, gs: Any, sizes: Sequence[float]) -> Any:
        boxes = [gs.morphs.Box(size=(size,) * 3, pos=(0.5, 0.0, size / 2)) for size in sizes]
        return self.scene.add_entity(
            boxes if len(boxes) > 1 else boxes[0],
            material=gs.materials.Rigid(
                rho=CUBE_MASS / sizes[0] ** 3, friction=FRICTION, gravity_compensation=0.0
            ),
            surface=gs.surfaces.Default(color=(0.9, 0.15, 0.1)),
        )

    def _build(self, spacing: float) -> None:
        """Build the scene, which takes a minute in the first process that builds such a scene."""
        try:
            self.scene.build(n_envs=self.num_envs, env_spacing=(spacing, spacing))
        except Exception as error:  # each backend and each platform of OpenGL fails in its own way
            reason = one_line(error)
            if isinstance(error, MemoryError) or "memory" in reason.lower():
                raise ConfigurationError(
                    f"env.num_envs={self.num_envs}: the memory is insufficient: {reason}; fewer "
                    "environments may fit"
                ) from error
            if self.cameras is None:
                raise
            raise ConfigurationError(f"Genesis cannot draw images: {reason}; {OPENGL}") from error

    def lean(self) -> float:
        """Return the angle between the first hand and the vertical, in degrees; reads the device.

        A hand points from its frame to its grip point.
        """
        direction = (self.observe().grip - self.hand.get_pos())[0]
        return float(torch.rad2deg(torch.acos(-direction[2] / direction.norm())))

    def joints_towards(self, scene: Scene, target: Tensor) -> Tensor:
        """Return joint angles `[N, J]` that move the grip points towards targets `[N, 3]`.

        The hand keeps the orientation that it has in the home posture.
        """
        # Half the time of Genesis' own Jacobian, whose kernel takes long to launch.
        transposed = jacobian(*self._reader.axes(), self._turns, scene.grip)
        error = torch.cat([target - scene.grip, scene.tilt], dim=-1)
        return scene.joints + joint_changes(transposed, error, self._damping)

    def postures(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Find postures for positions of the grip point `[K, 3]`, m; moves all arms and cubes.

        The search starts in the home posture.

        Returns:
            Joint angles within the limits `[K, J]`, rad; the remaining gaps `[K]`, m; and the tilts
            of the hand `[K]`, rad.
        """
        everywhere = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        away = self._row([0.0, 0.0, 1.0])  # the cube is out of the way of the hand
        no_yaw = torch.zeros(self.num_envs, device=self.device)
        found = []
        for part in position.split(self.num_envs):
            # The rows beyond the last position repeat it.
            goal = torch.cat([part, part[-1:].expand(self.num_envs - len(part), 3)])
            joints = self._row(self.arm.home).expand(self.num_envs, -1)
            self.place(everywhere, joints, goal + away, no_yaw)
            for _ in range(_ITERATIONS):
                joints = self.joints_towards(self.observe(), goal).clamp(self._low, self._high)
                self.place(everywhere, joints, goal + away, no_yaw)
            scene = self.observe()
            result = (joints, (scene.grip - goal).norm(dim=-1), scene.tilt.norm(dim=-1))
            found.append([values[: len(part)] for values in result])
        angles, gaps, tilts = map(torch.cat, zip(*found, strict=True))
        return angles, gaps, tilts

    def step(self, joints: Tensor, opening: Tensor) -> None:
        """Simulate one step towards joint angles `[N, J]`, rad, within the limits of the arm.

        `opening` is the desired opening of the grippers `[N, 1]`, -1 closed to 1 open.
        """
        fingers = torch.addcmul(self._half_open, self._half_travel, opening)
        whole = torch.cat([joints.clamp(self._low, self._high), fingers], dim=-1)
        self.robot.control_dofs_position(whole, self._actuators)
        for _ in range(PHYSICS_STEPS):
            self.scene.step(update_visualizer=False, refresh_visualizer=False)

    def place(self, chosen: Tensor, joints: Tensor, cube: Tensor, cube_yaw: Tensor) -> None:
        """Put the arms, with open grippers, and the cubes of chosen environments at rest.

        Args:
            chosen: environments to change, bool `[N]`.
            joints: angles of the joints `[N, J]`, rad.
            cube: positions of the cube's centre `[N, 3]`, m.
            cube_yaw: rotation of the cube about the vertical `[N]`, rad.
        """
        half, first = cube_yaw / 2, self.cube.q_start
        state = self._rest.clone()
        state[:, self._coordinates] = joints
        state[:, first : first + 3] = cube
        state[:, first + 3], state[:, first + 6] = half.cos(), half.sin()
        # With a mask, Genesis reads nothing back from the device.
        solver = self.scene.rigid_solver
        solver.set_dofs_velocity(None, envs_idx=chosen, skip_forward=True)
        solver.set_qpos(state, envs_idx=chosen)

    def set_friction(self, chosen: Tensor, factor: Tensor) -> None:
        """Set the friction of the cubes of chosen environments, bool `[N]`, to `[N]` times 0.5."""
        self._friction = torch.where(chosen.unsqueeze(-1), factor.unsqueeze(-1), self._friction)
        self.scene.rigid_solver.set_geoms_friction_ratio(self._friction, self._cube_geoms)

    def set_mass(self, chosen: Tensor, factor: Tensor) -> None:
        """Set the masses of the cubes of chosen environments, bool `[N]`, to `[N]` times 30 g.

        The simulation must be built with `own_mass`.
        """
        mass = CUBE_MASS * factor.unsqueeze(-1)
        self._mass = torch.where(chosen.unsqueeze(-1), mass, self._mass)
        self.scene.rigid_solver.set_links_mass(self._mass, self._cube_link, scale_inertia=True)

    def observe(self) -> Scene:
        """Return the current positions and speeds; the next step may overwrite them."""
        return self._reader.scene()

    def images(self, shift: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return images of the wrist cameras on the device: see `Cameras.wrist_images`."""
        assert self.cameras is not None
        place = self.hand.get_pos(), self.hand.get_quat()
        return self.cameras.wrist_images(*place, shift, chosen).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of the simulator as tensors."""
        return {
            **scene_state(self.scene),
            "cube_size": self.cube_size.clone(),
            "friction": self._friction.clone(),
            "mass": self._mass.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`, bit for bit.

        Raises:
            ConfigurationError: it belongs to another scene.
        """
        if not torch.equal(state["cube_size"].to(self.device), self.cube_size):
            raise ConfigurationError(
                "the simulator's state belongs to cubes of other sizes; env.size, env.num_envs and "
                "the seed must be those of the run that saved it"
            )
        restore_scene(self.scene, state, self.device)
        self._friction = state["friction"].to(self.device, copy=True)
        self._mass = state["mass"].to(self.device, copy=True)

    def close(self) -> None:
        """Release the scene."""
        self.scene.destroy()


def environment_memory(sizes: int, wrist: WristCamera | None) -> int:
    """Return an estimate of the bytes of one environment, in a scene with cubes of several sizes.

    `wrist` is None for a scene without cameras.
    """
    image = 0 if wrist is None else 3 * wrist.size**2
    return _ENVIRONMENT_MEMORY + (sizes - 1) * _SIZE_MEMORY + _IMAGES * image
