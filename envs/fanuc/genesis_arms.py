"""Arms in Genesis, simulated together on the device of the policy."""

from typing import Any

import torch
from torch import Tensor

from envs.fanuc.arms import Arms
from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.observation import ArmEncoder
from envs.fanuc.reward import Goal, Judgement, effort_of, judge
from envs.fanuc.robot import (
    FIRST_BODY_ABOVE_FLOOR,
    MIN_BODIES_APART,
    SPEED_SHARE,
    Robot,
    substeps,
)
from envs.fanuc.simulation import LIMIT_MARGIN
from envs.genesis import restore_scene, scene_state, start_genesis
from torchrl_gpu.errors import ConfigurationError, one_line

# Bytes that each arm takes, measured on the CPU with 16 to 8192 arms.
GENESIS_ARM_MEMORY = 90 * 2**10


class GenesisArms(Arms):
    """Arms in Genesis, one scene with a copy for each arm; all tensors are float32.

    Genesis simulates on the device of the policy where it can, else on the CPU. The attribute
    `entity` is the arm in Genesis.

    Raises:
        ConfigurationError: Genesis is not installed, or it cannot load the arm.
    """

    def __init__(
        self, robot: Robot, num_arms: int, device: torch.device, goal: Goal, control_rate: float
    ) -> None:
        self._control_rate, self._substeps = control_rate, substeps(control_rate)
        self._physics_rate = control_rate * self._substeps
        gs = start_genesis(device)
        self.device = gs.device
        self._scene = gs.Scene(
            show_viewer=False,
            sim_options=gs.options.SimOptions(dt=1 / self._physics_rate, substeps=1),
            rigid_options=gs.options.RigidOptions(
                # The masks of the links alone decide which of them can touch.
                enable_neutral_collision=True,
                enable_adjacent_collision=True,
                constraint_timeconst=2 / self._physics_rate,  # the stiffest stable contacts
            ),
        )
        floor = self._scene.add_entity(gs.morphs.Plane())
        try:
            self.entity = self._scene.add_entity(
                gs.morphs.URDF(file=robot.urdf, fixed=True, default_armature=None),
                # Gravity would make the motors sag.
                material=gs.materials.Rigid(gravity_compensation=1.0),
            )
            _ignore_contacts(self.entity, floor, robot.num_joints)
            self._scene.build(n_envs=num_arms)
        except Exception as error:  # the parser fails in many ways
            self._scene.destroy()
            raise ConfigurationError(
                f"env.urdf={robot.urdf}: Genesis cannot load this arm: {one_line(error)}"
            ) from error
        self.geometry, self.goal = ArmGeometry(robot, self.device), goal
        options: dict[str, Any] = {"dtype": torch.float32, "device": self.device}
        self._encode = ArmEncoder(robot, torch, **options)
        self._velocity = torch.tensor(robot.velocity, **options)
        self._effort = torch.tensor(robot.effort, **options)
        self._lowest_goal = self.geometry.lower + LIMIT_MARGIN
        self._highest_goal = self.geometry.upper - LIMIT_MARGIN
        self._farthest_step = self._velocity / control_rate
        self.target = torch.zeros(num_arms, 3, device=self.device)
        self.steps = torch.zeros(num_arms, 1, dtype=torch.int64, device=self.device)
        self.held = torch.zeros_like(self.steps)
        joints = robot.num_joints
        self.state = self._read()
        self._inertia = torch.zeros(num_arms, joints, joints, device=self.device)
        self.observation, self.distance = self._encode(self.state, self.target)

    def _drive(self, speed: Tensor) -> None:
        """Drive the joints for one control period by torques within the effort of the URDF.

        Each substep applies the torques that reach the speeds at its end if nothing is in the way,
        or the same share of them all.
        Genesis knows the inertias of a posture only after a substep: an arm stays at rest in the
        first substep after it is placed.
        """
        for _ in range(self._substeps):
            lack = (speed - self.entity.get_dofs_velocity()).unsqueeze(-1)
            torque = torch.bmm(self._inertia, lack).squeeze(-1) * (
                self._substeps * self._control_rate
            )
            # One factor for all joints: an unequal one would let heavy links swing light ones.
            excess = (torque.abs() / self._effort).amax(1, keepdim=True).clamp(min=1.0)
            self.entity.control_dofs_force(torque / excess)
            self._scene.step(update_visualizer=False, refresh_visualizer=False)
            self._inertia = self.entity.get_mass_mat()

    def step(self, action: Tensor, max_steps: int) -> Judgement:
        """Move all arms within the limits of the data sheet: see `ArmSimulation.step`."""
        before, angles, action = self.distance, self.state[:, 0], action.detach()
        goal = angles + action.clamp(-1.0, 1.0).nan_to_num(0.0) * (
            SPEED_SHARE * self._farthest_step
        )
        goal = goal.clamp(self._lowest_goal, self._highest_goal)
        self._drive((goal - angles) * self._control_rate)
        reached = self._read()
        lowest = torch.maximum(angles - self._farthest_step, self.geometry.lower)
        highest = torch.minimum(angles + self._farthest_step, self.geometry.upper)
        after = reached[:, 0].clamp(lowest, highest)
        speed = reached[:, 1].clamp(-self._velocity, self._velocity)
        self.state = torch.stack((after, speed), dim=1)
        # A mask leaves the choice of the rows to the device.
        self._write((self.state != reached).flatten(1).any(1))
        self.observation, self.distance = self._encode(self.state, self.target)
        self.steps = self.steps + 1
        now = self.distance, self.observation, self._calm()
        time_is_up = self.steps >= max_steps
        judgement = judge(self.goal, self.held, before, *now, effort_of(action), time_is_up)
        self.held, self.terms = judgement.held, judgement.terms
        return judgement

    def place(self, mask: Tensor, angles: Tensor, target: Tensor) -> None:
        """Set some arms to a posture at rest: see `Arms.place`."""
        start = torch.stack((angles, torch.zeros_like(angles)), 1)
        self.state = torch.where(mask.unsqueeze(2), start, self.state)
        self._inertia = torch.where(mask.unsqueeze(2), 0.0, self._inertia)
        self.steps, self.held = self.steps * ~mask, self.held * ~mask
        self.aim(mask, target)
        self._write(mask.squeeze(1))

    def aim(self, mask: Tensor, target: Tensor) -> None:
        """Give some arms other targets: see `Arms.aim`."""
        self.target = torch.where(mask, target, self.target)
        observation, distance = self._encode(self.state, self.target)
        # After a state of another device, it would round the numbers of the other arms differently.
        self.observation = torch.where(mask, observation, self.observation)
        self.distance = torch.where(mask, distance, self.distance)

    def _read(self) -> Tensor:
        return torch.stack((self.entity.get_dofs_position(), self.entity.get_dofs_velocity()), 1)

    def _write(self, mask: Tensor) -> None:
        self.entity.set_dofs_velocity(self.state[:, 1], envs_idx=mask, skip_forward=True)
        self.entity.set_qpos(self.state[:, 0], envs_idx=mask, zero_velocity=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of all arms: see `Arms.state_dict`."""
        return {
            **super().state_dict(),
            "inertia": self._inertia.clone(),
            "scene": scene_state(self._scene),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state: see `Arms.load_state_dict`."""
        restore_scene(self._scene, state["scene"], self.device)
        self._inertia = state["inertia"].to(self.device, copy=True)
        super().load_state_dict(state)

    def close(self) -> None:
        """Release the scene; may be called again."""
        self._scene.destroy()


def _ignore_contacts(arm: Any, floor: Any, joints: int) -> None:
    """Let only those bodies touch that `envs.fanuc.geometry` checks.

    Two bodies touch where the type of one is among the affinities of the other.
    """
    parts = {-1: 0}
    for link in arm.links:  # parents come first
        parent = -1 if link.parent_idx < 0 else link.parent_idx - arm.link_start
        number = parts[link.idx_local] = parts[parent] + link.n_dofs
        affinity = sum(1 << other for other in range(number + MIN_BODIES_APART, joints + 1))
        if number >= FIRST_BODY_ABOVE_FLOOR:
            affinity |= 1 << (joints + 1)
        for body in link.geoms:
            body.desc.contype, body.desc.conaffinity = 1 << number, affinity
    for body in (body for link in floor.links for body in link.geoms):
        body.desc.contype, body.desc.conaffinity = 1 << (joints + 1), 0
