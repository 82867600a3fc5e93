"""Observations of arms and targets: 4 N + 12 numbers of order 1 per arm of N joints.

The code runs on numpy arrays or on tensors, by the functions that both have in common. The worker
processes of PyBullet encode the observations of their own arms in numpy and run without torch,
whose operations take three times as long on arrays this small.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.fanuc.robot import Robot

# Length scales [m] of direction and nearness, which vary most in the last centimetres.
DIRECTION_LENGTH = 0.05
NEARNESS_LENGTH = 0.05

# Tolerance for rounding in float32.
ROUNDING = 1e-5


class ArmEncoder:
    """Encodes joint states and targets as observations.

    Positions are in the frame of link 1, which has its origin at joint 1 and turns with it: they do
    not change when arm and target turn together. They are divided by the arm's reach. The elements
    of an observation of six joints and their bounds:

        0:6    joint angles, -1 at the lower and 1 at the upper limit   -1 to 1
        6:12   joint speeds, as fractions of the maximum speeds         -1 to 1
        12:17  sines of joints 2 to 6                                   -1 to 1
        17:22  cosines of joints 2 to 6                                 -1 to 1
        22:25  tool position                                            -1 to 1
        25:28  target position                                          -1 to 1
        28:31  error = target - tool                                    -2 to 2
        31:34  error / (distance + 0.05 m)                              -1 to 1
        34     exp(-distance / 0.05 m)                                   0 to 1
        35     turn of joint 1 that would face the target                -1 to 1

    With N joints, the first four entries have N, N, N - 1 and N - 1 elements.

    The last element distinguishes left from right for targets behind the arm, where the limits of
    joint 1 can block the shorter turn. It is divided by the longest possible turn.

    Args:
        robot: description of the arm.
        functions: module of the array functions, `numpy` or `torch`.
        **options: data type of the computation, and the device of tensors.
    """

    def __init__(self, robot: Robot, functions: Any = np, **options: Any) -> None:
        self._functions, self._options = functions, options
        self._centre = self._constant(
            np.concatenate(((robot.lower + robot.upper) / 2, np.zeros(robot.num_joints)))
        )
        self._scale = self._constant(
            np.concatenate(((robot.upper - robot.lower) / 2, robot.velocity))
        )
        self._pose_map = self._constant(robot.pose_map())
        self._tool = self._constant(np.append(robot.tool, 1.0)[:, None])
        self._reach = robot.reach
        # Forward and left directions of link 1, perpendicular to the axis of joint 1.
        axis = robot.axes[0]
        ahead = np.eye(3)[0] if abs(axis[0]) < 0.9 else np.eye(3)[1]
        left = np.cross(axis, ahead)
        self._ahead_left = self._constant(np.stack((np.cross(left, axis), left), 1))
        self._longest_turn = longest_turn(robot)
        self._size = observation_size(robot)

    def _constant(self, values: NDArray[np.float64]) -> Any:
        return self._functions.asarray(values, **self._options)

    def __call__(self, state: Any, target: Any) -> tuple[Any, Any]:
        """Return observations `[B, 4 N + 12]` and distances from tool to target `[B, 1]`, metres.

        Both are float32.

        Args:
            state: joint angles [rad] and speeds [rad/s], `[B, 2, N]`.
            target: target positions relative to joint 1 in the base frame, `[B, 3]`, metres.
        """
        xp, count, angles = self._functions, len(state), state[:, 0]
        results = {**self._options, "dtype": xp.float32}
        joints = angles.shape[1]
        features = xp.ones((count, 2 * joints + 1), **self._options)
        sines = xp.sin(angles, out=features[:, :joints])
        cosines = xp.cos(angles, out=features[:, joints:-1])
        poses = (features @ self._pose_map).reshape(count, joints, 4, 4)
        tool = self._tool
        for joint in range(joints - 1, 0, -1):  # from the wrist inwards, as far as link 1
            tool = poses[:, joint] @ tool
        tool = tool[:, :3, 0]
        # A row vector times a rotation is rotated by its inverse: base frame to frame of link 1.
        goal = (target[:, None] @ poses[:, 0, :3, :3])[:, 0]
        error = goal - tool
        distance = xp.asarray(xp.sqrt((error * error).sum(1, keepdims=True)), **results)

        observation = xp.empty((count, self._size), **results)
        turns, rest = 2 * joints, 4 * joints - 2
        observation[:, :turns] = (state.reshape(count, -1) - self._centre) / self._scale
        observation[:, turns : turns + joints - 1] = sines[:, 1:]
        observation[:, turns + joints - 1 : rest] = cosines[:, 1:]
        places = observation[:, rest:]
        places[:, :3] = tool
        places[:, 3:6] = goal
        places[:, 6:9] = error
        places[:, :9] /= self._reach
        places[:, 9:12] = error / (distance + DIRECTION_LENGTH)
        places[:, 12:13] = xp.exp(distance * (-1 / NEARNESS_LENGTH))
        ahead, left = (goal @ self._ahead_left).T
        facing = (angles[:, 0] + xp.arctan2(left, ahead) + np.pi) % (2 * np.pi) - np.pi
        places[:, 13] = (facing - angles[:, 0]) / self._longest_turn
        return observation, distance


def longest_turn(robot: Robot) -> float:
    """Return the longest turn of joint 1 that would face a target, in rad."""
    return float(np.pi + max(abs(robot.lower[0]), abs(robot.upper[0])))


def observation_size(robot: Robot) -> int:
    """Return the number of elements of an observation."""
    return 4 * robot.num_joints + 12


def observation_bounds(robot: Robot) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return lower and upper bounds of observations `[4 N + 12]`, with a tolerance of 1e-5."""
    high = np.ones(observation_size(robot), dtype=np.float32)
    high[-8:-5] = 2
    low = -high
    low[-2] = 0
    return low - np.float32(ROUNDING), high + np.float32(ROUNDING)
