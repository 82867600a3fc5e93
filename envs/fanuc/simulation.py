"""PyBullet simulation of the arms of one worker process, without torch."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from envs.fanuc.bullet import Client, pybullet
from envs.fanuc.robot import (
    CONTROL_RATE,
    FIRST_BODY_ABOVE_FLOOR,
    MIN_BODIES_APART,
    SPEED_SHARE,
    Array,
    Robot,
    substeps,
)

# Minimum distance of commanded angles from the joint limits [rad].
LIMIT_MARGIN = 1e-3

GRID_SPACING = 3.0  # distance between the bases of arms in one client, in multiples of their reach

# A target in pictures: a sphere, and bars whose ends an arm at the target does not hide.
MARKER_COLOR = (0.9, 0.1, 0.25, 1.0)
MIN_MARKER_RADIUS = 0.03  # m
BAR_LENGTH, BAR_WIDTH = 0.16, 0.012  # m


class ArmGroup:
    """Arms in one PyBullet client; they are loaded once.

    Above about eight arms, the time per arm rises. A window needs a display; the other arguments
    are those of `WorkerPool`.

    Attributes:
        bodies: PyBullet ids of the arms.
        joints: PyBullet indices of the joints of an arm.
    """

    def __init__(
        self,
        robot: Robot,
        num_arms: int,
        solver_iterations: int,
        window: bool = False,
        control_rate: float = CONTROL_RATE,
    ) -> None:
        self.client = client = Client(pybullet.GUI if window else pybullet.DIRECT)
        # PyBullet lets a motor give force x control period of impulse in each substep.
        self._forces: list[float] = (robot.effort / substeps(control_rate)).tolist()
        client.setPhysicsEngineParameter(
            fixedTimeStep=1 / control_rate,
            numSubSteps=substeps(control_rate),
            numSolverIterations=solver_iterations,
            enableFileCaching=1,
            deterministicOverlappingPairs=1,
        )
        client.setGravity(0, 0, -9.81)
        floor = client.createMultiBody(0, client.createCollisionShape(pybullet.GEOM_PLANE))
        side = math.ceil(math.sqrt(num_arms))
        spacing = GRID_SPACING * (robot.reach + math.hypot(*robot.shoulder[:2]))
        self._bases = [(spacing * (i % side), spacing * (i // side), 0.0) for i in range(num_arms)]
        flags = pybullet.URDF_USE_SELF_COLLISION | pybullet.URDF_USE_INERTIA_FROM_FILE
        if not window:  # visual shapes take three quarters of the time to load an arm
            flags |= pybullet.URDF_IGNORE_VISUAL_SHAPES
        self.bodies: list[int] = [
            client.loadURDF(robot.urdf, base, useFixedBase=True, flags=flags)
            for base in self._bases
        ]
        self.joints: list[int] = revolute_joints(self.bodies[0], client)
        parts = parts_of(self.bodies[0], client)
        for body in self.bodies:
            self._ignore_contacts(body, parts, floor)
            self._unload(body, robot.frames)
        self._targets: list[int] = []
        if window:
            self._furnish_window()

    def _ignore_contacts(self, arm: int, parts: dict[int, int], floor: int) -> None:
        """Disable contacts that are part of the arm's construction, see `envs.fanuc.geometry`."""
        for (first, one), (second, other) in combinations(parts.items(), 2):
            if abs(one - other) < MIN_BODIES_APART:
                self.client.setCollisionFilterPair(arm, arm, first, second, 0)
        for link, part in parts.items():
            if part < FIRST_BODY_ABOVE_FLOOR:
                self.client.setCollisionFilterPair(arm, floor, link, -1, 0)

    def _unload(self, arm: int, frames: Sequence[str]) -> None:
        """Take the mass of some links of an arm away: PyBullet gives 1 kg and 1 kg m^2 to each."""
        for joint in range(self.client.getNumJoints(arm)):
            if self.client.getJointInfo(arm, joint)[12].decode() in frames:
                self.client.changeDynamics(arm, joint, mass=0, localInertiaDiagonal=(0, 0, 0))

    def _furnish_window(self) -> None:
        """Set up the camera, hide the control panels, and add a marker for each target."""
        self.client.configureDebugVisualizer(pybullet.COV_ENABLE_GUI, 0)
        middle = [sum(base[axis] for base in self._bases) / len(self._bases) for axis in (0, 1)]
        self.client.resetDebugVisualizerCamera(
            cameraDistance=2 + 1.5 * max(middle),
            cameraYaw=50,
            cameraPitch=-25,
            cameraTargetPosition=(*middle, 0.4),
        )
        self._targets = [add_marker(self.client) for _ in self._bases]

    def show_target(self, arm: int, position: Sequence[float]) -> None:
        """Move the marker of an arm's target, in metres in its base frame, if there is a window."""
        if self._targets:
            place = [a + b for a, b in zip(self._bases[arm], position, strict=True)]
            self.client.resetBasePositionAndOrientation(self._targets[arm], place, (0, 0, 0, 1))

    def write(self, arm: int, angles: Sequence[float], speeds: Sequence[float]) -> None:
        """Set the joint angles [rad] and speeds [rad/s] of an arm."""
        values = ([[value] for value in values] for values in (angles, speeds))
        self.client.resetJointStatesMultiDof(self.bodies[arm], self.joints, *values)

    def step(self, velocities: Sequence[Sequence[float]]) -> None:
        """Drive the joints for one control period at target speeds [rad/s], one row per arm."""
        control, mode = self.client.setJointMotorControlArray, pybullet.VELOCITY_CONTROL
        for body, wanted in zip(self.bodies, velocities, strict=True):
            control(body, self.joints, mode, targetVelocities=wanted, forces=self._forces)
        self.client.stepSimulation()

    def read(self) -> list[float]:
        """Return the joint angles [rad] and then the speeds [rad/s] of each arm in turn."""
        values: list[float] = []
        read = self.client.getJointStates
        for body in self.bodies:
            angles, speeds, _, _ = zip(*read(body, self.joints), strict=True)
            values += angles
            values += speeds
        return values

    def close(self) -> None:
        """Disconnect the client and free its memory."""
        self.client.disconnect()


