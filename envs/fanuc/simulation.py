"""Arms in PyBullet: the physics of one worker process, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from envs.fanuc.bullet import pybullet
from envs.fanuc.robot import Robot

CONTROL_RATE = 60  # Hz: actions, and rows of the environment
SUBSTEPS = 4  # physics steps of 1/240 s to each action
STEP_SECONDS = 1 / CONTROL_RATE

# An action of 1 asks for this share of the top speed: the rest is room for the solver, which
# meets a sudden command with an error of one or two percent.
SPEED_SHARE = 0.98

# No command leads closer to a joint's limit than this [rad].
LIMIT_MARGIN = 1e-3

GRID_SPACING = 2.5  # m between the bases of arms in one client, more than twice their reach

# How a window shows the targets.
TARGET_COLOUR = (0.9, 0.1, 0.25, 1.0)
TARGET_RADIUS = 0.015  # m

State = NDArray[np.float64]


class ArmGroup:
    """A few arms in one PyBullet client: loaded once, from then on only written, moved and read.

    Args:
        robot: the arm.
        num_arms: more than about eight make every one of them slower.
        solver_iterations: of the constraint solver, per substep.
        window: whether to show them; needs a display.

    Attributes:
        client: PyBullet's number of the client.
        bodies: PyBullet's numbers of the arms.
        joints: PyBullet's numbers of the six joints of every arm.
        effort: top torques, N m.
    """

    def __init__(
        self, robot: Robot, num_arms: int, solver_iterations: int, window: bool = False
    ) -> None:
        mode = pybullet.GUI if window else pybullet.DIRECT
        self.client: int = pybullet.connect(mode)
        self.effort: list[float] = robot.effort.tolist()
        pybullet.setPhysicsEngineParameter(
            fixedTimeStep=STEP_SECONDS,
            numSubSteps=SUBSTEPS,
            numSolverIterations=solver_iterations,
            enableFileCaching=1,
            deterministicOverlappingPairs=1,
            physicsClientId=self.client,
        )
        pybullet.setGravity(0, 0, -9.81, physicsClientId=self.client)
        plane = pybullet.createCollisionShape(pybullet.GEOM_PLANE, physicsClientId=self.client)
        floor = pybullet.createMultiBody(0, plane, physicsClientId=self.client)
        side = math.ceil(math.sqrt(num_arms))
        self._bases = [
            (GRID_SPACING * (i % side), GRID_SPACING * (i // side), 0.0) for i in range(num_arms)
        ]
        flags = pybullet.URDF_USE_SELF_COLLISION | pybullet.URDF_USE_INERTIA_FROM_FILE
        self.bodies: list[int] = [
            pybullet.loadURDF(
                robot.urdf, base, useFixedBase=True, flags=flags, physicsClientId=self.client
            )
            for base in self._bases
        ]
        infos = [
            pybullet.getJointInfo(self.bodies[0], joint, physicsClientId=self.client)
            for joint in range(pybullet.getNumJoints(self.bodies[0], physicsClientId=self.client))
        ]
        self.joints: list[int] = [i[0] for i in infos if i[2] == pybullet.JOINT_REVOLUTE]
        base_link = infos[self.joints[0]][16]
        for body in self.bodies:
            self._ignore_contacts(body, [base_link, *self.joints], floor)
        self._targets: list[int] = []
        if window:
            self._furnish_window()

    def _ignore_contacts(self, body: int, links: list[int], floor: int) -> None:
        """Leave out contacts that the arm is built with: see `envs.fanuc.collision`."""
        client = self.client
        for first, second in zip(links, links[2:], strict=False):
            pybullet.setCollisionFilterPair(body, body, first, second, 0, physicsClientId=client)
        for link in links[:2]:
            pybullet.setCollisionFilterPair(body, floor, link, -1, 0, physicsClientId=client)

    def _furnish_window(self) -> None:
        """Show the arms from near, each with a sphere for its target, and no control panels."""
        pybullet.configureDebugVisualizer(pybullet.COV_ENABLE_GUI, 0, physicsClientId=self.client)
        middle = [sum(base[axis] for base in self._bases) / len(self._bases) for axis in (0, 1)]
        pybullet.resetDebugVisualizerCamera(
            cameraDistance=2 + 1.5 * max(middle),
            cameraYaw=50,
            cameraPitch=-25,
            cameraTargetPosition=(*middle, 0.4),
            physicsClientId=self.client,
        )
        sphere = pybullet.createVisualShape(
            pybullet.GEOM_SPHERE,
            radius=TARGET_RADIUS,
            rgbaColor=TARGET_COLOUR,
            physicsClientId=self.client,
        )
        for base in self._bases:
            self._targets.append(
                pybullet.createMultiBody(0, -1, sphere, base, physicsClientId=self.client)
            )

    def show_target(self, arm: int, position: Sequence[float]) -> None:
        """Move the sphere that marks an arm's target; nothing happens without a window.

        Args:
            arm: index in this group.
            position: in the arm's base frame, metres.
        """
        if self._targets:
            place = [a + b for a, b in zip(self._bases[arm], position, strict=True)]
            pybullet.resetBasePositionAndOrientation(
                self._targets[arm], place, (0, 0, 0, 1), physicsClientId=self.client
            )

    def write(self, arm: int, angles: Sequence[float], speeds: Sequence[float]) -> None:
        """Put an arm into a state.

        Args:
            arm: index in this group.
            angles: of the six joints, rad.
            speeds: of the six joints, rad/s.
        """
        pybullet.resetJointStatesMultiDof(
            self.bodies[arm],
            self.joints,
            [[angle] for angle in angles],
            [[speed] for speed in speeds],
            physicsClientId=self.client,
        )

    def step(self, velocities: Sequence[Sequence[float]]) -> None:
        """Drive the joints for one control period.

        Args:
            velocities: wanted joint speeds, one row of six per arm, rad/s.
        """
        for body, wanted in zip(self.bodies, velocities, strict=True):
            pybullet.setJointMotorControlArray(
                body,
                self.joints,
                pybullet.VELOCITY_CONTROL,
                targetVelocities=wanted,
                forces=self.effort,
                physicsClientId=self.client,
            )
        pybullet.stepSimulation(physicsClientId=self.client)

    def read(self) -> list[float]:
        """Return six joint angles [rad], then six joint speeds [rad/s], of every arm in turn."""
        values: list[float] = []
        for body in self.bodies:
            joint_states = pybullet.getJointStates(body, self.joints, physicsClientId=self.client)
            angles, speeds, _, _ = zip(*joint_states, strict=True)
            values += angles
            values += speeds
        return values

    def close(self) -> None:
        """End the client and free its memory."""
        pybullet.disconnect(self.client)


class Simulation:
    """All arms of a worker, kept within the limits of the data sheet.

    Args:
        robot: the arm.
        group_sizes: arms in each client.
        solver_iterations: of the constraint solver, per substep.
        window: whether to show the first client.
    """

    def __init__(
        self,
        robot: Robot,
        group_sizes: Sequence[int],
        solver_iterations: int,
        window: bool = False,
    ) -> None:
        self.groups = [
            ArmGroup(robot, size, solver_iterations, window and index == 0)
            for index, size in enumerate(group_sizes)
        ]
        self._arms = [(group, arm) for group in self.groups for arm in range(len(group.bodies))]
        num_arms = len(self._arms)
        self._shoulder = robot.shoulder
        self._lower, self._upper = robot.lower, robot.upper
        self._lowest_goal, self._highest_goal = (
            robot.lower + LIMIT_MARGIN,
            robot.upper - LIMIT_MARGIN,
        )
        self._farthest_step = robot.velocity * STEP_SECONDS
        # Angles and speeds that each joint may have after a step; the angles change every step.
        self._low = np.tile(np.stack((robot.lower, -robot.velocity)), (num_arms, 1, 1))
        self._high = np.tile(np.stack((robot.upper, robot.velocity)), (num_arms, 1, 1))

    def write(self, arms: Sequence[int], state: State, targets: NDArray[np.float32]) -> None:
        """Put arms into the states and show the targets in their rows.

        Args:
            arms: which ones.
            state: of all arms, `[num_arms, 2, 6]`.
            targets: of all arms, from the origin of joint 1, `[num_arms, 3]`, metres.
        """
        for index in arms:
            group, arm = self._arms[index]
            group.write(arm, *state[index].tolist())
            group.show_target(arm, (targets[index] + self._shoulder).tolist())

    def step(self, state: State, action: NDArray[np.float32]) -> None:
        """Move all arms for one control period.

        Where the solver lets a joint pass a limit (a hard contact can do so), the joint is put back
        to the limit: no state that leaves here is outside the data sheet.

        Args:
            state: joint angles and speeds `[num_arms, 2, 6]`, float64; overwritten.
            action: wanted joint speeds as shares of the top speeds, `[num_arms, 6]`; values
                outside -1 to 1 count as -1 or 1.
        """
        angles = state[:, 0].copy()
        share = np.minimum(np.maximum(action, -1), 1)
        goal = angles + share * (SPEED_SHARE * self._farthest_step)
        goal = np.minimum(np.maximum(goal, self._lowest_goal), self._highest_goal)
        velocities = ((goal - angles) * CONTROL_RATE).tolist()

        first, reached = 0, []
        for group in self.groups:
            last = first + len(group.bodies)
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
        """End all clients."""
        for group in self.groups:
            group.close()