class ArmSimulation:
    """Arms of a worker process, by PyBullet client, kept within the limits of the data sheet."""

    def __init__(
        self, robot: Robot, groups: Sequence[ArmGroup], control_rate: float = CONTROL_RATE
    ) -> None:
        self.groups, self._control_rate = groups, control_rate
        self._arms = [(group, arm) for group in groups for arm in range(len(group.bodies))]
        num_arms = len(self._arms)
        self._shoulder = robot.shoulder
        self._lower, self._upper = robot.lower, robot.upper
        self._lowest_goal = robot.lower + LIMIT_MARGIN
        self._highest_goal = robot.upper - LIMIT_MARGIN
        self._farthest_step = robot.velocity / control_rate
        # Bounds of angles and speeds after a step; those of the angles change every step.
        self._low = np.tile(np.stack((robot.lower, -robot.velocity)), (num_arms, 1, 1))
        self._high = np.tile(np.stack((robot.upper, robot.velocity)), (num_arms, 1, 1))

    def write(self, arms: Sequence[int], state: Array, targets: NDArray[np.float32]) -> None:
        """Set the states of some arms, chosen by index, and show their targets.

        States `[num_arms, 2, N]` and targets relative to joint 1 `[num_arms, 3]`, metres, are those
        of all arms.
        """
        for index in arms:
            group, arm = self._arms[index]
            group.write(arm, *state[index].tolist())
            group.show_target(arm, (targets[index] + self._shoulder).tolist())

    def step(
        self, state: Array, action: NDArray[np.float32], idle: NDArray[np.uint8] | None = None
    ) -> None:
        """Move all arms for one control period.

        A joint that the solver moves past a limit, for instance in a hard contact, is reset to the
        limit, so that all returned states satisfy the data sheet.

        Args:
            state: joint angles and speeds `[num_arms, 2, N]`, float64; overwritten.
            action: joint speeds as fractions of the maximum speeds, `[num_arms, N]`, clipped to
                -1 to 1; joints stand still where it is not a number, which PyBullet would keep.
            idle: nonzero where an arm need not move, `[num_arms]`. A client whose arms are all idle
                is left out. None if all arms move.
        """
        angles = state[:, 0].copy()
        share = np.minimum(np.maximum(action, -1), 1)
        share[np.isnan(share)] = 0
        goal = angles + share * (SPEED_SHARE * self._farthest_step)
        goal = np.minimum(np.maximum(goal, self._lowest_goal), self._highest_goal)
        velocities = ((goal - angles) * self._control_rate).tolist()

        first, reached = 0, []
        if idle is not None and not idle.any():
            idle = None
        for group in self.groups:
            last = first + len(group.bodies)
            if idle is not None and idle[first:last].all():
                reached += state[first:last].ravel().tolist()
            else:
                group.step(velocities[first:last])
                reached += group.read()
            first = last
        after = np.array(reached).reshape(state.shape)

        np.maximum(angles - self._farthest_step, self._lower, out=self._low[:, 0])
        np.minimum(angles + self._farthest_step, self._upper, out=self._high[:, 0])
        np.minimum(np.maximum(after, self._low), self._high, out=state)
        corrected = after != state
        if corrected.any():
            for index in np.flatnonzero(corrected.any((1, 2))):
                group, arm = self._arms[index]
                group.write(arm, *state[index].tolist())

    def close(self) -> None:
        """Disconnect all clients."""
        for group in self.groups:
            group.close()


def revolute_joints(arm: int, client: Client) -> list[int]:
    """Return the PyBullet indices of the revolute joints of an arm, from the base to the tool."""
    infos = [client.getJointInfo(arm, joint) for joint in range(client.getNumJoints(arm))]
    return [info[0] for info in infos if info[2] == pybullet.JOINT_REVOLUTE]


def parts_of(arm: int, client: Client) -> dict[int, int]:
    """Return the index of the body of each link of an arm, see `Robot`, by PyBullet's index."""
    parts = {-1: 0}
    for joint in range(client.getNumJoints(arm)):  # parents come first
        info = client.getJointInfo(arm, joint)
        parts[joint] = parts[info[16]] + (info[2] == pybullet.JOINT_REVOLUTE)
    return parts


def add_marker(client: Client, radius: float = MIN_MARKER_RADIUS) -> int:
    """Add a sphere with bars of 0.16 m along the axes, under the floor, and return its index.

    It has no mass and collides with nothing. Its radius is at least 0.03 m.
    """
    bars = (BAR_WIDTH + (BAR_LENGTH - BAR_WIDTH) * np.eye(3)) / 2
    shape = client.createVisualShapeArray(
        shapeTypes=[pybullet.GEOM_SPHERE, *[pybullet.GEOM_BOX] * 3],
        radii=[max(radius, MIN_MARKER_RADIUS), 0.0, 0.0, 0.0],
        halfExtents=[[0.0, 0.0, 0.0], *bars.tolist()],
        rgbaColors=[MARKER_COLOR] * 4,
    )
    return int(client.createMultiBody(0, -1, shape, (0.0, 0.0, -1.0)))
